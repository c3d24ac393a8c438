// SPDX-License-Identifier: Apache-2.0
// Random walks of head and tail against a model that keeps every reservation.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>

#include "support/payload.h"
#include "wire/cursor.h"

namespace dmi::wire {
namespace {

using dmi::testing::Random;

struct Live {
  uint64_t begin;  // of the payload, in units since time began
  uint64_t end;
  Cursor after;
};

// The ring as it would be with unbounded integers.
class Model {
 public:
  Model(uint32_t units, uint32_t slots, uint64_t sequence, uint64_t position)
      : extent_{units, slots, SpanOf(units)},
        sequence_(sequence),
        head_(position),
        tail_(head_),
        tail_cursor_(CursorAt(sequence, head_)) {}

  Extent extent() const { return extent_; }
  Cursor head() const { return CursorAt(sequence_, head_); }
  Cursor tail() const { return tail_cursor_; }
  bool empty() const { return live_.empty(); }
  uint64_t used() const { return head_ - tail_; }

  // Where `units` must go, or whether they have to wait.
  bool Fits(uint32_t units) const {
    return live_.size() < extent_.slots &&
           head_ + Consumed(units) - tail_ <= extent_.units;
  }

  void Take(uint32_t units, const Reservation& place) {
    const uint64_t consumed = Consumed(units);
    const uint64_t begin = head_ + consumed - units;
    ASSERT_EQ(place.start, begin % extent_.units);
    ASSERT_LE(place.start + units, extent_.units) << "split at the end";
    for (const Live& other : live_) {
      const uint64_t from = other.begin % extent_.units;
      const uint64_t to = from + (other.end - other.begin);
      ASSERT_TRUE(units == 0 || place.start >= to ||
                  place.start + units <= from)
          << "overlaps a live reservation";
    }
    head_ += consumed;
    ++sequence_;
    ASSERT_EQ(place.next, head());
    live_.push_back({begin, head_, place.next});
  }

  void FreeOldest() {
    tail_ = live_.front().end;
    tail_cursor_ = live_.front().after;
    live_.pop_front();
  }

 private:
  Cursor CursorAt(uint64_t sequence, uint64_t position) const {
    return {static_cast<uint32_t>(sequence),
            static_cast<uint32_t>(position % extent_.span)};
  }
  uint64_t Consumed(uint32_t units) const {
    const uint64_t rest = extent_.units - head_ % extent_.units;
    return units > rest ? units + rest : units;
  }

  Extent extent_;
  uint64_t sequence_;
  uint64_t head_;
  uint64_t tail_;
  Cursor tail_cursor_;
  std::deque<Live> live_;
};

struct Shape {
  uint32_t units;
  uint32_t slots;
};

class CursorWalkTest : public ::testing::TestWithParam<Shape> {
 protected:
  // Walks `steps` steps from a ring that stands at (sequence, position).
  void Walk(uint64_t sequence, uint64_t position, uint32_t steps) {
    const auto [units, slots] = GetParam();
    Model model(units, slots, sequence, position);
    Random random(sequence ^ position);
    for (uint32_t step = 0; step < steps; ++step) {
      const auto size = static_cast<uint32_t>(
          random.UpTo(3) == 0 ? units / 2 : random.UpTo(units / 2));
      const Reservation place =
          Reserve(model.head(), model.tail(), size, model.extent());
      ASSERT_EQ(place.fits, model.Fits(size));
      ASSERT_TRUE(place.fits || !model.empty()) << "an empty ring must do";
      ASSERT_EQ(UnitsBetween(model.tail(), model.head(), model.extent()),
                model.used());
      if (place.fits) {
        model.Take(size, place);
        if (HasFatalFailure()) return;
      }
      const uint64_t freed = place.fits ? random.UpTo(1) : random.UpTo(3);
      for (uint64_t i = 0; i < freed && !model.empty(); ++i) model.FreeOldest();
    }
  }
};

TEST_P(CursorWalkTest, NeverOverlapsNorSplitsNorWaitsOnAnEmptyRing) {
  Walk(0, 0, 20000);
}

TEST_P(CursorWalkTest, SequencesWrapThirtyTwoBits) {
  Walk((uint64_t{1} << 32) - 500, 0, 5000);
}

TEST_P(CursorWalkTest, PositionsWrapTheSpan) {
  const uint64_t span = SpanOf(GetParam().units);
  Walk(0, span - GetParam().units, 5000);
  Walk(0, 5 * span - 1, 5000);
}

TEST_P(CursorWalkTest, BothWrapAtOnce) {
  const uint64_t span = SpanOf(GetParam().units);
  Walk((uint64_t{3} << 32) - 2, 2 * span - 1, 5000);
}

// A producer that kept an old tail over up to all laps but one the span counts
// must see a full ring, never free space.
TEST_P(CursorWalkTest, StaleTailsAreHarmless) {
  const auto [units, slots] = GetParam();
  const Extent extent{units, slots, SpanOf(units)};
  Random random(units);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t tail = random.Next() % (uint64_t{1} << 50);
    // More than one lap behind, and at least one lap short of the span.
    const uint64_t behind =
        units + 1 + random.UpTo(extent.span - 2 * uint64_t{units} - 1);
    const Cursor stale{7, static_cast<uint32_t>(tail % extent.span)};
    const Cursor head{7, static_cast<uint32_t>((tail + behind) % extent.span)};
    const auto size = static_cast<uint32_t>(random.UpTo(units / 2));
    ASSERT_FALSE(Reserve(head, stale, size, extent).fits)
        << behind << " units behind";
  }
}

// A tail ahead of the head it is compared with is one that moved meanwhile.
TEST_P(CursorWalkTest, StaleHeadsAreHarmless) {
  const auto [units, slots] = GetParam();
  const Extent extent{units, slots, SpanOf(units)};
  Random random(slots);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t head = random.Next() % (uint64_t{1} << 50);
    const uint64_t ahead = random.UpTo(units);
    const auto records = static_cast<uint32_t>(1 + random.UpTo(slots - 1));
    const Cursor old{9, static_cast<uint32_t>(head % extent.span)};
    const Cursor tail{9 + records,
                      static_cast<uint32_t>((head + ahead) % extent.span)};
    ASSERT_FALSE(Reserve(old, tail, 0, extent).fits);
  }
}

std::string NameOf(const ::testing::TestParamInfo<Shape>& info) {
  return std::to_string(info.param.units) + "units" +
         std::to_string(info.param.slots) + "slots";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CursorWalkTest,
    ::testing::Values(Shape{2, 2}, Shape{4, 2}, Shape{6, 4}, Shape{10, 64},
                      Shape{100, 8}, Shape{1024, 256}, Shape{1u << 20, 65536},
                      Shape{(1u << 29) + 12344, 1024}, Shape{1u << 30, 64}),
    NameOf);

}  // namespace
}  // namespace dmi::wire
