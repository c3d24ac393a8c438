// SPDX-License-Identifier: Apache-2.0
// Binds the capture of one device: control block, ring and drain together.
#include "drain/drain.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/atomics.h"
#include "program/boundary.h"
#include "program/site_table.h"
#include "python/binders.h"
#include "python/convert.h"
#include "python/windows.h"
#include "ring/control.h"
#include "transfer/simulated_link.h"

#if defined(DMI_CUDA)
#include "ring/cuda_ring.h"
#include "transfer/cuda_link.h"
#include "transfer/cuda_rate.h"
#endif

namespace nb = nanobind;

namespace dmi::python {
namespace {

constexpr const char* kReasons[wire::kLossReasons] = {
    "overflow", "stalled", "too_large", "closed", "forked"};

nb::dict ByReason(const uint64_t lost[wire::kLossReasons]) {
  nb::dict result;
  for (uint32_t i = 0; i < wire::kLossReasons; ++i) {
    if (lost[i] > 0) result[kReasons[i]] = lost[i];
  }
  return result;
}

// Losses on the control block of a device, which outlives every ring.
nb::dict ControlLosses(int64_t device) {
  const ring::Control* control = ring::FindControl(device);
  return control == nullptr ? nb::dict() : ByReason(control->Lost().data());
}

// `platform` as JAX calls it.
ring::Control& ControlNamed(const std::string& platform, int32_t ordinal,
                            int64_t device) {
#if defined(DMI_CUDA_EMULATED)
  constexpr bool kEmulated = true;
#else
  constexpr bool kEmulated = false;
#endif
  const bool host = platform == "cpu" && !kEmulated;
  return ring::ControlOf(host ? ring::Platform::kHost : ring::Platform::kCuda,
                         ordinal, device);
}

std::shared_ptr<transfer::Link> LinkTo([[maybe_unused]] const ring::Ring& ring,
                                       [[maybe_unused]] int32_t ordinal) {
#if defined(DMI_CUDA)
  if (dynamic_cast<const ring::CudaRing*>(&ring) != nullptr) {
    return std::make_shared<transfer::CudaLink>(ordinal);
  }
#endif
  return std::make_shared<transfer::HostLink>();
}

double CudaCopyRate([[maybe_unused]] uint64_t bytes,
                    [[maybe_unused]] uint64_t times,
                    [[maybe_unused]] bool to_host,
                    [[maybe_unused]] int32_t ordinal) {
#if defined(DMI_CUDA)
  if (bytes == 0) throw std::invalid_argument("cuda_copy_rate: bytes is 0");
  const nb::gil_scoped_release release;
  return transfer::CopyRate(ordinal, bytes, times, to_host);
#else
  throw std::runtime_error("cuda_copy_rate: there is no CUDA in this build");
#endif
}

// Everything of one device and run. The control thread calls what changes it;
// counters may be read by any thread.
class Capture {
 public:
  Capture(const std::string& platform, int32_t ordinal, int64_t device,
          uint64_t ring_bytes, uint32_t ring_slots, const std::string& overflow,
          double stall_seconds, bool checksum, uint64_t batch_bytes,
          uint32_t batch_records, double linger_seconds,
          std::shared_ptr<batch::BatchQueue> queue, uint64_t staging_bytes,
          std::shared_ptr<transfer::SimulatedLink> link,
          const ManualClock* clock, const windows::WindowConfig* windows)
      : clock_(clock ? clock->time : nullptr),
        control_(ControlNamed(platform, ordinal, device)) {
    ring::RingOptions ring;
    ring.bytes = ring_bytes;
    ring.slots = ring_slots;
    ring.overflow =
        overflow == "drop" ? wire::Overflow::kDrop : wire::Overflow::kBlock;
    ring.stall_nanos = Nanos(stall_seconds);
    ring.checksum = checksum;
    ring.wake_records = batch_records;
    ring.wake_bytes = batch_bytes;
    if (clock_) ring.clock = &clock_->word();
    ring_ = control_.MakeRing(ring);
    drain::DrainParts parts;
    parts.link = link ? std::move(link) : LinkTo(*ring_, ordinal);
    if (clock_) parts.time = clock_;
    if (windows != nullptr) parts.windows = *windows;
    parts.progress = &control_.ProgressOf(*ring_);
    drain_ = std::make_unique<drain::Drain>(
        ring_, device,
        drain::DrainOptions{batch_bytes, batch_records, Nanos(linger_seconds),
                            staging_bytes},
        std::move(queue), std::move(parts));
  }

