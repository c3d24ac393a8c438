// SPDX-License-Identifier: Apache-2.0
// What the tests of the fake CUDA runtime share.
#ifndef DMI_TESTS_NATIVE_FAKE_CUDA_FIXTURE_H_
#define DMI_TESTS_NATIVE_FAKE_CUDA_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fake_cuda/control.h"
#include "fake_cuda/launch.h"
#include "support/deadline.h"

namespace fake_cuda {

// Starts afresh; at the end nothing may be left, and nothing may have been done
// wrong but what the test took by TakeProblems().
class FakeCudaTest : public ::testing::Test {
 protected:
  FakeCudaTest() { Reset(); }
  ~FakeCudaTest() override {
    EXPECT_EQ(TakeProblems(), std::vector<std::string>{});
    EXPECT_EQ(Reset(), std::vector<std::string>{});
  }

  std::vector<std::string> TakeProblems() {
    const std::vector<std::string> all = Problems();
    const std::vector<std::string> fresh(all.begin() + taken_, all.end());
    taken_ = all.size();
    return fresh;
  }

  static cudaStream_t NewStream() {
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0),
              cudaSuccess);
    return stream;
  }
  static cudaEvent_t NewEvent(unsigned flags = cudaEventDefault) {
    cudaEvent_t event;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
    return event;
  }
  template <class T>
  static T* NewDevice(size_t count) {
    void* memory;
    EXPECT_EQ(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
    return static_cast<T*>(memory);
  }
  template <class T>
  static T* NewPinned(size_t count) {
    void* memory;
    EXPECT_EQ(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped),
              cudaSuccess);
    return static_cast<T*>(memory);
  }

 private:
  const dmi::testing::Deadline deadline_{std::chrono::seconds(60)};
  size_t taken_ = 0;
};

// A kernel that waits until `*gate` is not 0, and tells that it runs.
struct GateArguments {
  uint32_t* gate;
  uint32_t* running;
};
inline __global__ void WaitForGate(GateArguments a) {
  std::atomic_ref(*a.running).fetch_add(1);
  while (std::atomic_ref(*a.gate).load() == 0) NanoSleep(1000);
}

// The host's side of it, in pinned memory.
class Gate {
 public:
  Gate() {
    void* memory;
    EXPECT_EQ(cudaHostAlloc(&memory, 8, cudaHostAllocMapped), cudaSuccess);
    words_ = static_cast<uint32_t*>(memory);
    words_[0] = words_[1] = 0;
  }
  ~Gate() { cudaFreeHost(words_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  GateArguments arguments() const { return {words_, words_ + 1}; }
  void Open() { std::atomic_ref(words_[0]).store(1); }
  void WaitUntilReached() {
    while (std::atomic_ref(words_[1]).load() == 0) std::this_thread::yield();
  }

 private:
  uint32_t* words_;
};

}  // namespace fake_cuda

#endif  // DMI_TESTS_NATIVE_FAKE_CUDA_FIXTURE_H_
