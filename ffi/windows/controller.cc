// SPDX-License-Identifier: Apache-2.0
// Versions, admissions and modes.
#include "windows/controller.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "windows/controller_impl.h"
#include "wire/progress.h"

namespace dmi::windows {
namespace {

// The first counter from this one on at which a window opens; a window ends
// here.
uint64_t NextOpening(const WindowPattern& pattern, uint64_t end) {
  return pattern.Match(end) ? end : pattern.NextEdge(end);
}

}  // namespace

void WindowController::Impl::SeeVersion(uint16_t number) {
  const auto next =
      std::find_if(pending.begin(), pending.end(),
                   [&](const Version& v) { return v.number == number; });
  if (next == pending.end()) return;
  Version version = std::move(*next);
  pending.erase(pending.begin(), next + 1);
  TakeOver(version);
  if (current && current->evidence.gap()) version.evidence.NoteGap();
  current = std::move(version);
  attempts = decltype(attempts)(kKept);
  estimates = decltype(estimates)(kKept);
  if (suspend_through && number > *suspend_through) suspend_through.reset();
  fallback.StartVersion();
  if (!In(Mode::kFallback)) SetMode(Mode::kActive);
  Say("version ", number, " is current");
}

// What the current version has learned, if the next one asks for it and has the
// same windows; otherwise it starts with nothing.
void WindowController::Impl::TakeOver(Version& next) {
  const bool keep = next.keep_learning && current &&
                    current->pattern.period() == next.pattern.period() &&
                    current->pattern.windows() == next.pattern.windows();
  for (size_t i = 0; i < next.entries.size(); ++i) {
    if (keep) {
      next.entries[i] = std::move(current->entries[i]);
      next.entries[i].last_occurrence.reset();
      next.entries[i].policy->Restart();
    } else {
      next.entries[i].policy = MakePolicy(config, link);
    }
  }
}

uint64_t WindowController::Impl::MostNow(const WindowEntry& entry,
                                         const WindowMatch& match) const {
  const uint64_t whole = std::min(most.value_or(kUnbounded),
                                  config.max_grant.value_or(kUnbounded));
  if (entry.last_occurrence != match.occurrence) return whole;
  return whole - std::min(whole, entry.last_grant);
}

void WindowController::Impl::Learn(
    const std::optional<Evidence::Closed>& closed) {
  if (!closed || !In(Mode::kActive)) return;
  WindowEntry& entry = current->entries[closed->window_index];
  entry.length_ns = closed->length_ns;
  entry.policy->ObserveLength(closed->length_ns);
  if (!closed->estimate) return;
  entry.policy->ObserveTimingEstimate(closed->bytes, *closed->estimate);
  estimates.Add({closed->window_index, *closed->estimate});
}

void WindowController::Impl::LearnTransfer(WindowEntry& entry,
                                           const InFlight& done, int64_t now,
                                           bool overran) {
  const Admission& admission = done.admission;
  const WindowMatch& match = admission.match;
  if (overran) ++entry.overruns;
  attempts.Add({match.window_index,
                {match.occurrence, done.bytes, overran, admission.grant.kind}});
  // A transfer that fitted counts wherever it started.
  const bool counts = !overran || done.clean;
  if (counts && entry.policy->Observe(match.occurrence, done.bytes, overran,
                                      admission.grant)) {
    WarnOnce(said_stall,
             "records are too large to search further; grants stay at the size "
             "that fitted");
  }
  if (done.timed && now > done.issue_ns) {
    link->Observe(done.bytes, now - done.issue_ns);
  }
}

WindowController::WindowController(const WindowConfig& config,
                                   const base::TimeSource& time)
    : impl_(std::make_unique<Impl>(config, time)) {}

WindowController::~WindowController() = default;

void WindowController::InstallPending(uint16_t version, WindowPattern pattern,
                                      bool keep_learning) {
  std::lock_guard lock(impl_->mutex);
  const auto& pending = impl_->pending;
  const uint16_t last = !pending.empty() ? pending.back().number
                        : impl_->current ? impl_->current->number
                                         : uint16_t{0};
  if (version <= last) {
    throw std::logic_error("version=" + std::to_string(version) +
                           " is not above " + std::to_string(last) +
                           ", the newest one installed; versions grow");
  }
  impl_->pending.emplace_back(version, std::move(pattern), keep_learning);
}

void WindowController::CancelPending(uint16_t version) {
  std::lock_guard lock(impl_->mutex);
  std::erase_if(impl_->pending,
                [&](const Version& v) { return v.number == version; });
}

void WindowController::ResetForVersionReuse() {
  std::lock_guard lock(impl_->mutex);
  impl_->pending.clear();
  impl_->current.reset();
  impl_->in_flight.reset();
  impl_->suspend_through.reset();
  impl_->fallback = Fallback(impl_->config);
  impl_->SetMode(Mode::kNoPattern);
}

void WindowController::Suspend() {
  std::lock_guard lock(impl_->mutex);
  const auto& pending = impl_->pending;
  impl_->suspend_through = !pending.empty() ? pending.back().number
                           : impl_->current ? impl_->current->number
                                            : uint16_t{0};
}

void WindowController::LimitGrants(std::optional<uint64_t> bytes) {
  std::lock_guard lock(impl_->mutex);
  impl_->most = bytes;
}

void WindowController::ObserveBoundary(uint64_t progress, int64_t time_ns) {
  std::lock_guard lock(impl_->mutex);
  const uint16_t version = wire::VersionOf(progress);
  impl_->SeeVersion(version);
  if (!impl_->current || impl_->current->number != version) return;
  impl_->Learn(
      impl_->current->evidence.Stamp(wire::CounterOf(progress), time_ns));
}

std::optional<Admission> WindowController::Poll(uint64_t progress,
                                                uint64_t full_grant_bytes,
                                                uint64_t first_record_bytes) {
  const int64_t now = impl_->time.Now();
  const uint16_t version = wire::VersionOf(progress);
  const uint64_t counter = wire::CounterOf(progress);
  std::lock_guard lock(impl_->mutex);
  Impl& self = *impl_;
  if (version == 0 && self.suspend_through && self.In(Mode::kActive)) {
    self.SetMode(Mode::kSuspended);
    self.Say("suspended");
  }
  const uint16_t before = self.current ? self.current->number : uint16_t{0};
  self.SeeVersion(version);
  if (!self.current || self.current->number != version) return std::nullopt;
  if (version != before) self.activated_ns = now;
  Evidence& evidence = self.current->evidence;
  if (evidence.counter() && counter < *evidence.counter()) return std::nullopt;
  if (self.fallback.Pass(counter, self.current->pattern.period(),
                         self.In(Mode::kFallback))) {
    self.SetMode(Mode::kActive);
    self.Say("active again after fallback, at ", counter);
  }
  self.Learn(evidence.Sight(counter, now, false));
  const auto match = self.current->pattern.Match(counter);
  if (!match || !self.In(Mode::kActive) || self.in_flight) return std::nullopt;
  WindowEntry& entry = self.current->entries[match->window_index];
  Offer offer{full_grant_bytes, first_record_bytes, self.MostNow(entry, *match),
              std::nullopt};
  if (entry.policy->in_chunks()) {
    const auto opened = evidence.OpenedAt(*match);
    if (!opened) return std::nullopt;
    offer.elapsed_ns = now - *opened;
  } else if (entry.last_occurrence == match->occurrence) {
    return std::nullopt;
  }
  const auto grant = entry.policy->Choose(match->occurrence, offer);
  if (!grant) return std::nullopt;
  return Admission{version, *match, *grant};
}

bool WindowController::Commit(const Admission& admission, uint64_t bytes,
                              uint64_t progress) {
  const int64_t now = impl_->time.Now();
  const uint64_t counter = wire::CounterOf(progress);
  std::lock_guard lock(impl_->mutex);
  Impl& self = *impl_;
  if (!self.In(Mode::kActive) || self.in_flight || !self.current ||
      self.current->number != admission.version ||
      wire::VersionOf(progress) != admission.version ||
      bytes > admission.grant.byte_limit) {
    return false;
  }
  Evidence& evidence = self.current->evidence;
  if (evidence.counter() && counter < *evidence.counter()) return false;
  self.Learn(evidence.Sight(counter, now, false));
  const WindowMatch& match = admission.match;
  if (self.current->pattern.Match(counter) != match) return false;
  WindowEntry& entry = self.current->entries[match.window_index];
  if (entry.last_occurrence != match.occurrence) {
    entry.last_occurrence = match.occurrence;
    entry.last_grant = 0;
    ++entry.occurrences;
  } else if (!entry.policy->in_chunks()) {
    return false;
  }
  entry.last_grant += bytes;
  self.in_flight = {admission, bytes, now, evidence.Clean(match)};
  self.Say("version ", admission.version, " window ", match.window_index,
           " occurrence ", match.occurrence, ": ", bytes, " bytes issued at ",
           counter);
  return true;
}

void WindowController::Complete(const Admission& admission, uint64_t bytes,
                                uint64_t progress) {
  const int64_t now = impl_->time.Now();
  const uint64_t counter = wire::CounterOf(progress);
  std::lock_guard lock(impl_->mutex);
  Impl& self = *impl_;
  if (!self.in_flight ||
      self.in_flight->admission.version != admission.version ||
      self.in_flight->admission.match != admission.match) {
    return;
  }
  InFlight done = *std::exchange(self.in_flight, std::nullopt);
  done.bytes = bytes;
  if (!self.current || self.current->number != admission.version ||
      wire::VersionOf(progress) != admission.version) {
    self.Say("version ", admission.version, " ended at ", counter,
             ": of no use, the version has changed");
    return;
  }
  Evidence& evidence = self.current->evidence;
  const WindowMatch& match = admission.match;
  const bool overran = counter >= match.end;
  const bool away = evidence.gap();
  if (bytes > 0) {
    self.Learn(evidence.Transferred(match, bytes, done.issue_ns, now, overran));
  }
  self.Learn(evidence.Sight(counter, now, overran));
  self.Say("version ", admission.version, " window ", match.window_index,
           " occurrence ", match.occurrence, ": ",
           overran ? "overrun at " : "success at ", counter);
  if (overran && counter >= NextOpening(self.current->pattern, match.end)) {
    self.WarnOnce(self.said_crossing,
                  "a transfer lasted into a later window than its own");
  }
  if (bytes == 0 || !self.In(Mode::kActive)) return;
  if (away) done.clean = done.timed = false;
  self.LearnTransfer(self.current->entries[match.window_index], done, now,
                     overran);
}

void WindowController::NoteObservationGap() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->current) impl_->current->evidence.NoteGap();
}

bool WindowController::RecordCapacityFlush(uint64_t progress) {
  std::lock_guard lock(impl_->mutex);
  Impl& self = *impl_;
  if (!self.In(Mode::kActive) || !self.current ||
      self.current->number != wire::VersionOf(progress) ||
      !self.fallback.Flushed(wire::CounterOf(progress),
                             self.current->pattern.period())) {
    return false;
  }
  self.SetMode(Mode::kFallback);
  self.Warn("the ring was full ", self.config.capacity_flush_fallback_threshold,
            " times, windows carry less than is recorded; ordinary batching "
            "for the next ",
            self.fallback.hold_periods(), " periods");
  return true;
}

}  // namespace dmi::windows
