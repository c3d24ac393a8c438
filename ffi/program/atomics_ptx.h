// SPDX-License-Identifier: Apache-2.0
// The device form of atomics.h, which includes it.
//
// Instructions of the same orders. Loads and stores have the scope of the
// system, because the host reads and writes some of the words. Updates and
// sequential consistency reach no further than the device, whose words and
// threads they are for: a wider release would wait for the bus. See
// docs/memory-model.md.
#ifndef DMI_PROGRAM_ATOMICS_PTX_H_
#define DMI_PROGRAM_ATOMICS_PTX_H_

#include <cstdint>

namespace dmi::program {

// One function for words of 64 and one for words of 32 bits, from the type of
// the word.
#define DMI_PTX_LOAD(NAME, FENCE, ORDER)                  \
  template <typename T>                                   \
  __device__ T NAME(const T& word) {                      \
    if constexpr (sizeof(T) == 8) {                       \
      uint64_t value;                                     \
      asm volatile(FENCE "ld." ORDER ".sys.b64 %0, [%1];" \
                   : "=l"(value)                          \
                   : "l"(&word)                           \
                   : "memory");                           \
      return static_cast<T>(value);                       \
    } else {                                              \
      uint32_t value;                                     \
      asm volatile(FENCE "ld." ORDER ".sys.b32 %0, [%1];" \
                   : "=r"(value)                          \
                   : "l"(&word)                           \
                   : "memory");                           \
      return static_cast<T>(value);                       \
    }                                                     \
  }

#define DMI_PTX_STORE(NAME, FENCE, ORDER)                               \
  template <typename T>                                                 \
  __device__ void NAME(T& word, T value) {                              \
    if constexpr (sizeof(T) == 8) {                                     \
      asm volatile(FENCE "st." ORDER ".sys.b64 [%0], %1;" ::"l"(&word), \
                   "l"(static_cast<uint64_t>(value))                    \
                   : "memory");                                         \
    } else {                                                            \
      asm volatile(FENCE "st." ORDER ".sys.b32 [%0], %1;" ::"l"(&word), \
                   "r"(static_cast<uint32_t>(value))                    \
                   : "memory");                                         \
    }                                                                   \
  }

// OPERATION with the type suffixes TYPE64 and TYPE32.
#define DMI_PTX_UPDATE(NAME, FENCE, ORDER, OPERATION, TYPE64, TYPE32) \
  template <typename T>                                               \
  __device__ T NAME(T& word, T value) {                               \
    if constexpr (sizeof(T) == 8) {                                   \
      uint64_t old;                                                   \
      asm volatile(FENCE "atom." ORDER ".gpu." OPERATION TYPE64       \
                         " %0, [%1], %2;"                             \
                   : "=l"(old)                                        \
                   : "l"(&word), "l"(static_cast<uint64_t>(value))    \
                   : "memory");                                       \
      return static_cast<T>(old);                                     \
    } else {                                                          \
      uint32_t old;                                                   \
      asm volatile(FENCE "atom." ORDER ".gpu." OPERATION TYPE32       \
                         " %0, [%1], %2;"                             \
                   : "=r"(old)                                        \
                   : "l"(&word), "r"(static_cast<uint32_t>(value))    \
                   : "memory");                                       \
      return static_cast<T>(old);                                     \
    }                                                                 \
  }

#define DMI_FENCE_SC "fence.sc.gpu;\n\t"

DMI_PTX_LOAD(LoadRelaxed, "", "relaxed")
DMI_PTX_LOAD(LoadAcquire, "", "acquire")
DMI_PTX_LOAD(LoadSeqCst, DMI_FENCE_SC, "acquire")
DMI_PTX_STORE(StoreRelaxed, "", "relaxed")
DMI_PTX_STORE(StoreRelease, "", "release")
DMI_PTX_STORE(StoreSeqCst, DMI_FENCE_SC, "release")
DMI_PTX_UPDATE(AddRelaxed, "", "relaxed", "add", ".u64", ".u32")
DMI_PTX_UPDATE(AddAcqRel, "", "acq_rel", "add", ".u64", ".u32")
DMI_PTX_UPDATE(AddSeqCst, DMI_FENCE_SC, "acq_rel", "add", ".u64", ".u32")
DMI_PTX_UPDATE(OrRelaxed, "", "relaxed", "or", ".b64", ".b32")
DMI_PTX_UPDATE(AndRelaxed, "", "relaxed", "and", ".b64", ".b32")

#undef DMI_PTX_LOAD
#undef DMI_PTX_STORE
#undef DMI_PTX_UPDATE
#undef DMI_FENCE_SC

// Of the words that are exchanged all have 64 bits.
#define DMI_PTX_EXCHANGE(NAME, ORDER)                                \
  __device__ inline uint64_t NAME(uint64_t& word, uint64_t expected, \
                                  uint64_t desired) {                \
    uint64_t old;                                                    \
    asm volatile("atom." ORDER ".gpu.cas.b64 %0, [%1], %2, %3;"      \
                 : "=l"(old)                                         \
                 : "l"(&word), "l"(expected), "l"(desired)           \
                 : "memory");                                        \
    return old;                                                      \
  }
DMI_PTX_EXCHANGE(ExchangeAcquire, "acquire")
DMI_PTX_EXCHANGE(ExchangeAcqRel, "acq_rel")
DMI_PTX_EXCHANGE(ExchangeRelease, "release")
#undef DMI_PTX_EXCHANGE

__device__ inline bool CompareExchangeAcquire(uint64_t& word,
                                              uint64_t& expected,
                                              uint64_t desired) {
  const uint64_t found = ExchangeAcquire(word, expected, desired);
  const bool done = found == expected;
  expected = found;
  return done;
}
__device__ inline bool CompareExchangeAcqRel(uint64_t& word, uint64_t& expected,
                                             uint64_t desired) {
  const uint64_t found = ExchangeAcqRel(word, expected, desired);
  const bool done = found == expected;
  expected = found;
  return done;
}
__device__ inline void ReplaceRelease(uint64_t& word, uint64_t expected,
                                      uint64_t desired) {
  ExchangeRelease(word, expected, desired);
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_ATOMICS_PTX_H_
