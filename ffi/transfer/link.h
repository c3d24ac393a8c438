// SPDX-License-Identifier: Apache-2.0
// A link: how payload bytes get from a device ring to memory that sinks read.
#ifndef DMI_TRANSFER_LINK_H_
#define DMI_TRANSFER_LINK_H_

#include <cstdint>

namespace dmi::transfer {

// Belongs to the drain thread. At most one transfer is under way.
class Link {
 public:
  virtual ~Link() = default;

  // Whether the ring itself is what sinks read, so that nothing is copied.
  virtual bool in_place() const = 0;
  // Begins to move bytes. Throws what goes wrong.
  virtual void Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) = 0;
  // 0 once every byte of the transfer has landed; else about how many
  // nanoseconds that will take. Throws what goes wrong.
  virtual int64_t Remaining() = 0;
};

// The host is the device.
class HostLink final : public Link {
 public:
  bool in_place() const override { return true; }
  void Begin(uint8_t*, const uint8_t*, uint64_t) override {}
  int64_t Remaining() override { return 0; }
};

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_LINK_H_
