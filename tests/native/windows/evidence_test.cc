// SPDX-License-Identifier: Apache-2.0
// What may teach anything: openings and closings that were seen, transfers that
// nothing disturbed.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "windows/hand.h"

namespace dmi::windows {
namespace {

using Estimates = std::vector<uint64_t>;

// Windows of counters 1..2 and 3..4 of every 4.
WindowPattern Pattern() { return WindowPattern(4, {{1, 2}, {3, 4}}); }

class Evidence : public ::testing::Test {
 protected:
  void SetUp() override {
    hand_.Install(1, Pattern());
    hand_.See(0, 0);
  }
  // max_safe 100 in the first occurrence, with no estimate.
  void LearnSafe() {
    ASSERT_TRUE(hand_.Move(100, 10, 1, 12, 1));
    hand_.See(60, 4);  // CLOSE was missed
    ASSERT_EQ(hand_.Info().max_safe, 100u);
    ASSERT_EQ(hand_.Estimates(), Estimates{});
  }
  Hand hand_;
};

TEST_F(Evidence, ATransferInsideAWindowGivesAnEstimate) {
  ASSERT_TRUE(hand_.Move(100, 10, 1, 15, 1));
  hand_.See(30, 2);
  EXPECT_EQ(hand_.Estimates(), Estimates{400});  // 100 * 20 / 5
  EXPECT_EQ(hand_.Info().length_ns, 20);
  EXPECT_EQ(hand_.Info().max_safe, 100u);
  EXPECT_EQ(hand_.Info().estimate, 400u);
}

TEST_F(Evidence, EstimatesAreExactAndSaturate) {
  constexpr uint64_t kMuch = uint64_t{1} << 60;
  ASSERT_TRUE(hand_.Move(kMuch, 10, 1, 13, 1));
  hand_.See(10 + 3'000, 2);
  ASSERT_TRUE(hand_.Move(kMuch, 4'000, 3, 4'007, 3));
  hand_.See(4'010, 4);
  EXPECT_EQ(hand_.Estimates(0), Estimates{kUnbounded});
  // 2^60 * 10 / 7, which no double holds.
  EXPECT_EQ(hand_.Estimates(1), Estimates{1647030720866924251u});
}

TEST_F(Evidence, ACloseThatIsSeenLateGivesNone) {
  ASSERT_TRUE(hand_.Move(100, 10, 1, 15, 1));
  hand_.See(215, 3);
  EXPECT_EQ(hand_.Estimates(), Estimates{});
  EXPECT_EQ(hand_.Info().length_ns, 0);
}

TEST_F(Evidence, AnOpeningThatIsSeenLateGivesNone) {
  Hand hand;
  hand.Install(1, WindowPattern(4, {{1, 3}}));
  hand.See(0, 0);
  ASSERT_TRUE(hand.Move(100, 20, 2, 25, 2));  // one boundary after OPEN
  hand.See(30, 3);
  EXPECT_EQ(hand.Estimates(), Estimates{});
  EXPECT_EQ(hand.Info().max_safe, 100u);  // success counts all the same
  ASSERT_TRUE(hand.Move(50, 60, 6, 80, 7));
  EXPECT_EQ(hand.Info().max_safe, 100u);  // an overrun does not
  EXPECT_EQ(hand.Info().overruns, 1u);
}

TEST_F(Evidence, AnOverrunOfACleanOccurrenceLowersABound) {
  LearnSafe();
  ASSERT_TRUE(hand_.Move(80, 100, 5, 130, 6));
  EXPECT_EQ(hand_.Info().max_safe, std::nullopt);
  EXPECT_EQ(hand_.Info().min_unsafe, 80u);
}

TEST_F(Evidence, OverranMeansTheCounterReachedTheEnd) {
  ASSERT_TRUE(hand_.Move(100, 10, 1, 500, 1));
  EXPECT_EQ(hand_.Info().overruns, 0u);
  ASSERT_TRUE(hand_.Move(100, 600, 3, 601, 4));
  EXPECT_EQ(hand_.Info(1).overruns, 1u);
}

// A gap at each of the moments of an occurrence.
TEST_F(Evidence, GapsSpoilWhatLastsAcrossThem) {
  for (int moment = 0; moment < 6; ++moment) {
    Hand hand;
    hand.Install(1, Pattern());
    hand.See(0, 0);
    const auto gap = [&](int now) {
      if (now == moment) hand.controller.NoteObservationGap();
    };
    gap(0);
    hand.See(10, 1);
    gap(1);
    const auto admission = hand.Poll(12, 1);
    ASSERT_TRUE(admission);
    gap(2);
    ASSERT_TRUE(hand.Commit(*admission, 100, 12, 1));
    gap(3);
    hand.Complete(*admission, 100, 17, 1);
    gap(4);
    hand.See(30, 2);
    gap(5);
    const Estimates expected = moment == 5 ? Estimates{400} : Estimates{};
    EXPECT_EQ(hand.Estimates(), expected) << moment;
    EXPECT_EQ(hand.Info().max_safe, 100u) << moment;
  }
}

TEST_F(Evidence, GapsKeepBoundsThatAnOverrunWouldLower) {
  for (int moment = 0; moment < 4; ++moment) {
    Hand hand;
    hand.Install(1, Pattern());
    hand.See(0, 0);
    ASSERT_TRUE(hand.Move(100, 10, 1, 15, 1));
    const auto gap = [&](int now) {
      if (now == moment) hand.controller.NoteObservationGap();
    };
    gap(0);
    hand.See(100, 5);
    gap(1);
    const auto admission = hand.Poll(101, 5);
    ASSERT_TRUE(admission);
    gap(2);
    ASSERT_TRUE(hand.Commit(*admission, 90, 101, 5));
    gap(3);
    hand.Complete(*admission, 90, 300, 6);
    EXPECT_EQ(hand.Info().max_safe, 100u) << moment;
    EXPECT_EQ(hand.Info().min_unsafe, std::nullopt) << moment;
  }
}

TEST_F(Evidence, ATransferThatCrossesTeachesOnlyItsOwnWindow) {
  ASSERT_TRUE(hand_.Move(100, 10, 1, 40, 3));  // into the second window
  EXPECT_EQ(hand_.Info(0).min_unsafe, 100u);
  EXPECT_EQ(hand_.Info(1).min_unsafe, std::nullopt);
  ASSERT_TRUE(hand_.Move(70, 41, 3, 45, 3));
  hand_.See(50, 4);
  EXPECT_EQ(hand_.Estimates(1), Estimates{});
  EXPECT_EQ(hand_.Info(1).max_safe, 70u);
  // The next occurrence of it is as good as any.
  ASSERT_TRUE(hand_.Move(70, 70, 7, 75, 7));
  hand_.See(80, 8);
  EXPECT_EQ(hand_.Estimates(1), Estimates{140});
}

TEST_F(Evidence, AWindowThatFollowsAtOnceIsCrossedToo) {
  Hand hand;
  hand.Install(1, WindowPattern(2, {{0, 1}, {1, 2}}));
  ASSERT_TRUE(hand.Move(100, 10, 0, 40, 1));
  ASSERT_TRUE(hand.Move(70, 41, 1, 60, 2));
  EXPECT_EQ(hand.Info(0).min_unsafe, 100u);
  EXPECT_EQ(hand.Info(1).min_unsafe, std::nullopt);  // no clean OPEN
}

TEST_F(Evidence, NoBytesAreNoEvidence) {
  ASSERT_TRUE(hand_.Move(0, 10, 1, 40, 2));
  EXPECT_EQ(hand_.Info().min_unsafe, std::nullopt);
  EXPECT_TRUE(hand_.controller.attempts(0).empty());
}

TEST_F(Evidence, StampsTimeWindowsHoweverLateTheyAreRead) {
  hand_.Stamp(10, 1);
  ASSERT_TRUE(hand_.Move(100, 14, 1, 19, 1));
  hand_.See(230, 3);  // CLOSE was missed by 200
  hand_.Stamp(30, 2);
  hand_.Stamp(225, 3);
  EXPECT_EQ(hand_.Estimates(), Estimates{400});
  EXPECT_EQ(hand_.Info().length_ns, 20);
}

TEST_F(Evidence, StampsOverruleSightings) {
  hand_.Stamp(10, 1);
  ASSERT_TRUE(hand_.Move(100, 14, 1, 19, 1));
  hand_.See(36, 2);  // exactly at CLOSE, but late
  EXPECT_EQ(hand_.Estimates(), Estimates{});
  hand_.Stamp(30, 2);
  EXPECT_EQ(hand_.Estimates(), Estimates{400});
}

TEST_F(Evidence, StampsDoNotHealGapsOrCrossings) {
  hand_.Stamp(10, 1);
  hand_.controller.NoteObservationGap();
  ASSERT_TRUE(hand_.Move(100, 28, 1, 40, 3));
  hand_.Stamp(30, 2);
  hand_.Stamp(35, 3);
  EXPECT_EQ(hand_.Info(0).min_unsafe, std::nullopt);
  ASSERT_TRUE(hand_.Move(70, 41, 3, 60, 4));
  hand_.Stamp(55, 4);
  EXPECT_EQ(hand_.Info(1).min_unsafe, std::nullopt);
  EXPECT_EQ(hand_.Estimates(0), Estimates{});
  EXPECT_EQ(hand_.Estimates(1), Estimates{});
  EXPECT_EQ(hand_.Info(0).length_ns, 20);
  EXPECT_EQ(hand_.Info(1).length_ns, 20);
}

TEST_F(Evidence, AFirstWindowWithoutAStampOfItsOpeningHasNoLength) {
  Hand hand;
  hand.Install(1, WindowPattern(2, {{0, 1}}));
  hand.See(990, 0);  // open since the version began, whenever that was
  hand.Stamp(1000, 1);
  EXPECT_EQ(hand.Info().length_ns, 0);
  hand.Stamp(2000, 2);
  hand.Stamp(2300, 3);
  EXPECT_EQ(hand.Info().length_ns, 300);
}

TEST_F(Evidence, GapsSpoilTheTimeOfATransfer) {
  for (const bool gap : {false, true}) {
    Hand hand{WindowConfig{}};
    hand.Install(1, WindowPattern(2, {{0, 1}}));
    for (int i = 0; i < 3; ++i) {
      const auto admission = hand.Poll(10 * i, 0);
      ASSERT_TRUE(admission);
      ASSERT_TRUE(hand.Commit(*admission, 1000, 10 * i, 0));
      if (gap) hand.controller.NoteObservationGap();
      hand.Complete(*admission, 1000, 10 * i + 5, 0);
    }
    EXPECT_EQ(hand.controller.State().link_bytes_per_second > 0, !gap);
  }
}

// A drain that is stalled for 200 ms, wherever, and says so.
TEST_F(Evidence, AStallAtAnyPhaseLosesAndInflatesNothing) {
  constexpr int64_t kMs = 1'000'000;
  for (const bool stamps : {false, true}) {
    for (int64_t phase = 0; phase < 40; ++phase) {
      Hand hand;
      hand.Install(1, WindowPattern(2, {{1, 2}}));
      hand.See(0, 0);
      // Windows of 10 ms every 20 ms, of which transfers take 5 ms.
      uint64_t stamped = 0;
      int64_t now = 0;
      bool stalled = false;
      while (now < 800 * kMs) {
        const int64_t ms = now / kMs;
        if (!stalled && ms == 200 + phase) {
          stalled = true;
          now += 200 * kMs;
          hand.controller.NoteObservationGap();
          continue;
        }
        const uint64_t counter = now / (10 * kMs);
        while (stamps && stamped < counter) {
          ++stamped;
          hand.Stamp(static_cast<int64_t>(stamped) * 10 * kMs, stamped);
        }
        if (const auto admission = hand.Poll(now, counter, 1000)) {
          ASSERT_TRUE(hand.Commit(*admission, 1000, now, counter));
          now += 5 * kMs;
          if (!stalled && now / kMs > 200 + phase) {
            stalled = true;
            now += 200 * kMs;
            hand.controller.NoteObservationGap();
          }
          hand.Complete(*admission, 1000, now, now / (10 * kMs));
        }
        now = (now / kMs + 1) * kMs;
      }
      EXPECT_EQ(hand.Info().max_safe, 1000u) << phase;
      EXPECT_EQ(hand.Info().min_unsafe, std::nullopt) << phase;
      EXPECT_GT(hand.Estimates().size(), 20u);
      for (const uint64_t estimate : hand.Estimates()) {
        EXPECT_EQ(estimate, 2000u) << phase;
      }
    }
  }
}

}  // namespace
}  // namespace dmi::windows
