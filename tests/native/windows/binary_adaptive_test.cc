// SPDX-License-Identifier: Apache-2.0
// The search, step by step: which state grants what, and what each outcome does
// to the state.
#include "windows/binary_adaptive.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace dmi::windows {
namespace {

constexpr uint64_t kPlenty = 1ull << 40;

class Search : public ::testing::Test {
 protected:
  // What is granted, as "kind limit".
  std::string Next(uint64_t first = 1, uint64_t full = kPlenty,
                   uint64_t most = kUnbounded) {
    static constexpr const char* kNames[] = {
        "full", "half", "mid", "safe", "estimate", "probe", "deadline"};
    grant_ = policy_->Choose(occurrence_, {full, first, most, std::nullopt});
    if (!grant_) return "none";
    return std::string(kNames[static_cast<int>(grant_->kind)]) +
           (grant_->timing_revalidation ? "* " : " ") +
           (grant_->byte_limit == kUnbounded
                ? "all"
                : std::to_string(grant_->byte_limit));
  }
  bool Fits(uint64_t bytes) { return Observe(bytes, false); }
  bool Fits() { return Fits(grant_->byte_limit); }
  bool Overruns(uint64_t bytes) { return Observe(bytes, true); }
  bool Overruns() { return Overruns(grant_->byte_limit); }
  void Estimate(uint64_t bytes, uint64_t measured = 0) {
    policy_->ObserveTimingEstimate(measured, bytes);
  }
  std::string State() const {
    const Learned l = policy_->learned();
    const auto text = [](std::optional<uint64_t> v) {
      return v ? std::to_string(*v) : std::string("-");
    };
    return text(l.max_safe) + " " + text(l.min_unsafe) + " " + text(l.estimate);
  }
  void Configure(const WindowConfig& config) { policy_.emplace(config); }

  // A=100, B=200 and nothing else.
  void Between() {
    Next();
    Fits(100);
    Next();
    Overruns(200);
    ASSERT_EQ(State(), "100 200 -");
  }
  // The same, and records that do not fit in between.
  void Stall() {
    Between();
    ASSERT_EQ(Next(), "mid 150");
    ASSERT_TRUE(Fits(100));
  }

  uint64_t occurrence_ = 0;
  std::optional<Grant> grant_;
  std::optional<BinaryAdaptive> policy_{WindowConfig{}};

