// SPDX-License-Identifier: Apache-2.0
// Leases: spans of a buffer handed out in order and given back in any order.
#ifndef DMI_RING_LEASES_H_
#define DMI_RING_LEASES_H_

#include <cstdint>
#include <deque>
#include <mutex>

#include "base/fork.h"

namespace dmi::ring {

// Any thread may call any method.
template <typename End>
class Leases {
 public:
  // Everything up to `end` since the last lease is now leased. Returns its id.
  uint64_t Add(End end, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    entries_->push_back({end, bytes, false});
    pinned_ += bytes;
    return first_ + entries_->size() - 1;
  }

  // Once per lease. Where this frees the front, `free(end)` is called with the
  // end of the last released lease there, in order; then this returns true.
  template <typename Free>
  bool Release(uint64_t id, Free free) {
    // The list may be as another thread left it, halfway through a change.
    if (base::InForkedChild()) return false;
    std::lock_guard lock(mutex_);
    Entry& entry = (*entries_)[id - first_];
    entry.released = true;
    pinned_ -= entry.bytes;
    if (id != first_) return false;
    End end{};
    while (!entries_->empty() && entries_->front().released) {
      end = entries_->front().end;
      entries_->pop_front();
      ++first_;
    }
    free(end);
    return true;
  }

  // Bytes out on lease.
  uint64_t pinned() const {
    std::lock_guard lock(mutex_);
    return pinned_;
  }

 private:
  struct Entry {
    End end;
    uint64_t bytes;
    bool released;
  };

  mutable base::Mutex mutex_;
  base::ParentOnly<std::deque<Entry>> entries_;  // ids first_, first_ + 1, ...
  uint64_t first_ = 0;
  uint64_t pinned_ = 0;
};

}  // namespace dmi::ring

#endif  // DMI_RING_LEASES_H_
