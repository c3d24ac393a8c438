// SPDX-License-Identifier: Apache-2.0
// How fast a CUDA device copies to the host, which a drain is measured against.
#ifndef DMI_TRANSFER_CUDA_RATE_H_
#define DMI_TRANSFER_CUDA_RATE_H_

#include <cstdint>

namespace dmi::transfer {

// Bytes per second of `times` copies of `bytes` from the device into one pinned
// buffer, back to back on a stream of their own. Waits for them. Throws
// base::CudaError.
double CopyRate(int ordinal, uint64_t bytes, uint64_t times);

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_CUDA_RATE_H_
