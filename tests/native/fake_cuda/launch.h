// SPDX-License-Identifier: Apache-2.0
// Kernels as C++: what the CUDA compiler gives a kernel, emulated on threads.
//
// All threads of a launch run at once, each on a thread of the host, so that
// barriers and spins work and thread sanitizers see them. A kernel that waits
// must call __syncthreads, NanoSleep or DeviceNanos: these end it, by an
// exception, when its device breaks. So a kernel and what it calls are not
// noexcept.
#ifndef DMI_TESTS_NATIVE_FAKE_CUDA_LAUNCH_H_
#define DMI_TESTS_NATIVE_FAKE_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace fake_cuda {

// Grids and blocks have one dimension.
struct Index {
  uint32_t x = 0;
};

// A kernel without the type of its argument.
struct Kernel {
  using Function = void (*)();

  void (*call)(Function kernel, const void* argument);
  Function function;
  std::vector<std::byte> argument;
  uint32_t blocks;
  uint32_t threads;
};

cudaError_t LaunchKernel(Kernel kernel, cudaStream_t stream);

// Copies the argument and enqueues the kernel. At most kMostThreads threads.
template <class A>
cudaError_t Launch(void (*kernel)(A), uint32_t blocks, uint32_t threads,
                   cudaStream_t stream, const A& argument) {
  static_assert(std::is_trivially_copyable_v<A> && sizeof(A) <= 4096 &&
                alignof(A) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  Kernel made{
      [](Kernel::Function function, const void* bytes) {
        reinterpret_cast<void (*)(A)>(function)(*static_cast<const A*>(bytes));
      },
      reinterpret_cast<Kernel::Function>(kernel),
      std::vector<std::byte>(sizeof(A)), blocks, threads};
  std::memcpy(made.argument.data(), &argument, sizeof(A));
  return LaunchKernel(std::move(made), stream);
}
constexpr uint32_t kMostThreads = 2048;

// The timer of the devices, see SetTimer.
uint64_t DeviceNanos();
// Gives way for `nanos`, or less.
void NanoSleep(uint32_t nanos);
// The memory of this block for the variable that `site` identifies.
void* Shared(const void* site, size_t bytes);

}  // namespace fake_cuda

inline constinit thread_local fake_cuda::Index threadIdx{};
inline constinit thread_local fake_cuda::Index blockIdx{};
inline constinit thread_local fake_cuda::Index blockDim{};
inline constinit thread_local fake_cuda::Index gridDim{};

// A barrier of the block's threads, those that have returned left out.
void __syncthreads();

// One variable per block, of indeterminate value.
#define DMI_SHARED(T, name)                                      \
  static_assert(std::is_trivially_default_constructible_v<T> &&  \
                alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__); \
  static char name##_site;                                       \
  T& name = *static_cast<T*>(::fake_cuda::Shared(&name##_site, sizeof(T)))

// The toolkit defines it for its own compiler only.
#if !defined(__launch_bounds__)
#define __launch_bounds__(...)
#endif

#endif  // DMI_TESTS_NATIVE_FAKE_CUDA_LAUNCH_H_
