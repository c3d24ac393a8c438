// SPDX-License-Identifier: Apache-2.0
// Windows that are filled with chunks, on a virtual clock: how soon they are
// full, how well they follow changes, what chance does to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "windows/hand.h"
#include "windows/link.h"
#include "windows/policy.h"
#include "windows/simulation.h"

namespace dmi::windows {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint64_t kMiB = 1 << 20;

// Windows of 10 ms after 3 ms of other work.
struct Plant {
  explicit Plant(const WindowConfig& config = {})
      : simulation(config, WindowPattern(2, {{1, 2}})) {
    simulation.region = [this](uint64_t phase) {
      if (phase == 0) return 3 * kMs;
      ++opened;
      const double ms = opened == accident ? 1 : 10 * length;
      return static_cast<int64_t>(ms * kMs * simulation.Uniform(length_jitter));
    };
  }
  // What an occurrence moved, as a part of rate * length.
  double Filled(const Simulation::Occurrence& o) const {
    return static_cast<double>(o.bytes) /
           (simulation.bytes_per_ns * static_cast<double>(o.length_ns));
  }
  std::vector<Simulation::Occurrence> Since(uint64_t occurrence) const {
    return simulation.Of(0, occurrence);
  }

  double length = 1;
  double length_jitter = 0;
  int opened = 0;
  int accident = -1;  // the occurrence that lasts 1 ms
  Simulation simulation;
};

struct Case {
  double bytes_per_ns;
  bool stamps;
};

class Fill : public ::testing::TestWithParam<Case> {};

TEST_P(Fill, IsWithinFivePercentFromTheFourthOccurrenceOn) {
  Plant plant;
  plant.simulation.bytes_per_ns = GetParam().bytes_per_ns;
  plant.simulation.stamps = GetParam().stamps;
  plant.simulation.Run(20);
  const double capacity = GetParam().bytes_per_ns * 10 * kMs;
  const double chunk = std::min(1.0 * kMiB, capacity / 32);
  uint64_t overruns = 0;
  for (const auto& o : plant.Since(0)) {
    overruns += o.overruns;
  }
  EXPECT_LE(overruns, 1u);
  for (const auto& o : plant.Since(1)) EXPECT_LE(o.largest, chunk * 1.001);
  for (const auto& o : plant.Since(3)) {
    EXPECT_GE(o.bytes, 0.95 * (capacity - chunk));
    EXPECT_LE(o.bytes, 1.05 * (capacity - chunk));
  }
}

INSTANTIATE_TEST_SUITE_P(Links, Fill,
                         ::testing::Values(Case{0.05, true}, Case{1, true},
                                           Case{20, true}, Case{1, false}));

TEST(Deadline, TheFirstOccurrenceOnlyProbes) {
  Plant plant;
  plant.simulation.Run(1);
  ASSERT_EQ(plant.Since(0).size(), 1u);
  EXPECT_EQ(plant.Since(0)[0].bytes, 4096u + 16384u + 65536u);

  WindowConfig config;
  config.initial_grant_bytes = 10'000;
  config.chunk_bytes = 6'000;
  Plant small(config);
  small.simulation.Run(1);
  EXPECT_EQ(small.Since(0)[0].bytes, 10'000u);
  EXPECT_EQ(small.Since(0)[0].largest, 10'000u - 4'096u);
}

TEST(Deadline, WindowsOfDifferentLengthsShareALink) {
  Simulation simulation({}, WindowPattern(4, {{1, 2}, {3, 4}}));
  simulation.region = [](uint64_t phase) {
    return phase == 1 ? kMs : phase == 3 ? 20 * kMs : 2 * kMs;
  };
  simulation.Run(10);
  for (const uint32_t window : {0, 1}) {
    for (const auto& o : simulation.Of(window, 3)) {
      const auto capacity = static_cast<double>(o.length_ns);
      EXPECT_GE(o.bytes, 0.95 * capacity * 31 / 32);
      EXPECT_EQ(o.overruns, 0u);
    }
  }
  const WindowState state = simulation.controller.State();
  EXPECT_NEAR(state.link_bytes_per_second, 1e9, 1e7);
  EXPECT_EQ(state.windows[0].length_ns, kMs);
  EXPECT_EQ(state.windows[1].length_ns, 20 * kMs);
}

// From the sixth occurrence after a change on, windows are full again.
void ExpectFullFrom(const Plant& plant, uint64_t change) {
  uint64_t overruns = 0;
  for (const auto& o : plant.Since(change)) overruns += o.overruns;
  EXPECT_LE(overruns, 3u);
  const auto full = plant.Since(change + 6);
  ASSERT_FALSE(full.empty());
  for (const auto& o : full) {
    EXPECT_GE(plant.Filled(o), 0.9);
    EXPECT_LE(plant.Filled(o), 1.0);
  }
  EXPECT_EQ(plant.simulation.controller.mode(), Mode::kActive);
}

class Change : public ::testing::TestWithParam<double> {};

TEST_P(Change, OfTheLengthIsFollowed) {
  for (const uint64_t before : {5, 40, 300}) {
    Plant plant;
    plant.simulation.Run(before);
    plant.length = GetParam();
    plant.simulation.Run(20);
    ExpectFullFrom(plant, before);
    plant.length = 1;
    plant.simulation.Run(20);
    ExpectFullFrom(plant, before + 20);
  }
}

TEST_P(Change, OfTheRateIsFollowed) {
  for (const uint64_t before : {5, 40, 300}) {
    Plant plant;
    plant.simulation.Run(before);
    plant.simulation.bytes_per_ns = GetParam();
    plant.simulation.Run(20);
    ExpectFullFrom(plant, before);
  }
}

INSTANTIATE_TEST_SUITE_P(Factors, Change, ::testing::Values(0.5, 2, 0.2, 5));

// By 0.2 % from one to the next, which no single length gives away.
TEST(Deadline, WindowsThatShrinkSlowlyAreNotOverrun) {
  Plant plant;
  for (int i = 0; i < 300; ++i, plant.length *= 0.998) plant.simulation.Run(1);
  for (const auto& o : plant.Since(3)) {
    EXPECT_EQ(o.overruns, 0u);
    EXPECT_GE(plant.Filled(o), 0.9);
  }
}

TEST(Deadline, WindowsThatGrowSlowlyAreFollowed) {
  Plant plant;
  for (int i = 0; i < 600; ++i, plant.length *= 1.002) plant.simulation.Run(1);
  for (const auto& o : plant.Since(3)) EXPECT_GE(plant.Filled(o), 0.7);
}

TEST(Deadline, ALittleGrowthIsToldFromChanceInTime) {
  Plant plant;
  plant.length_jitter = 0.05;
  plant.simulation.Run(300);
  plant.length = 1.25;
  plant.simulation.Run(80);
  for (const auto& o : plant.Since(370)) EXPECT_GE(plant.Filled(o), 0.85);
}

TEST(Deadline, FewShortWindowsDoNotCostTheOthers) {
  Plant plant;
  for (int i = 0; i < 1000; ++i) {
    if (i % 50 == 40) plant.accident = plant.opened + 1;
    plant.simulation.Run(1);
  }
  uint64_t well = 0;
  for (const auto& o : plant.Since(0)) {
    well += plant.Filled(o) > 0.9 && o.overruns == 0;
  }
  EXPECT_GE(well, 960u);
}

TEST(Deadline, AShortWindowIsAnAccident) {
  for (const int accident : {3, 6, 20, 200}) {
    Plant plant;
    plant.accident = accident;
    plant.simulation.Run(accident + 20);
    for (const auto& o : plant.Since(std::max(accident, 7) + 1)) {
      EXPECT_GE(plant.Filled(o), 0.9) << accident;
    }
  }
}

TEST(Deadline, ASlowTransferIsAnAccident) {
  for (const uint64_t before : {1, 5, 100}) {
    Plant plant;
    plant.simulation.Run(before);
    plant.simulation.slow_next = 10;
    plant.simulation.Run(20);
    for (const auto& o : plant.Since(before + 4)) {
      EXPECT_GE(plant.Filled(o), 0.9) << before;
    }
  }
}

// A machine with too much to do delays the thread that moves data, whatever the
// size: small chunks would only be delayed more often.
TEST(Deadline, DelaysCostTheirLengthAndNoMore) {
  Plant plant;
  plant.simulation.delayed = 0.1;
  plant.simulation.delay_ns = 1.0 * kMs;
  plant.simulation.Run(500);
  double filled = 0;
  uint64_t overruns = 0;
  const auto late = plant.Since(100);
  for (const auto& o : late) {
    filled += plant.Filled(o);
    overruns += o.overruns;
  }
  EXPECT_GE(filled / static_cast<double>(late.size()), 0.55);
  EXPECT_LE(overruns, late.size() / 100);
}

TEST(Deadline, ALinkThatSeemedTooSlowForAnyWindowIsTriedAgain) {
  Plant plant;
  plant.simulation.delayed = 1;
  plant.simulation.delay_ns = 50.0 * kMs;
  plant.simulation.Run(12);
  plant.simulation.delayed = 0;
  plant.simulation.Run(100);
  const auto late = plant.Since(80);
  ASSERT_GE(late.size(), 20u);
  for (const auto& o : late) EXPECT_GE(plant.Filled(o), 0.9);
}

class Chance : public ::testing::TestWithParam<Case> {};

TEST_P(Chance, OverrunsRarelyAndByOneChunk) {
  WindowConfig config;
  config.chunk_bytes = 10 * kMs / 20;
  Plant plant(config);
  plant.simulation.stamps = GetParam().stamps;
  plant.simulation.latency_ns = 5000;
  plant.simulation.jitter = 0.1;
  plant.length_jitter = 0.1;
  plant.simulation.Run(10'000);
  double bytes = 0;
  double length = 0;
  uint64_t overruns = 0;
  for (const auto& o : plant.Since(0)) {
    bytes += static_cast<double>(o.bytes);
    length += static_cast<double>(o.length_ns);
    overruns += o.overruns > 0;
    EXPECT_LE(o.overruns, 1u);
    EXPECT_LE(o.largest, config.chunk_bytes);
  }
  EXPECT_GE(bytes / length, 0.8);
  EXPECT_LE(overruns, 100u);
  RecordProperty("goodput", std::to_string(bytes / length));
  RecordProperty("overruns", std::to_string(overruns));
}

INSTANTIATE_TEST_SUITE_P(Sources, Chance,
                         ::testing::Values(Case{1, true}, Case{1, false}));

TEST(Deadline, NothingMovesWhereTheOpeningIsUnknown) {
  Hand hand{WindowConfig{}};
  hand.Install(1, WindowPattern(4, {{1, 3}}));
  EXPECT_FALSE(hand.Poll(100, 2)) << "it may have been open for long";
  hand.See(200, 4);
  // Seen before it opened: it opened later than that.
  EXPECT_TRUE(hand.Poll(300, 6));
}

TEST(Deadline, AnOpeningThatWasMissedIsTakenForTheSightingBefore) {
  Hand hand{WindowConfig{}};
  hand.Install(1, WindowPattern(4, {{1, 3}}));
  hand.See(0, 0);
  uint64_t counter = 0;
  int64_t now = 0;
  for (int period = 0; period < 6; ++period) {  // 100 us between boundaries
    for (int phase = 0; phase < 4; ++phase, ++counter, now += 100'000) {
      int64_t at = now;
      while (auto admission = hand.Poll(at, counter)) {
        const uint64_t bytes = admission->grant.byte_limit;
        if (!hand.Commit(*admission, bytes, at, counter)) break;
        at += static_cast<int64_t>(bytes);
        hand.Complete(*admission, bytes, at, counter + (at >= now + 100'000));
      }
    }
  }
  ASSERT_EQ(hand.Info().length_ns, 200'000);
  hand.See(now, counter);  // the boundary before it
  EXPECT_TRUE(hand.Poll(now + 150'000, counter + 2));
  EXPECT_FALSE(hand.Poll(now + 199'900, counter + 2));
}

TEST(Deadline, StandaloneItGrantsWholeWindows) {
  WindowConfig config;
  const auto policy = MakePolicy(config, std::make_shared<Link>());
  const Offer offer{1ull << 40, 100, kUnbounded, std::nullopt};
  EXPECT_EQ(policy->Choose(0, offer)->byte_limit, 4096u);
  policy->ObserveTimingEstimate(4096, 5 * kMiB);
  policy->ObserveTimingEstimate(4096, 3 * kMiB);
  const auto grant = policy->Choose(1, offer);
  EXPECT_EQ(grant->byte_limit, 3 * kMiB);
  EXPECT_EQ(grant->kind, GrantKind::kDeadline);
  EXPECT_FALSE(policy->Choose(2, {0, 0, kUnbounded, std::nullopt}));
}

TEST(Deadline, TellsWhatWholeOccurrencesCarried) {
  const auto policy = MakePolicy({}, std::make_shared<Link>());
  const Grant grant{kMiB, GrantKind::kDeadline};
  EXPECT_FALSE(policy->learned().max_safe);
  EXPECT_FALSE(policy->learned().min_unsafe);
  policy->Observe(0, 100, false, grant);
  policy->Observe(0, 200, false, grant);
  policy->Observe(1, 250, false, grant);
  EXPECT_EQ(policy->learned().max_safe, 300u);
  EXPECT_FALSE(policy->learned().min_unsafe);
  policy->Observe(1, 200, true, grant);
  EXPECT_EQ(policy->learned().max_safe, 300u);
  EXPECT_EQ(policy->learned().min_unsafe, 450u);
  policy->Restart();  // occurrence 1 is another one now
  policy->Observe(1, 350, false, grant);
  EXPECT_EQ(policy->learned().max_safe, 350u);
  EXPECT_EQ(policy->learned().min_unsafe, 450u);
  // What happened last counts where the two contradict each other.
  policy->Observe(2, 340, true, grant);
  EXPECT_FALSE(policy->learned().max_safe);
  EXPECT_EQ(policy->learned().min_unsafe, 340u);
  policy->Observe(3, 500, false, grant);
  EXPECT_EQ(policy->learned().max_safe, 500u);
  EXPECT_FALSE(policy->learned().min_unsafe);
}

}  // namespace
}  // namespace dmi::windows
