// SPDX-License-Identifier: Apache-2.0
// Between two clocks, see the header.
#include "ring/clock_fit.h"

#include <algorithm>

namespace dmi::ring {
namespace {

constexpr int64_t kWidest = 4;  // times the narrowest
// From readings closer together no slope is taken: their widths would decide
// it.
constexpr int64_t kShortestBase = 500'000'000;
// Clocks that keep time do not differ by more.
constexpr double kMostDrift = 1e-3;
// The slope is taken over one to two of them.
constexpr int64_t kLongBase = 15'000'000'000;

}  // namespace

void ClockFit::Add(const ClockReading& reading) {
  narrowest_ = std::min(narrowest_, reading.width());
  if (reading.width() > kWidest * narrowest_) {
    // Readings may have become wider for good.
    narrowest_ += narrowest_ / 8 + 1;
    return;
  }
  const int64_t base = reading.device - older_.device;
  if (base >= kShortestBase) {
    const auto host = static_cast<double>(reading.host() - older_.host());
    drift_ = std::clamp(host / static_cast<double>(base) - 1, -kMostDrift,
                        kMostDrift);
  }
  if (reading.device - middle_.device >= kLongBase) {
    older_ = middle_;
    middle_ = reading;
  }
  newest_ = reading;
}

int64_t ClockFit::HostOf(int64_t device) const {
  const int64_t since = device - newest_.device;
  return newest_.host() + since +
         static_cast<int64_t>(drift_ * static_cast<double>(since));
}

}  // namespace dmi::ring
