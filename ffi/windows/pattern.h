// SPDX-License-Identifier: Apache-2.0
// A pattern: which boundaries of a recurring period transfers may run between.
#ifndef DMI_WINDOWS_PATTERN_H_
#define DMI_WINDOWS_PATTERN_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace dmi::windows {

// Half-open, in boundaries from the start of a period.
struct Window {
  uint64_t begin;
  uint64_t end;
  friend bool operator==(const Window&, const Window&) = default;
};

// One occurrence of one window; begin and end are absolute counters.
struct WindowMatch {
  uint32_t window_index;
  uint64_t occurrence;
  uint64_t begin;
  uint64_t end;
  friend bool operator==(const WindowMatch&, const WindowMatch&) = default;
};

// Immutable.
class WindowPattern {
 public:
  // Throws std::invalid_argument unless period > 0, windows are there, sorted,
  // do not overlap and lie in the period, and initial_counter < 2^48.
  WindowPattern(uint64_t period, std::vector<Window> windows,
                uint64_t initial_counter = 0);

  // The window that is open at this counter.
  std::optional<WindowMatch> Match(uint64_t counter) const;
  // The first counter after this one at which a window opens or closes.
  uint64_t NextEdge(uint64_t counter) const;

  uint64_t period() const { return period_; }
  const std::vector<Window>& windows() const { return windows_; }
  uint64_t initial_counter() const { return initial_counter_; }

  friend bool operator==(const WindowPattern&, const WindowPattern&) = default;

 private:
  uint64_t period_;
  std::vector<Window> windows_;
  uint64_t initial_counter_;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_PATTERN_H_
