// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of the host platform.
//
// Decode, call program/, return success. A handler returns an error only for a
// malformed call, never for a full or missing ring: an error on one device
// would hang its peers at the next collective.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "handlers/record_call.h"
#include "handlers/registrations.h"
#include "program/boundary.h"
#include "program/control_table.h"
#include "program/gates.h"
#include "program/record.h"
#include "wire/dtype.h"
#include "wire/slot.h"

namespace dmi::handlers {
namespace {

namespace ffi = xla::ffi;
using wire::DType;

template <typename T>
T Read(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

uint64_t BitsOfDouble(double value) { return Read<uint64_t>(&value); }

// bfloat16 is the upper half of a float32.
float FromBFloat16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  return Read<float>(&bits);
}

// A scalar label as one 64-bit word: integers extended, floats as float64. A
// u32[2] is a word already, low half first.
bool LabelWord(const ffi::AnyBuffer& buffer, uint64_t& word) {
  const void* data = buffer.untyped_data();
  const auto dtype = static_cast<DType>(buffer.element_type());
  const auto dims = buffer.dimensions();
  if (dims.size() == 1 && dims[0] == 2 && dtype == DType::kU32) {
    word = Read<uint64_t>(data);
    return true;
  }
  if (dims.size() != 0) return false;
  switch (dtype) {
    case DType::kPred:
    case DType::kU8:
      word = Read<uint8_t>(data);
      return true;
    case DType::kU16:
      word = Read<uint16_t>(data);
      return true;
    case DType::kU32:
      word = Read<uint32_t>(data);
      return true;
    case DType::kU64:
    case DType::kS64:
    case DType::kF64:
      word = Read<uint64_t>(data);
      return true;
    case DType::kS8:
      word = static_cast<uint64_t>(int64_t{Read<int8_t>(data)});
      return true;
    case DType::kS16:
      word = static_cast<uint64_t>(int64_t{Read<int16_t>(data)});
      return true;
    case DType::kS32:
      word = static_cast<uint64_t>(int64_t{Read<int32_t>(data)});
      return true;
    case DType::kF32:
      word = BitsOfDouble(Read<float>(data));
      return true;
    case DType::kF16:
      word = BitsOfDouble(static_cast<double>(Read<_Float16>(data)));
      return true;
    case DType::kBF16:
      word = BitsOfDouble(FromBFloat16(Read<uint16_t>(data)));
      return true;
    default:
      return false;
  }
}

// Fills `labels` from the operands after x; `when` turns false where the call
// says not to record this time.
ffi::Error DecodeLabels(const RecordCall& call, ffi::RemainingArgs operands,
                        program::RecordLabels& labels, bool& when) {
  if (operands.size() != call.roles.size()) {
    return ffi::Error::InvalidArgument("dmi_record: operands and roles differ");
  }
  for (size_t i = 0; i < call.roles.size(); ++i) {
    // Only there to run this call after the one that made it.
    if (call.roles[i] == '-') continue;
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    uint64_t word = 0;
    if (!LabelWord(*operand, word)) {
      return ffi::Error::InvalidArgument(
          "dmi_record: a label must be a scalar or u32[2]");
    }
    switch (call.roles[i]) {
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
        labels.words[call.roles[i] - '0'] = word;
    }
  }
  return ffi::Error::Success();
}

ffi::Error RecordInstantiate(int64_t site, int64_t layout,
                             std::string_view site_descriptor,
                             std::string_view layout_descriptor,
                             std::string_view roles, int64_t multi,
                             ffi::Span<const int64_t> /*recorders*/) {
  return RegisterRecordCall(site, layout, site_descriptor, layout_descriptor,
                            roles, multi);
}

ffi::Error RecordExecute(int32_t ordinal, int64_t site, int64_t layout,
                         std::string_view /*site_descriptor*/,
                         std::string_view /*layout_descriptor*/,
                         std::string_view roles, int64_t multi,
                         ffi::Span<const int64_t> recorders, ffi::AnyBuffer x,
                         ffi::RemainingArgs operands,
                         ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  const RecordCall call =
      DecodeRecordCall(site, layout, roles, multi, recorders);
  program::RecordLabels labels;
  bool when = true;
  if (ffi::Error error = DecodeLabels(call, operands, labels, when);
      error.failure()) {
    return error;
  }
  if (!when) return ffi::Error::Success();
  wire::ControlBlock* control = program::ControlTable::Host().Find(ordinal);
  if (control == nullptr) {
    program::CountOrphan();
    return ffi::Error::Success();
  }
  if (call.RecordsOn(control->device)) {
    program::Record(*control, call.site, labels, x.untyped_data(),
                    PayloadBytes(x));
  }
  return ffi::Error::Success();
}

// `after` is what earlier calls made; holding it runs this call after them.
ffi::Error AdvanceExecute(int32_t ordinal, int64_t /*role*/, ffi::AnyBuffer x,
                          ffi::RemainingArgs /*after*/,
                          ffi::Result<ffi::AnyBuffer> y) {
  // XLA aliases the two; a copy is only needed where it could not.
  if (y->untyped_data() != x.untyped_data()) {
    std::memcpy(y->untyped_data(), x.untyped_data(), PayloadBytes(x));
  }
  if (wire::ControlBlock* control =
          program::ControlTable::Host().Find(ordinal)) {
    program::AdvanceBoundary(*control);
  }
  return ffi::Error::Success();
}

ffi::Error StepExecute(int32_t ordinal, ffi::BufferR1<ffi::U32> words,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  if (words.element_count() != 4) {
    return ffi::Error::InvalidArgument("dmi_step: operand must be u32[4]");
  }
  const uint32_t* word = words.typed_data();
  wire::ControlBlock* control = program::ControlTable::Host().Find(ordinal);
  if (control == nullptr) return ffi::Error::Success();
  const bool has_step = word[2] & 1;
  const bool recording = word[2] & 2;
  program::SetAmbientStep(
      *control, word[3] != 0 ? wire::kMultiDevice : wire::kSingleDevice,
      static_cast<int64_t>(uint64_t{word[1]} << 32 | word[0]),
      (has_step ? wire::kAmbientHasStep : 0u) |
          (recording ? 0u : wire::kAmbientPaused));
  return ffi::Error::Success();
}

// u32[n]: the kind of the program, then packed changes.
ffi::Error GateExecute(int32_t ordinal, ffi::BufferR1<ffi::U32> words,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  if (words.element_count() == 0) {
    return ffi::Error::InvalidArgument("dmi_gate: the operand is empty");
  }
  wire::ControlBlock* control = program::ControlTable::Host().Find(ordinal);
  if (control == nullptr) return ffi::Error::Success();
  const uint32_t* word = words.typed_data();
  const auto kind = word[0] != 0 ? wire::kMultiDevice : wire::kSingleDevice;
  for (size_t i = 1; i < words.element_count(); ++i) {
    program::SetGate(*control, program::GateChange::Unpack(word[i]), kind);
  }
  return ffi::Error::Success();
}

ffi::Error NoopExecute(ffi::AnyBuffer /*x*/,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kRecordInstantiate, RecordInstantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<int64_t>("site")
                           .Attr<int64_t>("layout")
                           .Attr<std::string_view>("site_descriptor")
                           .Attr<std::string_view>("layout_descriptor")
                           .Attr<std::string_view>("roles")
                           .Attr<int64_t>("multi")
                           .Attr<ffi::Span<const int64_t>>("recorders"));

XLA_FFI_DEFINE_HANDLER(kRecord, RecordExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attr<int64_t>("site")
                           .Attr<int64_t>("layout")
                           .Attr<std::string_view>("site_descriptor")
                           .Attr<std::string_view>("layout_descriptor")
                           .Attr<std::string_view>("roles")
                           .Attr<int64_t>("multi")
                           .Attr<ffi::Span<const int64_t>>("recorders")
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::BufferR1<ffi::U64>>());

XLA_FFI_DEFINE_HANDLER(kAdvance, AdvanceExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attr<int64_t>("role")
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER(kStep, StepExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::BufferR1<ffi::U32>>()
                           .Ret<ffi::BufferR1<ffi::U64>>());

XLA_FFI_DEFINE_HANDLER(kGate, GateExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::BufferR1<ffi::U32>>()
                           .Ret<ffi::BufferR1<ffi::U64>>());

XLA_FFI_DEFINE_HANDLER(
    kNoop, NoopExecute,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::BufferR1<ffi::U64>>());

void* Pointer(XLA_FFI_Handler* handler) {
  return reinterpret_cast<void*>(handler);
}

}  // namespace

std::vector<Registration> HostRegistrations() {
  return {
      {"dmi_record", "cpu", Pointer(kRecordInstantiate), Pointer(kRecord)},
      {"dmi_advance", "cpu", nullptr, Pointer(kAdvance)},
      {"dmi_step", "cpu", nullptr, Pointer(kStep)},
      {"dmi_gate", "cpu", nullptr, Pointer(kGate)},
      {"dmi_noop", "cpu", nullptr, Pointer(kNoop)},
  };
}

}  // namespace dmi::handlers
