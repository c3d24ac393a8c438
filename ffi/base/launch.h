// SPDX-License-Identifier: Apache-2.0
// The one seam between kernels and what runs them.
//
// Kernels take one argument by value, have one-dimensional grids and blocks,
// and meet by barriers and by the functions of program/atomics.h alone. So the
// same source also compiles as C++ for tests, where threads take the place of
// the device.
#ifndef DMI_BASE_LAUNCH_H_
#define DMI_BASE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#if defined(DMI_CUDA_EMULATED)

#include <fake_cuda/launch.h>

namespace dmi::base {

// Threads of the host take the place of those of a block.
inline constexpr uint32_t kBlockThreads = 4;

using fake_cuda::Launch;
using fake_cuda::NanoSleep;
inline int64_t DeviceNanos() {
  return static_cast<int64_t>(fake_cuda::DeviceNanos());
}

}  // namespace dmi::base

#else

#define DMI_SHARED(type, name) __shared__ type name

namespace dmi::base {

inline constexpr uint32_t kBlockThreads = 512;

// Only enqueues. Returns the error of the launch.
template <typename Arguments>
cudaError_t Launch(void (*kernel)(Arguments), uint32_t blocks, uint32_t threads,
                   cudaStream_t stream, const Arguments& arguments) {
  Arguments copy = arguments;
  void* pointers[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                          dim3(threads), pointers, 0, stream);
}

#if defined(__CUDACC__)
// The time of the device, ns since some day.
__device__ inline int64_t DeviceNanos() {
  int64_t nanos;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanos)::"memory");
  return nanos;
}
__device__ inline void NanoSleep(uint32_t nanos) { __nanosleep(nanos); }
#endif

}  // namespace dmi::base

#endif  // DMI_CUDA_EMULATED

#endif  // DMI_BASE_LAUNCH_H_
