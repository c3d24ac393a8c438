// SPDX-License-Identifier: Apache-2.0
// The host form of gates.
#include "program/gates.h"

#include "program/atomics.h"

namespace dmi::program {
namespace {

constexpr uint32_t BitOf(wire::ProgramKind kind) { return 1u << kind; }

uint32_t* GatesOf(const wire::ControlBlock& control) {
  return reinterpret_cast<uint32_t*>(control.gates);
}

}  // namespace

bool GateIsClosed(const wire::ControlBlock& control, uint32_t index,
                  wire::ProgramKind kind) {
  return (LoadRelaxed(GatesOf(control)[index]) & BitOf(kind)) != 0;
}

void SetGate(wire::ControlBlock& control, GateChange change,
             wire::ProgramKind kind) {
  if (change.index >= wire::kMaxSites) return;
  uint32_t& gate = GatesOf(control)[change.index];
  if (change.closed) {
    OrRelaxed(gate, BitOf(kind));
  } else {
    AndRelaxed(gate, ~BitOf(kind));
  }
}

}  // namespace dmi::program
