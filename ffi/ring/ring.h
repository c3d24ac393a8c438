// SPDX-License-Identifier: Apache-2.0
// The ring: the memory records land in, and who may free it when.
//
// One ring per device and run. Producers reach it through the control block
// while it is installed; the drain and every lease hold a shared pointer, so it
// is freed after the last of them, and never while a producer is inside.
#ifndef DMI_RING_RING_H_
#define DMI_RING_RING_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "program/atomics.h"
#include "program/host_signals.h"
#include "ring/leases.h"
#include "wire/control.h"
#include "wire/slot.h"

namespace dmi::ring {

struct RingOptions {
  uint64_t bytes = 256u << 20;  // rounded up to two units
  uint32_t slots = 65536;       // rounded up to a power of two
  wire::Overflow overflow = wire::Overflow::kBlock;
  int64_t stall_nanos = 10'000'000'000;
  bool checksum = true;
  uint32_t wake_records = 4096;
  uint64_t wake_bytes = 16u << 20;
  // What programs stamp records and boundaries with; nullptr = the machine's
  // monotonic clock.
  const std::atomic<int64_t>* clock = nullptr;
};

// Zeroed pages that take no memory until they are touched.
class Pages {
 public:
  Pages() = default;
  Pages(uint64_t bytes, bool huge);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Brings pages beyond `reached` bytes into memory before producers get there,
  // so that on the first lap they do not take the page faults: in proportion to
  // what is in use, up to some tens of MiB. One thread.
  void PopulateAhead(uint64_t reached);

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t populated_ = 0;
};

// How well the clock of a device is known. ns.
struct ClockState {
  int64_t error = 0;  // of the last calibration, at most
  int64_t step = 0;   // the smallest the clock makes
  double drift = 0;   // of the host's clock against it
};

class Ring {
 public:
  // One of the host. Throws std::bad_alloc or std::invalid_argument.
  explicit Ring(const RingOptions& options) : Ring(options, Payload::kHere) {}
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // What the drain sees of the ring.
  wire::RingHeader& header() { return header_; }
  const wire::RingHeader& header() const { return header_; }
  program::HostSignals& signals() { return signals_; }

  // Any thread: the cursor up to which records are reserved, packed.
  virtual uint64_t Head() const { return program::LoadAcquire(header_.head); }
  // Any thread: whether a producer waits for space.
  virtual bool somebody_waits() const { return signals_.somebody_waits(); }
  // Nothing will be freed any more: ends every wait, now and later.
  virtual void GiveUp() { signals_.GiveUp(); }
  // Any thread: the counters of `count` sites from `first` on.
  virtual std::vector<wire::SiteCounters> Counters(size_t first,
                                                   size_t count) const;

  // What records and boundaries are stamped with, on the clock of the drain.
  virtual int64_t HostNanos(int64_t stamp) const {
    return stamp - header_.clock_offset;
  }
  // And in UTC.
  virtual int64_t UtcNanos(int64_t stamp) const { return stamp; }
  // UTC minus the clock of the drain.
  virtual int64_t utc_offset() const { return header_.clock_offset; }
  // Called by the drain, often. Throws what is wrong with the device.
  virtual void Tick() {}
  virtual ClockState clock() const { return {}; }
  // Any thread: what went wrong with the device, or "".
  virtual std::string failure() const { return ""; }

  const wire::Slot& slot(uint64_t sequence) const;
  // Where a link finds it.
  const uint8_t* payload() const {
    return reinterpret_cast<const uint8_t*>(header_.payload);
  }
  uint64_t payload_bytes() const {
    return uint64_t{header_.extent.units} * wire::kPayloadUnit;
  }

  // Called by the drain, which has reached this record and this unit: brings
  // pages ahead of them into memory. Costs nothing once the whole ring is
  // there.
  void PopulateAhead(uint64_t sequence, uint32_t position);

  // ---- Leases: spans handed out, in order, and freed in any order ----

  // Called by the drain: everything up to `end` since the last lease is now
  // leased. Returns its id.
  uint64_t Lease(wire::Cursor end, uint64_t bytes) {
    return leases_.Add(end, bytes);
  }

  // Called by any thread, once per lease: moves the tail over every released
  // lease at the front and wakes producers that wait for space.
  void Release(uint64_t id);

  // Payload bytes out on lease.
  uint64_t pinned() const { return leases_.pinned(); }

 protected:
  static constexpr uint64_t kHeaderBytes = 4096;

  enum class Payload { kHere, kElsewhere };

  // Elsewhere, whoever derives sets `payload` and `sites`, and has the rest of
  // the header's page.
  Ring(const RingOptions& options, Payload payload);

  uint8_t* header_page() const { return header_page_.data(); }
  const Pages& slots() const { return slots_; }
  const Pages& boundaries() const { return boundaries_; }

 private:
  Pages header_page_;
  Pages payload_;
  Pages slots_;
  Pages sites_;
  Pages boundaries_;
  mutable program::HostSignals signals_;
  wire::RingHeader own_header_{};
  wire::RingHeader& header_;
  Leases<wire::Cursor> leases_;
};

}  // namespace dmi::ring

#endif  // DMI_RING_RING_H_
