// SPDX-License-Identifier: Apache-2.0
// Bits per element of every element type a record may carry.
//
// The numbers are those of XLA's PrimitiveType. XLA stores sub-byte elements
// packed, yet reports one byte for each; payload sizes come from this table.
#ifndef DMI_WIRE_DTYPE_H_
#define DMI_WIRE_DTYPE_H_

#include <cstdint>

namespace dmi::wire {

enum class DType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
  kS4 = 21,
  kU4 = 22,
  kF8E4M3B11FNUZ = 23,
  kF8E5M2FNUZ = 24,
  kF8E4M3FNUZ = 25,
  kS2 = 26,
  kU2 = 27,
  kF8E4M3 = 28,
  kF8E3M4 = 29,
  kS1 = 30,
  kU1 = 31,
  kF4E2M1FN = 32,
  kF8E8M0FNU = 33,
};

// Bits of one element, 0 for a type that cannot be recorded.
constexpr uint32_t BitsOf(DType dtype) {
  switch (dtype) {
    case DType::kS1:
    case DType::kU1:
      return 1;
    case DType::kS2:
    case DType::kU2:
      return 2;
    case DType::kS4:
    case DType::kU4:
    case DType::kF4E2M1FN:
      return 4;
    case DType::kPred:
    case DType::kS8:
    case DType::kU8:
    case DType::kF8E5M2:
    case DType::kF8E4M3FN:
    case DType::kF8E4M3B11FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E4M3:
    case DType::kF8E3M4:
    case DType::kF8E8M0FNU:
      return 8;
    case DType::kS16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kS32:
    case DType::kU32:
    case DType::kF32:
      return 32;
    case DType::kS64:
    case DType::kU64:
    case DType::kF64:
    case DType::kC64:
      return 64;
    case DType::kC128:
      return 128;
  }
  return 0;
}

constexpr uint64_t BytesOf(DType dtype, uint64_t elements) {
  return (elements * BitsOf(dtype) + 7) / 8;
}

static_assert(BytesOf(DType::kS4, 1001) == 501);
static_assert(BytesOf(DType::kPred, 3) == 3);

}  // namespace dmi::wire

#endif  // DMI_WIRE_DTYPE_H_
