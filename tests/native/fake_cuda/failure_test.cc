// SPDX-License-Identifier: Apache-2.0
// Failures that are ordered of the fake CUDA runtime.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "fake_cuda/fixture.h"

namespace fake_cuda {
namespace {

class FailureTest : public FakeCudaTest {};

struct ScaleArguments {
  uint32_t* words;
  uint32_t factor;
};
__global__ void Scale(ScaleArguments a) {
  a.words[threadIdx.x] *= a.factor;
  __syncthreads();
}

// A round through most of the runtime, which says the first error and leaves
// nothing behind, as code of the package must.
class Round {
 public:
  cudaError_t Do() {
    Open();
    Use();
    Close();
    return first_;
  }
  uint32_t result() const { return result_; }

 private:
  bool Ok(cudaError_t error) {
    if (first_ == cudaSuccess) first_ = error;
    return error == cudaSuccess;
  }
  void Open() {
    cudaFuncAttributes attributes;
    Ok(cudaFuncGetAttributes(&attributes,
                             reinterpret_cast<const void*>(&Scale)));
    Ok(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, -1));
    Ok(cudaEventCreateWithFlags(&event_, cudaEventDefault));
    Ok(cudaMalloc(reinterpret_cast<void**>(&device_), 16));
    Ok(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 16, 0));
    registered_ = Ok(cudaHostRegister(host_.data(), 16, 0));
  }
  void Use() {
    if (first_ != cudaSuccess) return;
    for (uint32_t i = 0; i < 4; ++i) host_[i] = i;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (!Ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed))) {
      return;
    }
    Ok(Launch(Scale, 1, 4, stream_, {device_, 5}));
    Ok(cudaStreamEndCapture(stream_, &graph));
    if (graph != nullptr) Ok(cudaGraphInstantiate(&exec, graph, 0));
    if (first_ == cudaSuccess) {
      Ok(cudaMemsetAsync(device_, 0, 16, stream_));
      Ok(cudaMemcpyAsync(device_, host_.data(), 16, cudaMemcpyHostToDevice,
                         stream_));
      Ok(Launch(Scale, 1, 4, stream_, {device_, 3}));
      Ok(cudaGraphLaunch(exec, stream_));
      Ok(cudaMemcpyAsync(pinned_, device_, 16, cudaMemcpyDeviceToHost,
                         stream_));
      Ok(cudaEventRecord(event_, stream_));
      Ok(cudaStreamWaitEvent(stream_, event_, 0));
      Ok(cudaEventSynchronize(event_));
    }
    if (exec != nullptr) Ok(cudaGraphExecDestroy(exec));
    if (graph != nullptr) Ok(cudaGraphDestroy(graph));
  }
  void Close() {
    // Even where it failed: nothing may use the memory any more.
    if (stream_ != nullptr && !Ok(cudaStreamSynchronize(stream_))) {
      cudaStreamSynchronize(stream_);
    }
    if (first_ == cudaSuccess) result_ = pinned_[3];
    if (registered_) Ok(cudaHostUnregister(host_.data()));
    if (pinned_ != nullptr) Ok(cudaFreeHost(pinned_));
    if (device_ != nullptr) Ok(cudaFree(device_));
    if (event_ != nullptr) Ok(cudaEventDestroy(event_));
    if (stream_ != nullptr) Ok(cudaStreamDestroy(stream_));
  }

  cudaError_t first_ = cudaSuccess;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  uint32_t* device_ = nullptr;
  uint32_t* pinned_ = nullptr;
  std::vector<uint32_t> host_ = std::vector<uint32_t>(4);
  bool registered_ = false;
  uint32_t result_ = 0;
};

