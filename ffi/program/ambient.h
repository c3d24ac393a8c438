// SPDX-License-Identifier: Apache-2.0
// The ambient step: what records without a step of their own carry.
#ifndef DMI_PROGRAM_AMBIENT_H_
#define DMI_PROGRAM_AMBIENT_H_

#include <cstdint>

#include "program/atomics.h"
#include "wire/control.h"
#include "wire/host_device.h"

namespace dmi::program {

// Sets the step that records of `kind` carry from now on. Called by programs,
// or by the control thread while no such program can be in flight.
DMI_HOST_DEVICE inline void SetAmbientStep(wire::ControlBlock& control,
                                           wire::ProgramKind kind, int64_t step,
                                           uint64_t flags) {
  StoreRelaxed(control.ambient[kind].step, step);
  StoreRelaxed(control.ambient[kind].flags, flags);
}

// Of a step program: low and high half of the step, flags, the kind of program.
inline constexpr uint32_t kStepWords = 4;

DMI_HOST_DEVICE inline void ApplyStepWords(wire::ControlBlock& control,
                                           const uint32_t* word) {
  const bool has_step = word[2] & 1;
  const bool recording = word[2] & 2;
  SetAmbientStep(control,
                 word[3] != 0 ? wire::kMultiDevice : wire::kSingleDevice,
                 static_cast<int64_t>(uint64_t{word[1]} << 32 | word[0]),
                 (has_step ? wire::kAmbientHasStep : 0u) |
                     (recording ? 0u : wire::kAmbientPaused));
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_AMBIENT_H_
