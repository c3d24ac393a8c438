// SPDX-License-Identifier: Apache-2.0
// Binds FFI targets, the site table and what the build says of itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/cuda_build.h"
#include "drain/drain.h"
#include "handlers/registrations.h"
#include "program/record.h"
#include "program/site_table.h"
#include "python/binders.h"
#include "wire/control.h"
#include "wire/cursor.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

nb::dict Registrations() {
  nb::dict platforms;
  for (const auto& target : handlers::Registrations()) {
    nb::dict stages;
    if (target.instantiate != nullptr) {
      stages["instantiate"] = nb::capsule(target.instantiate);
    }
    if (target.initialize != nullptr) {
      stages["initialize"] = nb::capsule(target.initialize);
    }
    stages["execute"] = nb::capsule(target.execute);
    if (!platforms.contains(target.platform)) {
      platforms[target.platform] = nb::dict();
    }
    nb::cast<nb::dict>(platforms[target.platform])[target.name] = stages;
  }
  return platforms;
}

nb::dict Metadata() {
  nb::dict targets;
  for (const auto& target : handlers::Registrations()) {
    const auto metadata = handlers::MetadataOf(target.execute);
    nb::dict entry;
    entry["platform"] = target.platform;
    entry["traits"] = metadata.traits;
    entry["api"] = nb::make_tuple(metadata.api_major, metadata.api_minor);
    // A name stands once per platform.
    std::string name = target.name;
    if (targets.contains(name.c_str()))
      name += std::string("@") + target.platform;
    targets[name.c_str()] = entry;
  }
  return targets;
}

nb::dict BuildInfo() {
  nb::dict cuda;
  const base::CudaBuild build = base::ReadCudaBuild();
  cuda["built"] = !build.archs.empty();
  cuda["why_not"] = DMI_CUDA_WHY_NOT;
  cuda["archs"] = build.archs;
  cuda["ptx"] = build.ptx;
  cuda["cudart"] = build.cudart;
  nb::dict info;
  info["compiler"] = __VERSION__;
  info["cuda"] = cuda;
  return info;
}

// A host handler is called once per record: nothing to be counted.
uint64_t HandlerCalls() {
#if defined(DMI_CUDA)
  return handlers::CudaRecordCalls();
#else
  return 0;
#endif
}

nb::dict Limits() {
  nb::dict limits;
  limits["labels"] = wire::kMaxLabels;
  limits["sites"] = wire::kMaxSites;
  limits["ring_bytes"] = wire::kMaxUnits * wire::kPayloadUnit;
  limits["record_bytes"] = wire::kMaxRecordBytes;
  limits["payload_alignment"] = wire::kPayloadUnit;
  limits["boundary_log"] = wire::kBoundaryLogSize;
  limits["transfer_log"] = drain::TransferLog::kKept;
  return limits;
}

}  // namespace

void BindHandlers(nb::module_& module) {
  module.def("registrations", &Registrations,
             "{platform: {target: {stage: capsule}}} of the FFI handlers.");
  module.def("handler_metadata", &Metadata,
             "{target: {platform, traits, api}}, asked of the built handlers.");
  module.def(
      "ffi_api_version",
      [] {
        return nb::make_tuple(handlers::FfiApiMajor(), handlers::FfiApiMinor());
      },
      nb::sig("def ffi_api_version() -> tuple[int, int]"),
      "Version of the XLA FFI headers this module was compiled against.");
  module.def(
      "handler_calls", &HandlerCalls,
      "Calls of dmi_record for CUDA devices; a command buffer makes none.");
  module.def("build_info", &BuildInfo, "What this module was built with.");
  module.def("limits", &Limits, "Sizes that cannot be exceeded.");
  module.def(
      "site_descriptor",
      [](uint64_t id) { return program::SiteTable::Get().Site(id); },
      nb::arg("id"), "The descriptor of a site, None where it is unknown.");
  module.def(
      "layout_descriptor",
      [](uint64_t id) { return program::SiteTable::Get().Layout(id); },
      nb::arg("id"), "The descriptor of a layout, None where it is unknown.");
  module.def(
      "site_ids", [] { return program::SiteTable::Get().Sites(); },
      "Ids of the instantiated sites, by index.");
  module.def(
      "add_site",
      [](uint64_t id, const std::string& descriptor) {
        program::SiteTable::Get().AddSite(id, descriptor);
        return program::SiteTable::Get().IndexOf(id);
      },
      nb::arg("id"), nb::arg("descriptor"),
      "Adds a site unless it is known; returns the index of its gate.");
  module.def(
      "multi_device_site_seen",
      [] { return program::SiteTable::Get().multi_device_seen(); },
      "Whether a program of several devices that records was instantiated.");
  module.def("orphans", &program::Orphans,
             "Records of devices on which nobody ever captured.");
}

}  // namespace dmi::python
