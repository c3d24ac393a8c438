// SPDX-License-Identifier: Apache-2.0
// How fast a CUDA device copies, which records and a drain are measured
// against.
#ifndef DMI_TRANSFER_CUDA_RATE_H_
#define DMI_TRANSFER_CUDA_RATE_H_

#include <cstdint>

namespace dmi::transfer {

// Bytes per second of `times` copies of `bytes` > 0 out of device memory, back
// to back on a stream of their own, into consecutive places of pinned memory,
// or of the device. Waits for them. Throws base::CudaError.
double CopyRate(int ordinal, uint64_t bytes, uint64_t times, bool to_host);

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_CUDA_RATE_H_
