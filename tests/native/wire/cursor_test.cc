// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the cursor: where records go, and what happens at every edge.
#include "wire/cursor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace dmi::wire {
namespace {

constexpr Extent ExtentOf(uint32_t units, uint32_t slots) {
  return {units, slots, SpanOf(units)};
}

// A cursor that has moved `units` units in `records` records, from zero.
Cursor After(uint32_t records, uint64_t units, Extent extent) {
  return {records, static_cast<uint32_t>(units % extent.span)};
}

TEST(CursorTest, PackingKeepsBothHalves) {
  constexpr Cursor kCursor{0xfedcba98u, 0x12345678u};
  static_assert(Unpack(Pack(kCursor)) == kCursor);
  static_assert(Pack(kCursor) == 0xfedcba9812345678u);
}

TEST(CursorTest, PayloadsTakeWholeUnits) {
  static_assert(UnitsFor(0) == 0);
  static_assert(UnitsFor(1) == 1);
  static_assert(UnitsFor(kPayloadUnit) == 1);
  static_assert(UnitsFor(kPayloadUnit + 1) == 2);
  static_assert(UnitsFor(~uint64_t{0}) == uint64_t{1} << 58);
}

TEST(CursorTest, SpanIsWholeLapsWithinThirtyTwoBits) {
  for (const uint32_t units : {1u, 3u, 4u, 1000u, 1u << 20, 1u << 30}) {
    const uint64_t span = SpanOf(units);
    EXPECT_EQ(span % units, 0u) << units;
    EXPECT_LE(span, uint64_t{1} << 32) << units;
    EXPECT_GT(span + units, uint64_t{1} << 32) << units;
    EXPECT_GE(span / units, 4u) << units;
  }
}

TEST(ReserveTest, RecordIsPlacedAtTheHead) {
  const Extent extent = ExtentOf(8, 4);
  const Reservation place = Reserve({5, 3}, {4, 1}, 2, extent);
  EXPECT_TRUE(place.fits);
  EXPECT_EQ(place.start, 3u);
  EXPECT_EQ(place.next, (Cursor{6, 5}));
}

TEST(ReserveTest, RecordIsNeverSplitAtTheEnd) {
  const Extent extent = ExtentOf(8, 8);
  const Reservation place = Reserve({2, 6}, {2, 6}, 3, extent);
  EXPECT_TRUE(place.fits);
  EXPECT_EQ(place.start, 0u);
  EXPECT_EQ(place.next, (Cursor{3, 11}));  // two units of padding
}

TEST(ReserveTest, RecordThatEndsAtTheEndNeedsNoPadding) {
  const Extent extent = ExtentOf(8, 8);
  const Reservation place = Reserve({2, 5}, {2, 5}, 3, extent);
  EXPECT_EQ(place.start, 5u);
  EXPECT_EQ(place.next.position, 8u);
}

TEST(ReserveTest, WaitsForPayloadSpaceWithPaddingCounted) {
  const Extent extent = ExtentOf(8, 8);
  // Six units used; two fit, three would have to skip the two at the end.
  EXPECT_TRUE(Reserve({1, 6}, {0, 0}, 2, extent).fits);
  EXPECT_FALSE(Reserve({1, 6}, {0, 0}, 3, extent).fits);
  EXPECT_FALSE(Reserve({1, 6}, {0, 2}, 3, extent).fits);
  EXPECT_TRUE(Reserve({1, 6}, {0, 3}, 3, extent).fits);
}

TEST(ReserveTest, WaitsForASlot) {
  const Extent extent = ExtentOf(64, 4);
  EXPECT_TRUE(Reserve({3, 3}, {0, 0}, 1, extent).fits);
  EXPECT_FALSE(Reserve({4, 4}, {0, 0}, 1, extent).fits);
  EXPECT_TRUE(Reserve({4, 4}, {1, 1}, 1, extent).fits);
}

TEST(ReserveTest, EmptyPayloadsTakeASlotOnly) {
  const Extent extent = ExtentOf(4, 8);
  const Reservation place = Reserve({1, 4}, {0, 0}, 0, extent);
  EXPECT_TRUE(place.fits);
  EXPECT_EQ(place.next, (Cursor{2, 4}));
}

TEST(ReserveTest, SequencesWrap) {
  const Extent extent = ExtentOf(8, 4);
  constexpr uint32_t kLast = std::numeric_limits<uint32_t>::max();
  const Reservation place = Reserve({kLast, 2}, {kLast - 1, 1}, 1, extent);
  EXPECT_TRUE(place.fits);
  EXPECT_EQ(place.next.sequence, 0u);
  EXPECT_TRUE(Reserve({1, 4}, {kLast - 1, 1}, 1, extent).fits);
  EXPECT_FALSE(Reserve({2, 5}, {kLast - 1, 1}, 1, extent).fits);
}

// Half of the ring is the largest record; it must fit any empty ring.
TEST(ReserveTest, LargestRecordFitsAnEmptyRingWhereverItStands) {
  for (const uint32_t units : {2u, 3u, 7u, 8u, 100u}) {
    const Extent extent = ExtentOf(units, 4);
    for (uint32_t at = 0; at < units; ++at) {
      const Cursor cursor = After(9, extent.span - units + at, extent);
      EXPECT_TRUE(Reserve(cursor, cursor, units / 2, extent).fits)
          << units << " units, at " << at;
    }
  }
}

// A long walk past the wrap of positions, against plain 64-bit arithmetic.
TEST(ReserveTest, PositionsWrapLikeUnboundedOnes) {
  const Extent extent = ExtentOf((1u << 29) + 12345, 1u << 20);
  uint64_t head = 0;
  uint64_t tail = 0;
  uint32_t sequence = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    const uint32_t units = 1 + (i * 2654435761u) % (extent.units / 2);
    const uint64_t rest = extent.units - head % extent.units;
    const uint64_t consumed = units > rest ? units + rest : units;
    const Reservation place =
        Reserve(After(sequence, head, extent), After(sequence, tail, extent),
                units, extent);
    ASSERT_EQ(place.fits, head + consumed - tail <= extent.units);
    if (!place.fits) {
      tail = head;
      continue;
    }
    ASSERT_EQ(place.start, units > rest ? 0 : head % extent.units);
    head += consumed;
    ++sequence;
    ASSERT_EQ(place.next, After(sequence, head, extent));
    ASSERT_EQ(UnitsBetween(After(0, tail, extent), place.next, extent),
              head - tail);
  }
  EXPECT_GT(head, uint64_t{1} << 33);
}

// A producer that slept sees a tail it no longer shares a lap with.
TEST(ReserveTest, StaleTailIsNeverTakenForSpace) {
  const Extent extent = ExtentOf(8, 1u << 20);
  for (uint64_t laps = 1; laps < 4; ++laps) {
    const Cursor head = After(10, laps * extent.units + 1, extent);
    EXPECT_FALSE(Reserve(head, After(0, 0, extent), 1, extent).fits) << laps;
  }
}

TEST(ExtendTest, FindsTheNearestSequence) {
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  static_assert(Extend(5, 3) == 5);
  static_assert(Extend(0, kWrap - 1) == kWrap);
  static_assert(Extend(0xffffffffu, kWrap) == kWrap - 1);
  static_assert(Extend(7, 3 * kWrap + 7) == 3 * kWrap + 7);
}

}  // namespace
}  // namespace dmi::wire
