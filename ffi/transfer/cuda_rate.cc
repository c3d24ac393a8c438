// SPDX-License-Identifier: Apache-2.0
// How fast a CUDA device copies to the host, see the header.
#include "transfer/cuda_rate.h"

#include <vector>

#include "base/clock.h"
#include "base/cuda.h"

namespace dmi::transfer {

double CopyRate(int ordinal, uint64_t bytes, uint64_t times) {
  const base::OnDevice here(ordinal);
  std::vector<uint8_t> to(bytes);
  const base::Pinned pinned(to.data(), to.size(), "the target of copies");
  const base::CudaStream stream;
  const base::DeviceMemory from(bytes, stream, "the source of copies");
  stream.Wait();
  const int64_t begin = base::MonotonicNanos();
  for (uint64_t i = 0; i < times; ++i) {
    base::CheckCuda(cudaMemcpyAsync(to.data(), from.as<void>(), bytes,
                                    cudaMemcpyDeviceToHost, stream.get()),
                    "cudaMemcpyAsync of a copy that is timed");
  }
  stream.Wait();
  const auto nanos = static_cast<double>(base::MonotonicNanos() - begin);
  return static_cast<double>(bytes * times) / nanos * 1e9;
}

}  // namespace dmi::transfer
