// SPDX-License-Identifier: Apache-2.0
// Copies by the threads of a grid.
#ifndef DMI_PROGRAM_DEVICE_COPY_H_
#define DMI_PROGRAM_DEVICE_COPY_H_

#include <cstdint>

#include "base/launch.h"

namespace dmi::program {

struct alignas(16) Word16 {
  uint64_t low;
  uint64_t high;
};

// The payload is read once and written once by the device: neither should push
// anything else out of its caches.
template <typename Word>
__device__ inline Word LoadStreaming(const Word* from) {
  return *from;
}
template <typename Word>
__device__ inline void StoreStreaming(Word* to, Word word) {
  *to = word;
}
#if defined(__CUDA_ARCH__)
template <>
__device__ inline Word16 LoadStreaming(const Word16* from) {
  Word16 word;
  asm volatile("ld.global.cs.v2.u64 {%0, %1}, [%2];"
               : "=l"(word.low), "=l"(word.high)
               : "l"(from));
  return word;
}
template <>
__device__ inline void StoreStreaming(Word16* to, Word16 word) {
  asm volatile("st.global.cs.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(word.low),
               "l"(word.high)
               : "memory");
}
#endif

// Thread `index` of `count` copies its share of whole words. Returns how many
// bytes all of them copy.
template <typename Word>
__device__ inline uint64_t CopyWords(uint8_t* to, const uint8_t* from,
                                     uint64_t bytes, uint64_t index,
                                     uint64_t count) {
  constexpr int kAtOnce = 4;  // loads under way before the first store
  const uint64_t words = bytes / sizeof(Word);
  auto* out = reinterpret_cast<Word*>(to);
  const auto* in = reinterpret_cast<const Word*>(from);
  uint64_t i = index;
  for (; i + (kAtOnce - 1) * count < words; i += kAtOnce * count) {
    Word word[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k)
      word[k] = LoadStreaming(in + i + k * count);
    for (int k = 0; k < kAtOnce; ++k)
      StoreStreaming(out + i + k * count, word[k]);
  }
  for (; i < words; i += count) StoreStreaming(out + i, LoadStreaming(in + i));
  return words * sizeof(Word);
}

// `to` is a multiple of 64; nothing behind `bytes` is read or written.
__device__ inline void CopyShare(uint8_t* to, const uint8_t* from,
                                 uint64_t bytes, uint64_t index,
                                 uint64_t count) {
  const auto address = reinterpret_cast<uint64_t>(from);
  uint64_t done = 0;
  if (address % sizeof(Word16) == 0) {
    done = CopyWords<Word16>(to, from, bytes, index, count);
  } else if (address % sizeof(uint64_t) == 0) {
    done = CopyWords<uint64_t>(to, from, bytes, index, count);
  } else if (address % sizeof(uint32_t) == 0) {
    done = CopyWords<uint32_t>(to, from, bytes, index, count);
  }
  CopyWords<uint8_t>(to + done, from + done, bytes - done, index, count);
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_DEVICE_COPY_H_
