// SPDX-License-Identifier: Apache-2.0
// The steps of a record that are the same on the host and on a device.
//
//   Admit     whether it goes into the ring at all, with which step
//   Reserve   one compare-and-swap moves sequence and position of the head
//   Describe  the slot's fields
//   Publish   the slot's publication word, release
//
// Each platform copies and waits for space in its own way.
#ifndef DMI_PROGRAM_RESERVE_H_
#define DMI_PROGRAM_RESERVE_H_

#include <cstdint>

#include "program/atomics.h"
#include "program/record.h"
#include "wire/control.h"
#include "wire/host_device.h"
#include "wire/slot.h"

namespace dmi::program {

DMI_HOST_DEVICE inline wire::SiteCounters& CountersOf(
    const wire::RingHeader& ring, uint32_t index) {
  return reinterpret_cast<wire::SiteCounters*>(ring.sites)[index];
}

DMI_HOST_DEVICE inline wire::Slot& SlotOf(const wire::RingHeader& ring,
                                          uint32_t sequence) {
  return reinterpret_cast<wire::Slot*>(
      ring.slots)[sequence & (ring.extent.slots - 1)];
}

// False where nothing is recorded: the step is one that is skipped, or the
// record is too large, which is counted.
DMI_HOST_DEVICE inline bool Admit(const wire::ControlBlock& control,
                                  const wire::RingHeader& ring,
                                  const RecordSite& site, RecordLabels& labels,
                                  uint64_t bytes) {
  const wire::AmbientStep& ambient = control.ambient[site.kind];
  const uint64_t ambient_flags = LoadRelaxed(ambient.flags);
  if (ambient_flags & wire::kAmbientPaused) return false;
  if (!(labels.flags & wire::kHasStep) &&
      (ambient_flags & wire::kAmbientHasStep)) {
    labels.step = LoadRelaxed(ambient.step);
    labels.flags |= wire::kHasStep | wire::kStepIsAmbient;
  }
  if (wire::UnitsFor(bytes) > ring.extent.units / 2 ||
      bytes > wire::kMaxRecordBytes) {
    AddRelaxed(CountersOf(ring, site.index).lost[wire::kLostTooLarge],
               uint64_t{1});
    return false;
  }
  return true;
}

struct Taken {
  bool ok;
  uint32_t sequence;
  uint32_t position;  // unit of the payload ring
  wire::Cursor next;  // the head after it
};

// Tries to advance the head by `units`. `real_tail` is first taken from the
// producers' cached copy: the real one is a bus round trip away on a device.
//
// Every tail is loaded after the head it is compared with. While the head
// stays, which the exchange sees to, the tail is less than a lap behind it,
// however long a producer sleeps in between; where the head moved, neither a
// free nor a full ring is believed.
DMI_HOST_DEVICE inline Taken TryReserve(wire::RingHeader& ring,
                                        const uint64_t& real_tail,
                                        uint32_t units) {
  uint64_t head = LoadAcquire(ring.head);
  while (true) {
    // Acquire: the drain has read the span before it is written again.
    const uint64_t cached = LoadAcquire(ring.cached_tail);
    wire::Reservation where = wire::Reserve(
        wire::Unpack(head), wire::Unpack(cached), units, ring.extent);
    if (!where.fits) {
      const uint64_t tail = LoadAcquire(real_tail);
      // Never back to an older tail.
      if (tail != cached) ReplaceRelease(ring.cached_tail, cached, tail);
      where = wire::Reserve(wire::Unpack(head), wire::Unpack(tail), units,
                            ring.extent);
    }
    if (!where.fits) {
      const uint64_t now = LoadAcquire(ring.head);
      if (now == head) return {false, 0, 0, {}};
      head = now;
      continue;
    }
    if (CompareExchangeAcquire(ring.head, head, wire::Pack(where.next))) {
      return {true, wire::Unpack(head).sequence, where.start, where.next};
    }
  }
}

// Everything but what is known last.
DMI_HOST_DEVICE inline void Describe(wire::Slot& slot,
                                     const wire::ControlBlock& control,
                                     const RecordSite& site,
                                     const RecordLabels& labels,
                                     const Taken& taken, uint64_t bytes) {
  slot.position = uint64_t{taken.position} * wire::kPayloadUnit;
  slot.bytes = bytes;
  slot.site = site.site;
  slot.layout = site.layout;
  slot.step = labels.step;
  slot.layer = labels.layer;
  for (uint32_t i = 0; i < wire::kMaxLabels; ++i) {
    slot.labels[i] = labels.words[i];
  }
  slot.boundary = wire::CounterOf(LoadRelaxed(control.progress));
  slot.flags = labels.flags;
}

// `time`: UTC, ns. The drain may read the record from here on.
DMI_HOST_DEVICE inline void Publish(wire::Slot& slot, uint32_t sequence,
                                    int64_t time) {
  slot.time_ns = time;
  StoreRelease(slot.publication, wire::PublicationOf(sequence));
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_RESERVE_H_
