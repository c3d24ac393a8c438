// SPDX-License-Identifier: Apache-2.0
// Binds windows: patterns, policies, the controller, and a clock for tests.
#include "python/windows.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/binders.h"
#include "python/convert.h"
#include "windows/controller.h"
#include "windows/link.h"
#include "windows/policy.h"
#include "wire/progress.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

using windows::Admission;
using windows::Grant;
using windows::WindowConfig;
using windows::WindowController;
using windows::WindowMatch;
using windows::WindowPattern;

constexpr const char* kKinds[] = {
    "full_available",  "half_unsafe",          "midpoint", "max_safe",
    "timing_estimate", "minimum_record_probe", "deadline"};
constexpr const char* kModes[] = {"no_pattern", "active", "suspended",
                                  "fallback"};

const char* KindName(windows::GrantKind kind) {
  return kKinds[static_cast<uint32_t>(kind)];
}

uint64_t Pack(uint64_t version, uint64_t counter) {
  if (version > 0xffff) {
    throw nb::value_error("version does not fit 16 bits");
  }
  if (counter > wire::kCounterMask) {
    throw nb::value_error("counter does not fit 48 bits");
  }
  return wire::PackProgress(static_cast<uint16_t>(version), counter);
}

WindowPattern MakePattern(
    uint64_t period, const std::vector<std::pair<uint64_t, uint64_t>>& pairs,
    uint64_t initial_counter) {
  std::vector<windows::Window> windows;
  for (const auto& [begin, end] : pairs) windows.push_back({begin, end});
  return WindowPattern(period, std::move(windows), initial_counter);
}

std::vector<std::pair<uint64_t, uint64_t>> Pairs(const WindowPattern& pattern) {
  std::vector<std::pair<uint64_t, uint64_t>> pairs;
  for (const auto& [begin, end] : pattern.windows()) {
    pairs.emplace_back(begin, end);
  }
  return pairs;
}

WindowConfig MakeConfig(const std::string& policy, uint64_t probe_interval,
                        uint64_t revalidation_interval, uint64_t threshold,
                        uint64_t reset_interval,
                        std::optional<uint64_t> initial_grant_bytes,
                        uint64_t chunk_bytes, double margin, double watchdog,
                        double max_age, std::optional<uint64_t> max_grant,
                        bool debug) {
  return {policy == "binary_adaptive" ? windows::PolicyKind::kBinaryAdaptive
                                      : windows::PolicyKind::kDeadline,
          probe_interval,
          revalidation_interval,
          threshold,
          reset_interval,
          initial_grant_bytes,
          chunk_bytes,
          margin,
          max_grant,
          Nanos(watchdog),
          Nanos(max_age),
          debug};
}

// A policy by itself; `choose` takes a window as a whole.
class Policy {
 public:
  explicit Policy(const WindowConfig& config)
      : most_(config.max_grant.value_or(windows::kUnbounded)),
        policy_(
            windows::MakePolicy(config, std::make_shared<windows::Link>())) {}

  std::optional<Grant> Choose(uint64_t occurrence, uint64_t full,
                              uint64_t first) {
    return policy_->Choose(occurrence, {full, first, most_, std::nullopt});
  }
  windows::GrantPolicy& policy() { return *policy_; }

 private:
  uint64_t most_;
  std::unique_ptr<windows::GrantPolicy> policy_;
};

// Asks a Python callable for the time; called with the GIL, before any lock of
// the controller is taken.
class CallableTime final : public base::TimeSource {
 public:
  explicit CallableTime(nb::callable clock) : clock_(std::move(clock)) {}
  int64_t Now() const override { return nb::cast<int64_t>(clock_()); }

 private:
  nb::callable clock_;
};

// A controller by itself, driven by one thread that holds the GIL.
class Controller {
 public:
  Controller(const WindowConfig& config, nb::callable clock)
      : time_(std::move(clock)), controller_(config, time_) {}
  WindowController& operator*() { return controller_; }

 private:
  CallableTime time_;
  WindowController controller_;
};

