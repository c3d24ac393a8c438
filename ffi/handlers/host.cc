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
#include "program/ambient.h"
#include "program/boundary.h"
#include "program/control_table.h"
#include "program/gates.h"
#include "program/record.h"
#include "wire/dtype.h"
#include "wire/slot.h"

namespace dmi::handlers {
namespace {

namespace ffi = xla::ffi;

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
  if (!roles.empty() || operands.size() > 0) {
    program::LabelOperands label_operands;
    if (ffi::Error error = FindLabels(call, operands, label_operands);
        error.failure()) {
      return error;
    }
    if (!program::DecodeLabels(label_operands, labels)) {
      return ffi::Error::Success();
    }
  }
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
  if (words.element_count() != program::kStepWords) {
    return ffi::Error::InvalidArgument("dmi_step: operand must be u32[4]");
  }
  if (wire::ControlBlock* control =
          program::ControlTable::Host().Find(ordinal)) {
    program::ApplyStepWords(*control, words.typed_data());
  }
  return ffi::Error::Success();
}

ffi::Error GateExecute(int32_t ordinal, ffi::BufferR1<ffi::U32> words,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  if (words.element_count() == 0) {
    return ffi::Error::InvalidArgument("dmi_gate: the operand is empty");
  }
  if (wire::ControlBlock* control =
          program::ControlTable::Host().Find(ordinal)) {
    program::ApplyGateWords(*control, words.typed_data(),
                            words.element_count());
  }
  return ffi::Error::Success();
}

ffi::Error NoopExecute(ffi::AnyBuffer /*x*/,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kRecord, RecordExecute,
    WithRecordAttributes(ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>())
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
      {"dmi_record", "cpu", RecordInstantiate(), nullptr, Pointer(kRecord)},
      {"dmi_advance", "cpu", nullptr, nullptr, Pointer(kAdvance)},
      {"dmi_step", "cpu", nullptr, nullptr, Pointer(kStep)},
      {"dmi_gate", "cpu", nullptr, nullptr, Pointer(kGate)},
      {"dmi_noop", "cpu", nullptr, nullptr, Pointer(kNoop)},
  };
}

}  // namespace dmi::handlers
