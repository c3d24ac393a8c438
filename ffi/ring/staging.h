// SPDX-License-Identifier: Apache-2.0
// Staging: host memory that payloads land in where sinks cannot read the ring.
//
// A ring too, of whole records: places are positions that only grow, and a
// record never wraps. Everything but Release and pinned belongs to the drain.
#ifndef DMI_RING_STAGING_H_
#define DMI_RING_STAGING_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "ring/leases.h"
#include "ring/ring.h"

namespace dmi::ring {

class Staging {
 public:
  // Throws std::bad_alloc.
  explicit Staging(uint64_t bytes);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Where the next record would land: at the end of what was taken, or behind
  // the wrap; nullopt while there is no room for so many bytes.
  std::optional<uint64_t> PlaceFor(uint64_t bytes);
  // Free bytes in one piece from a place on.
  uint64_t RoomAt(uint64_t place) const;
  // Everything before `end` is taken.
  void TakeTo(uint64_t end) { head_ = end; }
  uint64_t head() const { return head_; }

  uint64_t size() const { return pages_.size(); }
  uint8_t* at(uint64_t place) { return pages_.data() + place % pages_.size(); }

  // Everything up to `end` since the last lease is now leased. Returns its id.
  uint64_t Lease(uint64_t end, uint64_t bytes) {
    return leases_.Add(end, bytes);
  }
  // Any thread, once per lease; true when it made room.
  bool Release(uint64_t id);
  uint64_t pinned() const { return leases_.pinned(); }

 private:
  Pages pages_;
  uint64_t head_ = 0;
  // Release by whoever gives a lease back, acquire by the drain: whatever read
  // the bytes is done with them.
  std::atomic<uint64_t> tail_{0};
  Leases<uint64_t> leases_;
};

}  // namespace dmi::ring

#endif  // DMI_RING_STAGING_H_
