// SPDX-License-Identifier: Apache-2.0
// Streams, events and devices of the fake CUDA runtime.
#include <cstring>

#include "fake_cuda/fixture.h"

namespace fake_cuda {
namespace {

class StreamsTest : public FakeCudaTest {};

struct Store {
  uint32_t* log;
  uint32_t value;
};
// Appends to a log that starts with its length.
__global__ void Append(Store a) { a.log[++a.log[0]] = a.value; }

TEST_F(StreamsTest, AStreamRunsInOrder) {
  const cudaStream_t stream = NewStream();
  auto* log = NewPinned<uint32_t>(101);
  log[0] = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_EQ(Launch(Append, 1, 1, stream, {log, i}), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(log[0], 100u);
  for (uint32_t i = 0; i < 100; ++i) ASSERT_EQ(log[i + 1], i);
  EXPECT_EQ(cudaFreeHost(log), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

__global__ void OpenGate(GateArguments a) { std::atomic_ref(*a.gate).store(1); }

TEST_F(StreamsTest, TwoStreamsRunAtOnce) {
  const cudaStream_t waits = NewStream();
  const cudaStream_t runs = NewStream();
  {
    Gate gate;
    ASSERT_EQ(Launch(WaitForGate, 1, 1, waits, gate.arguments()), cudaSuccess);
    gate.WaitUntilReached();
    EXPECT_EQ(cudaStreamQuery(waits), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(runs), cudaSuccess);
    EXPECT_EQ(cudaStreamQuery(runs), cudaSuccess);
    ASSERT_EQ(Launch(OpenGate, 1, 1, runs, gate.arguments()), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(waits), cudaSuccess);
    EXPECT_EQ(cudaStreamQuery(waits), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamDestroy(waits), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(runs), cudaSuccess);
}

TEST_F(StreamsTest, EventsOrderStreamsAndTakeTheTime) {
  const cudaStream_t first = NewStream();
  const cudaStream_t second = NewStream();
  const cudaEvent_t start = NewEvent();
  const cudaEvent_t end = NewEvent();
  auto* log = NewPinned<uint32_t>(3);
  log[0] = 0;
  {
    Gate gate;
    ASSERT_EQ(cudaEventQuery(end), cudaSuccess);  // never recorded
    ASSERT_EQ(cudaEventRecord(start, first), cudaSuccess);
    ASSERT_EQ(Launch(WaitForGate, 1, 1, first, gate.arguments()), cudaSuccess);
    ASSERT_EQ(Launch(Append, 1, 1, first, {log, 1}), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(end, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, end, 0), cudaSuccess);
    ASSERT_EQ(Launch(Append, 1, 1, second, {log, 2}), cudaSuccess);
    gate.WaitUntilReached();
    EXPECT_EQ(cudaEventQuery(start), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
    float ms;
    EXPECT_EQ(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gate.Open();
    ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
    ASSERT_EQ(cudaEventElapsedTime(&ms, start, end), cudaSuccess);
    EXPECT_GE(ms, 5);
    EXPECT_LT(ms, 10000);
    ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  }
  EXPECT_EQ(log[1], 1u);
  EXPECT_EQ(log[2], 2u);
  EXPECT_EQ(cudaFreeHost(log), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(first), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
}

TEST_F(StreamsTest, AnEventWithoutTimingHasNoTime) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent(cudaEventDisableTiming);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  float ms;
  EXPECT_EQ(cudaEventElapsedTime(&ms, event, event),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(StreamsTest, TheDefaultStreamsAreRefused) {
  for (const cudaStream_t stream :
       {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    EXPECT_EQ(Launch(Append, 1, 1, stream, {nullptr, 0}),
              cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  }
  EXPECT_EQ(TakeProblems().size(), 6u);
}

TEST_F(StreamsTest, ADestroyedStreamOrEventIsKnownAsSuch) {
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(TakeProblems().size(), 3u);
}

TEST_F(StreamsTest, DestroyingAStreamWithWorkPendingIsAProblem) {
  const cudaStream_t stream = NewStream();
  auto* log = NewPinned<uint32_t>(2);
  log[0] = 0;
  {
    Gate gate;
    ASSERT_EQ(Launch(WaitForGate, 1, 1, stream, gate.arguments()), cudaSuccess);
    ASSERT_EQ(Launch(Append, 1, 1, stream, {log, 7}), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(TakeProblems().size(), 1u);
    gate.Open();
  }  // waits for what is pending
  EXPECT_EQ(log[1], 7u);
  EXPECT_EQ(cudaFreeHost(log), cudaSuccess);
}

TEST_F(StreamsTest, EachThreadHasACurrentDevice) {
  SetDevices(2);
  int device = -1;
  ASSERT_EQ(cudaGetDeviceCount(&device), cudaSuccess);
  EXPECT_EQ(device, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::thread([] {
    int own = -1;
    EXPECT_EQ(cudaGetDevice(&own), cudaSuccess);
    EXPECT_EQ(own, 0);
  }).join();
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  const cudaStream_t stream = NewStream();
  const cudaEvent_t event = NewEvent();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const cudaEvent_t other = NewEvent();
  EXPECT_EQ(Launch(Append, 1, 1, stream, {nullptr, 0}),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(other, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(TakeProblems().size(), 2u);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(StreamsTest, WithoutDevicesEveryCallSaysSo) {
  SetDevices(0);
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 0);
  void* memory;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorNoDevice);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNoDevice),
               "no CUDA-capable device is detected");
}

TEST_F(StreamsTest, DevicesTellWhatTheyAre) {
  int value = -1;
  ASSERT_EQ(
      cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0),
      cudaSuccess);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(
      cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 1),
      cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrEccEnabled, 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(TakeProblems().size(), 1u);
  int least = -1, greatest = -1;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, 0);
  int driver = 0, runtime = 0;
  ASSERT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
  ASSERT_EQ(cudaRuntimeGetVersion(&runtime), cudaSuccess);
  EXPECT_EQ(runtime, CUDART_VERSION);
  EXPECT_GE(driver, runtime);
}

}  // namespace
}  // namespace fake_cuda
