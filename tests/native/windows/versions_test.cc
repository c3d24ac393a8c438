// SPDX-License-Identifier: Apache-2.0
// Admissions, versions and modes.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>

#include "support/deadline.h"
#include "windows/hand.h"

namespace dmi::windows {
namespace {

WindowPattern Pattern() { return WindowPattern(2, {{0, 1}}); }

TEST(Admissions, OneTransferPerOccurrence) {
  Hand hand;
  EXPECT_EQ(hand.controller.mode(), Mode::kNoPattern);
  hand.Install(1, Pattern());
  EXPECT_EQ(hand.controller.mode(), Mode::kNoPattern);
  const auto admission = hand.Poll(0, 0);
  ASSERT_TRUE(admission);
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
  EXPECT_TRUE(hand.Poll(1, 0)) << "nothing was moved yet";
  ASSERT_TRUE(hand.Commit(*admission, 10, 1, 0));
  EXPECT_FALSE(hand.Poll(2, 0)) << "one is on its way";
  EXPECT_FALSE(hand.Commit(*admission, 10, 2, 0));
  hand.Complete(*admission, 10, 3, 0);
  EXPECT_FALSE(hand.Poll(4, 0)) << "spent";
  EXPECT_FALSE(hand.Commit(*admission, 10, 4, 0));
  EXPECT_FALSE(hand.Poll(5, 1)) << "closed";
  EXPECT_TRUE(hand.Poll(6, 2));
}

TEST(Admissions, AreWorthNothingOnceTheWindowHasPassed) {
  Hand hand;
  hand.Install(1, Pattern());
  const auto admission = hand.Poll(0, 0);
  ASSERT_TRUE(admission);
  EXPECT_FALSE(hand.Commit(*admission, 10, 1, 1));
  EXPECT_FALSE(hand.Commit(*admission, 10, 1, 2)) << "another occurrence";
  EXPECT_FALSE(
      hand.controller.Commit(*admission, 10, wire::PackProgress(2, 0)));
  Admission small = *hand.Poll(2, 2);
  small.grant.byte_limit = 9;
  EXPECT_FALSE(hand.Commit(small, 10, 2, 2)) << "more than was granted";
  EXPECT_TRUE(hand.Commit(small, 9, 2, 2));
}

TEST(Admissions, CapsCanBeChangedAtAnyTime) {
  WindowConfig config = Binary();
  config.max_grant = 70;
  Hand hand(config);
  hand.Install(1, Pattern());
  EXPECT_EQ(hand.Poll(0, 0)->grant.byte_limit, 70u);
  hand.controller.LimitGrants(20);
  EXPECT_EQ(hand.Poll(1, 0)->grant.byte_limit, 20u);
  hand.controller.LimitGrants(std::nullopt);
  EXPECT_EQ(hand.Poll(2, 0)->grant.byte_limit, 70u);
}

TEST(Admissions, NoLimitLiftsAnother) {
  WindowConfig config = Binary();
  config.max_grant = 70;
  Hand hand(config);
  hand.Install(1, Pattern());
  hand.controller.LimitGrants(100);
  EXPECT_EQ(hand.Poll(0, 0)->grant.byte_limit, 70u);
}

TEST(Admissions, ARecordLargerThanTheCapIsNotTried) {
  WindowConfig config = Binary();
  config.max_grant = 70;
  Hand hand(config);
  hand.Install(1, Pattern());
  EXPECT_FALSE(hand.Poll(0, 0, Hand::kPlenty, 71));
  EXPECT_TRUE(hand.Poll(1, 0, Hand::kPlenty, 70));
}

// Where an occurrence is filled in chunks, all of them together.
TEST(Admissions, ACapIsOfAWholeOccurrence) {
  WindowConfig config;
  config.max_grant = 10'000;
  Hand hand(config);
  hand.Install(1, Pattern());
  for (uint64_t occurrence = 0; occurrence < 20; ++occurrence) {
    const int64_t opened = static_cast<int64_t>(occurrence) * 2'000'000;
    const uint64_t counter = occurrence * Pattern().period();
    hand.See(opened, counter);
    uint64_t moved = 0;
    for (int64_t now = opened; now < opened + 900'000; now += 30'000) {
      const auto admission = hand.Poll(now, counter);
      if (!admission) continue;
      moved += admission->grant.byte_limit;
      ASSERT_TRUE(
          hand.Commit(*admission, admission->grant.byte_limit, now, counter));
      hand.Complete(*admission, admission->grant.byte_limit, now + 20'000,
                    counter);
      if (occurrence == 12) hand.controller.LimitGrants(5'000);
    }
    EXPECT_LE(moved, occurrence < 12 ? 10'000u : 15'000u);
    if (occurrence > 12) {
      EXPECT_EQ(moved, 5'000u);
    }
    hand.See(opened + 1'000'000, counter + 1);
  }
}

TEST(Versions, Grow) {
  Hand hand;
  EXPECT_THROW(hand.controller.InstallPending(0, Pattern()), std::logic_error);
  hand.Install(3, Pattern());
  EXPECT_THROW(hand.controller.InstallPending(3, Pattern()), std::logic_error);
  EXPECT_THROW(hand.controller.InstallPending(2, Pattern()), std::logic_error);
  hand.See(0, 0);
  EXPECT_THROW(hand.controller.InstallPending(3, Pattern()), std::logic_error);
  hand.controller.InstallPending(4, Pattern());
  hand.controller.InstallPending(7, Pattern());
  hand.controller.CancelPending(7);
  hand.controller.InstallPending(5, Pattern());
}

TEST(Versions, TheOneThatIsSeenIsCurrentAndEarlierOnesAreGone) {
  Hand hand;
  for (uint16_t v = 1; v <= 4; ++v) hand.Install(v, Pattern());
  hand.version = 3;
  EXPECT_TRUE(hand.Poll(0, 0));
  EXPECT_EQ(hand.controller.State().version, 3);
  for (const uint16_t gone : {1, 2, 0, 9}) {
    hand.version = gone;
    EXPECT_FALSE(hand.Poll(1, 0)) << gone;
    EXPECT_EQ(hand.controller.State().version, 3);
    EXPECT_EQ(hand.controller.mode(), Mode::kActive);
  }
  hand.version = 4;
  EXPECT_TRUE(hand.Poll(2, 0));
}

TEST(Versions, OneThatWasCancelledStaysUnknown) {
  Hand hand;
  hand.Install(1, Pattern());
  hand.Install(2, Pattern());
  hand.controller.CancelPending(1);
  hand.version = 1;
  EXPECT_FALSE(hand.Poll(0, 0));
  EXPECT_EQ(hand.controller.mode(), Mode::kNoPattern);
  hand.version = 2;
  EXPECT_TRUE(hand.Poll(0, 0));
}

TEST(Versions, ATransferOfAnEarlierOneTeachesNothing) {
  Hand hand;
  hand.Install(1, Pattern());
  const auto admission = hand.Poll(0, 0);
  ASSERT_TRUE(hand.Commit(*admission, 100, 0, 0));
  hand.Install(2, Pattern());
  EXPECT_FALSE(hand.Poll(5, 0)) << "the transfer is still on its way";
  EXPECT_EQ(hand.controller.State().version, 2);
  hand.Complete(*admission, 100, 10, 1);
  EXPECT_EQ(hand.Info().max_safe, std::nullopt);
  EXPECT_EQ(hand.Info().min_unsafe, std::nullopt);
  EXPECT_TRUE(hand.controller.attempts(0).empty());
  EXPECT_TRUE(hand.Poll(20, 2));
}

TEST(Versions, LearningIsKeptWhereAskedForAndTheWindowsAreTheSame) {
  for (const bool keep : {false, true}) {
    for (const bool same : {false, true}) {
      Hand hand;
      hand.Install(1, Pattern());
      hand.Install(2, same ? Pattern() : WindowPattern(3, {{0, 1}}), keep);
      // Up to when the next one is seen, not when it comes.
      hand.version = 1;
      ASSERT_TRUE(hand.Move(120, 4, 2, 5, 2));
      hand.version = 2;
      hand.See(10, 0);
      EXPECT_EQ(hand.Info().max_safe.value_or(0), keep && same ? 120u : 0u);
    }
  }
}

TEST(Versions, ResetForgetsThemAll) {
  Hand hand;
  hand.Install(65535, Pattern());
  ASSERT_TRUE(hand.Poll(0, 0));
  hand.controller.ResetForVersionReuse();
  EXPECT_EQ(hand.controller.mode(), Mode::kNoPattern);
  EXPECT_FALSE(hand.Poll(1, 0));
  EXPECT_FALSE(hand.controller.State().pattern);
  hand.Install(1, Pattern());
  EXPECT_TRUE(hand.Poll(2, 0));
}

TEST(Suspension, BeginsWithVersionZeroAndEndsWithTheNext) {
  Hand hand;
  hand.Install(1, Pattern());
  ASSERT_TRUE(hand.Move(100, 0, 0, 1, 0));
  hand.controller.Suspend();
  EXPECT_TRUE(hand.Poll(2, 2)) << "programs from before it";
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
  hand.version = 0;
  EXPECT_FALSE(hand.Poll(3, 0));
  EXPECT_EQ(hand.controller.mode(), Mode::kSuspended);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(hand.controller.RecordCapacityFlush(hand.Word(0)));
  }
  for (uint64_t counter = 1; counter < 5; ++counter) {
    EXPECT_FALSE(hand.Poll(4, counter)) << "boundaries count nowhere";
  }
  EXPECT_EQ(hand.controller.mode(), Mode::kSuspended);
  hand.Install(2, Pattern(), true);
  ASSERT_TRUE(hand.Poll(9, 2));
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
  EXPECT_EQ(hand.Info().max_safe, 100u);
}

TEST(Suspension, VersionZeroAloneIsNone) {
  Hand hand;
  hand.Install(1, Pattern());
  hand.See(0, 0);
  hand.version = 0;
  hand.See(1, 0);
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
}

TEST(Suspension, APatternInstalledBeforeDoesNotEndIt) {
  Hand hand;
  hand.Install(1, Pattern());
  hand.controller.Suspend();
  hand.See(0, 0);
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
  hand.version = 0;
  hand.See(1, 0);
  EXPECT_EQ(hand.controller.mode(), Mode::kSuspended);
}

TEST(Suspension, OneThatWasEndedBeforeItWasSeenIsOver) {
  Hand hand;
  hand.Install(1, Pattern());
  hand.See(0, 0);
  hand.controller.Suspend();
  hand.Install(2, Pattern());
  hand.See(1, 0);
  hand.version = 0;
  hand.See(2, 0);
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
}

TEST(Watchdog, BitesWhenBoundariesStop) {
  WindowConfig config = Binary();
  config.watchdog_nanos = 100;
  Hand hand(config);
  hand.At(1000);
  EXPECT_FALSE(hand.controller.Stalled());
  hand.Install(1, Pattern());
  hand.See(1000, 0);
  hand.See(1090, 0);
  EXPECT_FALSE(hand.controller.Stalled());
  hand.See(1101, 0);
  EXPECT_TRUE(hand.controller.Stalled());
  hand.See(1102, 1);
  EXPECT_FALSE(hand.controller.Stalled());
  hand.Stamp(1150, 2);
  hand.At(1240);
  EXPECT_FALSE(hand.controller.Stalled());
  hand.At(1260);
  EXPECT_TRUE(hand.controller.Stalled());
}

TEST(Edges, AreThoseOfTheCurrentPattern) {
  Hand hand;
  EXPECT_EQ(hand.controller.NextEdge(), kUnbounded);
  hand.Install(1, WindowPattern(10, {{2, 5}}));
  EXPECT_EQ(hand.controller.NextEdge(), kUnbounded);
  hand.See(0, 0);
  EXPECT_EQ(hand.controller.NextEdge(), 2u);
  hand.See(0, 3);
  EXPECT_EQ(hand.controller.NextEdge(), 5u);
  hand.Stamp(0, 5);
  EXPECT_EQ(hand.controller.NextEdge(), 12u);
}

// One thread drains, the other defines, suspends, limits and looks.
TEST(Threads, MayDefineAndLookWhileTheDrainPolls) {
  testing::Deadline limit{std::chrono::seconds(60)};
  Hand hand;
  constexpr uint16_t kVersions = 2000;
  std::atomic<uint64_t> word{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> moved{0};
  std::thread drain([&] {
    uint64_t counter = 0;
    while (!stop.load(std::memory_order_acquire)) {
      const uint64_t seen = word.load(std::memory_order_acquire);
      hand.time.Advance(1);
      const uint64_t now = wire::PackProgress(wire::VersionOf(seen), counter++);
      const auto admission = hand.controller.Poll(now, 100, 1);
      if (!admission || !hand.controller.Commit(*admission, 10, now)) continue;
      hand.controller.Complete(*admission, 10, now);
      moved.fetch_add(1, std::memory_order_relaxed);
    }
  });
  for (uint16_t version = 1; version <= kVersions; ++version) {
    hand.controller.InstallPending(version, Pattern(), version % 2 == 0);
    word.store(wire::PackProgress(version, 0), std::memory_order_release);
    if (version % 7 == 0) hand.controller.Suspend();
    if (version % 5 == 0) hand.controller.LimitGrants(version);
    const WindowState state = hand.controller.State();
    EXPECT_LE(state.version, version);
    EXPECT_EQ(state.windows.size(), state.pattern ? 1u : 0u);
    if (version % 11 == 0) hand.controller.CancelPending(version + 1);
  }
  while (hand.controller.State().version < kVersions) std::this_thread::yield();
  while (moved.load(std::memory_order_relaxed) == 0) std::this_thread::yield();
  stop.store(true, std::memory_order_release);
  drain.join();
  EXPECT_EQ(hand.controller.mode(), Mode::kActive);
}

}  // namespace
}  // namespace dmi::windows
