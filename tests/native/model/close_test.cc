// SPDX-License-Identifier: Apache-2.0
// Taking a ring of the host away from producers, and giving them another one.
#include "model/host.h"

namespace dmi::model {
namespace {

// Two producers at `kEach` records and the thread that takes the ring away.
// Nothing is drained.
template <typename Derived>
struct Closing : rl::test_suite<Derived, 3>, Memory {
  static constexpr uint32_t kEach = 1;

  void before() {
    Watch(Word::kControlRing, control.ring);
    Watch(Word::kInFlight, control.in_flight);
    for (RingWords& words : rings) {
      auto& signals = *new (words.signals) program::HostSignals;
      WatchRing(*this, words, words.device.ring.tail);
      Watch(Word::kClosed, signals.closed);
    }
    static_cast<Derived*>(this)->Prepare();
  }
  void Prepare() {}

  void thread(unsigned index) {
    if (index == 2) return static_cast<Derived*>(this)->Own();
    for (uint32_t i = 0; i < Derived::kEach; ++i) {
      RecordOne(*this, index * Derived::kEach + i);
    }
  }
  void Own() { Take(0); }

  // Ends with the ring freed.
  void Take(int ring) {
    program::Uninstall(control);
    RingWords& words = rings[ring];
    const uint32_t end =
        wire::Unpack(program::LoadRelaxed(words.device.ring.head)).sequence;
    for (uint32_t i = 0; i < end; ++i) {
      ReadSlot(words.slots[i]);
      Require(ReadPayload(words.payload + words.slots[i].position) ==
                  static_cast<uint64_t>(words.slots[i].step),
              "a slot of another payload");
    }
    Free(ring);
  }

  void after() {
    uint64_t count = control.lost[wire::kLostClosed];
    for (const RingWords& words : rings) {
      const wire::SiteCounters& site = words.sites[0];
      Require(
          site.recorded == wire::Unpack(Last(words.device.ring.head)).sequence,
          "a record without a sequence");
      count += site.recorded;
      for (const uint64_t lost : site.lost) count += lost;
    }
    Require(count == 2 * Derived::kEach, "a record was not counted");
    Require(Last(control.in_flight) == 0, "a producer never left");
  }
};

struct OneEach : Closing<OneEach> {};

// What does not fit is dropped inside.
struct Full : Closing<Full> {
  static constexpr uint32_t kEach = 2;
};

// What does not fit waits until the ring closes.
struct Waiting : Closing<Waiting> {
  static constexpr uint32_t kEach = 2;
  void Prepare() { rings[0].device.ring.overflow = wire::Overflow::kBlock; }
};

// Producers that wake the drain stay inside until they have.
struct Waking : Closing<Waking> {
  void Prepare() { rings[0].device.ring.wake_records = 1; }
};

// Another ring is made and installed behind the first; a producer that slept
// may come back to either.
struct Twice : Closing<Twice> {
  static constexpr uint32_t kEach = 2;
  void Own() {
    Take(0);
    Make(1);
    program::Install(control, rings[1].device.ring);
    Take(1);
  }
};

TEST(Close, WaitsForEveryoneInside) {
  Holds<OneEach>(Search::Bound(3), Mapping::kCpp);
  Holds<Full>(Search::Random(50000), Mapping::kCpp);
  Holds<Waiting>(Search::Random(50000), Mapping::kCpp);
  Holds<Waking>(Search::Bound(2), Mapping::kCpp);
}

TEST(Close, AnotherRingMayFollow) {
  Holds<Twice>(Search::Bound(2), Mapping::kCpp);
  Holds<Twice>(Search::Random(100000), Mapping::kCpp);
}

constexpr Mutation kCounted = {"producers counted acq_rel", Word::kInFlight,
                               Access::kAddSeqCst, rl::mo_acq_rel};
constexpr Mutation kLooked = {"ring loaded acquire", Word::kControlRing,
                              Access::kLoadSeqCst, rl::mo_acquire};
constexpr Mutation kTaken = {"ring stored release", Word::kControlRing,
                             Access::kStoreSeqCst, rl::mo_release};
constexpr Mutation kWaited = {"producers waited for by acquire",
                              Word::kInFlight, Access::kLoadSeqCst,
                              rl::mo_acquire};

TEST(Close, NeedsSequentialConsistency) {
  FindsAll<OneEach>(Search::Random(200000), Mapping::kCpp,
                    {kCounted, kLooked, kTaken, kWaited});
}

TEST(Close, NeedsItsOrders) {
  Mutation believes;
  believes.name = "publications not waited for";
  believes.believe_published = true;
  FindsAll<OneEach>(Search::Random(200000), Mapping::kCpp,
                    {believes,
                     {"publication loaded relaxed", Word::kPublication,
                      Access::kLoadAcquire, rl::mo_relaxed},
                     {"publication stored relaxed", Word::kPublication,
                      Access::kStoreRelease, rl::mo_relaxed}});
  FindsAll<Full>(Search::Random(200000), Mapping::kCpp,
                 {{"producers leave relaxed", Word::kInFlight,
                   Access::kAddAcqRel, rl::mo_relaxed}});
  FindsAll<Twice>(Search::Random(200000), Mapping::kCpp,
                  {{"ring installed relaxed", Word::kControlRing,
                    Access::kStoreSeqCst, rl::mo_relaxed},
                   {"ring loaded relaxed", Word::kControlRing,
                    Access::kLoadSeqCst, rl::mo_relaxed}});
}

}  // namespace
}  // namespace dmi::model
