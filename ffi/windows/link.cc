// SPDX-License-Identifier: Apache-2.0
// Fits the link: medians, so that single outliers do not move it.
#include "windows/link.h"

#include <algorithm>
#include <vector>

namespace dmi::windows {

void Link::Observe(uint64_t bytes, int64_t nanos) {
  const Transfer transfer{static_cast<double>(bytes),
                          static_cast<double>(nanos)};
  if (known()) {
    const double typical = Typical(transfer.bytes);
    slower_ = transfer.nanos > typical * kMuch ? slower_ + 1 : 0;
    faster_ = transfer.nanos * kMuch < typical ? faster_ + 1 : 0;
  }
  transfers_.Add(transfer);
  ++observed_;
  const bool changed = slower_ == kChanged || faster_ == kChanged;
  if (changed) {
    transfers_.KeepNewest(kChanged);
    slower_ = faster_ = 0;
  }
  // Fitting takes microseconds in which the link is idle.
  if (changed || observed_ < 16 || observed_ % 8 == 0) Fit();
}

// Latency and rate come from the medians of two groups, transfers of about the
// largest size and smaller ones. Where all are of one size, the latency known
// from before is kept.
void Link::Fit() {
  double largest = 0;
  for (const Transfer& t : transfers_.values()) {
    largest = std::max(largest, t.bytes);
  }
  std::vector<double> bytes[2];
  std::vector<double> nanos[2];
  for (const Transfer& t : transfers_.values()) {
    const int large = 2 * t.bytes > largest;
    bytes[large].push_back(t.bytes);
    nanos[large].push_back(t.nanos);
  }
  const auto median = [](const std::vector<double>& values) {
    return Ranked(values, static_cast<ptrdiff_t>(values.size() / 2));
  };
  const double large_bytes = median(bytes[1]);
  const double large_nanos = median(nanos[1]);
  if (bytes[0].size() > 1) {
    const double more = large_bytes - median(bytes[0]);
    const double longer = large_nanos - median(nanos[0]);
    if (longer > 0) latency_ = large_nanos - large_bytes * longer / more;
  }
  // Some of the time goes to the bytes, whatever the latency seems to be.
  latency_ = std::clamp(latency_, 0.0, 0.9 * large_nanos);
  rate_ = large_bytes / (large_nanos - latency_);

  std::vector<double> excess;
  for (const Transfer& t : transfers_.values()) {
    excess.push_back(t.nanos - Typical(t.bytes));
  }
  const auto few = static_cast<ptrdiff_t>(
      excess.size() > kNeeded ? std::max<size_t>(excess.size() / 32, 1) : 0);
  late_ = std::max(0.0, Ranked(std::move(excess), -1 - few));
}

}  // namespace dmi::windows