void BindPattern(nb::module_& module) {
  nb::class_<WindowMatch>(module, "WindowMatch")
      .def_ro("window_index", &WindowMatch::window_index)
      .def_ro("occurrence", &WindowMatch::occurrence)
      .def_ro("begin", &WindowMatch::begin)
      .def_ro("end", &WindowMatch::end);
  nb::class_<WindowPattern>(module, "WindowPattern")
      .def(nb::new_(&MakePattern), nb::arg("period"), nb::arg("windows"),
           nb::arg("initial_counter") = 0)
      .def_prop_ro("period", &WindowPattern::period)
      .def_prop_ro("windows", &Pairs)
      .def_prop_ro("initial_counter", &WindowPattern::initial_counter)
      .def("match", &WindowPattern::Match, nb::arg("counter"))
      .def("next_edge", &WindowPattern::NextEdge, nb::arg("counter"));
}

void BindPolicy(nb::module_& module) {
  nb::class_<WindowConfig>(module, "WindowConfig")
      .def(nb::new_(&MakeConfig), nb::kw_only(), nb::arg("policy"),
           nb::arg("minimum_record_probe_retry_interval"),
           nb::arg("timing_revalidation_retry_interval"),
           nb::arg("capacity_flush_fallback_threshold"),
           nb::arg("capacity_flush_count_reset_interval"),
           nb::arg("initial_grant_bytes").none(), nb::arg("chunk_bytes"),
           nb::arg("margin"), nb::arg("watchdog"), nb::arg("max_age"),
           nb::arg("max_grant").none(), nb::arg("debug"));
  nb::class_<Grant>(module, "Grant")
      .def_ro("byte_limit", &Grant::byte_limit)
      .def_prop_ro("kind", [](const Grant& g) { return KindName(g.kind); })
      .def_ro("timing_revalidation", &Grant::timing_revalidation);
  nb::class_<Policy>(module, "GrantPolicy")
      .def(nb::init<const WindowConfig&>(), nb::arg("config"))
      .def("choose", &Policy::Choose, nb::arg("occurrence"),
           nb::arg("full_grant_bytes"), nb::arg("first_record_bytes"))
      .def(
          "observe",
          [](Policy& p, uint64_t occurrence, uint64_t bytes, bool overran,
             const Grant& grant) {
            return p.policy().Observe(occurrence, bytes, overran, grant);
          },
          nb::arg("occurrence"), nb::arg("bytes"), nb::arg("overran"),
          nb::arg("grant"))
      .def(
          "observe_timing_estimate",
          [](Policy& p, uint64_t measured, uint64_t estimate) {
            p.policy().ObserveTimingEstimate(measured, estimate);
          },
          nb::arg("measured_bytes"), nb::arg("estimate_bytes"));
}

void BindState(nb::module_& module) {
  using windows::WindowInfo;
  using windows::WindowState;
  nb::class_<WindowInfo>(module, "WindowInfo")
      .def_ro("length_ns", &WindowInfo::length_ns)
      .def_ro("max_safe", &WindowInfo::max_safe)
      .def_ro("min_unsafe", &WindowInfo::min_unsafe)
      .def_ro("estimate", &WindowInfo::estimate)
      .def_ro("last_grant", &WindowInfo::last_grant)
      .def_ro("occurrences", &WindowInfo::occurrences)
      .def_ro("overruns", &WindowInfo::overruns);
  nb::class_<WindowState>(module, "WindowState")
      .def_prop_ro("mode",
                   [](const WindowState& s) {
                     return kModes[static_cast<uint32_t>(s.mode)];
                   })
      .def_ro("version", &WindowState::version)
      .def_ro("pattern", &WindowState::pattern)
      .def_ro("windows", &WindowState::windows)
      .def_ro("link_bytes_per_second", &WindowState::link_bytes_per_second);
}

