// SPDX-License-Identifier: Apache-2.0
// Devices, versions and errors of the fake CUDA runtime.
#include <cstring>

#include "fake_cuda/state.h"

namespace {

using fake_cuda::Call;
using fake_cuda::current_device;
using fake_cuda::last_error;
using fake_cuda::Lock;
using fake_cuda::Runtime;

struct Named {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define NAMED(error, text) {error, #error, text}
constexpr Named kErrors[] = {
    NAMED(cudaSuccess, "no error"),
    NAMED(cudaErrorInvalidValue, "invalid argument"),
    NAMED(cudaErrorMemoryAllocation, "out of memory"),
    NAMED(cudaErrorInitializationError, "initialization error"),
    NAMED(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    NAMED(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    NAMED(cudaErrorInvalidDeviceFunction, "invalid device function"),
    NAMED(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    NAMED(cudaErrorInvalidDevice, "invalid device ordinal"),
    NAMED(cudaErrorDeviceUninitialized, "invalid device context"),
    NAMED(cudaErrorNoKernelImageForDevice,
          "no kernel image is available for execution on the device"),
    NAMED(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    NAMED(cudaErrorOperatingSystem, "OS call failed"),
    NAMED(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    NAMED(cudaErrorIllegalState,
          "the operation cannot be performed in the present state"),
    NAMED(cudaErrorNotReady, "device not ready"),
    NAMED(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    NAMED(cudaErrorLaunchOutOfResources,
          "too many resources requested for launch"),
    NAMED(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    NAMED(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    NAMED(cudaErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    NAMED(cudaErrorMisalignedAddress, "misaligned address"),
    NAMED(cudaErrorLaunchFailure, "unspecified launch failure"),
    NAMED(cudaErrorNotSupported, "operation not supported"),
    NAMED(cudaErrorStreamCaptureUnsupported,
          "operation not permitted when stream is capturing"),
    NAMED(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    NAMED(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another "
          "thread"),
    NAMED(cudaErrorUnknown, "unknown error"),
};
#undef NAMED

const Named* Find(cudaError_t error) {
  for (const Named& named : kErrors) {
    if (named.error == error) return &named;
  }
  return nullptr;
}

// Of a small device that has what the package needs.
bool Attribute(cudaDeviceAttr attribute, int& value) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      value = 9;
      return true;
    case cudaDevAttrComputeCapabilityMinor:
    case cudaDevAttrComputeMode:
    case cudaDevAttrIntegrated:
      value = 0;
      return true;
    case cudaDevAttrMultiProcessorCount:
    case cudaDevAttrAsyncEngineCount:
      value = 2;
      return true;
    case cudaDevAttrMaxThreadsPerBlock:
      value = 1024;
      return true;
    case cudaDevAttrWarpSize:
      value = 32;
      return true;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrStreamPrioritiesSupported:
      value = 1;
      return true;
    default:
      return false;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime& runtime, Lock&) {
    *count = static_cast<int>(runtime.devices.size());
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime&, Lock&) {
    *device = current_device;
    return cudaSuccess;
  });
}

// Switches to a broken device too, but tells that it is.
cudaError_t cudaSetDevice(int device) {
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime& runtime, Lock&) {
    if (device < 0 || device >= static_cast<int>(runtime.devices.size())) {
      return cudaErrorInvalidDevice;
    }
    current_device = device;
    return runtime.devices[device].broken;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime& runtime, Lock&) {
    if (device < 0 || device >= static_cast<int>(runtime.devices.size())) {
      return cudaErrorInvalidDevice;
    }
    if (Attribute(attribute, *value)) return cudaSuccess;
    runtime.Problem("attribute " + std::to_string(attribute) +
                    " is not known here");
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return Call(__func__, fake_cuda::kPlain, [&](Runtime&, Lock&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime&, Lock&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return Call(__func__, fake_cuda::kAnyDevice, [&](Runtime&, Lock&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaPeekAtLastError() {
  Runtime& runtime = Runtime::Get();
  if (runtime.forked) return last_error;
  Lock lock(runtime.mutex);
  if (current_device < static_cast<int>(runtime.devices.size()) &&
      runtime.devices[current_device].broken != cudaSuccess) {
    return runtime.devices[current_device].broken;
  }
  return last_error;
}

// What broke a device stays.
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const Named* named = Find(error);
  return named == nullptr ? "unrecognized error code" : named->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const Named* named = Find(error);
  return named == nullptr ? "unrecognized error code" : named->text;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes,
                                  const void* function) {
  return Call(__func__, fake_cuda::kPlain, [&](Runtime& runtime, Lock&) {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    std::memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = 90;
    attributes->ptxVersion = 90;
    runtime.loaded.emplace(current_device,
                           reinterpret_cast<fake_cuda::Kernel::Function>(
                               const_cast<void*>(function)));
    return cudaSuccess;
  });
}

}  // extern "C"
