// SPDX-License-Identifier: Apache-2.0
// The product's seam for fibers: each is one thread of one block.
#ifndef DMI_BASE_LAUNCH_H_
#define DMI_BASE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "model/memory.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define DMI_SHARED(type, name) \
  type name {}

namespace dmi::model {

struct Zero {
  static constexpr uint32_t x = 0;
};
struct One {
  static constexpr uint32_t x = 1;
};
struct Block {
  struct Index {
    operator uint32_t() const {
      return Memory::Current().blocks == 1 ? 0 : rl::thread_index();
    }
  } x;
};
struct Grid {
  struct Count {
    operator uint32_t() const { return Memory::Current().blocks; }
  } x;
};

}  // namespace dmi::model

inline constexpr dmi::model::Zero threadIdx;
inline constexpr dmi::model::One blockDim;
inline constexpr dmi::model::Block blockIdx{};
inline constexpr dmi::model::Grid gridDim{};
inline void __syncthreads() {}

namespace dmi::base {

inline constexpr uint32_t kBlockThreads = 1;

template <typename Arguments>
cudaError_t Launch(void (*kernel)(Arguments), uint32_t, uint32_t, cudaStream_t,
                   const Arguments& arguments) {
  kernel(arguments);
  return cudaSuccess;
}

inline int64_t DeviceNanos() { return model::Memory::Current().nanos; }
inline void NanoSleep(uint32_t) { model::Yield(); }

}  // namespace dmi::base

#endif  // DMI_BASE_LAUNCH_H_
