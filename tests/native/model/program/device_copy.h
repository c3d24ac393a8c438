// SPDX-License-Identifier: Apache-2.0
// The product's copies by several blocks, into the model's payload.
#ifndef DMI_PROGRAM_DEVICE_COPY_H_
#define DMI_PROGRAM_DEVICE_COPY_H_

#include "model/memory.h"

namespace dmi::program {

struct Word16 {
  uint64_t low;
  uint64_t high;
};

inline void CopyShare(uint8_t* to, const uint8_t* from, uint64_t,
                      uint64_t index, uint64_t count) {
  for (uint64_t part = index; part < model::kParts; part += count) {
    model::Memory::Current().WritePayload(
        to, *reinterpret_cast<const uint64_t*>(from), part);
  }
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_DEVICE_COPY_H_
