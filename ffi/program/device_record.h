// SPDX-License-Identifier: Apache-2.0
// What a record does on a device with a memory of its own.
//
// Two threads of the device may be at it for one record: one begins it, one,
// after the copy, ends it. Between the two the ring cannot be taken away.
#ifndef DMI_PROGRAM_DEVICE_RECORD_H_
#define DMI_PROGRAM_DEVICE_RECORD_H_

#include <cstdint>

#include "base/launch.h"
#include "program/atomics.h"
#include "program/gates.h"
#include "program/inside.h"
#include "program/kernels.h"
#include "program/labels.h"
#include "program/mirror.h"
#include "program/reserve.h"
#include "wire/device_ring.h"

namespace dmi::program {

// A record that was reserved, on its way to being published. Lies in the
// scratch of the call, so no two executions share it.
struct Ticket {
  wire::DeviceRing* ring;  // nullptr: there is nothing to record
  wire::Slot* slot;
  uint8_t* to;
  uint32_t sequence;
  uint32_t arrived;  // blocks that have copied their part
};
static_assert(sizeof(Ticket) <= kScratchWords * sizeof(uint64_t));

__device__ inline wire::DeviceMirror& MirrorOf(const wire::DeviceRing& ring) {
  return *reinterpret_cast<wire::DeviceMirror*>(ring.mirror);
}

// The times at which nothing was freed are charged to the budget once, however
// many producers wait: by the one that moves the time they count from, after it
// has seen the tail move.
__device__ inline bool BudgetIsSpent(wire::DeviceRing& ring, uint64_t now) {
  const auto budget = static_cast<uint64_t>(ring.stall_nanos);
  // Before the time that counting begins at: whoever sees that some time was
  // charged must not count it again.
  const uint64_t spent = LoadAcquire(ring.spent);
  uint64_t since = LoadRelaxed(ring.quiet_since);
  const uint64_t until = now > since ? now : since;
  const uint64_t quiet = until - since;
  const uint64_t tail = LoadRelaxed(MirrorOf(ring).ring.tail);
  if (tail == LoadRelaxed(ring.seen_tail)) return spent + quiet >= budget;
  if (CompareExchangeAcqRel(ring.quiet_since, since, until)) {
    if (quiet > budget / 20) AddAcqRel(ring.spent, quiet);
    StoreRelaxed(ring.seen_tail, tail);
  }
  return false;
}

// Counts a producer in that begins to wait. Where nobody waited, the time that
// is charged begins now; whoever sees somebody wait sees that time too. Both
// additions read the latest count.
__device__ inline void BeginToWait(wire::DeviceRing& ring, uint64_t now) {
  uint64_t since = LoadRelaxed(ring.quiet_since);
  while (since < now && AddAcqRel(ring.waiting, uint64_t{0}) == 0 &&
         !CompareExchangeAcqRel(ring.quiet_since, since, now)) {
  }
  AddAcqRel(ring.waiting, uint64_t{1});
}

// Waits for space as the ring's policy says. On failure `reason` says why.
//
// A producer of a program of several devices holds its peers up at the next
// collective, so it waits for at most two budgets on end, whatever moves.
__device__ inline Taken WaitAndReserve(wire::DeviceRing& ring,
                                       wire::ProgramKind kind, uint32_t units,
                                       wire::LossReason& reason) {
  reason = wire::kLostOverflow;
  Taken taken{};
  if (ring.ring.overflow == wire::Overflow::kDrop) return taken;
  reason = wire::kLostStalled;
  if (LoadRelaxed(ring.ring.exhausted) != 0) return taken;
  wire::DeviceMirror& mirror = MirrorOf(ring);
  const auto begin = static_cast<uint64_t>(base::DeviceNanos());
  BeginToWait(ring, begin);
  MirrorLatest(ring.waiting, mirror.waiting);
  while (true) {
    taken = TryReserve(ring.ring, mirror.ring.tail, units);
    const auto now = static_cast<uint64_t>(base::DeviceNanos());
    const bool spent = BudgetIsSpent(ring, now);
    if (taken.ok) break;
    const uint64_t ended = LoadAcquire(mirror.ended);
    if (ended == wire::kClosing) reason = wire::kLostClosed;
    if (ended != wire::kRunning) break;
    const bool held_up =
        kind == wire::kMultiDevice &&
        (now - begin) / 2 >= static_cast<uint64_t>(ring.stall_nanos);
    if (held_up || spent || LoadRelaxed(ring.ring.exhausted) != 0) {
      StoreRelaxed(ring.ring.exhausted, uint64_t{1});
      break;
    }
    // Each look at the tail crosses the bus.
    base::NanoSleep(2000);
  }
  AddRelaxed(ring.waiting, ~uint64_t{0});
  MirrorLatest(ring.waiting, mirror.waiting);
  return taken;
}

// One thread. Where the ticket has a ring, everything but the payload is there,
// and EndRecord must follow.
__device__ inline Ticket BeginRecord(const RecordArguments& call) {
  wire::ControlBlock& control = *call.control;
  const Ticket none{};
  if (GateIsClosed(control, call.site.index, call.site.kind)) return none;
  RecordLabels labels;
  if (!DecodeLabels(call.labels, labels)) return none;
  Inside inside(control);
  if (inside.ring() == nullptr) {
    if (LoadRelaxed(control.deselected) == 0) {
      AddRelaxed(control.lost[wire::kLostClosed], uint64_t{1});
    }
    return none;
  }
  auto& ring = *reinterpret_cast<wire::DeviceRing*>(inside.ring());
  if (!Admit(control, ring.ring, call.site, labels, call.bytes)) return none;
  wire::SiteCounters& counters = CountersOf(ring.ring, call.site.index);
  const auto units = static_cast<uint32_t>(wire::UnitsFor(call.bytes));
  Taken taken = TryReserve(ring.ring, MirrorOf(ring).ring.tail, units);
  if (!taken.ok) {
    wire::LossReason reason{};
    taken = WaitAndReserve(ring, call.site.kind, units, reason);
    if (!taken.ok) {
      AddRelaxed(counters.lost[reason], uint64_t{1});
      return none;
    }
  }
  AddRelaxed(counters.recorded, uint64_t{1});
  wire::Slot& slot = SlotOf(ring.ring, taken.sequence);
  Describe(slot, control, call.site, labels, taken, call.bytes);
  inside.Stay();
  auto* to = reinterpret_cast<uint8_t*>(ring.ring.payload) +
             uint64_t{taken.position} * wire::kPayloadUnit;
  return {&ring, &slot, to, taken.sequence, 0};
}

// One thread, which has seen every block's part of the copy.
__device__ inline void EndRecord(wire::ControlBlock& control,
                                 const Ticket& ticket) {
  Publish(*ticket.slot, ticket.sequence,
          base::DeviceNanos() + ticket.ring->ring.clock_offset);
  Inside::LeaveFor(control);
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_DEVICE_RECORD_H_
