// SPDX-License-Identifier: Apache-2.0
// The host form of boundaries.
#include "program/boundary.h"

#include <algorithm>

#include "program/atomics.h"
#include "program/host_signals.h"
#include "program/inside.h"
#include "program/ring_clock.h"
#include "program/stamp.h"

namespace dmi::program {

using wire::BoundaryStamp;
using wire::ControlBlock;
using wire::RingHeader;

void AdvanceBoundary(ControlBlock& control) {
  const Inside inside(control);
  RingHeader* ring = inside.ring();
  if (ring == nullptr) return;
  const uint64_t progress = NextProgress(control);
  StampBoundary(*ring, progress, UtcNow(*ring));
  // A drain that has not yet said how far it wants to sleep looks by itself.
  if (progress >= LoadRelaxed(ring->wake_progress)) {
    reinterpret_cast<HostSignals*>(ring->signals)->WakeDrain();
  }
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