  // Programs must not find the ring when it is gone.
  ~Capture() { Stop(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Lets records in. Without a thread the caller takes turns itself.
  void Start(bool thread) {
    lost_before_ = control_.Lost();
    if (thread) drain_->Start();
    control_.Install(ring_);
  }

  // Sets the step of programs of several devices from the host; only while no
  // such program can be in flight.
  void SetMultiDeviceStep(int64_t step, bool has_step, bool recording) {
    control_.SetAmbientStep(wire::kMultiDevice, step,
                            (has_step ? wire::kAmbientHasStep : 0u) |
                                (recording ? 0u : wire::kAmbientPaused));
  }

  // Sets gates of every kind from the host; only while no program can be in
  // flight that the change could overtake.
  void SetGates(const std::vector<uint32_t>& indices, bool closed) {
    for (const uint32_t index : indices) {
      for (uint32_t kind = 0; kind < wire::kProgramKinds; ++kind) {
        control_.SetGate({index, closed}, static_cast<wire::ProgramKind>(kind));
      }
    }
  }

  // Nothing is cut between the two, once the first has returned.
  void Pause() { drain_->Pause(); }
  void Resume() { drain_->Resume(); }

  // No producer is left, and every record is queued, once this returns.
  void Stop() {
    control_.Uninstall(*ring_);
    drain_->Stop();
  }

  uint64_t Seal(double seconds) { return drain_->Seal(Nanos(seconds)); }

  drain::Drain& drain() { return *drain_; }
  const drain::Drain& drain() const { return *drain_; }

  // These ask the device, which may be waiting for a sink that runs Python.
  uint64_t Reserved() const {
    const nb::gil_scoped_release release;
    return drain_->reserved();
  }

  // Losses since Start, by reason, over all sites.
  nb::dict Lost() const {
    const ring::Losses lost = LossesSinceStart();
    return ByReason(lost.data());
  }

  // {site id: (records that took a sequence, {reason: lost})}
  nb::dict BySite() const {
    const std::vector<uint64_t> sites = program::SiteTable::Get().Sites();
    const auto counters = [&] {
      const nb::gil_scoped_release release;
      return ring_->Counters(0, sites.size());
    }();
    nb::dict result;
    for (size_t site = 0; site < sites.size(); ++site) {
      uint64_t any = counters[site].recorded;
      for (const uint64_t lost : counters[site].lost) any += lost;
      if (any == 0) continue;
      result[nb::cast(sites[site])] = nb::make_tuple(
          counters[site].recorded, ByReason(counters[site].lost));
    }
    return result;
  }

  nb::ndarray<nb::numpy, int64_t, nb::ndim<2>> Boundaries() const {
    const auto stamps = program::ReadBoundaries(ring_->header(), 0);
    auto* rows = new int64_t[stamps.size() * 3];
    for (size_t i = 0; i < stamps.size(); ++i) {
      rows[3 * i] = static_cast<int64_t>(wire::VersionOf(stamps[i].progress));
      rows[3 * i + 1] =
          static_cast<int64_t>(wire::CounterOf(stamps[i].progress));
      rows[3 * i + 2] = ring_->UtcNanos(stamps[i].time_ns);
    }
    nb::capsule owner(
        rows, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
    return {rows, {stamps.size(), 3}, owner};
  }

  int64_t Turn() {
    const int64_t nanos = drain_->Turn();
    if (nanos < 0) throw std::runtime_error(drain_->failure().text());
    return nanos;
  }

  // ---- Windows: only while no program can be in flight, but for State ----

  // The pattern is in force from here on, its counter at `counter`.
  void InstallPattern(uint16_t version, const windows::WindowPattern& pattern,
                      uint64_t counter, bool keep_learning) {
    controller().InstallPending(version, pattern, keep_learning);
    SetProgress(version, counter);
  }
  // No pattern is in force until the next one is installed. Returns the
  // counter.
  uint64_t SuspendWindows() {
    controller().Suspend();
    const uint64_t counter =
        wire::CounterOf(program::LoadAcquire(control_.ProgressOf(*ring_)));
    SetProgress(0, counter);
    return counter;
  }
  // Versions may be used again; nothing may be moving.
  void ResetVersions() {
    controller().ResetForVersionReuse();
    SetProgress(0, 0);
  }
  windows::WindowController& controller() { return *drain_->controller(); }

  void AdvanceBoundary() { control_.AdvanceBoundary(); }

  nb::list Transfers() const {
    static constexpr const char* kKinds[] = {"batch", "forced", "window"};
    nb::list result;
    for (const drain::Transfer& t : drain_->transfers().Read()) {
      result.append(nb::make_tuple(t.begin_ns, t.end_ns, t.bytes,
                                   kKinds[static_cast<uint32_t>(t.kind)],
                                   t.version, t.window_index, t.occurrence,
                                   t.begin_counter, t.end_counter));
    }
    return result;
  }

 private:
  ring::Losses LossesSinceStart() const {
    const nb::gil_scoped_release release;
    ring::Losses lost = control_.Lost();
    for (uint32_t i = 0; i < wire::kLossReasons; ++i)
      lost[i] -= lost_before_[i];
    const size_t sites = program::SiteTable::Get().Sites().size();
    const auto add = [&](const wire::SiteCounters& counters) {
      for (uint32_t i = 0; i < wire::kLossReasons; ++i) {
        lost[i] += counters.lost[i];
      }
    };
    for (const auto& counters : ring_->Counters(0, sites)) add(counters);
    add(ring_->Counters(program::SiteTable::kSharedIndex, 1).front());
    return lost;
  }

  void SetProgress(uint16_t version, uint64_t counter) {
    control_.SetProgress(*ring_, wire::PackProgress(version, counter));
  }

  const std::shared_ptr<base::ManualTime> clock_;  // the ring points into it
  ring::Control& control_;
  std::shared_ptr<ring::Ring> ring_;
  std::unique_ptr<drain::Drain> drain_;
  ring::Losses lost_before_{};
};

}  // namespace

void BindDrain(nb::module_& module) {
  nb::class_<Capture>(module, "Capture",
                      "Ring and drain of one device for one run.")
      .def(nb::init<const std::string&, int32_t, int64_t, uint64_t, uint32_t,
                    const std::string&, double, bool, uint64_t, uint32_t,
                    double, std::shared_ptr<batch::BatchQueue>, uint64_t,
                    std::shared_ptr<transfer::SimulatedLink>,
                    const ManualClock*, const windows::WindowConfig*>(),
           nb::kw_only(), nb::arg("platform"), nb::arg("ordinal"),
           nb::arg("device"), nb::arg("ring_bytes"), nb::arg("ring_slots"),
           nb::arg("overflow"), nb::arg("stall_seconds"), nb::arg("checksum"),
           nb::arg("batch_bytes"), nb::arg("batch_records"),
           nb::arg("linger_seconds"), nb::arg("queue"),
           nb::arg("staging_bytes") = 0, nb::arg("link").none() = nb::none(),
           nb::arg("clock").none() = nb::none(),
           nb::arg("windows").none() = nb::none())
      .def("start", &Capture::Start, nb::arg("thread") = true)
      .def("turn", &Capture::Turn,
           "Does what is due and returns how many nanoseconds may pass until "
           "the "
           "next turn; for captures without a thread.")
      .def("advance_boundary", &Capture::AdvanceBoundary)
      .def("install_pattern", &Capture::InstallPattern, nb::arg("version"),
           nb::arg("pattern"), nb::arg("counter"), nb::arg("keep_learning"))
      .def("suspend_windows", &Capture::SuspendWindows)
      .def("reset_versions", &Capture::ResetVersions)
      .def(
          "limit_grants",
          [](Capture& c, std::optional<uint64_t> bytes) {
            c.controller().LimitGrants(bytes);
          },
          nb::arg("bytes").none())
      .def("window_state", [](Capture& c) { return c.controller().State(); })
      .def("stop", &Capture::Stop, nb::call_guard<nb::gil_scoped_release>())
      .def("set_multi_device_step", &Capture::SetMultiDeviceStep,
           nb::arg("step"), nb::arg("has_step"), nb::arg("recording"))
      .def("set_gates", &Capture::SetGates, nb::arg("indices"),
           nb::arg("closed"))
      .def("pause", &Capture::Pause, nb::call_guard<nb::gil_scoped_release>())
      .def("resume", &Capture::Resume)
      .def("seal", &Capture::Seal, nb::arg("seconds"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Queues every record reserved before the call; returns the sequence "
           "after the last one that was.")
      .def_prop_ro("reserved", &Capture::Reserved)
      .def_prop_ro("queued",
                   [](const Capture& c) { return c.drain().queued(); })
      .def_prop_ro("pinned",
                   [](const Capture& c) { return c.drain().pinned(); })
      .def_prop_ro("failure",
                   [](const Capture& c) {
                     const std::string text = c.drain().failure().text();
                     return text.empty() ? c.drain().ring().failure() : text;
                   })
      .def_prop_ro(
          "clock_offset",
          [](const Capture& c) {
            return c.drain().ring().header().clock_offset;
          },
          "UTC minus the clock of the ring, in ns.")
      .def_prop_ro("device",
                   [](const Capture& c) { return c.drain().device(); })
      .def("lost", &Capture::Lost)
      .def("by_site", &Capture::BySite)
      .def("boundaries", &Capture::Boundaries)
      .def("transfers", &Capture::Transfers);

  nb::class_<transfer::SimulatedLink>(module, "SimulatedLink")
      .def(
          "__init__",
          [](transfer::SimulatedLink* self, double bytes_per_second,
             double latency_seconds, double jitter, uint64_t seed,
             const ManualClock* clock) {
            std::shared_ptr<const base::TimeSource> time;
            if (clock != nullptr) {
              time = clock->time;
            } else {
              time = std::make_shared<base::SystemTime>();
            }
            new (self) transfer::SimulatedLink(
                {bytes_per_second, Nanos(latency_seconds), jitter, seed}, time);
          },
          nb::kw_only(), nb::arg("bytes_per_second"),
          nb::arg("latency_seconds"), nb::arg("jitter"), nb::arg("seed"),
          nb::arg("clock").none())
      .def("set_rate", &transfer::SimulatedLink::SetRate,
           nb::arg("bytes_per_second"))
      .def("fail_after", &transfer::SimulatedLink::FailAfter,
           nb::arg("transfers"));

  module.def(
      "cuda_copy_rate", &CudaCopyRate, nb::arg("bytes"), nb::arg("times"),
      nb::arg("to_host") = true, nb::arg("ordinal") = 0,
      "Bytes per second of copies from a CUDA device, to pinned memory or"
      " to the device.");
  module.def("control_losses", &ControlLosses, nb::arg("device"),
             "Records of a device that fired while it had no ring, by reason.");
  module.def(
      "deselect",
      [](const std::string& platform, int32_t ordinal, int64_t device,
         bool deselected) {
        ControlNamed(platform, ordinal, device).Deselect(deselected);
      },
      nb::arg("platform"), nb::arg("ordinal"), nb::arg("device"),
      nb::arg("deselected"),
      "Records of a deselected device are neither kept nor counted.");
}

}  // namespace dmi::python
