// SPDX-License-Identifier: Apache-2.0
// What producers of a device that wait for space charge to their budget.
#include "model/device.h"

namespace dmi::model {
namespace {

constexpr int64_t kBudget = 100;

template <typename Derived>
struct Budget : rl::test_suite<Derived, 3>, Memory {
  wire::DeviceRing& ring = rings[0].device;
  uint64_t& tail = rings[0].mirror.ring.tail;

  void Prepare() {
    ring.stall_nanos = kBudget;
    ring.ring.overflow = wire::Overflow::kBlock;
    ring.ring.head = wire::Pack({kUnits, kUnits});
    Watch(Word::kTail, tail);
    Watch(Word::kWaiting, ring.waiting);
    Watch(Word::kSeenTail, ring.seen_tail);
    Watch(Word::kQuietSince, ring.quiet_since);
    Watch(Word::kSpent, ring.spent);
  }
};

// Long after others waited, two producers begin to, and find space before any
// time has passed.
struct Beginning : Budget<Beginning> {
  void before() {
    nanos = 1000;
    ring.seen_tail = 7;
    Prepare();
  }
  void thread(unsigned index) {
    if (index == 2) {
      program::StoreRelease(tail, wire::Pack({kUnits, kUnits}));
      return;
    }
    wire::LossReason reason{};
    const program::Taken taken =
        program::WaitAndReserve(ring, wire::kSingleDevice, 1, reason);
    Require(taken.ok, "gave up at once");
  }
  void after() {
    Require(Last(ring.spent) == 0, "time was charged that nobody waited");
    Require(Last(ring.waiting) == 0, "somebody still waits");
  }
};

// Two producers have waited for a while, when the tail moves, twice.
struct Charging : Budget<Charging> {
  static constexpr int64_t kQuiet = 60;

  void before() {
    nanos = 1000 + kQuiet;
    ring.quiet_since = 1000;
    ring.waiting = 2;
    Prepare();
  }
  void thread(unsigned index) {
    if (index == 2) {
      program::StoreRelease(tail, uint64_t{1});
      program::StoreRelease(tail, uint64_t{2});
      return;
    }
    for (int look = 0; look < 2; ++look) {
      Require(!program::BudgetIsSpent(ring, static_cast<uint64_t>(nanos)),
              "spent before its time");
    }
  }
  void after() {
    while (Last(ring.quiet_since) != static_cast<uint64_t>(nanos)) {
      program::BudgetIsSpent(ring, static_cast<uint64_t>(nanos));
    }
    Require(Last(ring.spent) == kQuiet, "the time was not charged once");
  }
};

TEST(Budget, NothingIsChargedForTimeBefore) {
  Holds<Beginning>(Search::Bound(2), Mapping::kPtx);
  Holds<Beginning>(Search::Random(100000), Mapping::kPtx);
}

TEST(Budget, QuietTimeIsChargedOnce) {
  Holds<Charging>(Search::Bound(2), Mapping::kPtx);
  Holds<Charging>(Search::Random(100000), Mapping::kPtx);
}

TEST(Budget, NeedsItsOrders) {
  FindsAll<Beginning>(Search::Random(1000000), Mapping::kPtx,
                      {{"waiting counted relaxed", Word::kWaiting,
                        Access::kAddAcqRel, rl::mo_relaxed}});
  FindsAll<Charging>(Search::Bound(3), Mapping::kPtx,
                     {{"time charged relaxed", Word::kSpent, Access::kAddAcqRel,
                       rl::mo_relaxed},
                      {"time charged loaded relaxed", Word::kSpent,
                       Access::kLoadAcquire, rl::mo_relaxed}});
}

}  // namespace
}  // namespace dmi::model
