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
// Clocks that keep time well differ by so much: what a line may lose meanwhile.
constexpr double kUsualDrift = 2e-5;
// The slope is taken over one to two of them.
constexpr int64_t kLongBase = 15'000'000'000;
// Half a day or more, at one a second.
constexpr size_t kMostMoments = 1u << 16;

}  // namespace

ClockFit::ClockFit(const ClockReading& first)
    : older_(first), middle_(first), newest_(first), narrowest_(first.width()) {
  moments_.reserve(kMostMoments);
  moments_.push_back({first.device, first.host()});
}

void ClockFit::Add(const ClockReading& reading) {
  narrowest_ = std::min(narrowest_, reading.width());
  const auto age = static_cast<double>(reading.device - newest_.device);
  const bool better =
      static_cast<double>(reading.width() / 2) <= kUsualDrift * age;
  if (reading.width() > kWidest * narrowest_ && !better) {
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
  if (moments_.size() == kMostMoments) {
    moments_.erase(moments_.begin(), moments_.begin() + kMostMoments / 2);
  }
  moments_.push_back({reading.device, reading.host()});
}

int64_t ClockFit::HostOf(int64_t device) const {
  const auto after =
      std::ranges::upper_bound(moments_, device, {}, &Moment::device);
  const Moment& near = after == moments_.begin() ? *after : *(after - 1);
  const int64_t since = device - near.device;
  double drift = drift_;
  if (after != moments_.begin() && after != moments_.end()) {
    const auto base = static_cast<double>(after->device - near.device);
    drift = static_cast<double>(after->host - near.host) / base - 1;
  }
  return near.host + since +
         static_cast<int64_t>(drift * static_cast<double>(since));
}

}  // namespace dmi::ring
