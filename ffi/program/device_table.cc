// SPDX-License-Identifier: Apache-2.0
// Control blocks of CUDA devices, see the header.
#include "program/device_table.h"

#include <stdexcept>
#include <utility>

#include "base/cuda.h"
#include "program/kernels.h"

namespace dmi::program {

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
  base::CheckCuda(LoadKernels(), "cudaFuncGetAttributes");
  int multiprocessors = 0;
  base::CheckCuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                             ordinal),
      "cudaDeviceGetAttribute");
  // One allocation, gates behind the block.
  const base::CudaStream stream;
  auto memory = std::make_unique<base::DeviceMemory>(
      sizeof(wire::ControlBlock) + wire::kMaxSites * sizeof(uint32_t), stream,
      "a control block");
  auto* const block = memory->as<wire::ControlBlock>();
  base::CheckCuda(
      LaunchControl({block, nullptr, ControlAction::kMake, {}, 0, 0},
                    stream.get()),
      "cudaLaunchKernel of a control kernel");
  stream.Wait();
  DeviceEntry& entry = entries_[count];
  entry.ordinal = ordinal;
  entry.block = block;
  entry.memory = std::move(memory);
  entry.most_blocks =
      static_cast<uint32_t>(multiprocessors) * kBlocksPerMultiprocessor;
  entry.id.store(ordinal, std::memory_order_relaxed);
  count_.store(count + 1, std::memory_order_release);
  return entry;
}

void DeviceTable::Clear() {
  std::lock_guard lock(mutex_);
  count_.store(0, std::memory_order_release);
  for (DeviceEntry& entry : entries_) entry.memory.reset();
}

}  // namespace dmi::program
