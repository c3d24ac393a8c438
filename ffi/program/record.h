// SPDX-License-Identifier: Apache-2.0
// What `record` does inside the program: reserve, copy, publish.
//
// Any number of producers may run at once on one ring: XLA runs independent
// custom calls of a program on several threads, and several programs overlap.
//
//   reserve   one compare-and-swap moves sequence and position of the head
//   copy      into the reserved span, which nobody else touches
//   publish   the slot's fields, then its publication word, release
//
// A record never fails and never returns an error: what cannot be recorded is
// counted, because an error on one device would hang its peers at the next
// collective.
#ifndef DMI_PROGRAM_RECORD_H_
#define DMI_PROGRAM_RECORD_H_

#include <cstdint>

#include "wire/control.h"
#include "wire/slot.h"

namespace dmi::program {

// What is known of a record when its executable is instantiated.
struct RecordSite {
  uint64_t site = 0;
  uint64_t layout = 0;
  uint32_t index = 0;  // of the site's gate and counters
  wire::ProgramKind kind = wire::kSingleDevice;
};

// What one execution adds.
struct RecordLabels {
  uint32_t flags = 0;  // kHasStep, kHasLayer
  int64_t step = 0;
  int64_t layer = 0;
  uint64_t words[wire::kMaxLabels] = {};
};

// Records `bytes` at `payload` on the device of `control`; called by the
// program, on any thread. Blocks only under Overflow::kBlock with a full ring.
void Record(wire::ControlBlock& control, const RecordSite& site,
            const RecordLabels& labels, const void* payload, uint64_t bytes);

// Counts a record on a device no ring was ever made for.
void CountOrphan();
uint64_t Orphans();

// Takes the ring away: producers that come later drop and count, those inside
// are woken and waited for. Called by the control thread; blocks until the
// last producer has left.
void Uninstall(wire::ControlBlock& control);
void Install(wire::ControlBlock& control, wire::RingHeader& ring);

}  // namespace dmi::program

#endif  // DMI_PROGRAM_RECORD_H_
