// SPDX-License-Identifier: Apache-2.0
// Control blocks of CUDA devices; created once, never freed by the package.
#ifndef DMI_PROGRAM_DEVICE_TABLE_H_
#define DMI_PROGRAM_DEVICE_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/cuda.h"
#include "wire/control.h"

namespace dmi::program {

struct DeviceEntry {
  int32_t ordinal = 0;
  wire::ControlBlock* block = nullptr;         // of the device
  std::unique_ptr<base::DeviceMemory> memory;  // of the block and its gates
  uint32_t most_blocks = 1;  // of a copy that fills the device
  // The global id readers see; the ordinal until somebody captures.
  std::atomic<int64_t> id{0};
};

// Handlers find, which never blocks; whoever comes first ensures.
class DeviceTable {
 public:
  static constexpr int kMaxDevices = 64;

  static DeviceTable& Get();

  // nullptr where none was made. Acquire: its contents are there.
  DeviceEntry* Find(int32_t ordinal);

  // Finds or makes it, on the device, and loads every kernel there. Throws
  // base::CudaError. Not while the thread captures.
  DeviceEntry& Ensure(int32_t ordinal);

  // Frees every block. For tests alone, where devices end before the process:
  // nobody may use one any more.
  void Clear();

 private:
  std::array<DeviceEntry, kMaxDevices> entries_;
  std::atomic<int> count_{0};
  std::mutex mutex_;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_DEVICE_TABLE_H_
