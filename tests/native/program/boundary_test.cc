// SPDX-License-Identifier: Apache-2.0
// The boundary log: every boundary is stamped once, and what was overwritten is
// left out rather than made up.
#include "program/boundary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::program {
namespace {

using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;

constexpr uint64_t kLog = wire::kBoundaryLogSize;

class BoundaryTest : public ::testing::Test {
 protected:
  BoundaryTest() : flow_(device_, {.bytes = 4096, .slots = 16}, {}) {
    flow_.Start();
  }
  void Advance(uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) AdvanceBoundary(device_.block());
  }
  std::vector<wire::BoundaryStamp> Read(uint64_t first = 0) {
    return ReadBoundaries(flow_.ring().header(), first);
  }

  const Deadline deadline_{std::chrono::seconds(60)};
  Device device_;
  Flow flow_;
};

TEST_F(BoundaryTest, EachIsStampedWithItsNumberAndTime) {
  const int64_t before = base::UtcNanos();
  Advance(100);
  const int64_t after = base::UtcNanos();
  const auto stamps = Read();
  ASSERT_EQ(stamps.size(), 100u);
  int64_t last = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(stamps[i].tag, i + 1);
    EXPECT_EQ(wire::CounterOf(stamps[i].progress), i + 1);
    EXPECT_GE(stamps[i].time_ns, last);
    last = stamps[i].time_ns;
  }
  // The clocks are compared once per ring; they may drift a little since.
  constexpr int64_t kSlack = 50'000'000;
  EXPECT_GE(stamps.front().time_ns, before - kSlack);
  EXPECT_LE(last, after + kSlack);
}

TEST_F(BoundaryTest, ReadingStartsWhereAsked) {
  Advance(10);
  EXPECT_EQ(Read(7).size(), 3u);
  EXPECT_EQ(Read(10).size(), 0u);
  EXPECT_EQ(Read(1'000'000).size(), 0u);
}

TEST_F(BoundaryTest, TheNewestAreKept) {
  Advance(2 * kLog + 17);
  const auto stamps = Read();
  ASSERT_EQ(stamps.size(), kLog);
  for (uint64_t i = 0; i < kLog; ++i) {
    ASSERT_EQ(stamps[i].tag, kLog + 17 + i + 1);
    ASSERT_EQ(wire::CounterOf(stamps[i].progress), stamps[i].tag);
  }
}

TEST_F(BoundaryTest, CountIsExactFromSeveralThreads) {
  constexpr uint64_t kEach = 5000;
  {
    std::vector<std::jthread> programs;
    for (int i = 0; i < 4; ++i) {
      programs.emplace_back([&] { Advance(kEach); });
    }
  }
  const auto stamps = Read();
  ASSERT_EQ(stamps.size(), 4 * kEach);
  std::vector<bool> seen(4 * kEach + 1);
  for (const auto& stamp : stamps) {
    const uint64_t counter = wire::CounterOf(stamp.progress);
    ASSERT_FALSE(seen[counter]);
    seen[counter] = true;
  }
}

// One program: progress and tag move together, so a stamp put together from two
// boundaries would show. The oldest stamps are the ones being overwritten.
TEST_F(BoundaryTest, ReadsWhileOverwrittenAreNeverTorn) {
  Advance(kLog);
  std::atomic<bool> done{false};
  std::jthread program([&] {
    while (!done.load(std::memory_order_relaxed)) Advance(1);
  });
  const int64_t end = base::MonotonicNanos() + dmi::testing::kSecond;
  uint64_t newest = 0;
  uint64_t torn = 0;
  while (base::MonotonicNanos() < end) {
    uint64_t previous = 0;
    const auto stamps = Read();
    for (const auto& stamp : stamps) {
      torn += wire::CounterOf(stamp.progress) != stamp.tag;
      torn += stamp.tag <= previous;
      previous = stamp.tag;
    }
    newest = std::max(newest, previous);
  }
  done = true;
  program.join();
  EXPECT_EQ(torn, 0u);
  EXPECT_GT(newest, 2 * kLog);
}

TEST_F(BoundaryTest, WithoutARingNothingIsCounted) {
  Advance(3);
  flow_.Stop();
  Advance(5);
  EXPECT_EQ(Read().size(), 3u);
  EXPECT_EQ(wire::CounterOf(device_.block().progress), 3u);
}

TEST(ProgressTest, CounterDoesNotReachTheVersion) {
  const uint64_t word = wire::PackProgress(0xABCD, wire::kCounterMask);
  EXPECT_EQ(wire::VersionOf(word), 0xABCD);
  EXPECT_EQ(wire::CounterOf(word), wire::kCounterMask);
  EXPECT_EQ(wire::PackProgress(1, wire::kCounterMask + 1),
            wire::PackProgress(1, 0));
}

}  // namespace
}  // namespace dmi::program