 private:
  bool Observe(uint64_t bytes, bool overran) {
    return policy_->Observe(occurrence_++, bytes, overran, *grant_);
  }
};

TEST_F(Search, NothingIsGrantedWithoutARecord) { EXPECT_EQ(Next(0), "none"); }

TEST_F(Search, StartsWithAllAndHalvesWhatDoesNotFit) {
  EXPECT_EQ(Next(), "full all");
  Overruns(1000);
  EXPECT_EQ(State(), "- 1000 -");
  EXPECT_EQ(Next(), "half 500");
  Overruns();
  EXPECT_EQ(Next(), "half 250");
  Fits();
  EXPECT_EQ(State(), "250 500 -");
  EXPECT_EQ(Next(), "mid 375");
  Fits();
  EXPECT_EQ(Next(), "mid 437");
  Overruns();
  EXPECT_EQ(Next(), "mid 406");
}

TEST_F(Search, TheFirstGrantCanBeCapped) {
  WindowConfig config;
  config.initial_grant_bytes = 64;
  Configure(config);
  EXPECT_EQ(Next(), "full 64");
  Fits(64);
  Estimate(640);
  EXPECT_EQ(Next(), "estimate 640");
}

TEST_F(Search, WhatFitsIsGrantedAgain) {
  Next();
  Fits(100);
  EXPECT_EQ(Next(), "safe 100");
  Estimate(90);
  EXPECT_EQ(Next(), "safe 100");
  Estimate(300);
  EXPECT_EQ(Next(), "estimate 300");
  Fits();
  EXPECT_EQ(State(), "300 - 300");
}

TEST_F(Search, EstimatesThatOnlyConfirmAreDropped) {
  Next();
  Fits(100);
  Estimate(300);
  Estimate(80, 100);
  EXPECT_EQ(State(), "100 - 300");
  Estimate(80, 99);
  EXPECT_EQ(State(), "100 - 80");
}

TEST_F(Search, AnOverrunOfWhatWasSafeIsAShiftDownwards) {
  Between();
  Estimate(150);
  Next();
  Overruns(100);
  EXPECT_EQ(State(), "- 100 -");
  EXPECT_EQ(Next(), "half 50");
}

TEST_F(Search, ASuccessOfWhatWasUnsafeIsAShiftUpwards) {
  Between();
  Next();
  Fits(200);
  EXPECT_EQ(State(), "200 - -");
}

TEST_F(Search, ALargerOverrunLeavesTheBound) {
  Between();
  Next();
  Overruns(900);
  EXPECT_EQ(State(), "100 200 -");
}

TEST_F(Search, NoBytesAreNoEvidence) {
  Next();
  Overruns(0);
  EXPECT_EQ(State(), "- - -");
  EXPECT_EQ(Next(), "full all");
}

TEST_F(Search, AnEstimateAboveTheUnsafeSizeIsRevalidatedEverMoreRarely) {
  Between();
  Estimate(500);
  occurrence_ = 10;
  EXPECT_EQ(Next(), "estimate* 500");
  Overruns();  // in 10: next in 10 + 4
  EXPECT_EQ(State(), "100 200 500");
  occurrence_ = 13;
  EXPECT_EQ(Next(), "mid 150");
  occurrence_ = 14;
  EXPECT_EQ(Next(), "estimate* 500");
  Overruns();  // next in 14 + 8
  occurrence_ = 21;
  EXPECT_EQ(Next(), "mid 150");
  occurrence_ = 22;
  EXPECT_EQ(Next(), "estimate* 500");
  Overruns(150);  // B is lowered: it starts anew
  EXPECT_EQ(State(), "100 150 500");
  EXPECT_EQ(Next(), "estimate* 500");
  Overruns();  // in 23: next in 27
  occurrence_ = 26;
  EXPECT_EQ(Next(), "mid 125");
  occurrence_ = 27;
  EXPECT_EQ(Next(), "estimate* 500");
  Fits();
  EXPECT_EQ(State(), "500 - 500");
}

TEST_F(Search, RecordsThatAreTooLargeStallIt) {
  Between();
  EXPECT_EQ(Next(), "mid 150");
  EXPECT_TRUE(Fits(100));
  EXPECT_EQ(Next(), "safe 100");
  EXPECT_FALSE(Fits(100));
  EXPECT_EQ(Next(), "safe 100");
}

TEST_F(Search, MovingAllThereWasDoesNotStallIt) {
  Between();
  EXPECT_EQ(Next(1, 80), "mid 150");
  EXPECT_FALSE(Fits(80));
  EXPECT_EQ(Next(), "mid 150");
}

TEST_F(Search, AStallEndsWithANewEstimateInBetween) {
  Stall();
  Estimate(120);
  EXPECT_EQ(Next(), "estimate 120");
  EXPECT_FALSE(Fits(100));  // was stalled before, and is on account of 120 now
  EXPECT_EQ(Next(), "safe 100");
  Estimate(130);
  EXPECT_EQ(Next(), "estimate 130");
  EXPECT_FALSE(Fits(130));
  EXPECT_EQ(State(), "130 200 130");
  EXPECT_EQ(Next(), "mid 165");
}

TEST_F(Search, AStallRevalidatesWhenItMay) {
  Stall();
  Estimate(700);
  EXPECT_EQ(Next(), "estimate* 700");
  Overruns();
  // The overrun ended the stall; the estimate has to wait.
  EXPECT_EQ(Next(), "mid 150");
}

TEST_F(Search, AnOverrunEndsAStall) {
  Stall();
  EXPECT_EQ(Next(), "safe 100");
  Overruns(180);
  EXPECT_EQ(State(), "100 180 -");
  EXPECT_EQ(Next(), "mid 140");
}

TEST_F(Search, ARecordAboveTheLimitIsProbedEverMoreRarely) {
  Between();
  occurrence_ = 10;
  EXPECT_EQ(Next(5000), "probe 5000");
  Overruns();  // next in 10 + 4
  EXPECT_EQ(State(), "100 200 -");
  occurrence_ = 13;
  EXPECT_EQ(Next(5000), "none");
  occurrence_ = 14;
  EXPECT_EQ(Next(5000), "probe 5000");
  Overruns();  // next in 14 + 8
  occurrence_ = 21;
  EXPECT_EQ(Next(5000), "none");
  EXPECT_EQ(Next(50), "mid 150");
  occurrence_ = 22;
  EXPECT_EQ(Next(5000), "probe 5000");
  Fits();
  EXPECT_EQ(State(), "5000 - -");
  EXPECT_EQ(Next(6000), "probe 6000");
}

TEST_F(Search, RetriesFarAwayDoNotOverflow) {
  WindowConfig config;
  config.minimum_record_probe_retry_interval = kUnbounded / 2;
  Configure(config);
  Between();
  Next(5000);
  Overruns();
  occurrence_ = kUnbounded - 1;
  Next(5000);
  Overruns();
  occurrence_ = kUnbounded - 1;
  EXPECT_EQ(Next(5000), "none");
}

TEST_F(Search, ACapHoldsForEveryGrantAndIsNoStall) {
  EXPECT_EQ(Next(1, kPlenty, 70), "full 70");
  Between();
  EXPECT_EQ(Next(1, kPlenty, 70), "mid 70");
  EXPECT_FALSE(Fits(70));
  EXPECT_EQ(Next(), "mid 150");
  EXPECT_EQ(Next(90, kPlenty, 70), "none") << "not even a single record";
}

TEST_F(Search, ANewCountOfOccurrencesMakesRetriesPossible) {
  Between();
  occurrence_ = 1000;
  Next(5000);
  Overruns();
  policy_->Restart();
  occurrence_ = 0;
  EXPECT_EQ(Next(5000), "probe 5000");
  EXPECT_EQ(State(), "100 200 -");
}

}  // namespace
}  // namespace dmi::windows
