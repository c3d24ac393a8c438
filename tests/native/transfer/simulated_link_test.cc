// SPDX-License-Identifier: Apache-2.0
// A simulated link takes exactly the time it should, and keeps the order.
#include "transfer/simulated_link.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace dmi::transfer {
namespace {

// A byte takes a nanosecond.
constexpr SimulatedLinkOptions kPlain{
    .bytes_per_second = 1e9, .latency_nanos = 100, .depth = 3};

class SimulatedLinkTest : public ::testing::Test {
 protected:
  void Begin(uint64_t bytes) { link_.Begin(to_.data(), from_.data(), bytes); }
  // Advances the clock to where the oldest transfer has landed; returns it.
  int64_t Land() {
    while (const int64_t left = link_.Remaining()) time_->Advance(left);
    link_.Retire();
    return time_->Now();
  }

  const std::shared_ptr<base::ManualTime> time_ =
      std::make_shared<base::ManualTime>();
  SimulatedLink link_{kPlain, time_};
  std::vector<uint8_t> from_ = std::vector<uint8_t>(1000, 7);
  std::vector<uint8_t> to_ = std::vector<uint8_t>(1000, 0);
};

TEST_F(SimulatedLinkTest, OneTransferTakesItsLatencyAndItsBytes) {
  Begin(1000);
  EXPECT_EQ(link_.Remaining(), 1100);
  time_->Advance(1099);
  EXPECT_EQ(link_.Remaining(), 1);
  EXPECT_EQ(to_, std::vector<uint8_t>(1000, 0));
  time_->Advance(1);
  EXPECT_EQ(link_.Remaining(), 0);
  EXPECT_EQ(to_, from_);
}

TEST_F(SimulatedLinkTest, WhatHasLandedStaysAsItIs) {
  Begin(1000);
  time_->Advance(1100);
  EXPECT_EQ(link_.Remaining(), 0);
  from_.assign(1000, 8);
  time_->Advance(1);
  EXPECT_EQ(link_.Remaining(), 0);
  EXPECT_EQ(to_, std::vector<uint8_t>(1000, 7));
}

TEST_F(SimulatedLinkTest, BytesTakeTurnsAndLatenciesOverlap) {
  Begin(1000);
  Begin(10);
  Begin(0);
  EXPECT_EQ(Land(), 1100);
  EXPECT_EQ(Land(), 1110);
  Begin(500);
  EXPECT_EQ(Land(), 1110);
  EXPECT_EQ(Land(), 1710);
}

TEST_F(SimulatedLinkTest, OnlyTheOldestIsAskedFor) {
  Begin(1000);
  std::vector<uint8_t> second(10, 0);
  link_.Begin(second.data(), from_.data(), 10);
  time_->Advance(5000);
  EXPECT_EQ(link_.Remaining(), 0);
  EXPECT_EQ(second, std::vector<uint8_t>(10, 0));
  link_.Retire();
  EXPECT_EQ(link_.Remaining(), 0);
  EXPECT_EQ(second, std::vector<uint8_t>(10, 7));
}

TEST_F(SimulatedLinkTest, AFailureLeavesWhatIsUnderWay) {
  link_.FailAfter(1);
  Begin(1000);
  EXPECT_THROW(Begin(10), std::runtime_error);
  EXPECT_EQ(Land(), 1100);
  EXPECT_EQ(to_, from_);
}

}  // namespace
}  // namespace dmi::transfer
