// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime, see the header.
#include "base/cuda.h"

namespace dmi::base {
namespace {

std::string MiB(uint64_t bytes) {
  return std::to_string((bytes + (1u << 20) - 1) >> 20) + " MiB";
}

}  // namespace

CudaError::CudaError(cudaError_t code, const std::string& what)
    : std::runtime_error(CudaMessage(code, what)), code_(code) {}

std::string CudaMessage(cudaError_t code, const std::string& what) {
  return what + ": " + cudaGetErrorName(code) + " (" +
         cudaGetErrorString(code) + ")";
}

OnDevice::OnDevice(int ordinal) {
  CheckCuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ == ordinal) before_ = -1;
  if (before_ >= 0) CheckCuda(cudaSetDevice(ordinal), "cudaSetDevice");
  const cudaError_t code = cudaThreadExchangeStreamCaptureMode(&mode_);
  if (code == cudaSuccess) return;
  if (before_ >= 0) cudaSetDevice(before_);
  throw CudaError(code, "cudaThreadExchangeStreamCaptureMode");
}

OnDevice::~OnDevice() {
  cudaThreadExchangeStreamCaptureMode(&mode_);
  if (before_ >= 0) cudaSetDevice(before_);
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
