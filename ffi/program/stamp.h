// SPDX-License-Identifier: Apache-2.0
// The steps of a boundary that are the same on the host and on a device.
#ifndef DMI_PROGRAM_STAMP_H_
#define DMI_PROGRAM_STAMP_H_

#include <cstdint>

#include "program/atomics.h"
#include "wire/control.h"
#include "wire/host_device.h"
#include "wire/progress.h"

namespace dmi::program {

// Returns the progress after one more boundary. A counter at its end stays
// there: it must not carry into the version.
DMI_HOST_DEVICE inline uint64_t NextProgress(wire::ControlBlock& control) {
  uint64_t seen = LoadRelaxed(control.progress);
  while (wire::CounterOf(seen) != wire::kCounterMask) {
    if (CompareExchangeAcqRel(control.progress, seen, seen + 1)) {
      return seen + 1;
    }
  }
  return seen;
}

// Stamps a boundary into the log. `time`: UTC, ns.
DMI_HOST_DEVICE inline void StampBoundary(wire::RingHeader& ring,
                                          uint64_t progress, int64_t time) {
  const uint64_t number = AddRelaxed(ring.boundary_count, uint64_t{1});
  wire::BoundaryStamp& stamp = reinterpret_cast<wire::BoundaryStamp*>(
      ring.boundaries)[number % wire::kBoundaryLogSize];
  StoreRelaxed(stamp.tag, uint64_t{0});
  StoreRelease(stamp.progress, progress);
  StoreRelease(stamp.time_ns, time);
  StoreRelease(stamp.tag, number + 1);
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_STAMP_H_
