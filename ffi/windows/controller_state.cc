// SPDX-License-Identifier: Apache-2.0
// What a controller tells about itself.
#include <mutex>
#include <utility>

#include "windows/controller.h"
#include "windows/controller_impl.h"

namespace dmi::windows {

Mode WindowController::mode() const {
  return impl_->mode.load(std::memory_order_relaxed);
}

WindowState WindowController::State() const {
  std::lock_guard lock(impl_->mutex);
  WindowState state{mode(), 0, std::nullopt, {}, 0};
  if (impl_->link->known()) {
    state.link_bytes_per_second = impl_->link->bytes_per_second();
  }
  if (!impl_->current) return state;
  state.version = impl_->current->number;
  state.pattern = impl_->current->pattern;
  for (const WindowEntry& entry : impl_->current->entries) {
    const Learned learned = entry.policy->learned();
    state.windows.push_back({entry.length_ns, learned.max_safe,
                             learned.min_unsafe, learned.estimate,
                             entry.last_grant, entry.occurrences,
                             entry.overruns});
  }
  return state;
}

bool WindowController::Stalled() const {
  const int64_t now = impl_->time.Now();
  std::lock_guard lock(impl_->mutex);
  if (!impl_->In(Mode::kActive) || !impl_->current) return false;
  const Evidence& evidence = impl_->current->evidence;
  const int64_t last =
      evidence.counter() ? evidence.boundary_ns() : impl_->activated_ns;
  return now - last > impl_->config.watchdog_nanos;
}

std::optional<int64_t> WindowController::OpenNanos() const {
  const int64_t now = impl_->time.Now();
  std::lock_guard lock(impl_->mutex);
  if (!impl_->In(Mode::kActive) || !impl_->current) return std::nullopt;
  const Evidence& evidence = impl_->current->evidence;
  if (!evidence.counter() ||
      !impl_->current->pattern.Match(*evidence.counter())) {
    return std::nullopt;
  }
  return now - evidence.boundary_ns();
}

uint64_t WindowController::NextEdge() const {
  std::lock_guard lock(impl_->mutex);
  if (!impl_->In(Mode::kActive) || !impl_->current) return kUnbounded;
  const Version& current = *impl_->current;
  return current.pattern.NextEdge(
      current.evidence.counter().value_or(current.pattern.initial_counter()));
}

std::vector<uint64_t> WindowController::timing_estimates(
    uint32_t window_index) const {
  std::lock_guard lock(impl_->mutex);
  std::vector<uint64_t> result;
  for (size_t i = 0; i < impl_->estimates.size(); ++i) {
    const auto& [window, estimate] = impl_->estimates[i];
    if (window == window_index) result.push_back(estimate);
  }
  return result;
}

std::vector<WindowController::Attempt> WindowController::attempts(
    uint32_t window_index) const {
  std::lock_guard lock(impl_->mutex);
  std::vector<Attempt> result;
  for (size_t i = 0; i < impl_->attempts.size(); ++i) {
    const auto& [window, attempt] = impl_->attempts[i];
    if (window == window_index) result.push_back(attempt);
  }
  return result;
}

}  // namespace dmi::windows
