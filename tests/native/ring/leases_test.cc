// SPDX-License-Identifier: Apache-2.0
// Leases: freed in any order, and the tail moves over what is free in front.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "program/atomics.h"
#include "ring/ring.h"
#include "support/payload.h"

namespace dmi::ring {
namespace {

using dmi::testing::Random;
using wire::Cursor;

Cursor TailOf(const Ring& ring) {
  return wire::Unpack(program::LoadAcquire(ring.header().tail));
}

TEST(LeaseTest, TailWaitsForTheOldest) {
  Ring ring({.bytes = 4096, .slots = 64});
  const uint64_t a = ring.Lease({1, 2}, 100);
  const uint64_t b = ring.Lease({3, 5}, 200);
  const uint64_t c = ring.Lease({4, 9}, 300);
  EXPECT_EQ(ring.pinned(), 600u);
  ring.Release(b);
  EXPECT_EQ(TailOf(ring), (Cursor{0, 0}));
  EXPECT_EQ(ring.pinned(), 400u);
  ring.Release(a);
  EXPECT_EQ(TailOf(ring), (Cursor{3, 5})) << "released ones behind are merged";
  ring.Release(c);
  EXPECT_EQ(TailOf(ring), (Cursor{4, 9}));
  EXPECT_EQ(ring.pinned(), 0u);
}

TEST(LeaseTest, AnyOrderEndsAtTheLastLease) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    Ring ring({.bytes = 4096, .slots = 64});
    std::vector<uint64_t> ids;
    for (uint32_t i = 0; i < 20; ++i) {
      ids.push_back(ring.Lease({i + 1, 3 * (i + 1)}, i));
    }
    std::vector<bool> released(ids.size());
    for (size_t left = ids.size(); left > 0; --left) {
      const size_t pick = random.UpTo(left - 1);
      const uint64_t id = ids[pick];
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(pick));
      ring.Release(id);
      released[id] = true;
      const auto front = std::find(released.begin(), released.end(), false);
      const auto done = static_cast<uint32_t>(front - released.begin());
      ASSERT_EQ(TailOf(ring), (Cursor{done, 3 * done}));
    }
    ASSERT_EQ(ring.pinned(), 0u);
  }
}

TEST(LeaseTest, ManyThreadsReleaseWhileOneLeases) {
  constexpr uint32_t kLeases = 20000;
  Ring ring({.bytes = 4096, .slots = 64});
  std::mutex mutex;
  std::vector<uint64_t> waiting;
  uint32_t released = 0;
  {
    std::vector<std::jthread> threads;
    for (uint64_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        Random random(thread);
        while (true) {
          uint64_t id;
          {
            std::lock_guard lock(mutex);
            if (released == kLeases) return;
            if (waiting.empty()) continue;
            const size_t pick = random.UpTo(waiting.size() - 1);
            std::swap(waiting[pick], waiting.back());
            id = waiting.back();
            waiting.pop_back();
            ++released;
          }
          ring.Release(id);
        }
      });
    }
    for (uint32_t i = 0; i < kLeases; ++i) {
      const uint64_t id = ring.Lease({i + 1, i + 1}, 1);
      std::lock_guard lock(mutex);
      waiting.push_back(id);
    }
  }
  EXPECT_EQ(TailOf(ring), (Cursor{kLeases, kLeases}));
  EXPECT_EQ(ring.pinned(), 0u);
}

TEST(RingTest, SizesAreRoundedUp) {
  const Ring ring({.bytes = 1, .slots = 1});
  EXPECT_EQ(ring.payload_bytes(), 128u);
  EXPECT_EQ(ring.header().extent.units, 2u);
  EXPECT_EQ(ring.header().extent.slots, 2u);
  const Ring odd({.bytes = 129, .slots = 1000});
  EXPECT_EQ(odd.payload_bytes(), 256u);
  EXPECT_EQ(odd.header().extent.slots, 1024u);
}

// Sizes nobody has memory for must be refused, not wrapped to small ones.
TEST(RingTest, HugeSizesAreRefused) {
  constexpr uint64_t kMost = wire::kMaxUnits * wire::kPayloadUnit;
  for (const uint64_t bytes :
       {kMost + 1, uint64_t{1} << 63, std::numeric_limits<uint64_t>::max() - 62,
        std::numeric_limits<uint64_t>::max()}) {
    EXPECT_THROW(Ring({.bytes = bytes}), std::invalid_argument) << bytes;
  }
  for (const uint32_t slots : {wire::kMaxSlots + 1, (1u << 31) + 1,
                               std::numeric_limits<uint32_t>::max()}) {
    EXPECT_THROW(Ring({.bytes = 4096, .slots = slots}), std::invalid_argument)
        << slots;
  }
}

TEST(RingTest, WakeThresholdsStayWithinTheRing) {
  const Ring ring({.bytes = 1024,
                   .slots = 8,
                   .wake_records = std::numeric_limits<uint32_t>::max(),
                   .wake_bytes = std::numeric_limits<uint64_t>::max()});
  EXPECT_EQ(ring.header().wake_records, 4u);
  EXPECT_EQ(ring.header().wake_units, 8u);
  const Ring eager(
      {.bytes = 1024, .slots = 8, .wake_records = 0, .wake_bytes = 0});
  EXPECT_EQ(eager.header().wake_records, 1u);
  EXPECT_EQ(eager.header().wake_units, 1u);
}

}  // namespace
}  // namespace dmi::ring