void BindController(nb::module_& module) {
  using Attempt = WindowController::Attempt;
  nb::class_<Admission>(module, "Admission")
      .def_ro("version", &Admission::version)
      .def_ro("match", &Admission::match)
      .def_ro("grant", &Admission::grant);
  nb::class_<Attempt>(module, "Attempt")
      .def_ro("occurrence", &Attempt::occurrence)
      .def_ro("bytes", &Attempt::bytes)
      .def_ro("overran", &Attempt::overran)
      .def_prop_ro("kind", [](const Attempt& a) { return KindName(a.kind); });
  nb::class_<Controller>(module, "WindowController",
                         "`clock` returns nanoseconds that never go back.")
      .def(nb::init<const WindowConfig&, nb::callable>(), nb::arg("config"),
           nb::arg("clock"))
      .def(
          "install_pending",
          [](Controller& c, uint16_t version, const WindowPattern& pattern,
             bool keep_learning) {
            (*c).InstallPending(version, pattern, keep_learning);
          },
          nb::arg("version"), nb::arg("pattern"),
          nb::arg("keep_learning") = false)
      .def(
          "cancel_pending",
          [](Controller& c, uint16_t version) { (*c).CancelPending(version); },
          nb::arg("version"))
      .def("reset_for_version_reuse",
           [](Controller& c) { (*c).ResetForVersionReuse(); })
      .def("suspend", [](Controller& c) { (*c).Suspend(); })
      .def(
          "limit_grants",
          [](Controller& c, std::optional<uint64_t> bytes) {
            (*c).LimitGrants(bytes);
          },
          nb::arg("bytes").none())
      .def(
          "observe_boundary",
          [](Controller& c, uint64_t progress, int64_t time_ns) {
            (*c).ObserveBoundary(progress, time_ns);
          },
          nb::arg("progress"), nb::arg("time_ns"))
      .def(
          "poll",
          [](Controller& c, uint64_t progress, uint64_t full, uint64_t first) {
            return (*c).Poll(progress, full, first);
          },
          nb::arg("progress"), nb::arg("full_grant_bytes"),
          nb::arg("first_record_bytes"))
      .def(
          "commit",
          [](Controller& c, const Admission& admission, uint64_t bytes,
             uint64_t progress) {
            return (*c).Commit(admission, bytes, progress);
          },
          nb::arg("admission"), nb::arg("bytes"), nb::arg("progress"))
      .def(
          "complete",
          [](Controller& c, const Admission& admission, uint64_t bytes,
             uint64_t progress) { (*c).Complete(admission, bytes, progress); },
          nb::arg("admission"), nb::arg("bytes"), nb::arg("progress"))
      .def("note_observation_gap",
           [](Controller& c) { (*c).NoteObservationGap(); })
      .def(
          "record_capacity_flush",
          [](Controller& c, uint64_t progress) {
            return (*c).RecordCapacityFlush(progress);
          },
          nb::arg("progress"))
      .def_prop_ro("mode",
                   [](Controller& c) {
                     return kModes[static_cast<uint32_t>((*c).mode())];
                   })
      .def("state", [](Controller& c) { return (*c).State(); })
      .def("stalled", [](Controller& c) { return (*c).Stalled(); })
      .def("next_edge", [](Controller& c) { return (*c).NextEdge(); })
      .def(
          "timing_estimates",
          [](Controller& c, uint32_t window) {
            return (*c).timing_estimates(window);
          },
          nb::arg("window_index"))
      .def(
          "attempts",
          [](Controller& c, uint32_t window) { return (*c).attempts(window); },
          nb::arg("window_index"));
}

}  // namespace

void BindWindows(nb::module_& module) {
  module.def("pack_progress", &Pack, nb::arg("version"), nb::arg("counter"));
  module.def(
      "unpack_progress",
      [](uint64_t word) {
        return std::pair(wire::VersionOf(word), wire::CounterOf(word));
      },
      nb::arg("word"));
  nb::class_<ManualClock>(module, "ManualClock",
                          "A clock that stands until it is moved.")
      .def(nb::init<>())
      .def(
          "advance",
          [](ManualClock& c, int64_t nanos) {
            if (nanos < 0) throw nb::value_error("a clock does not go back");
            c.time->Advance(nanos);
          },
          nb::arg("ns"))
      .def("now", [](const ManualClock& c) { return c.time->Now(); });
  BindPattern(module);
  BindPolicy(module);
  BindState(module);
  BindController(module);
}

}  // namespace dmi::python
