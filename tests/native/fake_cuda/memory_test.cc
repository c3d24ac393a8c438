// SPDX-License-Identifier: Apache-2.0
// Memory and copies of the fake CUDA runtime.
#include <cstring>
#include <vector>

#include "fake_cuda/fixture.h"

namespace fake_cuda {
namespace {

class MemoryTest : public FakeCudaTest {
 protected:
  // Copies on a stream of its own and waits for it.
  cudaError_t CopyNow(void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind) {
    const cudaStream_t stream = NewStream();
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return error;
  }
};

TEST_F(MemoryTest, IsLimitedAndAccounted) {
  SetMemory(1 << 20);
  size_t free = 0, total = 0;
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(cudaMalloc(&first, 600 << 10), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_EQ(free, size_t{424} << 10);
  EXPECT_EQ(cudaMalloc(&second, 600 << 10), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&second, 600 << 10), cudaSuccess);
  EXPECT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST_F(MemoryTest, IsFilledBeforeItIsGivenOut) {
  auto* memory = NewDevice<uint8_t>(1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(memory[i], 0xA5);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(MemoryTest, CopiesGoEveryWay) {
  constexpr size_t kBytes = 700'001;
  auto* up = NewPinned<uint8_t>(kBytes);
  auto* down = NewPinned<uint8_t>(kBytes);
  auto* one = NewDevice<uint8_t>(kBytes);
  auto* two = NewDevice<uint8_t>(kBytes);
  for (size_t i = 0; i < kBytes; ++i) up[i] = static_cast<uint8_t>(i * 7);
  const cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaMemcpyAsync(one, up, kBytes, cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(two, one, kBytes, cudaMemcpyDeviceToDevice, stream),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(two, 9, 3, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(down, two, kBytes, cudaMemcpyDefault, stream),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(down[i], 9);
  EXPECT_EQ(std::memcmp(down + 3, up + 3, kBytes - 3), 0);
  EXPECT_EQ(cudaFreeHost(up), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(down), cudaSuccess);
  EXPECT_EQ(cudaFree(one), cudaSuccess);
  EXPECT_EQ(cudaFree(two), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(MemoryTest, CopiesMustBePinnedInRangeAndGoTheirWay) {
  auto* device = NewDevice<uint8_t>(100);
  auto* pinned = NewPinned<uint8_t>(100);
  std::vector<uint8_t> pageable(100);
  const auto refused = [&](void* to, const void* from, size_t bytes,
                           cudaMemcpyKind kind) {
    EXPECT_EQ(CopyNow(to, from, bytes, kind), cudaErrorInvalidValue);
    EXPECT_EQ(TakeProblems().size(), 1u);
  };
  refused(pageable.data(), device, 100, cudaMemcpyDeviceToHost);
  refused(device, pageable.data(), 100, cudaMemcpyHostToDevice);
  refused(device, pinned, 101, cudaMemcpyHostToDevice);
  refused(device + 1, pinned, 100, cudaMemcpyHostToDevice);
  refused(device - 1, pinned, 1, cudaMemcpyHostToDevice);
  refused(pinned, device, 100, cudaMemcpyHostToDevice);
  refused(pinned, pinned + 50, 50, cudaMemcpyDeviceToHost);
  const cudaStream_t stream = NewStream();
  EXPECT_EQ(cudaMemsetAsync(device, 0, 101, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(pageable.data(), 0, 1, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(TakeProblems().size(), 2u);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(MemoryTest, RegisteredMemoryIsPinned) {
  constexpr size_t kPage = 4096;
  constexpr size_t kBytes = 2 * kPage + 100;
  alignas(kPage) static uint8_t host[4 * kPage];
  auto* device = NewDevice<uint8_t>(kBytes);
  void* mapped = nullptr;
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, host, 0), cudaErrorInvalidValue);
  ASSERT_EQ(cudaHostRegister(host, kBytes, cudaHostRegisterMapped),
            cudaSuccess);
  // On a page with what is registered, and on the next one.
  EXPECT_EQ(cudaHostRegister(host + kBytes + 100, 16, 0),
            cudaErrorHostMemoryAlreadyRegistered);
  ASSERT_EQ(cudaHostRegister(host + 3 * kPage, 16, 0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host + 3 * kPage), cudaSuccess);
  ASSERT_EQ(cudaHostGetDevicePointer(&mapped, host + 5, 0), cudaSuccess);
  EXPECT_EQ(mapped, host + 5);
  EXPECT_EQ(CopyNow(host, device, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host[kBytes - 1], 0xA5);
  EXPECT_EQ(host[kBytes], 0);
  EXPECT_EQ(cudaHostUnregister(host), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(TakeProblems().size(), 1u);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST_F(MemoryTest, MemoryThatWasNotMappedHasNoDevicePointer) {
  std::vector<uint8_t> host(64);
  ASSERT_EQ(cudaHostRegister(host.data(), 64, cudaHostRegisterDefault),
            cudaSuccess);
  void* mapped = nullptr;
  EXPECT_EQ(cudaHostGetDevicePointer(&mapped, host.data(), 0),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
}

TEST_F(MemoryTest, AdoptedMemoryIsDeviceMemory) {
  std::vector<uint8_t> buffer(64);
  auto* pinned = NewPinned<uint8_t>(64);
  Adopt(buffer.data(), buffer.size());
  EXPECT_EQ(CopyNow(buffer.data(), pinned, 64, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(buffer[63], 0xA5);
  Disown(buffer.data());
  EXPECT_EQ(CopyNow(buffer.data(), pinned, 64, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(TakeProblems().size(), 1u);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(MemoryTest, FreeingUnknownMemoryIsAProblem) {
  uint8_t byte;
  auto* device = NewDevice<uint8_t>(16);
  EXPECT_EQ(cudaFree(&byte), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(TakeProblems().size(), 4u);
}

TEST_F(MemoryTest, FreeingWaitsForWorkThatIsPending) {
  const cudaStream_t stream = NewStream();
  auto* device = NewDevice<uint8_t>(16);
  Gate gate;
  ASSERT_EQ(Launch(WaitForGate, 1, 1, stream, gate.arguments()), cudaSuccess);
  gate.WaitUntilReached();
  std::atomic<bool> opened{false};
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    opened = true;
    gate.Open();
  });
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_TRUE(opened);
  opens.join();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(MemoryTest, UnregisteringUnderAPendingCopyIsAProblem) {
  const cudaStream_t stream = NewStream();
  std::vector<uint8_t> host(64);
  auto* device = NewDevice<uint8_t>(64);
  ASSERT_EQ(cudaHostRegister(host.data(), 64, 0), cudaSuccess);
  Gate gate;
  ASSERT_EQ(Launch(WaitForGate, 1, 1, stream, gate.arguments()), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), device, 64, cudaMemcpyDefault, stream),
            cudaSuccess);
  std::thread opens([&] {
    while (Problems().empty()) std::this_thread::yield();
    gate.Open();
  });
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  opens.join();
  EXPECT_EQ(TakeProblems().size(), 1u);
  EXPECT_EQ(host[0], 0xA5);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(MemoryTest, LeaksAreToldOneByOne) {
  const cudaStream_t stream = NewStream();
  NewEvent();
  auto* device = NewDevice<uint8_t>(16);
  std::vector<uint8_t> host(64);
  ASSERT_EQ(cudaHostRegister(host.data(), 64, 0), cudaSuccess);
  EXPECT_EQ(Leaks().size(), 4u);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(Reset(), (std::vector<std::string>{"64 bytes of registered memory",
                                               "an event"}));
  EXPECT_EQ(Leaks(), std::vector<std::string>{});
}

// Milliseconds that copies of 2 MB take, one on each of as many streams.
class BandwidthTest : public FakeCudaTest {
 protected:
  static constexpr size_t kBytes = 2'000'000;

  struct Lane {
    uint8_t* device = NewDevice<uint8_t>(kBytes);
    uint8_t* pinned = NewPinned<uint8_t>(kBytes);
    cudaStream_t stream = NewStream();
  };

  static float Time(int down, int up) {
    std::vector<Lane> lanes(down + up);
    const auto start = std::chrono::steady_clock::now();
    for (const Lane& lane : lanes) {
      const bool is_down = &lane - lanes.data() < down;
      EXPECT_EQ(cudaMemcpyAsync(is_down ? lane.pinned : lane.device,
                                is_down ? lane.device : lane.pinned, kBytes,
                                cudaMemcpyDefault, lane.stream),
                cudaSuccess);
    }
    for (const Lane& lane : lanes) {
      EXPECT_EQ(cudaStreamSynchronize(lane.stream), cudaSuccess);
    }
    const std::chrono::duration<float, std::milli> time =
        std::chrono::steady_clock::now() - start;
    for (const Lane& lane : lanes) {
      EXPECT_EQ(cudaStreamDestroy(lane.stream), cudaSuccess);
      EXPECT_EQ(cudaFree(lane.device), cudaSuccess);
      EXPECT_EQ(cudaFreeHost(lane.pinned), cudaSuccess);
    }
    return time.count();
  }
};

TEST_F(BandwidthTest, IsKeptWithinABroadBound) {
  SetBandwidth(10e6);
  const float ms = Time(1, 0);
  std::printf("2 MB at 10 MB/s: %.1f ms\n", ms);
  EXPECT_GE(ms, 200);
  EXPECT_LT(ms, 1500);
}

TEST_F(BandwidthTest, IsSharedByTheStreamsOfADirection) {
  SetBandwidth(10e6);
  const float both = Time(2, 0);
  std::printf("200 ms twice, one way: %.1f ms\n", both);
  EXPECT_GE(both, 400);
  EXPECT_LT(both, 3000);
}

TEST_F(BandwidthTest, IsThatOfEachDirection) {
  SetBandwidth(4e6);
  const float both = Time(1, 1);
  std::printf("500 ms each way at once: %.1f ms\n", both);
  EXPECT_GE(both, 500);
  EXPECT_LT(both, 950);
}

TEST_F(BandwidthTest, LatencyComesBeforeEachCopy) {
  SetBandwidth(0, std::chrono::milliseconds(25));
  EXPECT_GE(Time(1, 0), 25);
}

}  // namespace
}  // namespace fake_cuda
