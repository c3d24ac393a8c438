// SPDX-License-Identifier: Apache-2.0
// The progress word: which boundary the program passed last.
//
//   bits 63..48  version of the window pattern in force (0 = none)
//   bits 47..0   boundaries passed since that version was installed
#ifndef DMI_WIRE_PROGRESS_H_
#define DMI_WIRE_PROGRESS_H_

#include <cstdint>

#include "wire/host_device.h"

namespace dmi::wire {

inline constexpr int kCounterBits = 48;
inline constexpr uint64_t kCounterMask = (uint64_t{1} << kCounterBits) - 1;

DMI_HOST_DEVICE constexpr uint64_t PackProgress(uint16_t version,
                                                uint64_t counter) {
  return uint64_t{version} << kCounterBits | (counter & kCounterMask);
}
DMI_HOST_DEVICE constexpr uint16_t VersionOf(uint64_t word) {
  return static_cast<uint16_t>(word >> kCounterBits);
}
DMI_HOST_DEVICE constexpr uint64_t CounterOf(uint64_t word) {
  return word & kCounterMask;
}

// One boundary as the program stamped it. `tag` is the stamp's own index plus
// one, written last with release order, so a reader sees whether the stamp was
// overwritten while it was being read.
struct alignas(32) BoundaryStamp {
  uint64_t tag;
  uint64_t progress;
  int64_t time_ns;  // UTC, or the clock of a device
  uint64_t reserved;
};
static_assert(sizeof(BoundaryStamp) == 32);

inline constexpr uint32_t kBoundaryLogSize = 65536;

}  // namespace dmi::wire

#endif  // DMI_WIRE_PROGRESS_H_
