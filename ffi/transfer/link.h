// SPDX-License-Identifier: Apache-2.0
// A link: how payload bytes get from a device ring to memory that sinks read.
#ifndef DMI_TRANSFER_LINK_H_
#define DMI_TRANSFER_LINK_H_

#include <cstdint>

namespace dmi::transfer {

// After how many nanoseconds at most a drain looks by itself. A device that
// cannot wake the drain wants it to look often.
struct Pace {
  int64_t idle = 20'000'000;
  int64_t waiting = 20'000'000;    // while records wait
  int64_t confining = 20'000'000;  // while records wait for a window
};

// Belongs to the thread that drives the drain, but for Prepare. Transfers land
// in the order in which they began. A link that goes lets nothing land any
// more.
class Link {
 public:
  virtual ~Link() = default;

  // Whether the ring itself is what sinks read, so that nothing is copied.
  virtual bool in_place() const = 0;
  // How many transfers may be under way at once, windows aside.
  virtual int depth() const { return 1; }
  virtual Pace pace() const { return {}; }

  // Called once, before anything else and by whoever makes the drain: all that
  // is ever moved lands here. Throws what goes wrong.
  virtual void Prepare(uint8_t* /*staging*/, uint64_t /*bytes*/) {}
  // Called once, first thing by the thread that drives the drain. Throws what
  // goes wrong.
  virtual void Attach() {}

  // Begins to move bytes, behind what is under way: fewer than `depth()`
  // transfers. Throws what goes wrong; then nothing began.
  virtual void Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) = 0;
  // Of the oldest transfer under way: 0 once every byte of it has landed, and
  // from then on; else about how many nanoseconds that will take. Throws what
  // goes wrong.
  virtual int64_t Remaining() = 0;
  // The oldest transfer has landed and is under way no longer.
  virtual void Retire() = 0;
};

// The host is the device.
class HostLink final : public Link {
 public:
  bool in_place() const override { return true; }
  void Begin(uint8_t*, const uint8_t*, uint64_t) override {}
  int64_t Remaining() override { return 0; }
  void Retire() override {}
};

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_LINK_H_
