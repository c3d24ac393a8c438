// SPDX-License-Identifier: Apache-2.0
// The clock of a device against the host's.
#include "base/clock.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/device.h"
#include "fake_cuda/launch.h"

namespace dmi::testing {
namespace {

class CudaClockTest : public CudaTest {
 protected:
  // By how much the ring is wrong about a moment, at least.
  static int64_t Error(ring::CudaRing& ring) {
    const int64_t before = base::MonotonicNanos();
    const auto device = static_cast<int64_t>(fake_cuda::DeviceNanos());
    const int64_t after = base::MonotonicNanos();
    const int64_t host = ring.HostNanos(device + ring.header().clock_offset);
    return std::max({int64_t{0}, before - host, host - after});
  }
  static void Wait(int64_t nanos, const std::function<void()>& meanwhile) {
    const int64_t begin = base::MonotonicNanos();
    while (base::MonotonicNanos() - begin < nanos) meanwhile();
  }
};

TEST_F(CudaClockTest, ARingStartsWithItsDevicesClock) {
  fake_cuda::SetTimer(12345 * kSecond, 0, 1000);
  CudaCapture capture(device(), {.bytes = 4096, .slots = 16});
  const ring::ClockState state = capture.ring().clock();
  EXPECT_EQ(state.step % 1000, 0);
  EXPECT_GT(state.step, 0);
  EXPECT_EQ(state.drift, 0);
  EXPECT_GT(state.error, 0);
  EXPECT_LT(Error(capture.ring()), state.error + 1000);
}

// The drain reads the clock again; without that, drift alone would make it
// wrong by milliseconds.
TEST_F(CudaClockTest, ADriftIsFollowedWhileACaptureRuns) {
  fake_cuda::SetTimer(-(int64_t{1} << 40), 9e-4, 32);
  CudaCapture capture(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  capture.Start();
  ring::CudaRing& ring = capture.ring();
  while (ring.clock().drift == 0) std::this_thread::yield();
  EXPECT_NEAR(ring.clock().drift, -9e-4, 1e-4);
  int64_t checked = 0;
  Wait(2 * kSecond, [&] {
    // A reading taken within a second, and a slope over at least one, from
    // readings that are not much wider than the first.
    ASSERT_LE(Error(ring), 6 * ring.clock().error + 1000);
    ++checked;
    std::this_thread::yield();
  });
  EXPECT_GT(checked, 10);
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  const int64_t utc = base::UtcNanos();
  auto batches = capture.queue().Pop(1, kForever);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_NEAR(batches[0]->columns().time[0], utc, 50.0 * kMillisecond);
  batches.clear();
  capture.Stop();
  // Transfers are told in the time of the host.
  const auto transfers = capture.drain().transfers().Read();
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_NEAR(transfers[0].end_ns, utc, 50.0 * kMillisecond);
}

TEST_F(CudaClockTest, ABusyDeviceHoldsNobodyUp) {
  const auto made = device().control().MakeRing({.bytes = 4096, .slots = 16});
  auto& ring = static_cast<ring::CudaRing&>(*made);
  const ring::ClockState before = ring.clock();
  Wait(kSecond, [] { std::this_thread::yield(); });
  // A copy that takes long stands before the clock's kernel.
  constexpr int64_t kBusy = 2 * kSecond;
  fake_cuda::SetBandwidth(0, std::chrono::nanoseconds(kBusy));
  const uint64_t copies = fake_cuda::Calls("cudaMemcpyAsync");
  const int64_t begin = base::MonotonicNanos();
  std::jthread reader([&] { ring.Head(); });
  while (fake_cuda::Calls("cudaMemcpyAsync") == copies) {
    std::this_thread::yield();
  }
  const uint64_t launches = fake_cuda::Calls("Launch");
  ring.Tick();
  EXPECT_EQ(fake_cuda::Calls("Launch"), launches + 1);
  ring.HostNanos(0);
  EXPECT_LT(base::MonotonicNanos() - begin, kBusy / 2);
  // Due again, and still no answer: it does not ask twice.
  Wait(kSecond, [] { std::this_thread::yield(); });
  ring.Tick();
  EXPECT_EQ(fake_cuda::Calls("Launch"), launches + 1);
  EXPECT_EQ(ring.clock().error, before.error);
  reader.join();
  EXPECT_GE(base::MonotonicNanos() - begin, kBusy);
  fake_cuda::SetBandwidth(0);
  // An answer that came late says nothing; the next one does.
  Wait(kSecond, [] { std::this_thread::yield(); });
  ring.Tick();
  EXPECT_EQ(fake_cuda::Calls("Launch"), launches + 2);
  EXPECT_LT(Error(ring), kMillisecond);
}

}  // namespace
}  // namespace dmi::testing
