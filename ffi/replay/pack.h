// SPDX-License-Identifier: Apache-2.0
// Packs the arguments of one submission.
#ifndef DMI_REPLAY_PACK_H_
#define DMI_REPLAY_PACK_H_

#include <cstddef>
#include <cstdint>

#include "replay/plan.h"

namespace dmi::replay {

// Copies `sources`, one per region and each of its source_bytes(), to `to`, and
// zeros the gaps: all of the layout.bytes bytes are written, none beyond. The
// source of an empty region may be null.
void Pack(const SubmissionLayout& layout, const void* const* sources,
          uint8_t* to);

// Packs `count` elements of 1, 2 or 4 bits, one per byte in its low bits;
// unused bits of the last byte are 0.
void PackSubByte(const uint8_t* from, size_t count, uint32_t bits, uint8_t* to);

}  // namespace dmi::replay

#endif  // DMI_REPLAY_PACK_H_
