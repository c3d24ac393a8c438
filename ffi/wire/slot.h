// SPDX-License-Identifier: Apache-2.0
// The slot: one published record's fixed-size description in the ring.
//
// Two 64-byte lines. A producer fills every field, then stores `publication`
// last with release order; a reader that acquires `publication` and finds the
// sequence it expects may read the rest, and the payload it points at.
//
//   writer: the one producer that reserved the sequence
//   reader: the drain of the ring, after the acquire, until it moves the tail
//
// `publication` carries the low 32 bits of the sequence, so a slot left over
// from an earlier lap is never taken for a new one, and an overrun shows.
#ifndef DMI_WIRE_SLOT_H_
#define DMI_WIRE_SLOT_H_

#include <cstddef>
#include <cstdint>

#include "wire/host_device.h"

namespace dmi::wire {

inline constexpr uint64_t kPublishedBit = uint64_t{1} << 63;
inline constexpr uint32_t kMaxLabels = 4;

// Payloads start on multiples of this many bytes; the unit of positions.
inline constexpr uint32_t kPayloadUnit = 64;

// Readers address payloads by 32-bit sizes.
inline constexpr uint64_t kMaxRecordBytes = (uint64_t{1} << 31) - kPayloadUnit;

enum SlotFlags : uint32_t {
  kHasStep = 1u << 0,
  kStepIsAmbient = 1u << 1,
  kHasLayer = 1u << 2,
  kHasCrc = 1u << 3,
};

struct alignas(64) Slot {
  uint64_t publication;  // kPublishedBit | sequence (low 32 bits); 0 = never
  uint64_t position;     // byte offset of the payload in the ring
  uint64_t bytes;        // exact payload size, padding not counted
  uint64_t site;
  int64_t step;
  uint64_t boundary;
  int64_t time_ns;  // UTC, or the clock of a device
  uint32_t flags;   // SlotFlags
  uint32_t crc;     // crc32c of the payload when kHasCrc
  // Second line.
  int64_t layer;
  uint64_t labels[kMaxLabels];
  uint64_t layout;
  uint64_t reserved[2];
};

static_assert(sizeof(Slot) == 128);
static_assert(offsetof(Slot, publication) == 0);
static_assert(offsetof(Slot, position) == 8);
static_assert(offsetof(Slot, bytes) == 16);
static_assert(offsetof(Slot, site) == 24);
static_assert(offsetof(Slot, step) == 32);
static_assert(offsetof(Slot, boundary) == 40);
static_assert(offsetof(Slot, time_ns) == 48);
static_assert(offsetof(Slot, flags) == 56);
static_assert(offsetof(Slot, crc) == 60);
static_assert(offsetof(Slot, layer) == 64);
static_assert(offsetof(Slot, labels) == 72);
static_assert(offsetof(Slot, layout) == 104);

DMI_HOST_DEVICE constexpr uint64_t PublicationOf(uint32_t sequence) {
  return kPublishedBit | sequence;
}

}  // namespace dmi::wire

#endif  // DMI_WIRE_SLOT_H_
