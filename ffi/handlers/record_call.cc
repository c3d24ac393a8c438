// SPDX-License-Identifier: Apache-2.0
// The decoded `record` call, see the header.
#include "handlers/record_call.h"

#include <algorithm>
#include <string>

#include "program/site_table.h"
#include "wire/dtype.h"

namespace dmi::handlers {

namespace ffi = xla::ffi;

bool RecordCall::RecordsOn(int64_t device) const {
  return recorders.size() == 0 || std::find(recorders.begin(), recorders.end(),
                                            device) != recorders.end();
}

RecordCall DecodeRecordCall(int64_t site, int64_t layout,
                            std::string_view roles, int64_t multi,
                            ffi::Span<const int64_t> recorders) {
  RecordCall call;
  call.site.site = static_cast<uint64_t>(site);
  call.site.layout = static_cast<uint64_t>(layout);
  call.site.index = program::SiteTable::Get().IndexOf(call.site.site);
  call.site.kind = multi != 0 ? wire::kMultiDevice : wire::kSingleDevice;
  call.roles = roles;
  call.recorders = recorders;
  return call;
}

ffi::Error FindLabels(const RecordCall& call, ffi::RemainingArgs operands,
                      program::LabelOperands& labels) {
  if (operands.size() != call.roles.size()) {
    return ffi::Error::InvalidArgument("dmi_record: operands and roles differ");
  }
  for (size_t i = 0; i < call.roles.size(); ++i) {
    // Only there to run this call after the one that made it.
    if (call.roles[i] == '-') continue;
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    const auto dtype = static_cast<wire::DType>(operand->element_type());
    const auto dims = operand->dimensions();
    const bool word =
        dims.size() == 1 && dims[0] == 2 && dtype == wire::DType::kU32;
    if (!word && (dims.size() != 0 || !program::IsLabelType(dtype))) {
      return ffi::Error::InvalidArgument(
          "dmi_record: a label must be a scalar or u32[2]");
    }
    if (labels.count == program::LabelOperands::kMost) {
      return ffi::Error::InvalidArgument("dmi_record: too many labels");
    }
    labels.at[labels.count++] = {operand->untyped_data(), dtype, call.roles[i],
                                 word};
  }
  return ffi::Error::Success();
}

namespace {

ffi::Error Instantiate(int64_t site, int64_t layout,
                       std::string_view site_descriptor,
                       std::string_view layout_descriptor,
                       std::string_view roles, int64_t multi,
                       ffi::Span<const int64_t> /*recorders*/) {
  if (site == 0) {
    return ffi::Error::InvalidArgument("dmi_record: a site has no id");
  }
  if (roles.find_first_not_of("sl0123w-") != std::string_view::npos) {
    return ffi::Error::InvalidArgument(
        "dmi_record: unknown operand role in \"" + std::string(roles) + "\"");
  }
  program::SiteTable& table = program::SiteTable::Get();
  table.AddSite(static_cast<uint64_t>(site), site_descriptor);
  if (multi != 0) table.NoteMultiDevice();
  if (layout != 0) {
    table.AddLayout(static_cast<uint64_t>(layout), layout_descriptor);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       WithRecordAttributes(ffi::Ffi::BindInstantiate()));

}  // namespace

void* RecordInstantiate() {
  return reinterpret_cast<void*>(static_cast<XLA_FFI_Handler*>(kInstantiate));
}

uint64_t PayloadBytes(const ffi::AnyBuffer& buffer) {
  uint64_t elements = 1;
  for (const int64_t size : buffer.dimensions()) {
    elements *= static_cast<uint64_t>(size);
  }
  return wire::BytesOf(static_cast<wire::DType>(buffer.element_type()),
                       elements);
}

}  // namespace dmi::handlers
