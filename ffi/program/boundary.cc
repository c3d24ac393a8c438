// SPDX-License-Identifier: Apache-2.0
// The host form of boundaries and ambient steps.
#include "program/boundary.h"

#include <algorithm>

#include "base/clock.h"
#include "program/atomics.h"
#include "program/inside.h"

namespace dmi::program {

using wire::BoundaryStamp;
using wire::ControlBlock;
using wire::RingHeader;

void AdvanceBoundary(ControlBlock& control) {
  const Inside inside(control);
  RingHeader* ring = inside.ring();
  if (ring == nullptr) return;
  const uint64_t progress = AddAcqRel(control.progress, uint64_t{1}) + 1;
  const uint64_t number = AddRelaxed(ring->boundary_count, uint64_t{1});
  BoundaryStamp& stamp = reinterpret_cast<BoundaryStamp*>(
      ring->boundaries)[number % wire::kBoundaryLogSize];
  StoreRelaxed(stamp.tag, uint64_t{0});
  StoreRelease(stamp.progress, progress);
  StoreRelease(stamp.time_ns, base::MonotonicNanos() + ring->clock_offset);
  StoreRelease(stamp.tag, number + 1);
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
