// SPDX-License-Identifier: Apache-2.0
// The host form of `record`.
#include "program/record.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/crc32c.h"
#include "base/fork.h"
#include "program/atomics.h"
#include "program/gates.h"
#include "program/host_signals.h"
#include "program/inside.h"
#include "program/ring_clock.h"

namespace dmi::program {
namespace {

using wire::ControlBlock;
using wire::Cursor;
using wire::RingHeader;
using wire::Slot;

std::atomic<uint64_t> orphans{0};

// From this size on a copy goes around the cache; smaller payloads are still
// warm when the sink reads them.
constexpr uint64_t kStreamingBytes = 32 * 1024;

HostSignals& SignalsOf(const RingHeader& ring) {
  return *reinterpret_cast<HostSignals*>(ring.signals);
}

wire::SiteCounters& CountersOf(const RingHeader& ring, uint32_t index) {
  return reinterpret_cast<wire::SiteCounters*>(ring.sites)[index];
}

struct Taken {
  bool ok;
  uint32_t sequence;
  uint32_t position;
  Cursor next;
};

// Tries to advance the head by `units`. The tail is first taken from the
// producers' cached copy: the real one is a bus round trip away on a device.
//
// Every tail is loaded after the head it is compared with. While the head
// stays, which the exchange sees to, the tail is less than a lap behind it,
// however long a producer sleeps in between; where the head moved, neither a
// free nor a full ring is believed.
Taken TryReserve(RingHeader& ring, uint32_t units) {
  uint64_t head = LoadAcquire(ring.head);
  while (true) {
    // Acquire: the drain has read the span before it is written again.
    const uint64_t cached = LoadAcquire(ring.cached_tail);
    wire::Reservation where = wire::Reserve(
        wire::Unpack(head), wire::Unpack(cached), units, ring.extent);
    if (!where.fits) {
      const uint64_t tail = LoadAcquire(ring.tail);
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

// Waits for space as the ring's policy says. On failure `reason` says why. Kept
// out of the way of the records that find space.
[[gnu::cold, gnu::noinline]] Taken WaitAndReserve(RingHeader& ring,
                                                  wire::ProgramKind kind,
                                                  uint32_t units,
                                                  wire::LossReason& reason) {
  Taken taken{};
  if (ring.overflow == wire::Overflow::kDrop) {
    reason = wire::kLostOverflow;
    return taken;
  }
  reason = wire::kLostStalled;
  if (LoadRelaxed(ring.exhausted) != 0) return taken;
  const auto waited =
      SignalsOf(ring).WaitForSpace(kind == wire::kMultiDevice, [&] {
        taken = TryReserve(ring, units);
        return taken.ok;
      });
  if (waited == HostSignals::Waited::kClosed) reason = wire::kLostClosed;
  if (waited == HostSignals::Waited::kExhausted) {
    StoreRelaxed(ring.exhausted, uint64_t{1});
  }
  return taken;
}

void Publish(const RingHeader& ring, const ControlBlock& control,
             const RecordSite& site, const RecordLabels& labels,
             const Taken& taken, uint64_t bytes, uint32_t crc) {
  Slot& slot = reinterpret_cast<Slot*>(
      ring.slots)[taken.sequence & (ring.extent.slots - 1)];
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
  slot.time_ns = UtcNow(ring);
  slot.flags = labels.flags | (ring.checksum ? wire::kHasCrc : 0u);
  slot.crc = crc;
  StoreRelease(slot.publication, wire::PublicationOf(taken.sequence));
}

// The drain looks by itself every few milliseconds; it is woken only when what
// waits for it fills a batch.
bool FillsBatch(const RingHeader& ring, Cursor next) {
  const Cursor begin = wire::Unpack(LoadRelaxed(ring.batch_begin));
  return next.sequence - begin.sequence >= ring.wake_records ||
         wire::UnitsBetween(begin, next, ring.extent) >= ring.wake_units;
}

// The next record most likely needs the next slot and the bytes behind this
// payload; neither is in the cache after a lap. Fetched now, a small record
// does not wait for memory.
void PrefetchNext(const RingHeader& ring, Cursor next, uint64_t bytes) {
#if defined(__GNUC__)
  constexpr uint64_t kMostPrefetched = 2048;
  const auto* slot =
      reinterpret_cast<const char*>(reinterpret_cast<const Slot*>(ring.slots) +
                                    (next.sequence & (ring.extent.slots - 1)));
  __builtin_prefetch(slot, 1);
  __builtin_prefetch(slot + 64, 1);
  if (bytes > kMostPrefetched) return;
  const auto* payload =
      reinterpret_cast<const char*>(ring.payload) +
      uint64_t{next.position % ring.extent.units} * wire::kPayloadUnit;
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(payload + i, 1);
#endif
}

void RecordInto(Inside& inside, ControlBlock& control, const RecordSite& site,
                RecordLabels labels, const void* payload, uint64_t bytes) {
  RingHeader& ring = *inside.ring();
  const wire::AmbientStep& ambient = control.ambient[site.kind];
  const uint64_t ambient_flags = LoadRelaxed(ambient.flags);
  if (ambient_flags & wire::kAmbientPaused) return;
  if (!(labels.flags & wire::kHasStep) &&
      (ambient_flags & wire::kAmbientHasStep)) {
    labels.step = LoadRelaxed(ambient.step);
    labels.flags |= wire::kHasStep | wire::kStepIsAmbient;
  }
  wire::SiteCounters& counters = CountersOf(ring, site.index);
  const uint64_t units = wire::UnitsFor(bytes);
  if (units > ring.extent.units / 2 || bytes > wire::kMaxRecordBytes) {
    AddRelaxed(counters.lost[wire::kLostTooLarge], uint64_t{1});
    return;
  }
  wire::LossReason reason{};
  Taken taken = TryReserve(ring, static_cast<uint32_t>(units));
  if (!taken.ok) {
    taken =
        WaitAndReserve(ring, site.kind, static_cast<uint32_t>(units), reason);
  }
  if (!taken.ok) {
    AddRelaxed(counters.lost[reason], uint64_t{1});
    return;
  }
  AddRelaxed(counters.recorded, uint64_t{1});
  // A read-modify-write after the copy would wait until the whole payload has
  // reached memory, so the producer leaves before it, unless it has to wake the
  // drain. Whoever takes the ring away waits for the publication too; so
  // nothing of the ring may be touched behind it.
  const bool wakes = FillsBatch(ring, taken.next);
  if (!wakes) inside.Leave();
  auto* to = reinterpret_cast<uint8_t*>(ring.payload) +
             uint64_t{taken.position} * wire::kPayloadUnit;
  const bool streaming = bytes >= kStreamingBytes;
  uint32_t crc = 0;
  if (ring.checksum) {
    crc = base::CopyWithCrc32c(to, payload, bytes, streaming);
  } else {
    base::Copy(to, payload, bytes, streaming);
  }
  PrefetchNext(ring, taken.next, bytes);
  Publish(ring, control, site, labels, taken, bytes, crc);
  if (wakes) SignalsOf(ring).WakeDrain();
}

// Whether every record that was reserved is there, or was overrun. The head
// must stand still.
bool AllPublished(const RingHeader& ring) {
  const uint32_t head = wire::Unpack(LoadAcquire(ring.head)).sequence;
  const uint32_t tail = wire::Unpack(LoadAcquire(ring.tail)).sequence;
  const auto* slots = reinterpret_cast<const Slot*>(ring.slots);
  for (uint32_t sequence = tail; sequence != head; ++sequence) {
    const uint64_t word =
        LoadAcquire(slots[sequence & (ring.extent.slots - 1)].publication);
    const auto ahead =
        static_cast<int32_t>(static_cast<uint32_t>(word) - sequence);
    if (word == 0 || ahead < 0) return false;
  }
  return true;
}

}  // namespace

void Record(ControlBlock& control, const RecordSite& site,
            const RecordLabels& labels, const void* payload, uint64_t bytes) {
  if (GateIsClosed(control, site.index, site.kind)) return;
  if (base::InForkedChild()) {
    AddRelaxed(control.lost[wire::kLostForked], uint64_t{1});
    return;
  }
  Inside inside(control);
  if (inside.ring() == nullptr) {
    if (LoadRelaxed(control.deselected) == 0) {
      AddRelaxed(control.lost[wire::kLostClosed], uint64_t{1});
    }
    return;
  }
  RecordInto(inside, control, site, labels, payload, bytes);
}

void CountOrphan() { orphans.fetch_add(1, std::memory_order_relaxed); }
uint64_t Orphans() { return orphans.load(std::memory_order_relaxed); }

void Install(ControlBlock& control, RingHeader& ring) {
  StoreSeqCst(control.ring, reinterpret_cast<uint64_t>(&ring));
}

void Uninstall(ControlBlock& control) {
  auto* ring = reinterpret_cast<RingHeader*>(LoadRelaxed(control.ring));
  if (ring == nullptr) return;
  StoreSeqCst(control.ring, uint64_t{0});
  // Producers that were inside when a child was forked never leave in it.
  if (base::InForkedChild()) return;
  SignalsOf(*ring).Close();
  // Copies are short and waits have just been ended, so this is a moment.
  while (LoadSeqCst(control.in_flight) != 0 || !AllPublished(*ring)) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace dmi::program
