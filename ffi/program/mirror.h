// SPDX-License-Identifier: Apache-2.0
// How a device shows the host a word of its own.
#ifndef DMI_PROGRAM_MIRROR_H_
#define DMI_PROGRAM_MIRROR_H_

#include <cstdint>

#include "program/atomics.h"
#include "wire/host_device.h"

namespace dmi::program {

// Stores the latest value of `here` to `there`. The sequentially consistent
// loads see to it that, of several threads at this, the last one to store has
// stored the latest: whoever stored an older value looks again and stores
// again. Nothing else is released: a store of the system that did so would wait
// for the bus.
DMI_HOST_DEVICE inline void MirrorLatest(const uint64_t& here,
                                         uint64_t& there) {
  uint64_t value = LoadSeqCst(here);
  while (true) {
    StoreRelaxed(there, value);
    const uint64_t now = LoadSeqCst(here);
    if (now == value) return;
    value = now;
  }
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_MIRROR_H_
