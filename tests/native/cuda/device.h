// SPDX-License-Identifier: Apache-2.0
// Programs and captures on the CUDA runtime for tests.
#ifndef DMI_TESTS_NATIVE_CUDA_DEVICE_H_
#define DMI_TESTS_NATIVE_CUDA_DEVICE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/capture.h"
#include "fake_cuda/control.h"
#include "program/atomics.h"
#include "program/kernels.h"
#include "support/deadline.h"
#include "support/payload.h"

namespace dmi::testing {

// One execution of a record: its operands, which lie in memory of exactly their
// size, so that sanitizers see what is read beside them.
struct CudaRecord {
  CudaRecord(uint64_t producer, uint64_t index, uint64_t bytes,
             uint64_t misaligned = 0)
      : words{producer, index, bytes, ~index},
        step(static_cast<int64_t>(index)),
        layer(-static_cast<int64_t>(producer)) {
    site.site = 1000 + producer;
    site.layout = 2000 + producer;
    site.index = static_cast<uint32_t>(producer);
    std::vector<uint8_t> made;
    FillPayload(producer, index, bytes, made);
    memory.reset(new uint8_t[bytes + misaligned]);
    payload = memory.get() + misaligned;
    if (bytes > 0) std::memcpy(payload, made.data(), bytes);
  }
  // It becomes another record of the same size.
  void Refill(uint64_t producer, uint64_t index) {
    std::vector<uint8_t> made;
    FillPayload(producer, index, words[2], made);
    if (!made.empty()) std::memcpy(payload, made.data(), made.size());
    words[1] = index;
    words[3] = ~index;
    step = static_cast<int64_t>(index);
  }

  program::RecordArguments Arguments(CudaDevice& device) {
    program::RecordArguments call{};
    call.control = &device.block();
    call.site = site;
    call.payload = payload;
    call.bytes = words[2];
    call.scratch = scratch;
    const auto add = [&](const void* data, wire::DType dtype, char role) {
      call.labels.at[call.labels.count++] = {data, dtype, role, false};
    };
    add(&step, wire::DType::kS64, 's');
    add(&layer, wire::DType::kS64, 'l');
    for (uint32_t i = 0; i < wire::kMaxLabels; ++i) {
      add(&words[i], wire::DType::kU64, static_cast<char>('0' + i));
    }
    return call;
  }

  program::RecordSite site;
  uint64_t words[wire::kMaxLabels];
  int64_t step;
  int64_t layer;
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* payload;
  uint64_t scratch[program::kScratchWords];
};

// A program on a stream of its own. One thread.
class CudaProgram {
 public:
  explicit CudaProgram(CudaDevice& device) : device_(device) {
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0),
              cudaSuccess);
  }
  ~CudaProgram() {
    Wait();
    cudaStreamDestroy(stream_);
  }
  CudaProgram(const CudaProgram&) = delete;
  CudaProgram& operator=(const CudaProgram&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Enqueues a record.
  cudaError_t Record(uint64_t producer, uint64_t index, uint64_t bytes,
                     wire::ProgramKind kind = wire::kSingleDevice,
                     uint64_t misaligned = 0) {
    calls_.push_back(
        std::make_unique<CudaRecord>(producer, index, bytes, misaligned));
    calls_.back()->site.kind = kind;
    return Launch(*calls_.back());
  }
  cudaError_t Launch(CudaRecord& record) {
    return program::LaunchRecord(record.Arguments(device_),
                                 device_.most_blocks(), stream_);
  }
  cudaError_t Advance() {
    return program::LaunchAdvance({&device_.block(), nullptr, nullptr, 0},
                                  stream_);
  }
  cudaError_t Wait() {
    const cudaError_t error = cudaStreamSynchronize(stream_);
    // Where it failed, kernels may still read them.
    if (error == cudaSuccess) calls_.clear();
    return error;
  }

 private:
  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::unique_ptr<CudaRecord>> calls_;
};

// Starts with a fresh device 0; at the end nothing may be left of anything, and
// nothing may have been done wrong.
class CudaTest : public ::testing::Test {
 protected:
  CudaTest() {
    fake_cuda::Reset();
    device_.emplace();
  }
  ~CudaTest() override {
    EXPECT_EQ(fake_cuda::LoadedLate(), 0);
    device_.reset();
    program::DeviceTable::Get().Clear();
    EXPECT_EQ(fake_cuda::Problems(), std::vector<std::string>{});
    EXPECT_EQ(fake_cuda::Reset(), std::vector<std::string>{});
  }

  CudaDevice& device() { return *device_; }

  // One that records at once and keeps nothing waiting.
  static constexpr drain::DrainOptions kPrompt{.linger_nanos = 0};

 private:
  const Deadline deadline_{std::chrono::seconds(100)};
  std::optional<CudaDevice> device_;
};

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_CUDA_DEVICE_H_
