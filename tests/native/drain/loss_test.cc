// SPDX-License-Identifier: Apache-2.0
// Every way to lose a record is counted, and the counts add up.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "program/atomics.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kMillisecond;
using dmi::testing::Random;
using dmi::testing::RecordOne;

// With nothing freed, exactly what fits is kept: the oldest records.
TEST(DropTest, NewestAreDroppedAndCounted) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device,
            {.bytes = 1024, .slots = 64, .overflow = wire::Overflow::kDrop},
            {.linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 100; ++i) RecordOne(device, 0, i, 100);
  EXPECT_EQ(flow.recorded(), 8u);
  EXPECT_EQ(flow.lost(wire::kLostOverflow), 92u);
  flow.Stop();
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.of(0), 8u);
}

// Under load from all sides: sequences stay dense, and what was recorded plus
// what was lost is what was tried.
TEST(DropTest, AccountIsExactUnderLoad) {
  const Deadline deadline(std::chrono::seconds(60));
  constexpr uint64_t kProducers = 4;
  constexpr uint64_t kEach = 5000;
  Device device;
  Flow flow(device,
            {.bytes = 4096, .slots = 16, .overflow = wire::Overflow::kDrop},
            {});
  Checker checker;
  flow.Start();
  std::jthread consumer([&] { checker.Run(flow.queue()); });
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        Random random(producer);
        for (uint64_t i = 0; i < kEach; ++i) {
          RecordOne(device, producer, i, random.UpTo(2100));
        }
      });
    }
  }
  flow.Stop();
  consumer.join();
  const uint64_t overflow = flow.lost(wire::kLostOverflow);
  const uint64_t too_large = flow.lost(wire::kLostTooLarge);
  EXPECT_GT(too_large, 0u);
  EXPECT_EQ(flow.recorded() + overflow + too_large, kProducers * kEach);
  EXPECT_EQ(flow.recorded(), flow.drain().queued());
  EXPECT_EQ(flow.recorded(), checker.records());
  EXPECT_EQ(flow.lost(wire::kLostStalled), 0u);
  EXPECT_EQ(flow.lost(wire::kLostClosed), 0u);
}

// Each site's own account, too.
TEST(DropTest, AccountIsExactPerSite) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device,
            {.bytes = 512, .slots = 8, .overflow = wire::Overflow::kDrop}, {});
  Checker checker;
  flow.Start();
  std::jthread consumer([&] { checker.Run(flow.queue()); });
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < 3; ++producer) {
      producers.emplace_back([&, producer] {
        for (uint64_t i = 0; i < 1000 * (producer + 1); ++i) {
          RecordOne(device, producer, i, 64);
        }
      });
    }
  }
  flow.Stop();
  consumer.join();
  const auto* sites =
      reinterpret_cast<const wire::SiteCounters*>(flow.ring().header().sites);
  for (uint64_t producer = 0; producer < 3; ++producer) {
    EXPECT_EQ(sites[producer].recorded, checker.of(producer));
    EXPECT_EQ(
        sites[producer].recorded + sites[producer].lost[wire::kLostOverflow],
        1000 * (producer + 1));
  }
}

// Each producer has at most one record in a ring that holds many, so the ring
// is never full: whoever drops has compared heads and tails of different laps.
TEST(DropTest, RingThatIsNotFullDropsNothing) {
  const Deadline deadline(std::chrono::seconds(60));
  constexpr uint64_t kProducers = 6;
  constexpr uint64_t kEach = 4000;
  Device device;
  Flow flow(device,
            {.bytes = 64 * 16,
             .slots = 16,
             .overflow = wire::Overflow::kDrop,
             .wake_records = 1},
            {.linger_nanos = 0});
  flow.Start();
  // What is freed: the tail's sequence, in full.
  const auto freed = [&] {
    const wire::Cursor tail =
        wire::Unpack(program::LoadAcquire(flow.ring().header().tail));
    return wire::Extend(tail.sequence, flow.drain().queued());
  };
  std::jthread consumer([&] {
    while (!flow.queue().finished()) flow.queue().Pop(16, kForever);
  });
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        for (uint64_t i = 0; i < kEach; ++i) {
          RecordOne(device, producer, i, 64);
          const uint64_t after = flow.drain().reserved();
          while (freed() < after) std::this_thread::yield();
        }
      });
    }
  }
  flow.Stop();
  consumer.join();
  EXPECT_EQ(flow.lost(wire::kLostOverflow), 0u);
  EXPECT_EQ(flow.recorded(), kProducers * kEach);
}

// A consumer that takes a batch and never gives it back stalls every producer
// once, for one budget in all; from then on the ring drops.
TEST(StallTest, BudgetIsSpentOnceThenTheRingDrops) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 200 * kMillisecond;
  constexpr uint64_t kProducers = 3;
  constexpr uint64_t kEach = 200;
  Device device;
  Flow flow(device, {.bytes = 1024, .slots = 16, .stall_nanos = kBudget}, {});
  flow.Start();
  const int64_t begin = base::MonotonicNanos();
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        for (uint64_t i = 0; i < kEach; ++i) RecordOne(device, producer, i, 64);
      });
    }
  }
  const int64_t took = base::MonotonicNanos() - begin;
  EXPECT_GE(took, kBudget);
  EXPECT_LT(took, 10 * kBudget);
  EXPECT_EQ(flow.recorded(), 16u);
  EXPECT_EQ(flow.lost(wire::kLostStalled), kProducers * kEach - 16);
  // What was kept is whole, and space that comes free is used again.
  Checker checker;
  while (checker.records() < 16) {
    for (const auto& batch : flow.queue().Pop(1, kForever)) {
      checker.Check(*batch);
    }
  }
  RecordOne(device, 0, kEach, 64);
  flow.Stop();
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), 17u);
}

// A consumer slower than the program, but never still for long, costs nothing.
TEST(StallTest, SlowConsumerLosesNothing) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 400 * kMillisecond;
  Device device;
  Flow flow(device, {.bytes = 256, .slots = 4, .stall_nanos = kBudget}, {});
  flow.Start();
  Checker checker;
  std::jthread consumer([&] {
    while (!flow.queue().finished()) {
      for (const auto& batch : flow.queue().Pop(1, kForever)) {
        checker.Check(*batch);
        // The consumer's own pace: nobody waits for this to pass.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  });
  const int64_t begin = base::MonotonicNanos();
  uint64_t count = 0;
  for (; base::MonotonicNanos() - begin < 2 * kBudget; ++count) {
    RecordOne(device, 0, count, 128);
  }
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), count);
  EXPECT_EQ(flow.lost(wire::kLostStalled), 0u);
}

TEST(StallTest, NoBudgetAtAllDropsAtOnce) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device, {.bytes = 128, .slots = 2, .stall_nanos = 0}, {});
  flow.Start();
  for (uint64_t i = 0; i < 100; ++i) RecordOne(device, 0, i, 64);
  EXPECT_EQ(flow.recorded(), 2u);
  EXPECT_EQ(flow.lost(wire::kLostStalled), 98u);
}

}  // namespace
}  // namespace dmi::drain
