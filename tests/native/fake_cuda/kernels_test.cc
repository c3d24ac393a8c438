// SPDX-License-Identifier: Apache-2.0
// Kernels on the fake CUDA runtime: threads, barriers, shared memory, timer.
#include <algorithm>
#include <vector>

#include "fake_cuda/fixture.h"

namespace fake_cuda {
namespace {

class KernelsTest : public FakeCudaTest {};

struct SumArguments {
  const uint32_t* values;
  uint32_t count;
  uint32_t* partial;
  uint32_t* arrived;
  uint32_t* total;
};

// Sums per block, through shared memory; the last block adds the sums up.
__global__ void __launch_bounds__(64) Sum(SumArguments a) {
  struct Sums {
    uint32_t of[64];
  };
  DMI_SHARED(Sums, sums);
  DMI_SHARED(bool, last);
  uint32_t mine = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count;
       i += gridDim.x * blockDim.x) {
    mine += a.values[i];
  }
  sums.of[threadIdx.x] = mine;
  __syncthreads();
  for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums.of[threadIdx.x] += sums.of[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    a.partial[blockIdx.x] = sums.of[0];
    last = std::atomic_ref(*a.arrived).fetch_add(1) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  *a.total = 0;
  for (uint32_t block = 0; block < gridDim.x; ++block) {
    *a.total += a.partial[block];
  }
}

TEST_F(KernelsTest, BlocksSumAndTheLastOneAddsUp) {
  constexpr uint32_t kCount = 1000;
  const cudaStream_t stream = NewStream();
  auto* values = NewPinned<uint32_t>(kCount);
  auto* out = NewPinned<uint32_t>(6);
  for (uint32_t i = 0; i < kCount; ++i) values[i] = i * i;
  for (int round = 0; round < 20; ++round) {
    std::fill(out, out + 6, 0);
    const SumArguments a{values, kCount, out, out + 4, out + 5};
    ASSERT_EQ(Launch(Sum, 4, 8, stream, a), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    uint32_t expected = 0;
    for (uint32_t i = 0; i < kCount; ++i) expected += i * i;
    ASSERT_EQ(out[5], expected);
  }
  EXPECT_EQ(cudaFreeHost(values), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(out), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Every thread must see, after a barrier, what all others wrote before it.
struct TurnArguments {
  uint32_t* words;
  uint32_t rounds;
  uint32_t* wrong;
};
__global__ void TakeTurns(TurnArguments a) {
  for (uint32_t round = 0; round < a.rounds; ++round) {
    a.words[threadIdx.x] = round;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x; ++i) {
      if (a.words[i] != round) std::atomic_ref(*a.wrong).fetch_add(1);
    }
    __syncthreads();
  }
}

TEST_F(KernelsTest, ABarrierOrdersPlainWrites) {
  const cudaStream_t stream = NewStream();
  auto* words = NewPinned<uint32_t>(17);
  words[16] = 0;
  const TurnArguments a{words, 50, words + 16};
  ASSERT_EQ(Launch(TakeTurns, 1, 16, stream, a), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(words[16], 0u);
  EXPECT_EQ(cudaFreeHost(words), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

struct OneWord {
  uint32_t* word;
};
// Odd threads leave before the barrier.
__global__ void LeaveEarly(OneWord a) {
  if (threadIdx.x % 2 == 1) return;
  __syncthreads();
  std::atomic_ref(*a.word).fetch_add(1);
}

TEST_F(KernelsTest, ABarrierDoesNotWaitForThreadsThatReturned) {
  const cudaStream_t stream = NewStream();
  auto* word = NewPinned<uint32_t>(1);
  *word = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(Launch(LeaveEarly, 2, 8, stream, {word}), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*word, 50u * 2 * 4);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// All threads of the grid must run for one to return.
__global__ void MeetAll(OneWord a) {
  std::atomic_ref(*a.word).fetch_add(1);
  while (std::atomic_ref(*a.word).load() % (gridDim.x * blockDim.x) != 0) {
    NanoSleep(1000);
  }
}

TEST_F(KernelsTest, AllThreadsOfALaunchRunAtOnce) {
  const cudaStream_t stream = NewStream();
  auto* word = NewPinned<uint32_t>(1);
  *word = 0;
  ASSERT_EQ(Launch(MeetAll, 8, 16, stream, {word}), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*word, 128u);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

__global__ void ReadShared(OneWord a) {
  DMI_SHARED(uint32_t, value);
  a.word[blockIdx.x] = value;
  value = blockIdx.x;
}

TEST_F(KernelsTest, SharedMemoryIsFilledAnewForEachBlock) {
  const cudaStream_t stream = NewStream();
  auto* words = NewPinned<uint32_t>(3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Launch(ReadShared, 3, 1, stream, {words}), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    for (int block = 0; block < 3; ++block) ASSERT_EQ(words[block], 0xA5A5A5A5);
  }
  EXPECT_EQ(cudaFreeHost(words), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

__global__ void Nothing(OneWord) {}

TEST_F(KernelsTest, ALaunchIsCheap) {
  const cudaStream_t stream = NewStream();
  std::vector<double> micros;
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(Launch(Nothing, 1, 4, stream, {nullptr}), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    micros.push_back(std::chrono::duration<double, std::micro>(
                         std::chrono::steady_clock::now() - start)
                         .count());
  }
  std::sort(micros.begin(), micros.end());
  std::printf("1 block of 4 threads: median %.1f us, fastest %.1f us\n",
              micros[150], micros[0]);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(micros[0], 100);
#endif
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(KernelsTest, KernelsThatWereNotLoadedAreCounted) {
  const cudaStream_t stream = NewStream();
  cudaFuncAttributes attributes;
  ASSERT_EQ(cudaFuncGetAttributes(&attributes,
                                  reinterpret_cast<const void*>(&Nothing)),
            cudaSuccess);
  EXPECT_EQ(attributes.binaryVersion, 90);
  ASSERT_EQ(Launch(Nothing, 1, 1, stream, {nullptr}), cudaSuccess);
  EXPECT_EQ(LoadedLate(), 0);
  auto* word = NewPinned<uint32_t>(1);
  *word = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Launch(MeetAll, 1, 1, stream, {word}), cudaSuccess);
    EXPECT_EQ(LoadedLate(), 1);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(word), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(KernelsTest, LaunchesWithNoOrTooManyThreadsAreRefused) {
  const cudaStream_t stream = NewStream();
  EXPECT_EQ(Launch(Nothing, 0, 1, stream, {nullptr}),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, 1, 0, stream, {nullptr}),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, 1, 1025, stream, {nullptr}),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(Nothing, kMostThreads, 2, stream, {nullptr}),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(TakeProblems().size(), 4u);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(KernelsTest, TheTimerHasAnOffsetADriftAndAStep) {
  const auto host = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  constexpr int64_t kSecond = 1'000'000'000;
  SetTimer(7 * kSecond, 0.5, 1000);
  const int64_t before = host();
  const auto device = static_cast<int64_t>(DeviceNanos());
  const int64_t after = host();
  EXPECT_EQ(device % 1000, 0);
  EXPECT_GE(device, before + before / 2 + 7 * kSecond - 2000);
  EXPECT_LE(device, after + after / 2 + 7 * kSecond + 2000);
}

}  // namespace
}  // namespace fake_cuda
