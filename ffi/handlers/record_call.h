// SPDX-License-Identifier: Apache-2.0
// One `record` custom call as its handler sees it, the same on every platform.
#ifndef DMI_HANDLERS_RECORD_CALL_H_
#define DMI_HANDLERS_RECORD_CALL_H_

#include <cstdint>
#include <string_view>
#include <utility>

#include "program/labels.h"
#include "program/record.h"
#include "xla/ffi/api/ffi.h"

namespace dmi::handlers {

// A view of the call's attributes; valid while the handler runs. Handlers keep
// no state of their own between stages: state types would have to be registered
// before the handlers, an order that jaxlib does not keep for what is
// registered before its backend starts.
struct RecordCall {
  program::RecordSite site;
  // What each operand after x means: 's' step, 'l' layer, '0'..'3' a label
  // word, 'w' whether to record at all, '-' nothing: it only orders the calls.
  std::string_view roles;
  // Global ids of the devices that record; empty = all of them.
  xla::ffi::Span<const int64_t> recorders;

  bool RecordsOn(int64_t device) const;
};

// The attributes of the call, in the order of its binding.
RecordCall DecodeRecordCall(int64_t site, int64_t layout,
                            std::string_view roles, int64_t multi,
                            xla::ffi::Span<const int64_t> recorders);

// The operands after x that are labels.
xla::ffi::Error FindLabels(const RecordCall& call,
                           xla::ffi::RemainingArgs operands,
                           program::LabelOperands& labels);

// Adds the attributes of the call to a binding, the same for every stage.
template <typename Binding>
auto WithRecordAttributes(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<int64_t>("site")
      .template Attr<int64_t>("layout")
      .template Attr<std::string_view>("site_descriptor")
      .template Attr<std::string_view>("layout_descriptor")
      .template Attr<std::string_view>("roles")
      .template Attr<int64_t>("multi")
      .template Attr<xla::ffi::Span<const int64_t>>("recorders");
}

// The handler of the instantiate stage, an XLA_FFI_Handler*: checks the
// attributes and registers the descriptors in the site table.
void* RecordInstantiate();

// Exact payload bytes of a buffer, sub-byte elements packed.
uint64_t PayloadBytes(const xla::ffi::AnyBuffer& buffer);

}  // namespace dmi::handlers

#endif  // DMI_HANDLERS_RECORD_CALL_H_