TEST_F(FailureTest, EveryCallCanFail) {
  {
    Round round;
    ASSERT_EQ(round.Do(), cudaSuccess);
    ASSERT_EQ(round.result(), 45u);
  }
  const std::map<std::string, uint64_t> calls = Calls();
  EXPECT_EQ(calls.at("cudaMemcpyAsync"), 2u);
  EXPECT_EQ(calls.at("Launch"), 2u);
  EXPECT_EQ(calls.at("Run"), 8u);
  EXPECT_GE(calls.size(), 20u);
  for (const auto& [name, count] : calls) {
    for (uint64_t index = 0; index < count; ++index) {
      for (const bool sticky : {false, true}) {
        SCOPED_TRACE(name + " " + std::to_string(index) +
                     (sticky ? " sticky" : ""));
        Reset();
        Fail(name, index, cudaErrorIllegalAddress, sticky);
        Round round;
        EXPECT_EQ(round.Do(), cudaErrorIllegalAddress);
        EXPECT_EQ(Leaks(), std::vector<std::string>{});
        EXPECT_EQ(Problems(), std::vector<std::string>{});
        // Taken once where it passes; what broke the device stays.
        EXPECT_EQ(cudaPeekAtLastError(), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaGetLastError(), sticky || name == "Run"
                                          ? cudaErrorIllegalAddress
                                          : cudaSuccess);
      }
    }
  }
  Reset();
}

TEST_F(FailureTest, OneThatIsNotStickyPasses) {
  Fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  void* memory;
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(Calls("cudaMalloc"), 3u);
  EXPECT_EQ(Calls("cudaStreamQuery"), 0u);
}

// Waits for ever, in each of the ways a kernel may wait.
__global__ void WaitForEver(ScaleArguments a) {
  if (threadIdx.x == 0) {
    std::atomic_ref(a.words[0]).fetch_add(1);
    while (true) NanoSleep(1000);
  }
  if (threadIdx.x == 1) {
    while (DeviceNanos() != 0) {
    }
  }
  __syncthreads();
}

TEST_F(FailureTest, NobodyWaitsForADeviceThatBroke) {
  SetDevices(2);
  const cudaStream_t stream = NewStream();
  const cudaStream_t other = NewStream();
  const cudaEvent_t event = NewEvent();
  auto* words = NewPinned<uint32_t>(1);
  words[0] = 0;
  ASSERT_EQ(Launch(WaitForEver, 1, 4, stream, {words, 0}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  while (std::atomic_ref(words[0]).load() == 0) std::this_thread::yield();
  std::vector<std::thread> waiters;
  waiters.emplace_back([&] {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  });
  waiters.emplace_back([&] {
    EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorIllegalAddress);
  });
  waiters.emplace_back(
      [&] { EXPECT_EQ(cudaEventSynchronize(event), cudaErrorIllegalAddress); });
  Fail("cudaMemGetInfo", 0, cudaErrorIllegalAddress, true);
  size_t free, total;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaErrorIllegalAddress);
  for (std::thread& waiter : waiters) waiter.join();
  void* memory;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(Launch(Scale, 1, 1, stream, {words, 1}), cudaErrorIllegalAddress);
  // The other device works.
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorIllegalAddress);
  // What is given back is given back, and the error told.
  EXPECT_EQ(cudaFreeHost(words), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamDestroy(other), cudaErrorIllegalAddress);
}

TEST_F(FailureTest, ResetEndsWhatRuns) {
  const cudaStream_t stream = NewStream();
  auto* words = NewPinned<uint32_t>(1);
  words[0] = 0;
  ASSERT_EQ(Launch(WaitForEver, 2, 3, stream, {words, 0}), cudaSuccess);
  while (std::atomic_ref(words[0]).load() == 0) std::this_thread::yield();
  EXPECT_EQ(Reset().size(), 2u);
}

TEST_F(FailureTest, NothingWorksInAForkedChild) {
  const cudaStream_t stream = NewStream();
  const pid_t child = fork();
  if (child == 0) {
    _exit(cudaStreamSynchronize(stream) == cudaErrorInitializationError ? 0
                                                                        : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace fake_cuda
