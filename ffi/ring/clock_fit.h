// SPDX-License-Identifier: Apache-2.0
// Between the clock of a device and that of the host.
#ifndef DMI_RING_CLOCK_FIT_H_
#define DMI_RING_CLOCK_FIT_H_

#include <cstdint>
#include <vector>

namespace dmi::ring {

// A device's time read between two looks at the host's clock. ns.
struct ClockReading {
  int64_t device;
  int64_t host_before;
  int64_t host_after;

  int64_t host() const { return host_before + (host_after - host_before) / 2; }
  int64_t width() const { return host_after - host_before; }
};

// The host's time over the device's. From the newest good reading on a straight
// line through it, with the slope from a reading some time before it; before it
// a line from reading to reading, so that what is asked of a time long past
// does not move with the slope of today. One thread.
class ClockFit {
 public:
  explicit ClockFit(const ClockReading& first);

  // Ignores a reading much wider than the narrowest one, as something came
  // between, until the newest good one is so old that it tells less.
  void Add(const ClockReading& reading);

  int64_t HostOf(int64_t device) const;
  // The host's clock against the device's: 0.0 = as fast.
  double drift() const { return drift_; }
  // The most that HostOf was wrong by where the newest reading was taken.
  int64_t error() const { return newest_.width() / 2; }

 private:
  // On both clocks.
  struct Moment {
    int64_t device;
    int64_t host;
  };

  std::vector<Moment> moments_;  // of the good readings, oldest first
  ClockReading older_;
  ClockReading middle_;  // takes its place
  ClockReading newest_;
  int64_t narrowest_;
  double drift_ = 0;
};

}  // namespace dmi::ring

#endif  // DMI_RING_CLOCK_FIT_H_
