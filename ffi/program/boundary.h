// SPDX-License-Identifier: Apache-2.0
// What boundaries do inside the program.
#ifndef DMI_PROGRAM_BOUNDARY_H_
#define DMI_PROGRAM_BOUNDARY_H_

#include <cstdint>
#include <vector>

#include "wire/control.h"

namespace dmi::program {

// Counts a boundary on the device and stamps it into the boundary log of the
// ring, where one is installed. Called by programs; never blocks.
void AdvanceBoundary(wire::ControlBlock& control);

// The stamps from number `first` on that are still in the log, oldest first;
// one that a program overwrites meanwhile is left out. Any thread.
std::vector<wire::BoundaryStamp> ReadBoundaries(const wire::RingHeader& ring,
                                                uint64_t first);

}  // namespace dmi::program

#endif  // DMI_PROGRAM_BOUNDARY_H_
