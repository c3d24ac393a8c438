// SPDX-License-Identifier: Apache-2.0
// Capture and graphs of the fake CUDA runtime.
#include <cstring>

#include "fake_cuda/fixture.h"

namespace fake_cuda {
namespace {

struct AddArguments {
  uint32_t* word;
  uint32_t value;
};
__global__ void Add(AddArguments a) { *a.word += a.value; }

class CaptureTest : public FakeCudaTest {
 protected:
  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  cudaGraph_t End() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  // Does something during a capture by this thread, which that must end.
  template <class Forbidden>
  void ExpectForbidden(Forbidden forbidden) {
    Begin();
    EXPECT_EQ(forbidden(), cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status;
    EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(Launch(Add, 1, 1, stream_, {word_, 1}),
              cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_GE(TakeProblems().size(), 1u);
    // The stream is as before.
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  void SetUp() override {
    stream_ = NewStream();
    word_ = NewPinned<uint32_t>(1);
    *word_ = 0;
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(word_), cudaSuccess);
  }

  cudaStream_t stream_;
  uint32_t* word_;
};

TEST_F(CaptureTest, RecordsNodesAndReplaysThem64Times) {
  auto* device = NewDevice<uint32_t>(1);
  auto* other = NewPinned<uint32_t>(1);
  *other = 3;
  Begin();
  AddArguments a{word_, 2};
  ASSERT_EQ(Launch(Add, 1, 1, stream_, a), cudaSuccess);
  a.value = 1000;  // was copied
  ASSERT_EQ(cudaMemsetAsync(device, 0, 4, stream_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device, other, 4, cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  ASSERT_EQ(Launch(Add, 1, 1, stream_, {device, 4}), cudaSuccess);
  const cudaGraph_t graph = End();
  EXPECT_EQ(Nodes(graph), (std::vector{NodeKind::kKernel, NodeKind::kSet,
                                       NodeKind::kCopy, NodeKind::kKernel}));
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(*word_, 0u);  // nothing has run
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  // On two streams: an executable graph runs once at a time.
  const cudaStream_t second = NewStream();
  for (int i = 0; i < 64; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, i % 2 == 0 ? stream_ : second),
              cudaSuccess);
  }
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(*word_, 128u);
  EXPECT_EQ(*device, 7u);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
}

TEST_F(CaptureTest, CallsThatWaitOrAllocateInvalidateIt) {
  const cudaStream_t other = NewStream();
  const cudaEvent_t event = NewEvent();
  auto* device = NewDevice<uint32_t>(1);
  auto* pinned = NewPinned<uint32_t>(1);
  alignas(4096) static uint8_t page[4096];
  static uint8_t* const host = page;
  ASSERT_EQ(cudaHostRegister(host, 64, 0), cudaSuccess);
  void* memory;
  ExpectForbidden([&] { return cudaStreamSynchronize(stream_); });
  ExpectForbidden([&] { return cudaStreamSynchronize(other); });
  ExpectForbidden([&] { return cudaStreamQuery(other); });
  ExpectForbidden([&] { return cudaEventQuery(event); });
  ExpectForbidden([&] { return cudaEventSynchronize(event); });
  ExpectForbidden([&] { return cudaEventRecord(event, stream_); });
  ExpectForbidden([&] { return cudaStreamWaitEvent(stream_, event, 0); });
  ExpectForbidden([&] { return cudaMalloc(&memory, 16); });
  ExpectForbidden([&] { return cudaFree(device); });
  ExpectForbidden([&] { return cudaHostAlloc(&memory, 16, 0); });
  ExpectForbidden([&] { return cudaFreeHost(pinned); });
  ExpectForbidden([&] { return cudaHostRegister(page, 16, 0); });
  ExpectForbidden([&] { return cudaHostUnregister(host); });
  ExpectForbidden([&] { return Launch(Add, 1, 1, nullptr, {word_, 1}); });
  EXPECT_EQ(*word_, 0u);
  // What was refused was not done.
  EXPECT_EQ(cudaHostUnregister(host), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(CaptureTest, ARelaxedThreadMayAllocate) {
  Begin();
  void* memory = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  ASSERT_EQ(cudaGraphDestroy(End()), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(CaptureTest, OtherThreadsAreBoundByAGlobalOneOnly) {
  const auto allocate_elsewhere = [] {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      void* memory;
      error = cudaMalloc(&memory, 16);
      if (error == cudaSuccess) cudaFree(memory);
    }).join();
    return error;
  };
  Begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate_elsewhere(), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(End()), cudaSuccess);
  Begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(TakeProblems().size(), 1u);
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
            cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureTest, IsEndedOnceByItsThread) {
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState);
  Begin();
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            cudaErrorIllegalState);
  std::thread([&] {
    cudaGraph_t none;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &none),
              cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
            cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace fake_cuda
