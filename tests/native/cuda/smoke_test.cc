// SPDX-License-Identifier: Apache-2.0
// What a device must be able to do: runs on a GPU, also under
// compute-sanitizer, and on the CUDA runtime for tests.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/cuda.h"
#include "cuda/capture.h"
#include "program/kernels.h"
#include "support/deadline.h"
#include "support/payload.h"

namespace dmi::testing {
namespace {

constexpr int kOrdinal = 0;
constexpr drain::DrainOptions kPrompt{.linger_nanos = 0};

// Pinned memory of the host, which kernels read in place.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t count) {
    base::CheckCuda(
        cudaHostAlloc(reinterpret_cast<void**>(&data_), count * sizeof(T),
                      cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
  }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// A record whose operands lie on the device, as those of a program do.
class Operands {
 public:
  Operands(uint64_t producer, uint64_t bytes, uint64_t misaligned,
           const base::CudaStream& stream)
      : producer_(producer),
        bytes_(bytes),
        misaligned_(misaligned),
        made_(bytes + 1),
        labels_(2 + wire::kMaxLabels),
        on_device_(bytes + misaligned + 1, stream, "a value"),
        scratch_(program::kScratchWords * sizeof(uint64_t), stream, "scratch") {
    stream.Wait();
  }

  // Its value and its labels become those of `index`. The device must be idle.
  void Fill(uint64_t index, const base::CudaStream& stream) {
    std::vector<uint8_t> made;
    FillPayload(producer_, index, bytes_, made);
    if (bytes_ > 0) {
      std::memcpy(made_.data(), made.data(), bytes_);
      base::CheckCuda(cudaMemcpyAsync(payload(), made_.data(), bytes_,
                                      cudaMemcpyHostToDevice, stream.get()),
                      "cudaMemcpyAsync");
    }
    const uint64_t words[] = {producer_, index, bytes_, ~index};
    std::memcpy(labels_.data(), words, sizeof words);
    labels_.data()[4] = index;
    labels_.data()[5] = ~producer_ + 1;
    stream.Wait();
  }

  cudaError_t Launch(const program::DeviceEntry& device, cudaStream_t stream) {
    program::RecordArguments call{};
    call.control = device.block;
    call.site.site = 1000 + producer_;
    call.site.layout = 2000 + producer_;
    call.site.index = static_cast<uint32_t>(producer_);
    call.payload = payload();
    call.bytes = bytes_;
    call.scratch = scratch_.as<uint64_t>();
    const auto add = [&](int at, wire::DType dtype, char role) {
      call.labels.at[call.labels.count++] = {labels_.data() + at, dtype, role,
                                             false};
    };
    add(4, wire::DType::kS64, 's');
    add(5, wire::DType::kS64, 'l');
    for (int i = 0; i < static_cast<int>(wire::kMaxLabels); ++i) {
      add(i, wire::DType::kU64, static_cast<char>('0' + i));
    }
    return program::LaunchRecord(call, device.most_blocks, stream);
  }

 private:
  uint8_t* payload() const { return on_device_.as<uint8_t>() + misaligned_; }

  const uint64_t producer_;
  const uint64_t bytes_;
  const uint64_t misaligned_;
  const PinnedArray<uint8_t> made_;
  const PinnedArray<uint64_t> labels_;
  const base::DeviceMemory on_device_;
  const base::DeviceMemory scratch_;
};

class CudaSmokeTest : public ::testing::Test {
 protected:
  const program::DeviceEntry& entry() {
    return *program::DeviceTable::Get().Find(kOrdinal);
  }

  const Deadline deadline_{std::chrono::seconds(100)};
  CudaDevice device_;
  const base::OnDevice here_{kOrdinal};
  const base::CudaStream stream_;
};

TEST_F(CudaSmokeTest, EverySizeAndAlignmentComesOutWhole) {
  CudaCapture capture(device_, {.bytes = 8u << 20, .slots = 64}, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  uint64_t producer = 0;
  constexpr uint64_t kOneBlock = 64 * 1024;
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{1000}, kOneBlock,
        kOneBlock + 1, uint64_t{1'000'003}}) {
    for (const uint64_t misaligned : {0, 8, 4, 1}) {
      Operands operands(producer++, bytes, misaligned, stream_);
      for (uint64_t i = 0; i < 3; ++i) {
        operands.Fill(i, stream_);
        ASSERT_EQ(operands.Launch(entry(), stream_.get()), cudaSuccess);
        stream_.Wait();
      }
    }
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), producer * 3);
  EXPECT_EQ(capture.failure(), "");
}

TEST_F(CudaSmokeTest, ACapturedGraphRunsWithEveryRing) {
  Operands small(0, 100, 0, stream_);
  Operands large(1, 200'000, 0, stream_);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(
      cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
      cudaSuccess);
  ASSERT_EQ(small.Launch(entry(), stream_.get()), cudaSuccess);
  ASSERT_EQ(large.Launch(entry(), stream_.get()), cudaSuccess);
  ASSERT_EQ(program::LaunchAdvance({entry().block, nullptr, nullptr, 0},
                                   stream_.get()),
            cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int ring = 0; ring < 2; ++ring) {
    CudaCapture capture(device_, {.bytes = 1u << 20, .slots = 16}, kPrompt);
    capture.Start();
    Consumer consumer(capture);
    for (uint64_t i = 0; i < 64; ++i) {
      small.Fill(i, stream_);
      large.Fill(i, stream_);
      ASSERT_EQ(cudaGraphLaunch(executable, stream_.get()), cudaSuccess);
      stream_.Wait();
    }
    EXPECT_EQ(capture.ring().mirror().progress, 64u);
    EXPECT_EQ(capture.ring().header().boundary_count, 64u);
    capture.Stop();
    EXPECT_EQ(consumer.Join().records(), 2u * 64);
    EXPECT_EQ(capture.failure(), "");
    const uint64_t lost = device_.lost(wire::kLostClosed);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_.get()), cudaSuccess);
    stream_.Wait();
    EXPECT_EQ(device_.lost(wire::kLostClosed), lost + 2);
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// Two streams record at once into a ring that is full most of the time.
TEST_F(CudaSmokeTest, AFullRingHoldsStreamsBackAndLosesNothing) {
  const base::CudaStream other;
  const base::CudaStream* const streams[] = {&stream_, &other};
  CudaCapture capture(
      device_, {.bytes = 1024, .slots = 4, .stall_nanos = kForever}, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  std::vector<std::unique_ptr<Operands>> all;
  for (uint64_t producer = 0; producer < 2; ++producer) {
    for (uint64_t i = 0; i < 100; ++i) {
      all.push_back(
          std::make_unique<Operands>(producer, 400, 0, *streams[producer]));
      all.back()->Fill(i, *streams[producer]);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i]->Launch(entry(), streams[i / 100]->get()), cudaSuccess);
  }
  for (const base::CudaStream* stream : streams) stream->Wait();
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 200u);
  EXPECT_EQ(capture.failure(), "");
}

TEST_F(CudaSmokeTest, AFullRingDropsAndCounts) {
  CudaCapture capture(device_,
                      {.bytes = 1024,
                       .slots = 4,
                       .overflow = wire::Overflow::kDrop,
                       .stall_nanos = kForever},
                      {.linger_nanos = kForever});
  Operands operands(0, 400, 0, stream_);
  // Nobody takes anything out before the end.
  capture.drain().Pause();
  capture.Start();
  Consumer consumer(capture);
  for (uint64_t i = 0; i < 10; ++i) {
    operands.Fill(i, stream_);
    ASSERT_EQ(operands.Launch(entry(), stream_.get()), cudaSuccess);
    stream_.Wait();
  }
  EXPECT_EQ(capture.recorded(), 2u);
  EXPECT_EQ(capture.lost(wire::kLostOverflow), 8u);
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 2u);
}

}  // namespace
}  // namespace dmi::testing
