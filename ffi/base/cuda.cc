// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime, see the header.
#include "base/cuda.h"

#include <dlfcn.h>

namespace dmi::base {
namespace {

std::string MiB(uint64_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

// What the runtime has no call for. It takes a thread without a context for one
// on device 0, and makes a context there as soon as the thread goes back.
struct Driver {
  int (*get_context)(void**) = nullptr;
  int (*set_context)(void*) = nullptr;

  // After a call of the runtime that went well: it has loaded the driver.
  static const Driver& Get() {
    static const Driver driver = [] {
      Driver found;
      void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
      if (library != nullptr) {
        found.get_context = reinterpret_cast<int (*)(void**)>(
            dlsym(library, "cuCtxGetCurrent"));
        found.set_context =
            reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
      }
      return found;
    }();
    return driver;
  }

  // False where nobody knows.
  bool WithoutContext() const {
    void* context = nullptr;
    return get_context != nullptr && set_context != nullptr &&
           get_context(&context) == 0 && context == nullptr;
  }
};

}  // namespace

CudaError::CudaError(cudaError_t code, const std::string& what)
    : std::runtime_error(CudaMessage(code, what)), code_(code) {}

std::string CudaMessage(cudaError_t code, const std::string& what) {
  return what + ": " + cudaGetErrorName(code) + " (" +
         cudaGetErrorString(code) + ")";
}

OnDevice::OnDevice(int ordinal) {
  CheckCuda(cudaGetDevice(&before_), "cudaGetDevice");
  detached_ = Driver::Get().WithoutContext();
  if (before_ == ordinal) before_ = -1;
  if (before_ >= 0) CheckCuda(cudaSetDevice(ordinal), "cudaSetDevice");
  const cudaError_t code = cudaThreadExchangeStreamCaptureMode(&mode_);
  if (code == cudaSuccess) return;
  GoBack();
  throw CudaError(code, "cudaThreadExchangeStreamCaptureMode");
}

OnDevice::~OnDevice() {
  cudaThreadExchangeStreamCaptureMode(&mode_);
  GoBack();
}

void OnDevice::GoBack() const {
  if (before_ < 0) return;
  if (detached_) {
    Driver::Get().set_context(nullptr);
  } else {
    cudaSetDevice(before_);
  }
}

void StayOnDevice(int ordinal) {
  CheckCuda(cudaSetDevice(ordinal), "cudaSetDevice");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CheckCuda(cudaThreadExchangeStreamCaptureMode(&mode),
            "cudaThreadExchangeStreamCaptureMode");
}

CudaStream::CudaStream() {
  int least = 0;
  int greatest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest),
            "cudaDeviceGetStreamPriorityRange");
  CheckCuda(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
      "cudaStreamCreateWithPriority");
}

CudaEvent::CudaEvent() {
  CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
            "cudaEventCreateWithFlags");
}

bool CudaEvent::Passed() const {
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) return false;
  CheckCuda(code, "cudaEventQuery");
  return true;
}

DeviceMemory::DeviceMemory(uint64_t bytes, const CudaStream& stream,
                           const char* what) {
  cudaError_t code = cudaMalloc(&data_, bytes);
  if (code != cudaSuccess) {
    size_t free = 0;
    size_t total = 0;
    cudaGetLastError();  // of an allocation: nothing is broken
    std::string message = "cudaMalloc of " + MiB(bytes) + " for " + what;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
      message += ", with " + MiB(free) + " of " + MiB(total) + " free";
    }
    throw CudaError(code, message);
  }
  code = cudaMemsetAsync(data_, 0, bytes, stream.get());
  if (code != cudaSuccess) {
    cudaFree(data_);
    throw CudaError(code, "cudaMemsetAsync");
  }
}

Pinned::Pinned(void* data, uint64_t bytes, const char* what) : data_(data) {
  const cudaError_t code = cudaHostRegister(
      data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (code != cudaSuccess) {
    cudaGetLastError();
    throw CudaError(code, "cudaHostRegister of " + MiB(bytes) + " for " + what);
  }
}

}  // namespace dmi::base
