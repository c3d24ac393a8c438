// SPDX-License-Identifier: Apache-2.0
// Transfers keep to windows, and every record still comes out once, byte for
// byte.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "support/deadline.h"
#include "support/simulation.h"

namespace dmi::drain {
namespace {

using dmi::testing::Deadline;
using dmi::testing::kMicrosecond;
using dmi::testing::kMillisecond;
using dmi::testing::kSecond;
using dmi::testing::Measure;
using dmi::testing::Overlap;
using dmi::testing::Simulation;
using dmi::testing::SimulationOptions;
using windows::Mode;
using windows::WindowPattern;

// A short and a long window in a period of four boundaries.
const WindowPattern& TwoWindows() {
  static const WindowPattern pattern(4, {{1, 2}, {3, 4}});
  return pattern;
}
int64_t TwoWindowsSchedule(uint64_t counter) {
  constexpr int64_t kLengths[] = {10, 3, 10, 12};
  return kLengths[counter % 4] * kMillisecond;
}

constexpr double kRate = 2e7;  // bytes per second

SimulationOptions Options(
    std::function<int64_t(uint64_t)> schedule = TwoWindowsSchedule) {
  SimulationOptions options;
  options.schedule = std::move(schedule);
  options.link.bytes_per_second = kRate;
  options.ring.bytes = 2u << 20;
  options.record_bytes = 4u << 10;
  return options;
}

class WindowsTest : public ::testing::Test {
 protected:
  const Deadline deadline_{std::chrono::seconds(100)};
};

TEST_F(WindowsTest, TransfersKeepOutOfCriticalRegions) {
  SimulationOptions options = Options();
  SimulationOptions ordinary = Options();
  ordinary.windows.reset();
  Simulation batching(ordinary);
  batching.RunTo(400);
  batching.Finish();
  const Overlap before = Measure(batching, TwoWindows());

  Simulation confined(options);
  confined.Install(1, TwoWindows());
  confined.RunTo(40);
  const int64_t learned = confined.now();
  confined.RunTo(400);
  const Overlap after = Measure(confined, TwoWindows());
  confined.Finish();
  ASSERT_GT(before.critical, 0);
  EXPECT_LE(static_cast<double>(after.critical) / before.critical, 0.01);
  const Overlap steady = Measure(confined, TwoWindows(), learned);
  EXPECT_GE(steady.bytes / (steady.windows * 1e-9 * kRate), 0.85);
  EXPECT_EQ(confined.controller().mode(), Mode::kActive);
}

TEST_F(WindowsTest, ARecordMovesOverSeveralWindows) {
  SimulationOptions options = Options();
  options.record_bytes = 600u << 10;  // 30 ms of the link
  Simulation simulation(options);
  simulation.Install(1, TwoWindows());
  simulation.RunTo(100);
  for (const Transfer& transfer : simulation.Transfers()) {
    EXPECT_EQ(transfer.kind, TransferKind::kWindow);
  }
  EXPECT_LE(Measure(simulation, TwoWindows()).critical, 2 * kMillisecond);
  simulation.Finish();
}

// The ring is smaller than what one period records: it has to be emptied
// outside windows, again and again, until batching takes over for a while.
TEST_F(WindowsTest, AFullRingForcesTransfersAndFallsBackForAWhile) {
  for (const int depth : {1, 2}) {
    SimulationOptions options = Options();
    options.link.depth = depth;
    options.drain.batch_bytes = 16u << 10;
    options.ring.overflow = wire::Overflow::kDrop;  // nobody else could wait
    options.ring.bytes = 128u << 10;
    options.windows->capacity_flush_count_reset_interval = 4;
    Simulation simulation(options);
    simulation.Install(1, TwoWindows());
    while (simulation.controller().mode() != Mode::kFallback) {
      ASSERT_LT(simulation.boundaries().size(), 100u);
      simulation.RunTo(simulation.boundaries().size());
    }
    simulation.set_backlog(false);
    simulation.RunTo(simulation.boundaries().size() + 100);
    EXPECT_EQ(simulation.controller().mode(), Mode::kActive);
    simulation.Finish();
  }
}

// A window has the link to itself, and forced transfers do not.
TEST_F(WindowsTest, AWindowNeverHasTwoTransfersUnderWay) {
  SimulationOptions options = Options();
  options.link.depth = 2;
  options.drain.batch_bytes = 16u << 10;
  options.windows->chunk_bytes = 16u << 10;
  options.ring.bytes = 128u << 10;
  options.windows->max_age_nanos = 20 * kMillisecond;
  Simulation simulation(options);
  simulation.Install(1, TwoWindows());
  // Also where somebody flushes while one is under way.
  for (uint64_t boundary = 1; boundary <= 100; ++boundary) {
    simulation.RunTo(boundary);
    simulation.RunFor(60 * kMicrosecond);
    simulation.drain().Seal(0);
  }
  simulation.RunTo(400);
  const auto transfers = simulation.Transfers();
  uint64_t granted = 0;
  uint64_t together = 0;
  for (size_t i = 1; i < transfers.size(); ++i) {
    const Transfer& before = transfers[i - 1];
    const Transfer& after = transfers[i];
    ASSERT_LE(before.begin_ns, after.begin_ns);
    ASSERT_LE(before.end_ns, after.end_ns);
    const bool window = before.kind == TransferKind::kWindow ||
                        after.kind == TransferKind::kWindow;
    granted += window;
    if (before.end_ns <= after.begin_ns) continue;
    ++together;
    ASSERT_FALSE(window) << i;
    ASSERT_TRUE(i == 1 || transfers[i - 2].end_ns <= after.begin_ns) << i;
  }
  EXPECT_GT(granted, 100u);
  EXPECT_GT(together, 100u);
  simulation.Finish();
}

// Batching keeps the link busy all the time until a pattern comes.
TEST_F(WindowsTest, APatternIsSeenAmongTransfersUnderWay) {
  SimulationOptions options = Options();
  options.link.depth = 2;
  options.drain.batch_bytes = 16u << 10;
  Simulation simulation(options);
  simulation.RunTo(20);
  ASSERT_GT(simulation.Transfers().size(), 20u);
  EXPECT_EQ(simulation.controller().mode(), Mode::kNoPattern);
  simulation.Install(1, TwoWindows());
  simulation.RunTo(40);
  EXPECT_EQ(simulation.controller().mode(), Mode::kActive);
  EXPECT_EQ(simulation.Transfers().back().kind, TransferKind::kWindow);
  simulation.Finish();
}

TEST_F(WindowsTest, NothingStaysLongerThanItsAge) {
  SimulationOptions options =
      Options([](uint64_t) { return 100 * kMillisecond; });
  options.windows->max_age_nanos = 250 * kMillisecond;
  Simulation simulation(options);
  simulation.Install(1, WindowPattern(100, {{99, 100}}));
  simulation.set_backlog(false);
  simulation.Record(1000);
  const int64_t begin = simulation.now();
  simulation.RunTo(10);
  const auto transfers = simulation.Transfers();
  ASSERT_EQ(transfers.size(), 1u);
  EXPECT_EQ(transfers[0].kind, TransferKind::kForced);
  EXPECT_NEAR(transfers[0].begin_ns - begin, 250 * kMillisecond,
              21 * kMillisecond);
  simulation.Finish();
}

TEST_F(WindowsTest, BoundariesThatStopEndTheWaiting) {
  SimulationOptions options = Options();
  options.windows->watchdog_nanos = kSecond;
  Simulation simulation(options);
  simulation.Install(1, TwoWindows());
  simulation.RunTo(40);
  simulation.set_backlog(false);
  simulation.RunTo(120);  // until the ring is empty
  simulation.RunFor(kSecond / 2);
  simulation.Record(1000);
  const size_t before = simulation.Transfers().size();
  simulation.RunFor(kSecond / 4);
  EXPECT_EQ(simulation.Transfers().size(), before);
  simulation.RunFor(kSecond);
  ASSERT_EQ(simulation.Transfers().size(), before + 1);
  EXPECT_EQ(simulation.Transfers().back().kind, TransferKind::kBatch);
  // They keep to windows again once boundaries come.
  simulation.set_backlog(true);
  const int64_t resumed = simulation.now();
  simulation.RunTo(simulation.boundaries().size() + 40);
  EXPECT_LE(Measure(simulation, TwoWindows(), resumed).critical,
            2 * kMillisecond);
  simulation.Finish();
}

// Suspended around an evaluation that passes three boundaries and fills the
// ring.
TEST_F(WindowsTest, SuspensionChargesNothing) {
  SimulationOptions options = Options();
  options.ring.bytes = 64u << 10;
  options.record_bytes = 4096;
  Simulation simulation(options);
  simulation.Install(1, TwoWindows());
  simulation.RunTo(40);
  simulation.Suspend();
  simulation.set_backlog(false);
  simulation.RunFor(kSecond);  // until the ring is empty
  for (int i = 0; i < 10; ++i) {
    simulation.Record(32u << 10);
    simulation.RunFor(300 * kMillisecond);
  }
  EXPECT_EQ(simulation.controller().mode(), Mode::kSuspended);
  simulation.controller().InstallPending(2, TwoWindows(), true);
  simulation.Install(3, TwoWindows());
  simulation.set_backlog(true);
  simulation.RunTo(80);
  EXPECT_EQ(simulation.controller().mode(), Mode::kActive);
  simulation.Finish();
}

// At every phase of a period the drain is away for 200 ms.
TEST_F(WindowsTest, AStalledDrainLearnsNothingWrong) {
  for (const auto policy :
       {windows::PolicyKind::kDeadline, windows::PolicyKind::kBinaryAdaptive}) {
    for (int64_t phase = 0; phase < 35; ++phase) {
      SimulationOptions options = Options();
      options.windows->policy = policy;
      options.windows->initial_grant_bytes = 20u << 10;
      Simulation simulation(options);
      simulation.Install(1, TwoWindows());
      simulation.RunTo(120);
      const auto before = simulation.controller().State();
      simulation.set_backlog(true);
      simulation.RunTo(120 + 4);
      // Some way into the period.
      const int64_t until = simulation.now() + phase * kMillisecond;
      while (simulation.now() < until) {
        simulation.RunTo(simulation.boundaries().size());
      }
      simulation.Stall(200 * kMillisecond);
      simulation.RunTo(simulation.boundaries().size() + 24);
      const auto after = simulation.controller().State();
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_GE(after.windows[i].max_safe.value_or(0),
                  before.windows[i].max_safe.value_or(0))
            << phase;
        EXPECT_LE(static_cast<double>(after.windows[i].estimate.value_or(0)),
                  1.1 * static_cast<double>(TwoWindowsSchedule(2 * i + 1)) *
                      1e-9 * kRate)
            << phase;
      }
      simulation.Finish();
      if (HasFailure()) return;
    }
  }
}

// Staging much smaller than the ring, records of every size, wraps everywhere.
TEST_F(WindowsTest, TinyStagingAndRingsStayExact) {
  for (uint64_t ring : {256u, 1024u, 4096u}) {
    SimulationOptions options = Options();
    options.link.depth = 2;
    options.ring.bytes = ring;
    options.ring.slots = 8;
    options.drain.staging_bytes = ring / 2;
    options.drain.batch_bytes = 200;
    options.record_bytes = 80;
    options.windows->chunk_bytes = 48;
    Simulation simulation(options);
    simulation.Install(1, TwoWindows());
    simulation.RunTo(200);
    EXPECT_GT(simulation.recorded(), 100u);
    simulation.Finish();
  }
}

TEST_F(WindowsTest, AFailingLinkIsReported) {
  SimulationOptions options = Options();
  options.drain.batch_bytes = 64u << 10;
  Simulation simulation(options);
  simulation.Install(1, TwoWindows());
  simulation.link().FailAfter(3);
  simulation.set_backlog(false);
  for (int i = 0; i < 10; ++i) simulation.Record(64u << 10);
  int64_t nanos = 0;
  for (int i = 0; i < 1000 && nanos >= 0; ++i) {
    nanos = simulation.drain().Turn(true);
    simulation.Advance(kMillisecond);
  }
  EXPECT_EQ(nanos, -1);
  EXPECT_NE(simulation.drain().failure().text().find("link failed"),
            std::string::npos);
}

}  // namespace
}  // namespace dmi::drain
