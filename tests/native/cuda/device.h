// SPDX-License-Identifier: Apache-2.0
// One CUDA device captured from end to end, on the fake CUDA runtime.
#ifndef DMI_TESTS_NATIVE_CUDA_DEVICE_H_
#define DMI_TESTS_NATIVE_CUDA_DEVICE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch/queue.h"
#include "drain/drain.h"
#include "fake_cuda/control.h"
#include "program/atomics.h"
#include "program/device_table.h"
#include "program/kernels.h"
#include "ring/control.h"
#include "ring/cuda_ring.h"
#include "support/deadline.h"
#include "support/flow.h"
#include "support/payload.h"
#include "transfer/cuda_link.h"

namespace dmi::testing {

// A control block on a device, and who rules it.
class CudaDevice {
 public:
  CudaDevice()
      : control_(ring::MakeCudaControl(0, 7)),
        entry_(*program::DeviceTable::Get().Find(0)) {}

  ring::Control& control() { return *control_; }
  // Emulated devices have memory of the host.
  wire::ControlBlock& block() { return *entry_.block; }
  uint32_t most_blocks() const { return entry_.most_blocks; }
  uint64_t lost(wire::LossReason reason) const {
    return control_->Lost()[reason];
  }

 private:
  const std::unique_ptr<ring::Control> control_;
  program::DeviceEntry& entry_;
};

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

// Ring, link, drain and queue of one run.
class CudaCapture {
 public:
  CudaCapture(CudaDevice& device, const ring::RingOptions& ring,
              drain::DrainOptions drain = {})
      : device_(device),
        ring_(device.control().MakeRing(ring)),
        link_(std::make_shared<transfer::CudaLink>(0)),
        queue_(std::make_shared<batch::BatchQueue>()) {
    drain::DrainParts parts;
    parts.link = std::move(link_);
    parts.progress = &device.control().ProgressOf(*ring_);
    drain.staging_bytes = std::min<uint64_t>(drain.staging_bytes, 16u << 20);
    drain_ = std::make_unique<drain::Drain>(ring_, 7, drain, queue_,
                                            std::move(parts));
  }
  ~CudaCapture() { Stop(); }

  void Start() {
    drain_->Start();
    device_.control().Install(ring_);
  }
  void Stop() {
    device_.control().Uninstall(*ring_);
    drain_->Stop();
    queue_->Close();
  }
  // Everything recorded so far comes out, and is checked.
  void Finish(Checker& checker) {
    Stop();
    checker.Run(*queue_);
  }

  ring::CudaRing& ring() { return static_cast<ring::CudaRing&>(*ring_); }
  drain::Drain& drain() { return *drain_; }
  batch::BatchQueue& queue() { return *queue_; }

  // Sums over the sites that tests use.
  uint64_t recorded() const {
    uint64_t sum = 0;
    for (const auto& site : ring_->Counters(0, kSites)) sum += site.recorded;
    return sum;
  }
  uint64_t lost(wire::LossReason reason) const {
    uint64_t sum = 0;
    for (const auto& site : ring_->Counters(0, kSites)) {
      sum += site.lost[reason];
    }
    return sum;
  }
  // What went wrong, "" if nothing did.
  std::string failure() const {
    return ring_->failure() + drain_->failure().text();
  }

 private:
  static constexpr size_t kSites = 40;  // more than are fetched at once

  CudaDevice& device_;
  std::shared_ptr<ring::Ring> ring_;
  std::shared_ptr<transfer::CudaLink> link_;
  std::shared_ptr<batch::BatchQueue> queue_;
  std::unique_ptr<drain::Drain> drain_;
};

// Checks what comes out of a capture until it is closed.
class Consumer {
 public:
  explicit Consumer(CudaCapture& capture, uint64_t first_sequence = 0)
      : checker_(first_sequence),
        thread_([this, &queue = capture.queue()] { checker_.Run(queue); }) {}
  // The capture was stopped.
  Checker& Join() {
    thread_.join();
    return checker_;
  }

 private:
  Checker checker_;
  std::jthread thread_;
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
