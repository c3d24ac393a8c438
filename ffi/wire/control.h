// SPDX-License-Identifier: Apache-2.0
// The control block and the ring header: all a running program can reach.
//
// A compiled program, or a captured command buffer, finds its control block
// and everything else through it, never the other way round. One block exists
// per device and lives as long as the process; a ring comes and goes with the
// Monitor that made it, so `ring` is 0 while nobody captures.
//
//   word           written by            read by
//   ring           control thread        every producer, on every record
//   in_flight      producers (+1, -1)    control thread, taking a ring away
//   ambient[kind]  step programs         producers of that kind of program
//   progress       boundary programs     producers, drain
//   lost           producers             control thread
//
// Layout only; who uses which memory order is written beside the code in
// program/ that does it.
#ifndef DMI_WIRE_CONTROL_H_
#define DMI_WIRE_CONTROL_H_

#include <cstddef>
#include <cstdint>

#include "wire/cursor.h"
#include "wire/progress.h"

namespace dmi::wire {

// What happens to a record that finds the ring full.
enum class Overflow : uint32_t {
  kBlock = 0,  // the producer waits; after the stall budget the ring drops
  kDrop = 1,   // the record is dropped and counted at once
};

// Every way to lose a record.
enum LossReason : uint32_t {
  kLostOverflow = 0,  // ring full under Overflow::kDrop
  kLostStalled = 1,   // ring full and the stall budget was spent
  kLostTooLarge = 2,  // over half the ring
  kLostClosed = 3,    // no ring installed any more
  kLostForked = 4,    // in a forked child
  kLossReasons = 5,
};

// Indices of gates and counters; sites beyond them share the last one.
inline constexpr uint32_t kMaxSites = 65536;

struct SiteCounters {
  uint64_t recorded;  // records that took a sequence
  uint64_t lost[kLossReasons];
  uint64_t reserved[2];
};
static_assert(sizeof(SiteCounters) == 64);

enum AmbientFlags : uint32_t {
  kAmbientHasStep = 1u << 0,
  kAmbientPaused = 1u << 1,  // the step is one that every/warmup skips
};

// Which programs read an ambient word: XLA:CPU keeps no order between programs
// of one device and programs of several, so each kind has its own.
enum ProgramKind : uint32_t {
  kSingleDevice = 0,
  kMultiDevice = 1,
  kProgramKinds = 2,
};

struct AmbientStep {
  int64_t step;
  uint64_t flags;  // AmbientFlags
};

struct alignas(64) RingHeader {
  // Constant while installed; all a producer needs but the head, in one line.
  uint64_t payload;  // uint8_t*
  uint64_t slots;    // Slot*
  uint64_t sites;    // SiteCounters[kMaxSites]
  Extent extent;
  Overflow overflow;
  uint32_t checksum;      // 0 or 1
  uint32_t wake_records;  // the drain wants to be woken once this many records
  uint32_t wake_units;    // or payload units wait behind `batch_begin`
  int64_t clock_offset;   // UTC minus the monotonic clock, ns

  alignas(64) uint64_t head;  // Cursor, producers
  uint64_t cached_tail;       // Cursor, producers' copy of `tail`
  uint64_t exhausted;         // 1 once the stall budget is spent
  uint64_t batch_begin;       // Cursor, drain; once per batch
  uint64_t signals;           // host only: program::HostSignals*, constant
  uint64_t clock;             // host only: int64_t* to read instead of the
                              // monotonic clock, or 0; constant

  alignas(64) uint64_t tail;  // Cursor, whoever releases a lease

  alignas(64) uint64_t boundary_count;  // boundary programs
  uint64_t boundaries;  // BoundaryStamp[kBoundaryLogSize], constant
  // Host only, drain: it wants to be woken once the progress word gets there.
  uint64_t wake_progress;
};
static_assert(offsetof(RingHeader, head) == 64);
static_assert(offsetof(RingHeader, tail) == 128);
static_assert(offsetof(RingHeader, boundary_count) == 192);

// Everything a record reads or writes stands in the first line: every producer
// has to own the line of `in_flight` anyway.
struct alignas(64) ControlBlock {
  uint64_t ring;       // RingHeader*, 0 when closed
  uint64_t in_flight;  // producers inside
  uint64_t progress;
  uint64_t gates;  // uint32_t[kMaxSites], a bit per ProgramKind; constant
  AmbientStep ambient[kProgramKinds];

  int64_t device;               // global device id, constant
  uint64_t deselected;          // 1: the Monitor leaves this device out
  uint64_t lost[kLossReasons];  // while no ring was installed
};
static_assert(offsetof(ControlBlock, ambient) == 32);
static_assert(offsetof(ControlBlock, device) == 64);

}  // namespace dmi::wire

#endif  // DMI_WIRE_CONTROL_H_
