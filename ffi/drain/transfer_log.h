// SPDX-License-Identifier: Apache-2.0
// What the drain moved and when; the newest transfers are kept.
#ifndef DMI_DRAIN_TRANSFER_LOG_H_
#define DMI_DRAIN_TRANSFER_LOG_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/fork.h"

namespace dmi::drain {

enum class TransferKind : uint32_t {
  kBatch = 0,   // an ordinary flush rule
  kForced = 1,  // a full ring, a flush or a close
  kWindow = 2,  // inside a transfer window
};

struct Transfer {
  int64_t begin_ns;  // UTC
  int64_t end_ns;
  uint64_t bytes;
  TransferKind kind;
  uint32_t version;  // of the window pattern, 0 = none
  uint32_t window_index;
  uint64_t occurrence;
  uint64_t begin_counter;  // boundaries passed when it began and ended
  uint64_t end_counter;
};

// One writer, the drain; any thread may read.
class TransferLog {
 public:
  static constexpr size_t kKept = 65536;

  void Add(const Transfer& transfer) {
    std::lock_guard lock(mutex_);
    if (log_->size() == kKept) log_->pop_front();
    log_->push_back(transfer);
  }
  std::vector<Transfer> Read() const {
    std::lock_guard lock(mutex_);
    return {log_->begin(), log_->end()};
  }

 private:
  mutable base::Mutex mutex_;
  base::ParentOnly<std::deque<Transfer>> log_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_TRANSFER_LOG_H_
