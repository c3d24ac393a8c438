// SPDX-License-Identifier: Apache-2.0
// Control blocks of CUDA devices, see the header.
#include "program/device_table.h"

#include <stdexcept>

#include "base/cuda.h"
#include "program/kernels.h"

namespace dmi::program {
namespace {

// Enough blocks in flight to keep the memory of a multiprocessor busy.
constexpr uint32_t kBlocksPerMultiprocessor = 4;

}  // namespace

DeviceTable& DeviceTable::Get() {
  // Leaked: programs may run while the process exits.
  static DeviceTable* table = new DeviceTable;
  return *table;
}

DeviceEntry* DeviceTable::Find(int32_t ordinal) {
  const int count = count_.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (entries_[i].ordinal == ordinal) return &entries_[i];
  }
  return nullptr;
}

DeviceEntry& DeviceTable::Ensure(int32_t ordinal) {
  std::lock_guard lock(mutex_);
  if (DeviceEntry* entry = Find(ordinal)) return *entry;
  const int count = count_.load(std::memory_order_relaxed);
  if (count == kMaxDevices) throw std::length_error("too many CUDA devices");
  const base::OnDevice here(ordinal);
  base::CheckCuda(LoadKernels(), "loading the kernels");
  int multiprocessors = 0;
  base::CheckCuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                             ordinal),
      "cudaDeviceGetAttribute");
  // One allocation, gates behind the block, freed with the process.
  const base::CudaStream stream;
  void* memory = nullptr;
  constexpr uint64_t kBytes =
      sizeof(wire::ControlBlock) + wire::kMaxSites * sizeof(uint32_t);
  base::CheckCuda(cudaMalloc(&memory, kBytes), "cudaMalloc");
  base::CheckCuda(cudaMemsetAsync(memory, 0, kBytes, stream.get()),
                  "cudaMemsetAsync");
  DeviceEntry& entry = entries_[count];
  entry.ordinal = ordinal;
  entry.block = static_cast<wire::ControlBlock*>(memory);
  entry.most_blocks =
      static_cast<uint32_t>(multiprocessors) * kBlocksPerMultiprocessor;
  entry.id.store(ordinal, std::memory_order_relaxed);
  base::CheckCuda(
      LaunchControl({entry.block, nullptr, ControlAction::kMake, {}, 0, 0},
                    stream.get()),
      "launching a control kernel");
  stream.Wait();
  count_.store(count + 1, std::memory_order_release);
  return entry;
}

}  // namespace dmi::program
