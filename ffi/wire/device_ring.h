// SPDX-License-Identifier: Apache-2.0
// The ring of a device with a memory of its own: one half on either side.
//
//   DeviceRing     on the device: what producers contend for, and the payload
//   DeviceMirror   in host memory that the device reaches over the bus: what
//                  producers tell the drain, and the tail, which it tells them
//
// A producer crosses the bus to write one slot, and to read only where the ring
// looks full. Pointers in DeviceRing are the device's, those in DeviceMirror
// the host's, but for `payload`, which is the device's in both.
#ifndef DMI_WIRE_DEVICE_RING_H_
#define DMI_WIRE_DEVICE_RING_H_

#include <cstdint>
#include <type_traits>

#include "wire/control.h"

namespace dmi::wire {

// Why producers no longer wait for space.
enum RingEnd : uint64_t {
  kRunning = 0,
  kClosing = 1,  // the ring is being taken away
  kGivenUp = 2,  // the drain failed: nothing will be freed any more
};

struct alignas(64) DeviceMirror {
  // Of its words the drain reads `boundary_count` and whoever releases a lease
  // writes `tail`; `head` and `cached_tail` stay 0.
  RingHeader ring;
  // Written by programs.
  uint64_t progress;  // the word of the control block
  uint64_t waiting;   // producers that wait for space
  // Written by the control thread and the drain.
  alignas(64) uint64_t ended;  // RingEnd
  // Written by control kernels, for the threads that launched them.
  alignas(64) uint64_t answer;
  uint64_t clock;
};

struct alignas(64) DeviceRing {
  RingHeader ring;      // first: the control block points at it
  uint64_t mirror;      // DeviceMirror*
  int64_t stall_nanos;  // the budget of waiting while nothing is freed
  // Among producers that wait.
  uint64_t waiting;
  uint64_t seen_tail;
  uint64_t quiet_since;  // device time, ns
  uint64_t spent;        // ns of the budget
};

// Both are copied to where they live.
static_assert(std::is_trivially_copyable_v<DeviceMirror>);
static_assert(std::is_trivially_copyable_v<DeviceRing>);

}  // namespace dmi::wire

#endif  // DMI_WIRE_DEVICE_RING_H_
