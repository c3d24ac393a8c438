// SPDX-License-Identifier: Apache-2.0
// Copies of arguments into a submission.
#include "replay/pack.h"

#include <cstring>

namespace dmi::replay {
namespace {

template <uint32_t kBits>
void PackBits(const uint8_t* from, size_t count, uint8_t* to) {
  constexpr size_t kPerByte = 8 / kBits;
  constexpr uint8_t kMask = (1u << kBits) - 1;
  for (; count >= kPerByte; count -= kPerByte, from += kPerByte) {
    uint8_t byte = 0;
    for (size_t i = 0; i < kPerByte; ++i) {
      byte |= static_cast<uint8_t>((from[i] & kMask) << (i * kBits));
    }
    *to++ = byte;
  }
  if (count == 0) return;
  uint8_t byte = 0;
  for (size_t i = 0; i < count; ++i) {
    byte |= static_cast<uint8_t>((from[i] & kMask) << (i * kBits));
  }
  *to = byte;
}

}  // namespace

void PackSubByte(const uint8_t* from, size_t count, uint32_t bits,
                 uint8_t* to) {
  switch (bits) {
    case 1:
      return PackBits<1>(from, count, to);
    case 2:
      return PackBits<2>(from, count, to);
    default:
      return PackBits<4>(from, count, to);
  }
}

void Pack(const SubmissionLayout& layout, const void* const* sources,
          uint8_t* to) {
  for (size_t i = 0; i < layout.regions.size(); ++i) {
    const Region& region = layout.regions[i];
    if (region.bytes == 0) continue;
    if (region.bits < 8) {
      PackSubByte(static_cast<const uint8_t*>(sources[i]), region.elements,
                  region.bits, to + region.offset);
    } else {
      std::memcpy(to + region.offset, sources[i], region.bytes);
    }
  }
  for (const Gap& gap : layout.gaps) {
    std::memset(to + gap.offset, 0, gap.bytes);
  }
}

}  // namespace dmi::replay
