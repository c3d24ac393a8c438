// SPDX-License-Identifier: Apache-2.0
// When windows have proved too small: counts full rings, and how long ordinary
// batching lasts before windows get another chance.
#ifndef DMI_WINDOWS_FALLBACK_H_
#define DMI_WINDOWS_FALLBACK_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "windows/grant.h"

namespace dmi::windows {

// Calls come from one thread at a time.
class Fallback {
 public:
  explicit Fallback(const WindowConfig& config)
      : threshold_(config.capacity_flush_fallback_threshold),
        interval_(config.capacity_flush_count_reset_interval) {}

  // Counters start anew; how long a mode has lasted goes on.
  void StartVersion() {
    count_ = 0;
    last_flush_.reset();
    counter_.reset();
  }

  // The ring was full; true where fallback begins.
  bool Flushed(uint64_t counter, uint64_t period) {
    if (last_flush_ && counter > *last_flush_ &&
        (counter - *last_flush_) / period >= interval_) {
      count_ = 0;
    }
    last_flush_ = counter;
    if (++count_ < threshold_) return false;
    // Each time it lasts longer, unless windows have done as long without.
    const bool anew = times_ == 0 || passed_ / period >= hold_periods();
    times_ = anew ? 1 : std::min(2 * times_, kMostTimes);
    passed_ = 0;
    return true;
  }

  // Boundaries pass; true where fallback ends.
  bool Pass(uint64_t counter, uint64_t period, bool in_fallback) {
    passed_ += counter_ ? counter - *counter_ : 0;
    counter_ = counter;
    if (!in_fallback || passed_ / period < hold_periods()) return false;
    passed_ = 0;
    count_ = 0;
    last_flush_.reset();
    return true;
  }

  uint64_t hold_periods() const {
    constexpr auto kMost = std::numeric_limits<uint64_t>::max();
    return interval_ > kMost / kMostTimes ? kMost : interval_ * times_;
  }

 private:
  static constexpr uint64_t kMostTimes = 16;

  uint64_t threshold_;
  uint64_t interval_;  // periods
  uint64_t count_ = 0;
  std::optional<uint64_t> last_flush_;  // counter
  uint64_t times_ = 0;   // intervals that fallback lasts; 0 = never began
  uint64_t passed_ = 0;  // boundaries in this mode
  std::optional<uint64_t> counter_;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_FALLBACK_H_
