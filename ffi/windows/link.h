// SPDX-License-Identifier: Apache-2.0
// How long transfers of one device take: a latency, a rate, and how much later
// than these two promise single ones end.
#ifndef DMI_WINDOWS_LINK_H_
#define DMI_WINDOWS_LINK_H_

#include <cstdint>

#include "windows/history.h"

namespace dmi::windows {

// Calls come from one thread at a time.
class Link {
 public:
  Link() : transfers_(kHistory) {}

  // A transfer of `bytes` > 0 took `nanos` > 0.
  void Observe(uint64_t bytes, int64_t nanos);

  // Transfers seen, of which a few are needed before anything is promised.
  uint64_t observed() const { return observed_; }
  bool known() const { return observed_ >= kNeeded; }

  // What holds when known.
  double bytes_per_second() const { return rate_ * 1e9; }
  // All but the slowest few transfers of `bytes` take no longer.
  double SlowNanos(double bytes) const { return Typical(bytes) + late_; }
  // The most bytes that take no longer than this, all but in the slowest cases.
  double BytesWithin(double nanos) const {
    return std::max(0.0, (nanos - late_ - latency_) * rate_);
  }

  static constexpr uint64_t kNeeded = 3;

 private:
  struct Transfer {
    double bytes;
    double nanos;
  };
  static constexpr size_t kHistory = 128;
  // So many in a row that all differ this much from what is typical mean that
  // the link has changed: older ones are forgotten.
  static constexpr int kChanged = 8;
  static constexpr double kMuch = 1.3;

  double Typical(double bytes) const { return latency_ + bytes / rate_; }
  void Fit();

  History<Transfer> transfers_;
  uint64_t observed_ = 0;
  int slower_ = 0;  // newest transfers in a row that took much longer
  int faster_ = 0;
  double latency_ = 0;  // ns
  double rate_ = 0;     // bytes per ns
  // By how much slow transfers exceed typical ones, in ns. A thread that is not
  // scheduled delays a small one as long as a large one.
  double late_ = 0;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_LINK_H_
