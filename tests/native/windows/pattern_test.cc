// SPDX-License-Identifier: Apache-2.0
// Patterns: what is refused, where windows lie, where the next edge is.
#include "windows/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "wire/progress.h"

namespace dmi::windows {
namespace {

std::string Refusal(uint64_t period, std::vector<Window> windows,
                    uint64_t initial = 0) {
  try {
    WindowPattern pattern(period, std::move(windows), initial);
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    return text.substr(0, text.find_first_of("= "));
  }
  return "";
}

TEST(Pattern, NamesWhatItRefuses) {
  EXPECT_EQ(Refusal(0, {{0, 1}}), "period");
  EXPECT_EQ(Refusal(4, {}), "windows");
  EXPECT_EQ(Refusal(4, {{1, 1}}), "windows");
  EXPECT_EQ(Refusal(4, {{2, 1}}), "windows");
  EXPECT_EQ(Refusal(4, {{0, 5}}), "windows");
  EXPECT_EQ(Refusal(4, {{2, 3}, {0, 1}}), "windows");
  EXPECT_EQ(Refusal(4, {{0, 2}, {1, 3}}), "windows");
  EXPECT_EQ(Refusal(4, {{0, 1}}, wire::kCounterMask + 1), "initial_counter");
  EXPECT_EQ(Refusal(4, {{0, 2}, {2, 4}}, wire::kCounterMask), "");
  EXPECT_EQ(Refusal(~uint64_t{0}, {{0, ~uint64_t{0}}}), "");
}

// Against the definition: open while n*T + begin <= counter < n*T + end.
TEST(Pattern, MatchesAndEdgesFollowTheDefinition) {
  const std::vector<std::vector<Window>> cases = {
      {{0, 1}},        {{1, 2}}, {{0, 7}}, {{6, 7}}, {{0, 2}, {2, 3}, {5, 7}},
      {{1, 3}, {4, 5}}};
  for (const auto& windows : cases) {
    const WindowPattern pattern(7, windows);
    for (uint64_t counter = 0; counter < 40; ++counter) {
      std::optional<WindowMatch> expected;
      uint64_t edge = ~uint64_t{0};
      for (uint64_t n = 0; n < 8; ++n) {
        for (uint32_t w = 0; w < windows.size(); ++w) {
          const uint64_t begin = 7 * n + windows[w].begin;
          const uint64_t end = 7 * n + windows[w].end;
          if (begin <= counter && counter < end) expected = {w, n, begin, end};
          if (begin > counter) edge = std::min(edge, begin);
          if (end > counter) edge = std::min(edge, end);
        }
      }
      EXPECT_EQ(pattern.Match(counter), expected) << counter;
      EXPECT_EQ(pattern.NextEdge(counter), edge) << counter;
    }
  }
}

TEST(Pattern, CountersReachTheLastOne) {
  const WindowPattern pattern(2, {{1, 2}});
  const uint64_t last = wire::kCounterMask;  // odd
  EXPECT_EQ(pattern.Match(last), (WindowMatch{0, last / 2, last, last + 1}));
  EXPECT_EQ(pattern.Match(last - 1), std::nullopt);
}

}  // namespace
}  // namespace dmi::windows
