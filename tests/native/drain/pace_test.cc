// SPDX-License-Identifier: Apache-2.0
// A device that wakes nobody: the drain looks as often as its link says, and no
// more often.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "support/deadline.h"
#include "support/simulation.h"

namespace dmi::drain {
namespace {

using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kMicrosecond;
using dmi::testing::kMillisecond;
using dmi::testing::kSecond;
using dmi::testing::Random;
using dmi::testing::Simulation;
using dmi::testing::SimulationOptions;
using windows::WindowPattern;

constexpr transfer::Pace kPace{.idle = kMillisecond,
                               .waiting = 200 * kMicrosecond,
                               .confining = 50 * kMicrosecond};

SimulationOptions Options() {
  SimulationOptions options;
  options.windows.reset();
  options.link = {.bytes_per_second = 1e9, .depth = 2, .pace = kPace};
  options.wake_nanos = kForever;
  return options;
}

TEST(PaceTest, NothingWaitsLonger) {
  for (const int64_t linger : {int64_t{0}, 3 * kMillisecond}) {
    SimulationOptions options = Options();
    options.drain.linger_nanos = linger;
    Simulation simulation(options);
    simulation.set_backlog(false);
    Random random(1);
    for (size_t i = 0; i < 200; ++i) {
      simulation.RunFor(static_cast<int64_t>(random.UpTo(2 * kMillisecond)));
      const int64_t begin = simulation.now();
      simulation.Record(100);
      simulation.RunFor(10 * kMillisecond);
      const auto transfers = simulation.Transfers();
      ASSERT_EQ(transfers.size(), i + 1);
      const int64_t waited = transfers.back().begin_ns - begin;
      ASSERT_GE(waited, linger);
      ASSERT_LE(waited, linger == 0 ? kPace.idle : linger + kPace.waiting);
    }
    simulation.Finish();
  }
}

TEST(PaceTest, AWindowIsSeenAtOnce) {
  SimulationOptions options = Options();
  options.windows.emplace();
  options.record_bytes = 4u << 10;
  options.ring.bytes = 2u << 20;
  options.link.bytes_per_second = 2e7;
  options.schedule = [](uint64_t) { return 10 * kMillisecond; };
  Simulation simulation(options);
  const WindowPattern pattern(4, {{1, 2}});
  simulation.Install(1, pattern);
  simulation.RunTo(120);
  const auto transfers = simulation.Transfers();
  for (uint64_t counter = 41; counter < 120; counter += 4) {
    const int64_t opened = simulation.boundaries()[counter];
    const auto first =
        std::find_if(transfers.begin(), transfers.end(),
                     [&](const auto& t) { return t.begin_ns >= opened; });
    ASSERT_NE(first, transfers.end());
    ASSERT_EQ(first->kind, TransferKind::kWindow);
    ASSERT_LE(first->begin_ns - opened, kPace.confining);
  }
  simulation.Finish();
}

TEST(PaceTest, AnIdleDrainTakesFewTurns) {
  Simulation simulation(Options());
  simulation.set_backlog(false);
  simulation.RunFor(kSecond);
  EXPECT_NEAR(static_cast<double>(simulation.turns()), 1000, 1);

  SimulationOptions unhurried = Options();
  unhurried.link.pace = {};
  Simulation woken(unhurried);
  woken.set_backlog(false);
  woken.RunFor(kSecond);
  EXPECT_NEAR(static_cast<double>(woken.turns()), 50, 1);
}

// The same on a thread, counted in its sleeps.
TEST(PaceTest, AnIdleThreadSleeps) {
  const Deadline deadline(std::chrono::seconds(60));
  Device device;
  Flow flow(device, {.bytes = 1 << 20, .slots = 1024}, {}, {0, 0},
            {.link = std::make_shared<transfer::SimulatedLink>(
                 transfer::SimulatedLinkOptions{.pace = kPace},
                 std::make_shared<base::SystemTime>()),
             .windows = {}});
  flow.Start();
  const auto sleeps = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  const int64_t before = sleeps();
  const int64_t begin = base::MonotonicNanos();
  flow.queue().Pop(1, 500 * kMillisecond);
  const int64_t wall = base::MonotonicNanos() - begin;
  const int64_t slept = sleeps() - before;
  EXPECT_GT(slept * kSecond / wall, 130) << "no faster than without a pace";
  EXPECT_LT(slept * kSecond / wall, 1100);
}

}  // namespace
}  // namespace dmi::drain
