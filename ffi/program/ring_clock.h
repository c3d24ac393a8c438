// SPDX-License-Identifier: Apache-2.0
// The clock that programs of a ring stamp with.
#ifndef DMI_PROGRAM_RING_CLOCK_H_
#define DMI_PROGRAM_RING_CLOCK_H_

#include <cstdint>

#include "base/clock.h"
#include "program/atomics.h"
#include "wire/control.h"

namespace dmi::program {

// UTC; the monotonic clock at a fixed offset, so it never goes backwards.
inline int64_t UtcNow(const wire::RingHeader& ring) {
  const int64_t now =
      ring.clock == 0 ? base::MonotonicNanos()
                      : LoadAcquire(*reinterpret_cast<int64_t*>(ring.clock));
  return now + ring.clock_offset;
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_RING_CLOCK_H_
