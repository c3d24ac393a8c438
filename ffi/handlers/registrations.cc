// SPDX-License-Identifier: Apache-2.0
// What built handlers say of themselves, see the header.
#include "handlers/registrations.h"

#include "xla/ffi/api/c_api.h"

namespace dmi::handlers {

HandlerMetadata MetadataOf(void* handler) {
  // XLA asks by a call frame that carries nothing but this extension.
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame);
  return {metadata.api_version.major_version,
          metadata.api_version.minor_version, metadata.traits};
}

std::vector<Registration> Registrations() {
#if defined(DMI_CUDA_EMULATED)
  return EmulatedRegistrations();
#else
  std::vector<Registration> all = HostRegistrations();
#if defined(DMI_CUDA)
  for (const Registration& one : CudaRegistrations()) all.push_back(one);
#endif
  return all;
#endif
}

int32_t FfiApiMajor() { return XLA_FFI_API_MAJOR; }
int32_t FfiApiMinor() { return XLA_FFI_API_MINOR; }

}  // namespace dmi::handlers
