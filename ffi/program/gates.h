// SPDX-License-Identifier: Apache-2.0
// Gates: which sites record at run time, per device.
//
// One word per site, one bit per kind of program: programs of one device and
// programs of several have no order between them, so a gate closes for each
// kind in turn, by a program of that kind.
#ifndef DMI_PROGRAM_GATES_H_
#define DMI_PROGRAM_GATES_H_

#include <cstdint>

#include "program/atomics.h"
#include "wire/control.h"
#include "wire/host_device.h"

namespace dmi::program {

// One change: the index of the site and whether its gate closes.
struct GateChange {
  static constexpr uint32_t kNone = ~uint32_t{0};

  // The packed form programs carry; kNone changes nothing.
  DMI_HOST_DEVICE static GateChange Unpack(uint32_t word) {
    return {word >> 1, (word & 1) != 0};
  }

  uint32_t index;
  bool closed;
};

// Whether a record of the site is skipped. Called by programs on every record.
DMI_HOST_DEVICE inline bool GateIsClosed(const wire::ControlBlock& control,
                                         uint32_t index,
                                         wire::ProgramKind kind) {
  const auto* gates = reinterpret_cast<const uint32_t*>(control.gates);
  return (LoadRelaxed(gates[index]) & 1u << kind) != 0;
}

// Opens or closes a gate for one kind of program. Called by a program of that
// kind, or by the control thread while no such program can be in flight. An
// index out of range changes nothing.
DMI_HOST_DEVICE inline void SetGate(wire::ControlBlock& control,
                                    GateChange change, wire::ProgramKind kind) {
  if (change.index >= wire::kMaxSites) return;
  uint32_t& gate = reinterpret_cast<uint32_t*>(control.gates)[change.index];
  if (change.closed) {
    OrRelaxed(gate, 1u << kind);
  } else {
    AndRelaxed(gate, ~(1u << kind));
  }
}

// Of a gate program: u32[count], the kind of program, then packed changes.
DMI_HOST_DEVICE inline void ApplyGateWords(wire::ControlBlock& control,
                                           const uint32_t* word,
                                           uint64_t count) {
  const auto kind = word[0] != 0 ? wire::kMultiDevice : wire::kSingleDevice;
  for (uint64_t i = 1; i < count; ++i) {
    SetGate(control, GateChange::Unpack(word[i]), kind);
  }
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_GATES_H_
