// SPDX-License-Identifier: Apache-2.0
// The host form of boundaries and ambient steps.
#include "program/boundary.h"

#include <algorithm>

#include "program/atomics.h"
#include "program/host_signals.h"
#include "program/inside.h"
#include "program/ring_clock.h"

namespace dmi::program {

using wire::BoundaryStamp;
using wire::ControlBlock;
using wire::RingHeader;

namespace {

// Returns the progress after one more boundary. A counter at its end stays
// there: it must not carry into the version.
uint64_t Advance(ControlBlock& control) {
  uint64_t seen = LoadRelaxed(control.progress);
  while (wire::CounterOf(seen) != wire::kCounterMask) {
    if (CompareExchangeAcqRel(control.progress, seen, seen + 1)) {
      return seen + 1;
    }
  }
  return seen;
}

}  // namespace

void AdvanceBoundary(ControlBlock& control) {
  const Inside inside(control);
  RingHeader* ring = inside.ring();
  if (ring == nullptr) return;
  const uint64_t progress = Advance(control);
  const uint64_t number = AddRelaxed(ring->boundary_count, uint64_t{1});
  BoundaryStamp& stamp = reinterpret_cast<BoundaryStamp*>(
      ring->boundaries)[number % wire::kBoundaryLogSize];
  StoreRelaxed(stamp.tag, uint64_t{0});
  StoreRelease(stamp.progress, progress);
  StoreRelease(stamp.time_ns, UtcNow(*ring));
  StoreRelease(stamp.tag, number + 1);
  // A drain that has not yet said how far it wants to sleep looks by itself.
  if (progress >= LoadRelaxed(ring->wake_progress)) {
    reinterpret_cast<HostSignals*>(ring->signals)->WakeDrain();
  }
}

void SetAmbientStep(ControlBlock& control, wire::ProgramKind kind, int64_t step,
                    uint64_t flags) {
  StoreRelaxed(control.ambient[kind].step, step);
  StoreRelaxed(control.ambient[kind].flags, flags);
}

std::vector<BoundaryStamp> ReadBoundaries(const RingHeader& ring,
                                          uint64_t first) {
  const uint64_t count = LoadAcquire(ring.boundary_count);
  const uint64_t oldest =
      count > wire::kBoundaryLogSize ? count - wire::kBoundaryLogSize : 0;
  const auto* log = reinterpret_cast<const BoundaryStamp*>(ring.boundaries);
  std::vector<BoundaryStamp> stamps;
  for (uint64_t i = std::max(first, oldest); i < count; ++i) {
    const BoundaryStamp& stamp = log[i % wire::kBoundaryLogSize];
    const uint64_t tag = LoadAcquire(stamp.tag);
    const BoundaryStamp copy{tag, LoadAcquire(stamp.progress),
                             LoadAcquire(stamp.time_ns), 0};
    if (tag == i + 1 && LoadAcquire(stamp.tag) == tag) stamps.push_back(copy);
  }
  return stamps;
}

}  // namespace dmi::program
