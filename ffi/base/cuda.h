// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime, every return code checked.
//
// What owns something frees it without a word: it may be gone with its context
// already. In a forked child, which has no device, it does nothing. Everything
// else throws CudaError.
#ifndef DMI_BASE_CUDA_H_
#define DMI_BASE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/fork.h"

namespace dmi::base {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& what);
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

// "cudaMalloc of 3 bytes: cudaErrorMemoryAllocation (out of memory)"
std::string CudaMessage(cudaError_t code, const std::string& what);

// `what`: the call and what it was for.
inline void CheckCuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) [[unlikely]]
    throw CudaError(code, what);
}

// While it lives, the thread's calls go to a device, and may allocate whatever
// captures other threads are in. Makes a context on no other device.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  void GoBack() const;

  int before_ = -1;  // -1: it was there
  bool detached_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// For a thread of our own: the same until it ends.
void StayOnDevice(int ordinal);

// Waits for no other stream, not even the default one; before others where both
// have something to do.
class CudaStream {
 public:
  CudaStream();  // on the current device
  ~CudaStream() {
    if (!InForkedChild()) cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Wait() const {
    CheckCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  // Whether everything so far is done.
  bool Idle() const {
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code == cudaErrorNotReady) return false;
    CheckCuda(code, "cudaStreamQuery");
    return true;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent() {
    if (!InForkedChild()) cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void Record(const CudaStream& stream) { Record(stream.get()); }
  void Record(cudaStream_t stream) {
    CheckCuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  bool Passed() const;

 private:
  cudaEvent_t event_ = nullptr;
};

// Zeroed memory of the current device.
class DeviceMemory {
 public:
  // Throws CudaError with the numbers where it does not fit. The zeros are
  // there once `stream` has got so far.
  DeviceMemory(uint64_t bytes, const CudaStream& stream, const char* what);
  ~DeviceMemory() {
    if (!InForkedChild()) cudaFree(data_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Of the device; nothing for the host to read.
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Keeps host memory in place and makes it visible to every device. The memory
// is the caller's.
class Pinned {
 public:
  Pinned(void* data, uint64_t bytes, const char* what);
  ~Pinned() {
    if (!InForkedChild()) cudaHostUnregister(data_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  // The same memory as the current device addresses it.
  template <typename T>
  T* on_device() const {
    void* data = nullptr;
    CheckCuda(cudaHostGetDevicePointer(&data, data_, 0),
              "cudaHostGetDevicePointer");
    return static_cast<T*>(data);
  }

 private:
  void* const data_;
};

}  // namespace dmi::base

#endif  // DMI_BASE_CUDA_H_
