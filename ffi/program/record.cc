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
#include "program/reserve.h"
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
        taken = TryReserve(ring, ring.tail, units);
        return taken.ok;
      });
  if (waited == HostSignals::Waited::kClosed) reason = wire::kLostClosed;
  if (waited == HostSignals::Waited::kExhausted) {
    StoreRelaxed(ring.exhausted, uint64_t{1});
  }
  return taken;
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
  if (!Admit(control, ring, site, labels, bytes)) return;
  wire::SiteCounters& counters = CountersOf(ring, site.index);
  const auto units = static_cast<uint32_t>(wire::UnitsFor(bytes));
  wire::LossReason reason{};
  Taken taken = TryReserve(ring, ring.tail, units);
  if (!taken.ok) taken = WaitAndReserve(ring, site.kind, units, reason);
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
    labels.flags |= wire::kHasCrc;
  } else {
    base::Copy(to, payload, bytes, streaming);
  }
  PrefetchNext(ring, taken.next, bytes);
  Slot& slot = SlotOf(ring, taken.sequence);
  Describe(slot, control, site, labels, taken, bytes);
  slot.crc = crc;
  Publish(slot, taken.sequence, UtcNow(ring));
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
