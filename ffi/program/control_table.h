// SPDX-License-Identifier: Apache-2.0
// Control blocks by (platform, device ordinal); created once, never freed.
#ifndef DMI_PROGRAM_CONTROL_TABLE_H_
#define DMI_PROGRAM_CONTROL_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "wire/control.h"

namespace dmi::program {

// Handlers look up, which never blocks; the control thread creates.
class ControlTable {
 public:
  static constexpr int kMaxDevices = 1024;

  // Devices of the host platform.
  static ControlTable& Host();

  // The block of a device, or nullptr where none was ever made: nobody has
  // captured on that device yet. Acquire: the block's first contents are seen.
  wire::ControlBlock* Find(int32_t ordinal) const;

  // The same by global device id.
  wire::ControlBlock* FindDevice(int64_t device) const;

  // Finds or makes it. `device` is the global id readers see.
  wire::ControlBlock* Ensure(int32_t ordinal, int64_t device);

 private:
  struct Entry {
    int32_t ordinal;
    wire::ControlBlock* block;
  };
  std::array<Entry, kMaxDevices> entries_;
  std::atomic<int> count_{0};
  std::mutex mutex_;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_CONTROL_TABLE_H_
