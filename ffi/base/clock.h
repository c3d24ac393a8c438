// SPDX-License-Identifier: Apache-2.0
// The two clocks: monotonic for waiting and measuring, UTC for labelling.
#ifndef DMI_BASE_CLOCK_H_
#define DMI_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace dmi::base {

inline int64_t MonotonicNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t UtcNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What to add to the monotonic clock to label an instant in UTC. Taken once per
// ring, so times of a run never go backwards even where the wall clock does.
inline int64_t UtcOffsetNanos() {
  const int64_t before = MonotonicNanos();
  const int64_t utc = UtcNanos();
  const int64_t after = MonotonicNanos();
  return utc - (before + (after - before) / 2);
}

}  // namespace dmi::base

#endif  // DMI_BASE_CLOCK_H_
