// SPDX-License-Identifier: Apache-2.0
// The line between two clocks.
#include "ring/clock_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "support/payload.h"

namespace dmi::ring {
namespace {

using dmi::testing::Random;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kWidth = 20'000;

// A device whose clock is `drift` faster than the host's.
class Clocks {
 public:
  explicit Clocks(double drift) : drift_(drift) {}

  int64_t DeviceAt(int64_t host) const {
    return host + std::llround(drift_ * static_cast<double>(host)) + kOffset;
  }
  // The device looks at its clock somewhere in a bracket of half to all of
  // `width`.
  ClockReading Read(int64_t host, int64_t width = kWidth) {
    const auto most = static_cast<uint64_t>(width);
    const auto wide = static_cast<int64_t>(most / 2 + random_.UpTo(most / 2));
    const auto before =
        static_cast<int64_t>(random_.UpTo(static_cast<uint64_t>(wide)));
    return {DeviceAt(host), host - before, host - before + wide};
  }
  int64_t Error(const ClockFit& fit, int64_t host) const {
    return std::abs(fit.HostOf(DeviceAt(host)) - host);
  }

 private:
  static constexpr int64_t kOffset = int64_t{1} << 50;
  const double drift_;
  Random random_{1};
};

TEST(ClockFitTest, OneReadingIsRightToHalfItsWidth) {
  Clocks clocks(0);
  const ClockFit fit(clocks.Read(kSecond));
  EXPECT_LE(fit.error(), kWidth / 2);
  for (const int64_t host : {int64_t{0}, kSecond, 100 * kSecond}) {
    EXPECT_LE(clocks.Error(fit, host), fit.error() + 1);
  }
}

// Over minutes, so the readings that the slope is taken from are replaced.
TEST(ClockFitTest, ADriftIsFollowed) {
  for (const double drift : {2e-5, -2e-5, 5e-4, -9e-4}) {
    Clocks clocks(drift);
    ClockFit fit(clocks.Read(0));
    fit.Add(clocks.Read(kSecond));
    for (int64_t second = 1; second < 200; ++second) {
      // Half a width where it was read last, and two halves of the slope's
      // readings over the time between them.
      const int64_t base = std::min<int64_t>(second, 15) * kSecond;
      for (int64_t since = 0; since <= kSecond; since += kSecond / 4) {
        const int64_t bound = kWidth / 2 + kWidth * since / base + 10;
        ASSERT_LE(clocks.Error(fit, second * kSecond + since), bound)
            << drift << " in second " << second;
      }
      fit.Add(clocks.Read((second + 1) * kSecond));
      ASSERT_NEAR(fit.drift(), 1 / (1 + drift) - 1, 1.1 * kWidth / base);
    }
  }
}

// Records get their time when they are drained, boundaries when they are asked
// for: hours later both must still be of the same moment.
TEST(ClockFitTest, TimesLongPastStayRight) {
  Clocks clocks(2e-5);
  ClockFit fit(clocks.Read(0));
  constexpr int64_t kHour = 3600;
  for (int64_t second = 1; second <= 3 * kHour; ++second) {
    fit.Add(clocks.Read(second * kSecond));
    if (second % 600 != 0) continue;
    for (int64_t past = 1; past < second; past += 97) {
      ASSERT_LE(clocks.Error(fit, past * kSecond + kSecond / 3), kWidth / 2 + 1)
          << past << " in second " << second;
    }
  }
}

TEST(ClockFitTest, TimesNeverGoBack) {
  Clocks clocks(-1e-4);
  ClockFit fit(clocks.Read(kSecond));
  for (int64_t second = 2; second < 100; ++second) {
    fit.Add(clocks.Read(second * kSecond));
  }
  int64_t last = INT64_MIN;
  for (int64_t host = 0; host < 110 * kSecond; host += kSecond / 7) {
    const int64_t now = fit.HostOf(clocks.DeviceAt(host));
    ASSERT_GT(now, last);
    last = now;
  }
}

// What is kept of the past has an end; before it the line goes on.
TEST(ClockFitTest, AMonthIsFollowed) {
  Clocks clocks(2e-5);
  ClockFit fit(clocks.Read(0));
  constexpr int64_t kDay = 86400;
  for (int64_t second = 1; second <= 31 * kDay; ++second) {
    fit.Add(clocks.Read(second * kSecond));
  }
  EXPECT_LE(clocks.Error(fit, 31 * kDay * kSecond), kWidth / 2 + 1);
  EXPECT_LE(clocks.Error(fit, (31 * kDay - 30'000) * kSecond), kWidth / 2 + 1);
  EXPECT_LE(clocks.Error(fit, 0), 31 * kDay * 2 * kWidth / 15);
}

TEST(ClockFitTest, NoSlopeIsTakenFromReadingsCloseTogether) {
  Clocks clocks(1e-4);
  ClockFit fit(clocks.Read(0));
  for (int i = 1; i < 100; ++i) {
    fit.Add(clocks.Read(i * kSecond / 250));
    ASSERT_EQ(fit.drift(), 0);
    ASSERT_LE(clocks.Error(fit, i * kSecond / 250), kWidth / 2 + 1);
  }
}

TEST(ClockFitTest, WhatCameBetweenIsIgnored) {
  Clocks clocks(0);
  ClockFit fit(clocks.Read(0));
  for (int second = 1; second < 100; ++second) {
    const bool outlier = second % 3 != 0;
    fit.Add(clocks.Read(second * kSecond, outlier ? 100 * kWidth : kWidth));
    ASSERT_LE(fit.error(), kWidth / 2);
    ASSERT_LE(clocks.Error(fit, second * kSecond), 2 * kWidth);
  }
}

// A device is idle when a capture starts, and seldom afterwards.
TEST(ClockFitTest, AWideReadingIsBetterThanAnOldOne) {
  constexpr int64_t kWide = 4 * kWidth;
  Clocks clocks(1e-4);
  ClockFit fit(clocks.Read(0, kWidth / 4));
  for (int64_t second = 1; second < 100; ++second) {
    fit.Add(clocks.Read(second * kSecond, kWide));
    if (second < 3) continue;
    ASSERT_LE(clocks.Error(fit, second * kSecond), 3 * kWide / 2) << second;
  }
}

TEST(ClockFitTest, ReadingsMayBecomeWiderForGood) {
  Clocks clocks(1e-4);
  ClockFit fit(clocks.Read(0));
  for (int second = 1; second < 100; ++second) {
    fit.Add(clocks.Read(second * kSecond, 50 * kWidth));
  }
  EXPECT_GT(fit.error(), kWidth);
  EXPECT_LE(clocks.Error(fit, 99 * kSecond), 50 * kWidth);
}

TEST(ClockFitTest, ADriftNoClockHasIsNotBelieved) {
  for (const double drift : {0.01, -0.01}) {
    Clocks clocks(drift);
    ClockFit fit(clocks.Read(0));
    fit.Add(clocks.Read(kSecond));
    EXPECT_DOUBLE_EQ(fit.drift(), drift > 0 ? -1e-3 : 1e-3);
  }
}

}  // namespace
}  // namespace dmi::ring
