// SPDX-License-Identifier: Apache-2.0
// Which handlers this build has, for Python to register and to describe.
#ifndef DMI_HANDLERS_REGISTRATIONS_H_
#define DMI_HANDLERS_REGISTRATIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dmi::handlers {

struct Registration {
  const char* name;
  const char* platform;  // as XLA spells it: "cpu" or "CUDA"
  // XLA_FFI_Handler*, nullptr where there is no such stage.
  void* instantiate;
  void* initialize;
  void* execute;
};

std::vector<Registration> HostRegistrations();
// Only where CUDA was built.
std::vector<Registration> CudaRegistrations();
Registration UploadRegistration();  // one of them
// How often XLA called dmi_record for a CUDA device, captures included. May be
// called by any thread. Only where CUDA was built.
uint64_t CudaRecordCalls();
// The same handlers for devices of the host, their kernels emulated; for tests.
std::vector<Registration> EmulatedRegistrations();

// Of every platform of this build.
std::vector<Registration> Registrations();

// What a built handler says of itself when XLA asks.
struct HandlerMetadata {
  int32_t api_major = 0;
  int32_t api_minor = 0;
  uint32_t traits = 0;
};
HandlerMetadata MetadataOf(void* handler);

// The version of the FFI headers this build was compiled against.
int32_t FfiApiMajor();
int32_t FfiApiMinor();

}  // namespace dmi::handlers

#endif  // DMI_HANDLERS_REGISTRATIONS_H_
