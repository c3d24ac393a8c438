// SPDX-License-Identifier: Apache-2.0
// The cursor: how far a ring has been reserved (head) or freed (tail).
//
// Sequence and payload position move together, so both fit one 64-bit word
// that a single compare-and-swap advances:
//
//   bits 63..32  sequence of the next record, modulo 2^32
//   bits 31..0   payload position of the next record, in units of 64 bytes,
//                counted over several laps: modulo `Extent::span`, the largest
//                multiple of the capacity that fits
//
// Counting laps is what makes a stale tail harmless: a producer that slept
// through a whole lap computes more used units than the ring has and looks
// again. A record is never split at the end of the ring: its reservation skips
// to the start instead.
//
// Pure arithmetic, used by producers on host and device and by the drain.
#ifndef DMI_WIRE_CURSOR_H_
#define DMI_WIRE_CURSOR_H_

#include <cstdint>

#include "wire/host_device.h"
#include "wire/slot.h"

namespace dmi::wire {

struct Cursor {
  uint32_t sequence;
  uint32_t position;

  friend constexpr bool operator==(const Cursor&, const Cursor&) = default;
};

DMI_HOST_DEVICE constexpr uint64_t Pack(Cursor cursor) {
  return uint64_t{cursor.sequence} << 32 | cursor.position;
}

DMI_HOST_DEVICE constexpr Cursor Unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
}

// Units of payload a record of `bytes` occupies; no size overflows.
DMI_HOST_DEVICE constexpr uint64_t UnitsFor(uint64_t bytes) {
  return bytes / kPayloadUnit + (bytes % kPayloadUnit != 0);
}

// The most units a ring may have: leaves four laps in 32 bits.
inline constexpr uint64_t kMaxUnits = uint64_t{1} << 30;
// The most slots: keeps sequences comparable in 32 bits.
inline constexpr uint32_t kMaxSlots = uint32_t{1} << 30;

struct Extent {
  uint32_t units;  // capacity of the payload ring, 0 < units <= kMaxUnits
  uint32_t slots;  // a power of two, <= kMaxSlots
  uint64_t span;   // SpanOf(units)
};

constexpr uint64_t SpanOf(uint32_t units) {
  return (uint64_t{1} << 32) / units * units;
}

// Units from `from` to `to`, padding included.
DMI_HOST_DEVICE constexpr uint64_t UnitsBetween(Cursor from, Cursor to,
                                                Extent extent) {
  return to.position >= from.position
             ? to.position - from.position
             : to.position + extent.span - from.position;
}

// `position` after `units` more.
DMI_HOST_DEVICE constexpr uint32_t Advance(uint32_t position, uint64_t units,
                                           Extent extent) {
  const uint64_t moved = position + units;
  return static_cast<uint32_t>(moved < extent.span ? moved
                                                   : moved - extent.span);
}

struct Reservation {
  bool fits;
  uint32_t start;  // unit of the payload ring where the payload begins
  Cursor next;     // the head after this record
};

// Where a record of `units` goes when the ring stands at (head, tail), or
// `fits == false` when it has to wait. Requires units <= extent.units / 2: that
// bound is what makes every record fit an empty ring, wherever it stands.
DMI_HOST_DEVICE constexpr Reservation Reserve(Cursor head, Cursor tail,
                                              uint32_t units, Extent extent) {
  const uint32_t offset = head.position % extent.units;
  const uint32_t rest = extent.units - offset;
  const uint32_t padding = units > rest ? rest : 0;
  const uint64_t consumed = uint64_t{units} + padding;
  const bool fits = head.sequence - tail.sequence < extent.slots &&
                    UnitsBetween(tail, head, extent) + consumed <= extent.units;
  const uint32_t start = padding > 0 ? 0 : offset;
  return {fits,
          start,
          {head.sequence + 1, Advance(head.position, consumed, extent)}};
}

// The full-width sequence whose low half is `low`, nearest to `reference`.
constexpr uint64_t Extend(uint32_t low, uint64_t reference) {
  return reference +
         static_cast<int32_t>(low - static_cast<uint32_t>(reference));
}

}  // namespace dmi::wire

#endif  // DMI_WIRE_CURSOR_H_
