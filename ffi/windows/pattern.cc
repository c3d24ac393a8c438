// SPDX-License-Identifier: Apache-2.0
// Patterns: checks, and the arithmetic of periods.
#include "windows/pattern.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "wire/progress.h"

namespace dmi::windows {
namespace {

[[noreturn]] void Refuse(const auto&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

void Check(uint64_t period, const std::vector<Window>& windows,
           uint64_t initial_counter) {
  if (period == 0) Refuse("period=0 holds no boundary; use at least 1.");
  if (windows.empty()) Refuse("windows=[] is empty; name at least one window.");
  uint64_t after = 0;
  for (const auto& [begin, end] : windows) {
    if (begin >= end || end > period) {
      Refuse("windows holds (", begin, ", ", end,
             "); use 0 <= begin < end <= period=", period, ".");
    }
    if (begin < after) {
      Refuse("windows holds (", begin, ", ", end,
             "), which begins before the one in front of it ends; sort them, "
             "without overlap.");
    }
    after = end;
  }
  if (initial_counter > wire::kCounterMask) {
    Refuse("initial_counter=", initial_counter,
           " does not fit 48 bits; use less than 2**48.");
  }
}

}  // namespace

WindowPattern::WindowPattern(uint64_t period, std::vector<Window> windows,
                             uint64_t initial_counter)
    : period_(period),
      windows_(std::move(windows)),
      initial_counter_(initial_counter) {
  Check(period_, windows_, initial_counter_);
}

std::optional<WindowMatch> WindowPattern::Match(uint64_t counter) const {
  const uint64_t occurrence = counter / period_;
  const uint64_t phase = counter % period_;
  const uint64_t start = counter - phase;
  // The last window that begins at or before the phase.
  const auto after = std::upper_bound(
      windows_.begin(), windows_.end(), phase,
      [](uint64_t value, const Window& w) { return value < w.begin; });
  if (after == windows_.begin()) return std::nullopt;
  const Window& window = *(after - 1);
  if (phase >= window.end) return std::nullopt;
  return WindowMatch{static_cast<uint32_t>(after - 1 - windows_.begin()),
                     occurrence, start + window.begin, start + window.end};
}

uint64_t WindowPattern::NextEdge(uint64_t counter) const {
  const uint64_t phase = counter % period_;
  const uint64_t start = counter - phase;
  const auto window = std::upper_bound(
      windows_.begin(), windows_.end(), phase,
      [](uint64_t value, const Window& w) { return value < w.end; });
  if (window == windows_.end()) {
    return start + period_ + windows_.front().begin;
  }
  return start + (phase < window->begin ? window->begin : window->end);
}

}  // namespace dmi::windows
