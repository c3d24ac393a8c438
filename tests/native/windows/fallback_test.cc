// SPDX-License-Identifier: Apache-2.0
// Full rings: how many are too many, and how windows get another chance.
#include <gtest/gtest.h>

#include <cstdint>

#include "windows/hand.h"

namespace dmi::windows {
namespace {

constexpr uint64_t kPeriod = 2;
constexpr uint64_t kInterval = 32;  // periods

class Fallback : public ::testing::Test {
 protected:
  void SetUp() override {
    hand_.Install(1, WindowPattern(kPeriod, {{0, 1}}));
    hand_.See(0, 0);
  }
  bool Flush(uint64_t counter) {
    return hand_.controller.RecordCapacityFlush(hand_.Word(counter));
  }
  void FallBack(uint64_t counter) {
    Flush(counter);
    Flush(counter);
    ASSERT_TRUE(Flush(counter));
    ASSERT_EQ(hand_.controller.mode(), Mode::kFallback);
  }
  // Periods from this counter until the mode is active again.
  uint64_t Hold(uint64_t counter) {
    const uint64_t begin = counter;
    while (hand_.controller.mode() == Mode::kFallback) {
      hand_.See(0, counter++);
      if (counter > begin + 10'000) return 0;
    }
    counter_ = counter - 1;
    return (counter_ - begin) / kPeriod;
  }
  Hand hand_;
  uint64_t counter_ = 0;
};

TEST_F(Fallback, BeginsAtTheThreshold) {
  EXPECT_FALSE(Flush(0));
  EXPECT_FALSE(Flush(0));
  EXPECT_EQ(hand_.controller.mode(), Mode::kActive);
  EXPECT_TRUE(Flush(0));
  EXPECT_EQ(hand_.controller.mode(), Mode::kFallback);
  EXPECT_FALSE(Flush(0)) << "it has begun before";
  EXPECT_FALSE(hand_.Poll(0, 2));
}

TEST_F(Fallback, FlushesAgeByPeriods) {
  const uint64_t apart = kInterval * kPeriod;
  EXPECT_FALSE(Flush(0));
  EXPECT_FALSE(Flush(apart - 1));
  EXPECT_FALSE(Flush(2 * apart - 1)) << "exactly the interval: counts anew";
  EXPECT_FALSE(Flush(3 * apart - 2));
  EXPECT_TRUE(Flush(4 * apart - 3)) << "one less than the interval: adds up";
}

TEST_F(Fallback, CountsOnlyWhereWindowsAreActive) {
  Hand hand;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(hand.controller.RecordCapacityFlush(hand.Word(0)));
  }
  EXPECT_EQ(hand.controller.mode(), Mode::kNoPattern);
}

TEST_F(Fallback, ANewVersionForgetsTheCount) {
  Flush(0);
  Flush(0);
  hand_.Install(2, WindowPattern(kPeriod, {{0, 1}}));
  hand_.See(0, 0);
  EXPECT_FALSE(Flush(0));
  EXPECT_FALSE(Flush(0));
  EXPECT_TRUE(Flush(0));
}

TEST_F(Fallback, LastsLongerEachTimeUpToALimit) {
  FallBack(0);
  for (const uint64_t times : {1, 2, 4, 8, 16, 16}) {
    EXPECT_EQ(Hold(counter_), times * kInterval);
    FallBack(counter_);
  }
}

TEST_F(Fallback, IsShortAgainAfterAsLongWithoutOne) {
  FallBack(0);
  EXPECT_EQ(Hold(0), kInterval);
  FallBack(counter_);
  EXPECT_EQ(Hold(counter_), 2 * kInterval);
  uint64_t counter = counter_;
  for (const uint64_t end = counter + 2 * kInterval * kPeriod; counter < end;) {
    hand_.See(0, ++counter);
  }
  FallBack(counter);
  EXPECT_EQ(Hold(counter), kInterval);
}

TEST_F(Fallback, IsNotEndedByAVersionThatIsSeenInIt) {
  FallBack(0);
  hand_.Install(2, WindowPattern(kPeriod, {{0, 1}}));
  EXPECT_FALSE(hand_.Poll(0, 0));
  EXPECT_EQ(hand_.controller.mode(), Mode::kFallback);
  EXPECT_EQ(Hold(0), kInterval);
  EXPECT_TRUE(hand_.Poll(0, counter_ + counter_ % kPeriod));
}

TEST_F(Fallback, LearnsNothingAndKeepsWhatWasLearned) {
  ASSERT_TRUE(hand_.Move(100, 0, 0, 1, 0));
  FallBack(1);
  Hold(1);
  EXPECT_EQ(hand_.Info().max_safe, 100u);
  ASSERT_TRUE(hand_.Move(100, 9, counter_ + counter_ % kPeriod, 9,
                         counter_ + counter_ % kPeriod));
}

}  // namespace
}  // namespace dmi::windows
