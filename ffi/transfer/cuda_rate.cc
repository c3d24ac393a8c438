// SPDX-License-Identifier: Apache-2.0
// How fast a CUDA device copies, see the header.
#include "transfer/cuda_rate.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/cuda.h"

namespace dmi::transfer {
namespace {

// More than caches hold, as a ring is.
constexpr uint64_t kRegion = 256u << 20;

}  // namespace

double CopyRate(int ordinal, uint64_t bytes, uint64_t times, bool to_host) {
  const base::OnDevice here(ordinal);
  const uint64_t places =
      std::clamp<uint64_t>(kRegion / bytes, 1, std::max<uint64_t>(times, 1));
  const base::CudaStream stream;
  const base::DeviceMemory from(bytes, stream, "the source of copies");
  std::vector<uint8_t> host;
  std::optional<base::Pinned> pinned;
  std::optional<base::DeviceMemory> device;
  uint8_t* to = nullptr;
  if (to_host) {
    host.resize(bytes * places);
    pinned.emplace(host.data(), host.size(), "the target of copies");
    to = host.data();
  } else {
    device.emplace(bytes * places, stream, "the target of copies");
    to = device->as<uint8_t>();
  }
  stream.Wait();
  const int64_t begin = base::MonotonicNanos();
  for (uint64_t i = 0; i < times; ++i) {
    base::CheckCuda(
        cudaMemcpyAsync(
            to + i % places * bytes, from.as<void>(), bytes,
            to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice,
            stream.get()),
        "cudaMemcpyAsync of a copy that is timed");
  }
  stream.Wait();
  const auto nanos = static_cast<double>(base::MonotonicNanos() - begin);
  return static_cast<double>(bytes * times) / nanos * 1e9;
}

}  // namespace dmi::transfer
