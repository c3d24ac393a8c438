// SPDX-License-Identifier: Apache-2.0
// Records of two producers through a ring of two units, drained meanwhile: the
// ring wraps twice.
#include "model/host.h"

namespace dmi::model {
namespace {

constexpr uint32_t kEach = 2;

template <wire::Overflow overflow>
struct Flow : rl::test_suite<Flow<overflow>, 3>, Memory {
  RingWords& words = rings[0];
  wire::RingHeader& ring = words.device.ring;
  program::HostSignals& signals = *new (words.signals) program::HostSignals;
  Drain drain{*this, words, ring.tail};
  int running = 2;

  void before() {
    ring.overflow = overflow;
    WatchRing(*this, words, ring.tail);
  }

  void thread(unsigned index) {
    if (index < 2) {
      for (uint32_t i = 0; i < kEach; ++i) {
        RecordOne(*this, index * kEach + i);
      }
      --running;
      return;
    }
    while (running > 0 || drain.count() < words.sites[0].recorded) {
      if (!drain.Consume()) Yield();
    }
  }

  void after() {
    const wire::SiteCounters& count = words.sites[0];
    const uint64_t lost = count.lost[wire::kLostOverflow];
    Require(count.recorded == drain.count(), "a record was not drained");
    Require(count.recorded + lost == 2 * kEach, "a record was not counted");
    if (overflow == wire::Overflow::kBlock) {
      Require(drain.seen() == (1u << 2 * kEach) - 1, "a record is missing");
    }
    Require(wire::Unpack(Last(ring.head)) ==
                wire::Cursor{drain.count(), drain.count()},
            "the head is not behind the last record");
  }
};

using Dropping = Flow<wire::Overflow::kDrop>;
using Blocking = Flow<wire::Overflow::kBlock>;

TEST(Ring, DropsOrKeepsEveryRecordOnce) {
  Holds<Dropping>(Search::Bound(2), Mapping::kCpp);
  Holds<Dropping>(Search::Random(50000), Mapping::kCpp);
}

TEST(Ring, KeepsEveryRecordWhereProducersWait) {
  Holds<Blocking>(Search::Bound(1), Mapping::kCpp);
  Holds<Blocking>(Search::Random(50000), Mapping::kCpp);
}

TEST(Ring, NeedsItsOrders) {
  FindsAll<Blocking>(Search::Random(200000), Mapping::kCpp,
                     {{"publication stored relaxed", Word::kPublication,
                       Access::kStoreRelease, rl::mo_relaxed},
                      {"publication loaded relaxed", Word::kPublication,
                       Access::kLoadAcquire, rl::mo_relaxed},
                      {"tail stored relaxed", Word::kTail,
                       Access::kStoreRelease, rl::mo_relaxed},
                      {"tail loaded relaxed", Word::kTail, Access::kLoadAcquire,
                       rl::mo_relaxed},
                      {"cached tail stored relaxed", Word::kCachedTail,
                       Access::kReplaceRelease, rl::mo_relaxed},
                      {"cached tail loaded relaxed", Word::kCachedTail,
                       Access::kLoadAcquire, rl::mo_relaxed}});
  // Nothing is released with the head: a copy goes where the tail says it may.
  // That a tail is loaded behind the head it is compared with matters only
  // after 2^32 units in between, which no search gets to.
  Spares<Blocking>(Search::Random(50000), Mapping::kCpp,
                   {{"head loaded relaxed", Word::kHead, Access::kLoadAcquire,
                     rl::mo_relaxed},
                    {"head exchanged relaxed", Word::kHead,
                     Access::kExchangeAcquire, rl::mo_relaxed}});
}

}  // namespace
}  // namespace dmi::model
