// SPDX-License-Identifier: Apache-2.0
// What a controller keeps: the current version, those to come, and the mode.
#ifndef DMI_WINDOWS_CONTROLLER_IMPL_H_
#define DMI_WINDOWS_CONTROLLER_IMPL_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/time_source.h"
#include "windows/controller.h"
#include "windows/evidence.h"
#include "windows/fallback.h"
#include "windows/history.h"
#include "windows/link.h"
#include "windows/policy.h"

namespace dmi::windows {

// Attempts and estimates kept for tests.
inline constexpr size_t kKept = 65536;

// One window of the current version.
struct WindowEntry {
  std::unique_ptr<GrantPolicy> policy;
  int64_t length_ns = 0;
  uint64_t last_grant = 0;
  uint64_t occurrences = 0;
  uint64_t overruns = 0;
  std::optional<uint64_t> last_occurrence;  // in which something was granted
};

struct Version {
  Version(uint16_t number_, WindowPattern pattern_, bool keep_learning_)
      : number(number_),
        pattern(std::move(pattern_)),
        keep_learning(keep_learning_),
        evidence(pattern),
        entries(pattern.windows().size()) {}

  uint16_t number;
  WindowPattern pattern;
  bool keep_learning;
  Evidence evidence;
  std::vector<WindowEntry> entries;
};

struct InFlight {
  Admission admission;
  uint64_t bytes;
  int64_t issue_ns;
  bool clean;         // an overrun is evidence
  bool timed = true;  // and so is the time it took
};

struct WindowController::Impl {
  Impl(const WindowConfig& config_, const base::TimeSource& time_)
      : config(config_), time(time_), fallback(config_) {}

  void Say(const auto&... parts) const {
    if (config.debug) Warn(parts...);
  }
  void Warn(const auto&... parts) const {
    std::ostringstream text;
    (text << ... << parts) << '\n';
    std::fputs(("jax_dmi windows: " + text.str()).c_str(), stderr);
  }
  void WarnOnce(bool& said, const char* text) const {
    if (!std::exchange(said, true)) Warn(text);
  }

  void SetMode(Mode next) { mode.store(next, std::memory_order_relaxed); }
  bool In(Mode which) const {
    return mode.load(std::memory_order_relaxed) == which;
  }

  // Makes a pending version current, if it is one.
  void SeeVersion(uint16_t number);
  void TakeOver(Version& next);
  // What an occurrence may still carry, as far as limits go.
  uint64_t MostNow(const WindowEntry& entry, const WindowMatch& match) const;
  void Learn(const std::optional<Evidence::Closed>& closed);
  void LearnTransfer(WindowEntry& entry, const InFlight& done, int64_t now,
                     bool overran);

  const WindowConfig config;
  const base::TimeSource& time;
  // Written under `mutex`, read without it.
  std::atomic<Mode> mode{Mode::kNoPattern};

  mutable base::Mutex mutex;
  // ---- Everything below is read and changed under it. ----
  std::deque<Version> pending;
  std::optional<Version> current;
  // Set while asked for: the newest version that the suspension ends.
  std::optional<uint16_t> suspend_through;
  std::optional<uint64_t> most;  // LimitGrants
  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::optional<InFlight> in_flight;
  Fallback fallback;
  int64_t activated_ns = 0;
  bool said_stall = false;
  bool said_crossing = false;

  History<std::pair<uint32_t, Attempt>> attempts{kKept};
  History<std::pair<uint32_t, uint64_t>> estimates{kKept};
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_CONTROLLER_IMPL_H_
