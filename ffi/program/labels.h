// SPDX-License-Identifier: Apache-2.0
// The label operands of a record: scalars of the program, as words of a slot.
#ifndef DMI_PROGRAM_LABELS_H_
#define DMI_PROGRAM_LABELS_H_

#include <cstdint>
#include <cstring>

#include "program/record.h"
#include "wire/dtype.h"
#include "wire/host_device.h"

namespace dmi::program {

// One operand; its data is the program's.
struct LabelOperand {
  const void* data;
  wire::DType dtype;
  // 's' step, 'l' layer, '0'..'3' a label word, 'w' whether to record at all.
  char role;
  bool word;  // a u32[2], low half first, instead of a scalar
};

struct LabelOperands {
  static constexpr uint32_t kMost = 3 + wire::kMaxLabels;

  LabelOperand at[kMost];
  uint32_t count = 0;
};

// Whether scalars of the type can be labels.
constexpr bool IsLabelType(wire::DType dtype) {
  using wire::DType;
  switch (dtype) {
    case DType::kPred:
    case DType::kU8:
    case DType::kU16:
    case DType::kU32:
    case DType::kU64:
    case DType::kS8:
    case DType::kS16:
    case DType::kS32:
    case DType::kS64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
      return true;
    default:
      return false;
  }
}

template <typename To, typename From>
DMI_HOST_DEVICE inline To BitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

DMI_HOST_DEVICE inline double HalfAsDouble(uint16_t half) {
  const uint64_t sign = uint64_t{half} >> 15 << 63;
  const uint64_t exponent = half >> 10 & 31;
  const uint64_t fraction = half & 1023;
  if (exponent == 0) {  // of fixed point
    const double size = static_cast<double>(fraction) * 0x1p-24;
    return BitsAs<double>(BitsAs<uint64_t>(size) | sign);
  }
  const uint64_t quiet = exponent == 31 && fraction != 0 ? 1ull << 51 : 0;
  const uint64_t wide = exponent == 31 ? 2047 : exponent - 15 + 1023;
  return BitsAs<double>(sign | wide << 52 | fraction << 42 | quiet);
}

// A label as one 64-bit word: integers extended, floats as float64.
DMI_HOST_DEVICE inline uint64_t LabelWord(const LabelOperand& operand) {
  using wire::DType;
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, operand.data, sizeof value);
    return value;
  };
  if (operand.word) {
    return read(uint32_t{}) |
           uint64_t{static_cast<const uint32_t*>(operand.data)[1]} << 32;
  }
  const auto extended = [](int64_t value) {
    return static_cast<uint64_t>(value);
  };
  const auto bits = [](double value) { return BitsAs<uint64_t>(value); };
  switch (operand.dtype) {
    case DType::kPred:
    case DType::kU8:
      return read(uint8_t{});
    case DType::kU16:
      return read(uint16_t{});
    case DType::kU32:
      return read(uint32_t{});
    case DType::kS8:
      return extended(read(int8_t{}));
    case DType::kS16:
      return extended(read(int16_t{}));
    case DType::kS32:
      return extended(read(int32_t{}));
    case DType::kF32:
      return bits(read(float{}));
    case DType::kF16:
      return bits(HalfAsDouble(read(uint16_t{})));
    case DType::kBF16:  // the upper half of a float32
      return bits(BitsAs<float>(uint32_t{read(uint16_t{})} << 16));
    default:
      return read(uint64_t{});
  }
}

// Fills `labels`; false where the call says not to record this time.
DMI_HOST_DEVICE inline bool DecodeLabels(const LabelOperands& operands,
                                         RecordLabels& labels) {
  bool when = true;
  for (uint32_t i = 0; i < operands.count; ++i) {
    const uint64_t word = LabelWord(operands.at[i]);
    switch (operands.at[i].role) {
      case 'w':
        when = word != 0;
        break;
      case 's':
        labels.step = static_cast<int64_t>(word);
        labels.flags |= wire::kHasStep;
        break;
      case 'l':
        labels.layer = static_cast<int64_t>(word);
        labels.flags |= wire::kHasLayer;
        break;
      default:
        // A device has no addresses of registers.
        for (uint32_t k = 0; k < wire::kMaxLabels; ++k) {
          if (operands.at[i].role == static_cast<char>('0' + k)) {
            labels.words[k] = word;
          }
        }
    }
  }
  return when;
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_LABELS_H_
