// SPDX-License-Identifier: Apache-2.0
// Where a drain takes the time from: the machine, or a clock that a test moves.
#ifndef DMI_BASE_TIME_SOURCE_H_
#define DMI_BASE_TIME_SOURCE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace dmi::base {

class TimeSource {
 public:
  virtual ~TimeSource() = default;
  // Nanoseconds, never going backwards. Any thread.
  virtual int64_t Now() const = 0;
  // How long a thread should sleep to look again after `nanos` of this time.
  virtual int64_t RealNanos(int64_t nanos) const { return nanos; }
};

class SystemTime final : public TimeSource {
 public:
  int64_t Now() const override { return MonotonicNanos(); }
};

// Any thread may move it and read it.
class ManualTime final : public TimeSource {
 public:
  int64_t Now() const override { return now_.load(std::memory_order_acquire); }
  // Whoever moves the clock does not say so.
  int64_t RealNanos(int64_t nanos) const override {
    return std::min<int64_t>(nanos, 200'000);
  }
  void Advance(int64_t nanos) {
    now_.fetch_add(nanos, std::memory_order_acq_rel);
  }
  // What a program on the host reads instead of its own clock.
  const std::atomic<int64_t>& word() const { return now_; }

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace dmi::base

#endif  // DMI_BASE_TIME_SOURCE_H_
