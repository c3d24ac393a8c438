// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of the CUDA platform.
//
// A handler call is no execution: XLA makes one when it captures the call into
// a command buffer, and again when addresses change, but none when the command
// buffer runs. So a handler only checks its arguments and launches kernels, on
// the stream of the call, and keeps nothing. What has to be allocated is there
// once the initialize stage has passed, which comes before any capture. That
// calls are few where executions are many is how a command buffer shows itself,
// so the calls of dmi_record are counted.
#include "base/cuda.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "handlers/record_call.h"
#include "handlers/registrations.h"
#include "program/ambient.h"
#include "program/device_table.h"
#include "program/kernels.h"
#include "program/record.h"

namespace dmi::handlers {
namespace {

namespace ffi = xla::ffi;
using program::DeviceEntry;
using program::DeviceTable;

// Everything a call launches is kernels of a fixed grid.
constexpr ffi::Traits kCapturable = ffi::Traits::kCmdBufferCompatible;

std::atomic<uint64_t> record_calls{0};

ffi::Error Launched(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return ffi::Error::Success();
  cudaGetLastError();
  return ffi::Error(ffi::ErrorCode::kInternal,
                    base::CudaMessage(code, "launching " + std::string(what)));
}

ffi::Error Initialize(int32_t ordinal) {
  if (DeviceTable::Get().Find(ordinal) != nullptr) {
    return ffi::Error::Success();
  }
  try {
    DeviceTable::Get().Ensure(ordinal);
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, error.what());
  }
  return ffi::Error::Success();
}

ffi::Error NotInitialized() {
  return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                    "jax_dmi: the device was not initialized");
}

ffi::Error RecordExecute(cudaStream_t stream, int32_t ordinal, int64_t site,
                         int64_t layout, std::string_view /*site_descriptor*/,
                         std::string_view /*layout_descriptor*/,
                         std::string_view roles, int64_t multi,
                         ffi::Span<const int64_t> recorders, ffi::AnyBuffer x,
                         ffi::RemainingArgs operands,
                         ffi::Result<ffi::BufferR1<ffi::U64>> scratch) {
  record_calls.fetch_add(1, std::memory_order_relaxed);
  if (scratch->element_count() < program::kScratchWords) {
    return ffi::Error::InvalidArgument("dmi_record: the scratch is too small");
  }
  const RecordCall call =
      DecodeRecordCall(site, layout, roles, multi, recorders);
  program::RecordArguments arguments{};
  if (ffi::Error error = FindLabels(call, operands, arguments.labels);
      error.failure()) {
    return error;
  }
  const DeviceEntry* entry = DeviceTable::Get().Find(ordinal);
  if (entry == nullptr) return NotInitialized();
  if (!call.RecordsOn(entry->id.load(std::memory_order_relaxed))) {
    // A capture must not stay empty.
    return Launched(program::LaunchFence(stream), "dmi_record");
  }
  arguments.control = entry->block;
  arguments.site = call.site;
  arguments.payload = static_cast<const uint8_t*>(x.untyped_data());
  arguments.bytes = PayloadBytes(x);
  arguments.scratch = scratch->typed_data();
  return Launched(program::LaunchRecord(arguments, entry->most_blocks, stream),
                  "dmi_record");
}

// `after` is what earlier calls made; the stream keeps their order.
ffi::Error AdvanceExecute(cudaStream_t stream, int32_t ordinal,
                          int64_t /*role*/, ffi::AnyBuffer x,
                          ffi::RemainingArgs /*after*/,
                          ffi::Result<ffi::AnyBuffer> y) {
  const DeviceEntry* entry = DeviceTable::Get().Find(ordinal);
  if (entry == nullptr) return NotInitialized();
  return Launched(
      program::LaunchAdvance(
          {entry->block, static_cast<const uint8_t*>(x.untyped_data()),
           static_cast<uint8_t*>(y->untyped_data()), PayloadBytes(x)},
          stream),
      "dmi_advance");
}

ffi::Error StepExecute(cudaStream_t stream, int32_t ordinal,
                       ffi::BufferR1<ffi::U32> words,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  if (words.element_count() != program::kStepWords) {
    return ffi::Error::InvalidArgument("dmi_step: operand must be u32[4]");
  }
  const DeviceEntry* entry = DeviceTable::Get().Find(ordinal);
  if (entry == nullptr) return NotInitialized();
  return Launched(
      program::LaunchStep(
          {entry->block, words.typed_data(), program::kStepWords}, stream),
      "dmi_step");
}

ffi::Error GateExecute(cudaStream_t stream, int32_t ordinal,
                       ffi::BufferR1<ffi::U32> words,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  if (words.element_count() == 0) {
    return ffi::Error::InvalidArgument("dmi_gate: the operand is empty");
  }
  const DeviceEntry* entry = DeviceTable::Get().Find(ordinal);
  if (entry == nullptr) return NotInitialized();
  return Launched(
      program::LaunchGates(
          {entry->block, words.typed_data(), words.element_count()}, stream),
      "dmi_gate");
}

ffi::Error NoopExecute(cudaStream_t stream, ffi::AnyBuffer /*x*/,
                       ffi::Result<ffi::BufferR1<ffi::U64>> /*scratch*/) {
  return Launched(program::LaunchFence(stream), "dmi_noop");
}

XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::BindInitialize().Ctx<ffi::DeviceOrdinal>());

XLA_FFI_DEFINE_HANDLER(
    kRecord, RecordExecute,
    WithRecordAttributes(ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<cudaStream_t>>()
                             .Ctx<ffi::DeviceOrdinal>())
        .Arg<ffi::AnyBuffer>()
        .RemainingArgs()
        .Ret<ffi::BufferR1<ffi::U64>>(),
    {kCapturable});

XLA_FFI_DEFINE_HANDLER(kAdvance, AdvanceExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attr<int64_t>("role")
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>(),
                       {kCapturable});

XLA_FFI_DEFINE_HANDLER(kStep, StepExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::BufferR1<ffi::U32>>()
                           .Ret<ffi::BufferR1<ffi::U64>>(),
                       {kCapturable});

XLA_FFI_DEFINE_HANDLER(kGate, GateExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::BufferR1<ffi::U32>>()
                           .Ret<ffi::BufferR1<ffi::U64>>(),
                       {kCapturable});

XLA_FFI_DEFINE_HANDLER(kNoop, NoopExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::BufferR1<ffi::U64>>(),
                       {kCapturable});

void* Pointer(XLA_FFI_Handler* handler) {
  return reinterpret_cast<void*>(handler);
}

}  // namespace

uint64_t CudaRecordCalls() {
  return record_calls.load(std::memory_order_relaxed);
}

std::vector<Registration> CudaRegistrations() {
  void* const initialize = Pointer(kInitialize);
  return {
      {"dmi_record", "CUDA", RecordInstantiate(), initialize, Pointer(kRecord)},
      {"dmi_advance", "CUDA", nullptr, initialize, Pointer(kAdvance)},
      {"dmi_step", "CUDA", nullptr, initialize, Pointer(kStep)},
      {"dmi_gate", "CUDA", nullptr, initialize, Pointer(kGate)},
      {"dmi_noop", "CUDA", nullptr, nullptr, Pointer(kNoop)},
      UploadRegistration(),
  };
}

}  // namespace dmi::handlers
