// SPDX-License-Identifier: Apache-2.0
// A controller driven by hand: counters and times are the test's.
#ifndef DMI_TESTS_WINDOWS_HAND_H_
#define DMI_TESTS_WINDOWS_HAND_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/time_source.h"
#include "windows/controller.h"
#include "wire/progress.h"

namespace dmi::windows {

inline WindowConfig Binary() {
  WindowConfig config;
  config.policy = PolicyKind::kBinaryAdaptive;
  return config;
}

struct Hand {
  static constexpr uint64_t kPlenty = 1ull << 40;

  explicit Hand(const WindowConfig& config = Binary())
      : controller(config, time) {}

  uint64_t Word(uint64_t counter) const {
    return wire::PackProgress(version, counter);
  }
  void At(int64_t now) { time.Advance(now - time.Now()); }
  void Install(uint16_t number, WindowPattern pattern, bool keep = false) {
    controller.InstallPending(number, std::move(pattern), keep);
    version = number;
  }
  std::optional<Admission> Poll(int64_t now, uint64_t counter,
                                uint64_t full = kPlenty, uint64_t first = 1) {
    At(now);
    return controller.Poll(Word(counter), full, first);
  }
  void See(int64_t now, uint64_t counter) { Poll(now, counter, 0, 0); }
  void Stamp(int64_t now, uint64_t counter) {
    controller.ObserveBoundary(Word(counter), now);
  }
  bool Commit(const Admission& admission, uint64_t bytes, int64_t now,
              uint64_t counter) {
    At(now);
    return controller.Commit(admission, bytes, Word(counter));
  }
  void Complete(const Admission& admission, uint64_t bytes, int64_t now,
                uint64_t counter) {
    At(now);
    controller.Complete(admission, bytes, Word(counter));
  }
  // One transfer; false where it was not admitted.
  bool Move(uint64_t bytes, int64_t issue, uint64_t issue_counter, int64_t end,
            uint64_t end_counter) {
    const auto admission = Poll(issue, issue_counter);
    if (!admission || !Commit(*admission, bytes, issue, issue_counter)) {
      return false;
    }
    Complete(*admission, bytes, end, end_counter);
    return true;
  }
  WindowInfo Info(uint32_t window = 0) const {
    return controller.State().windows.at(window);
  }
  std::vector<uint64_t> Estimates(uint32_t window = 0) const {
    return controller.timing_estimates(window);
  }

  base::ManualTime time;
  WindowController controller;
  uint16_t version = 0;
};

}  // namespace dmi::windows

#endif  // DMI_TESTS_WINDOWS_HAND_H_
