// SPDX-License-Identifier: Apache-2.0
// When records leave the ring: at the limits, when they are old, when somebody
// asks; and what waiting for that costs.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
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
using dmi::testing::kSecond;
using dmi::testing::Random;
using dmi::testing::RecordOne;

class FlushTest : public ::testing::Test {
 protected:
  const Deadline deadline_{std::chrono::seconds(60)};
  Device device_;
};

TEST_F(FlushTest, LoneRecordLeavesWithinLingerPlusFiftyMilliseconds) {
  for (const int64_t linger :
       {int64_t{0}, 20 * kMillisecond, 200 * kMillisecond}) {
    Flow flow(device_, {.bytes = 1 << 20, .slots = 1024},
              {.linger_nanos = linger});
    flow.Start();
    // The best of a few: a busy machine may delay any of them.
    int64_t best = kForever;
    for (uint64_t i = 0; i < 3; ++i) {
      const int64_t begin = base::MonotonicNanos();
      RecordOne(device_, 0, i, 100);
      ASSERT_EQ(flow.queue().Pop(1, kForever).size(), 1u);
      const int64_t took = base::MonotonicNanos() - begin;
      ASSERT_GE(took, linger * 9 / 10) << "it may wait for others";
      best = std::min(best, took);
    }
    EXPECT_LE(best, linger + 50 * kMillisecond) << "linger " << linger;
    flow.Stop();
  }
}

TEST_F(FlushTest, YoungRecordsWaitForOthers) {
  Flow flow(device_, {.bytes = 1 << 20, .slots = 1024},
            {.linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 100; ++i) RecordOne(device_, 0, i, 100);
  EXPECT_TRUE(flow.queue().Pop(1, 100 * kMillisecond).empty());
}

TEST_F(FlushTest, CountOfRecordsMakesABatch) {
  Flow flow(device_, {.bytes = 1 << 20, .slots = 1024, .wake_records = 50},
            {.batch_records = 50, .linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 50; ++i) RecordOne(device_, 0, i, 100);
  const auto batches = flow.queue().Pop(1, kForever);
  EXPECT_EQ(batches.front()->columns().rows(), 50u);
}

TEST_F(FlushTest, BytesMakeABatch) {
  Flow flow(device_, {.bytes = 1 << 20, .slots = 1024, .wake_bytes = 10000},
            {.batch_bytes = 10000, .linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 10; ++i) RecordOne(device_, 0, i, 1000);
  EXPECT_EQ(flow.queue().Pop(1, kForever).front()->bytes(), 10000u);
}

TEST_F(FlushTest, HalfTheRingMakesABatch) {
  Flow flow(device_, {.bytes = 64 * 64, .slots = 1024},
            {.linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 32; ++i) RecordOne(device_, 0, i, 64);
  EXPECT_FALSE(flow.queue().Pop(1, kForever).empty());
}

// What waits begins anywhere in the ring, goes over its end, and may end where
// it begins.
TEST_F(FlushTest, HalfTheRingCountsAcrossItsEnd) {
  for (const uint32_t at : {0u, 1u, 31u, 32u, 33u, 63u}) {
    for (const uint64_t records : {31u, 32u, 63u, 64u}) {
      Flow flow(device_, {.bytes = 64 * 64, .slots = 1024},
                {.linger_nanos = kForever}, {0, at});
      program::Install(device_.block(), flow.ring().header());
      for (uint64_t i = 0; i < records; ++i) RecordOne(device_, 0, i, 64);
      ASSERT_GE(flow.drain().Turn(), 0);
      EXPECT_EQ(flow.drain().queued() > 0, records >= 32)
          << records << " from unit " << at;
    }
  }
}

// Room that nothing fits into before the end of the ring is taken too.
TEST_F(FlushTest, PaddingCountsAsHalfTheRing) {
  for (const uint32_t at : {48u, 50u}) {
    Flow flow(device_, {.bytes = 64 * 64, .slots = 1024},
              {.linger_nanos = kForever}, {0, at});
    program::Install(device_.block(), flow.ring().header());
    RecordOne(device_, 0, 0, 64 * 17);
    ASSERT_GE(flow.drain().Turn(), 0);
    EXPECT_EQ(flow.drain().queued(), at == 48 ? 1u : 0u);
  }
}

TEST_F(FlushTest, EmptyRecordsTakeNothingOfTheRing) {
  for (const uint32_t at : {0u, 63u}) {
    Flow flow(device_, {.bytes = 64 * 64, .slots = 1024},
              {.linger_nanos = kForever}, {0, at});
    program::Install(device_.block(), flow.ring().header());
    for (uint64_t i = 0; i < 100; ++i) RecordOne(device_, 0, i, 0);
    ASSERT_GE(flow.drain().Turn(), 0);
    EXPECT_EQ(flow.drain().queued(), 0u);
    RecordOne(device_, 0, 100, 64 * 32);
    ASSERT_GE(flow.drain().Turn(), 0);
    EXPECT_EQ(flow.drain().queued(), 101u);
  }
}

TEST_F(FlushTest, HalfTheSlotsMakeABatch) {
  Flow flow(device_, {.bytes = 1 << 20, .slots = 64},
            {.linger_nanos = kForever});
  flow.Start();
  for (uint64_t i = 0; i < 32; ++i) RecordOne(device_, 0, i, 64);
  EXPECT_FALSE(flow.queue().Pop(1, kForever).empty());
}

// ---- Seal ----

TEST_F(FlushTest, SealQueuesWhatWasRecordedBefore) {
  Flow flow(device_, {.bytes = 1 << 20, .slots = 1024},
            {.linger_nanos = kForever});
  flow.Start();
  EXPECT_EQ(flow.drain().Seal(kForever), 0u);
  for (uint64_t round = 1; round <= 200; ++round) {
    RecordOne(device_, 0, round, 100);
    ASSERT_EQ(flow.drain().Seal(kForever), round);
    ASSERT_EQ(flow.queue().Pop(1, 0).size(), 1u);
  }
  for (const Transfer& transfer : flow.drain().transfers().Read()) {
    ASSERT_EQ(transfer.kind, TransferKind::kForced);
    ASSERT_EQ(transfer.bytes, 100u);
    ASSERT_LE(transfer.begin_ns, transfer.end_ns);
  }
}

TEST_F(FlushTest, SealFromSeveralThreadsUnderLoad) {
  Flow flow(device_, {.bytes = 65536, .slots = 512, .stall_nanos = kForever},
            {.linger_nanos = kForever});
  flow.Start();
  Checker checker;
  std::jthread consumer([&] { checker.Run(flow.queue()); });
  std::atomic<bool> stop{false};
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < 2; ++producer) {
      producers.emplace_back([&, producer] {
        Random random(producer);
        for (uint64_t i = 0; !stop.load(); ++i) {
          RecordOne(device_, producer, i, random.UpTo(3000));
        }
      });
    }
    std::vector<std::jthread> sealers;
    for (int i = 0; i < 3; ++i) {
      sealers.emplace_back([&] {
        for (int round = 0; round < 100; ++round) {
          const uint64_t before = flow.drain().reserved();
          const uint64_t sealed = flow.drain().Seal(kForever);
          ASSERT_GE(sealed, before);
          ASSERT_LE(sealed, flow.drain().queued());
        }
      });
    }
    sealers.clear();
    stop = true;
  }
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), flow.recorded());
}

