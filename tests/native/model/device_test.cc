// SPDX-License-Identifier: Apache-2.0
// Records of a device: the kernels, by fences of sequential consistency as on
// the device.
#include "model/device.h"

namespace dmi::model {
namespace {

constexpr uint32_t kEach = 2;

// Two producers whose records wait for the drain, in a ring that wraps twice.
struct Flow : rl::test_suite<Flow, 3>, Memory {
  RingWords& words = rings[0];
  wire::RingHeader& ring = words.device.ring;
  Drain drain{*this, words, words.mirror.ring.tail};
  int running = 2;

  void before() {
    ring.overflow = wire::Overflow::kBlock;
    words.device.stall_nanos = int64_t{1} << 40;
    WatchRing(*this, words, words.mirror.ring.tail);
    Watch(Word::kControlRing, control.ring);
    Watch(Word::kInFlight, control.in_flight);
  }

  void thread(unsigned index) {
    if (index < 2) {
      for (uint32_t i = 0; i < kEach; ++i) {
        const Call call(*this, index * kEach + i);
        program::RecordInOneBlock(call.arguments);
      }
      --running;
      return;
    }
    while (running > 0 || drain.count() < words.sites[0].recorded) {
      if (!drain.Consume()) Yield();
    }
  }

  void after() {
    Require(words.sites[0].recorded == 2 * kEach, "a record was lost");
    Require(drain.seen() == (1u << 2 * kEach) - 1, "a record is missing");
    Require(Last(control.in_flight) == 0, "a producer never left");
  }
};

// Two blocks copy one record; the last to arrive publishes it.
struct Blocks : rl::test_suite<Blocks, 3>, Memory {
  RingWords& words = rings[0];
  Drain drain{*this, words, words.mirror.ring.tail};
  Call call{*this, 1};

  void before() {
    blocks = 2;
    WatchRing(*this, words, words.mirror.ring.tail);
    call.arguments.scratch = scratch;
    program::RecordReserve(call.arguments);
    const auto* ticket = reinterpret_cast<program::Ticket*>(scratch);
    Watch(Word::kArrived, ticket->arrived);
  }
  void thread(unsigned index) {
    if (index < 2) {
      program::RecordCopy(call.arguments);
    } else {
      while (!drain.Consume()) Yield();
    }
  }
  void after() {
    Require(drain.count() == 1, "not published once");
    Require(Last(control.in_flight) == 0, "a producer never left");
  }
};

// A kernel takes the ring away from producers, and a thread of the host, which
// reads its answer, frees it.
struct Closing : rl::test_suite<Closing, 4>, Memory {
  RingWords& words = rings[0];

  void before() {
    Watch(Word::kControlRing, control.ring);
    Watch(Word::kInFlight, control.in_flight);
    Watch(Word::kHead, words.device.ring.head);
    Watch(Word::kAnswer, words.mirror.answer);
  }
  void thread(unsigned index) {
    if (index < 2) {
      const Call call(*this, index);
      program::RecordReserve(call.arguments);
      program::RecordCopy(call.arguments);
    } else if (index == 2) {
      do {
        Control(*this, program::ControlAction::kUninstall, words.mirror.answer);
        Yield();
      } while (Last(words.mirror.answer) != 0);
    } else {
      while (program::LoadAcquire(words.mirror.answer) != 0) Yield();
      Free(0);
    }
  }
  void after() {
    Require(words.sites[0].recorded + control.lost[wire::kLostClosed] == 2,
            "a record was not counted");
    Require(Last(control.in_flight) == 0, "a producer never left");
  }
};

TEST(Device, KeepsEveryRecordWhereProducersWait) {
  Holds<Flow>(Search::Bound(1), Mapping::kPtx);
  Holds<Flow>(Search::Random(50000), Mapping::kPtx);
}

TEST(Device, NeedsItsOrders) {
  FindsAll<Flow>(Search::Random(200000), Mapping::kPtx,
                 {{"publication stored relaxed", Word::kPublication,
                   Access::kStoreRelease, rl::mo_relaxed},
                  {"tail loaded relaxed", Word::kTail, Access::kLoadAcquire,
                   rl::mo_relaxed}});
}

TEST(Device, PublishesWhatEveryBlockCopied) {
  Holds<Blocks>(Search::All(), Mapping::kPtx);
  FindsAll<Blocks>(
      Search::All(), Mapping::kPtx,
      {{"arrival relaxed", Word::kArrived, Access::kAddAcqRel, rl::mo_relaxed},
       {"arrival not acquired", Word::kArrived, Access::kAddAcqRel,
        rl::mo_release},
       {"arrival not released", Word::kArrived, Access::kAddAcqRel,
        rl::mo_acquire}});
}

TEST(Device, ClosesWithNobodyInside) {
  Holds<Closing>(Search::Bound(2), Mapping::kPtx);
  Holds<Closing>(Search::Random(100000), Mapping::kPtx);
  Holds<Closing>(Search::Random(100000), Mapping::kCpp);
}

TEST(Device, NeedsFencesToClose) {
  FindsAll<Closing>(Search::Random(200000), Mapping::kPtx,
                    {{"ring loaded acquire", Word::kControlRing,
                      Access::kLoadSeqCst, rl::mo_acquire},
                     {"producers waited for by acquire", Word::kInFlight,
                      Access::kLoadSeqCst, rl::mo_acquire},
                     {"producers leave relaxed", Word::kInFlight,
                      Access::kAddAcqRel, rl::mo_relaxed},
                     {"answered relaxed", Word::kAnswer, Access::kStoreRelease,
                      rl::mo_relaxed}});
  // On either side the fence that counts stands between the two accesses: it is
  // the one of the load.
  Spares<Closing>(Search::Random(100000), Mapping::kPtx,
                  {{"producers counted acq_rel", Word::kInFlight,
                    Access::kAddSeqCst, rl::mo_acq_rel},
                   {"ring stored release", Word::kControlRing,
                    Access::kStoreSeqCst, rl::mo_release}});
}

}  // namespace
}  // namespace dmi::model
