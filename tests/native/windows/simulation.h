// SPDX-License-Identifier: Apache-2.0
// A program that passes boundaries, a link, and a drain that is never without
// records: everything around a controller, on a clock that only it moves.
#ifndef DMI_TESTS_WINDOWS_SIMULATION_H_
#define DMI_TESTS_WINDOWS_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/time_source.h"
#include "windows/controller.h"
#include "wire/progress.h"

namespace dmi::windows {

class Simulation {
 public:
  struct Occurrence {
    uint64_t bytes = 0;
    uint64_t largest = 0;
    uint64_t overruns = 0;
    uint64_t largest_overrun = 0;
    int64_t length_ns = 0;
  };

  explicit Simulation(const WindowConfig& config, WindowPattern pattern)
      : controller(config, time), pattern_(pattern) {
    controller.InstallPending(1, std::move(pattern));
  }

  // Nanoseconds from this boundary of the period to the next one.
  std::function<int64_t(uint64_t phase)> region = [](uint64_t) {
    return int64_t{1'000'000};
  };
  double bytes_per_ns = 1;
  double latency_ns = 0;
  double jitter = 0;   // of the rate of each transfer
  double delayed = 0;  // the part of transfers that end `delay_ns` later
  double delay_ns = 0;
  bool stamps = true;      // the device stamps its boundaries
  int64_t wake_ns = 2000;  // from a boundary until the drain looks
  uint64_t backlog = 1ull << 50;
  uint64_t record = 4096;
  std::mt19937_64 random{7};
  // By window and occurrence.
  std::map<std::pair<uint32_t, uint64_t>, Occurrence> occurrences;
  base::ManualTime time;
  WindowController controller;

  double Uniform(double part) {
    return std::uniform_real_distribution(1 - part, 1 + part)(random);
  }

  bool Chance(double part) {
    return part > 0 && std::uniform_real_distribution()(random) < part;
  }

  // Until so many periods have passed.
  void Run(uint64_t periods) {
    const uint64_t end = counter_ + periods * pattern_.period();
    while (counter_ < end) {
      const uint64_t word = wire::PackProgress(1, counter_);
      if (const auto admission = controller.Poll(word, backlog, record)) {
        const uint64_t bytes = std::min(backlog, admission->grant.byte_limit);
        if (controller.Commit(*admission, bytes, word)) {
          Transfer(*admission, bytes);
          continue;
        }
      }
      PassTo(next_ns_ + wake_ns);
    }
  }

  // What the occurrences of a window moved, from one on.
  std::vector<Occurrence> Of(uint32_t window, uint64_t from = 0) const {
    std::vector<Occurrence> result;
    for (const auto& [key, occurrence] : occurrences) {
      if (key.first == window && key.second >= from) {
        result.push_back(occurrence);
      }
    }
    return result;
  }

 private:
  void Transfer(const Admission& admission, uint64_t bytes) {
    const double nanos = latency_ns +
                         static_cast<double>(bytes) /
                             (bytes_per_ns * Uniform(jitter)) * slow_next +
                         (Chance(delayed) ? delay_ns : 0);
    slow_next = 1;
    PassTo(time.Now() + static_cast<int64_t>(nanos));
    controller.Complete(admission, bytes, wire::PackProgress(1, counter_));
    Occurrence& o =
        occurrences[{admission.match.window_index, admission.match.occurrence}];
    o.bytes += bytes;
    o.largest = std::max(o.largest, bytes);
    if (counter_ >= admission.match.end) {
      ++o.overruns;
      o.largest_overrun = std::max(o.largest_overrun, bytes);
    }
  }

  // Moves the clock, and the program with it.
  void PassTo(int64_t then) {
    while (next_ns_ <= then) {
      ++counter_;
      if (stamps) {
        controller.ObserveBoundary(wire::PackProgress(1, counter_), next_ns_);
      }
      const int64_t length = region(counter_ % pattern_.period());
      if (const auto match = pattern_.Match(counter_)) {
        occurrences[{match->window_index, match->occurrence}].length_ns +=
            length;
      }
      next_ns_ += length;
    }
    time.Advance(then - time.Now());
  }

  WindowPattern pattern_;
  uint64_t counter_ = 0;
  int64_t next_ns_ = 500'000;

 public:
  double slow_next = 1;  // factor of the next transfer's time
};

}  // namespace dmi::windows

#endif  // DMI_TESTS_WINDOWS_SIMULATION_H_
