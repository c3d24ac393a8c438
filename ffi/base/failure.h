// SPDX-License-Identifier: Apache-2.0
// The failure latch: keeps the first failure, counts the rest.
#ifndef DMI_BASE_FAILURE_H_
#define DMI_BASE_FAILURE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/fork.h"

namespace dmi::base {

// Any thread may call any method; `Latch` and `text` take a short lock,
// `count` is one relaxed load.
class FailureLatch {
 public:
  void Latch(std::string text) {
    if (count_.fetch_add(1, std::memory_order_relaxed) > 0) return;
    std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  // The first failure, "" while there is none.
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::atomic<uint64_t> count_{0};
  mutable Mutex mutex_;
  std::string text_;
};

}  // namespace dmi::base

#endif  // DMI_BASE_FAILURE_H_
