// SPDX-License-Identifier: Apache-2.0
// Staging, see the header.
#include "ring/staging.h"

#include <algorithm>

#include "wire/slot.h"

namespace dmi::ring {

Staging::Staging(uint64_t bytes)
    : pages_((bytes + wire::kPayloadUnit - 1) / wire::kPayloadUnit *
                 wire::kPayloadUnit,
             true) {}

std::optional<uint64_t> Staging::PlaceFor(uint64_t bytes) {
  if (RoomAt(head_) >= bytes) return head_;
  const uint64_t lap = head_ + pages_.size() - head_ % pages_.size();
  if (tail_.load(std::memory_order_acquire) == head_) {
    // Nothing is out, so nobody else moves the tail.
    head_ = lap;
    tail_.store(lap, std::memory_order_relaxed);
  }
  return RoomAt(lap) >= bytes ? std::optional(lap) : std::nullopt;
}

uint64_t Staging::RoomAt(uint64_t place) const {
  const uint64_t used = place - tail_.load(std::memory_order_acquire);
  if (used >= pages_.size()) return 0;
  return std::min(pages_.size() - used, pages_.size() - place % pages_.size());
}

bool Staging::Release(uint64_t id) {
  return leases_.Release(id, [&](uint64_t end) {
    // Never back: an empty record may be let go after what follows it found
    // nothing out and went behind the wrap.
    uint64_t seen = tail_.load(std::memory_order_relaxed);
    while (seen < end &&
           !tail_.compare_exchange_weak(seen, end, std::memory_order_release)) {
    }
  });
}

}  // namespace dmi::ring