// A record that has its place but is still being copied.
TEST_F(FlushTest, SealWaitsForACopyInProgress) {
  Flow flow(device_, {.bytes = 4096, .slots = 16}, {.linger_nanos = kForever});
  flow.Start();
  wire::RingHeader& header = flow.ring().header();
  program::StoreRelease(header.head, wire::Pack({1, 1}));
  const int64_t begin = base::MonotonicNanos();
  EXPECT_EQ(flow.drain().Seal(50 * kMillisecond), 0u);
  EXPECT_GE(base::MonotonicNanos() - begin, 50 * kMillisecond);
  std::jthread sealer([&] { EXPECT_EQ(flow.drain().Seal(kForever), 1u); });
  auto& slot = reinterpret_cast<wire::Slot*>(header.slots)[0];
  slot.bytes = 64;
  program::StoreRelease(slot.publication, wire::PublicationOf(0));
  sealer.join();
  EXPECT_EQ(flow.queue().Pop(1, 0).size(), 1u);
}

TEST_F(FlushTest, SealAfterStopReturnsAtOnce) {
  Flow flow(device_, {.bytes = 4096, .slots = 16}, {});
  flow.Start();
  RecordOne(device_, 0, 0, 64);
  flow.Stop();
  EXPECT_EQ(flow.drain().Seal(kForever), 1u);
}

// ---- Cost ----

int64_t Sleeps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nvcsw;
}

// A look takes some ten microseconds: a hundred a second are well under a
// hundredth of a core. Counted, because processor time says little where others
// use the machine.
TEST_F(FlushTest, IdleDrainLooksAtMostAHundredTimesASecond) {
  for (const int64_t linger : {int64_t{0}, kMillisecond, 200 * kMillisecond}) {
    Flow flow(device_, {.bytes = 1 << 20, .slots = 1024},
              {.linger_nanos = linger});
    flow.Start();
    const int64_t before = Sleeps();
    const int64_t begin = base::MonotonicNanos();
    flow.queue().Pop(1, 500 * kMillisecond);
    const int64_t wall = base::MonotonicNanos() - begin;
    const int64_t sleeps = Sleeps() - before;
    EXPECT_GT(sleeps, 5) << "this system does not count";
    EXPECT_LT(sleeps * kSecond / wall, 130) << "linger " << linger;
    flow.Stop();
  }
}

}  // namespace
}  // namespace dmi::drain
