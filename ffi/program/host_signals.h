// SPDX-License-Identifier: Apache-2.0
// How the two sides of a host ring wake each other.
//
//   producers -> drain   `WakeDrain` after a record crossed the threshold, and
//                        whenever a producer is about to wait
//   leases -> producers  `SpaceFreed` after the tail moved
//
// A record that does neither costs no signal at all: the drain looks by itself
// every few milliseconds, which bounds the age of a lone record.
#ifndef DMI_PROGRAM_HOST_SIGNALS_H_
#define DMI_PROGRAM_HOST_SIGNALS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/fork.h"

namespace dmi::program {

class HostSignals {
 public:
  explicit HostSignals(int64_t stall_budget_nanos)
      : budget_(stall_budget_nanos),
        most_held_(std::min(stall_budget_nanos, kLongBudget) / 3 * 4) {}

  // ---- The drain's sleep ----

  // Called by any thread; takes a short lock only when it ends a sleep, so a
  // burst of callers costs one system call. The exchange pairs with the one in
  // `DrainSleep`: whichever comes second sees what the first published.
  void WakeDrain() {
    if (!asleep_.exchange(false, std::memory_order_acq_rel)) return;
    // The drain either has not looked at `asleep_` yet or is in its wait.
    {
      std::lock_guard lock(sleep_mutex_);
    }
    wake_.notify_one();
  }

  // Called by the drain: sleeps until woken or `nanos` passed, unless
  // `has_work()`, looked at after announcing the sleep, is true.
  template <typename HasWork>
  void DrainSleep(int64_t nanos, HasWork has_work) {
    asleep_.exchange(true, std::memory_order_acq_rel);
    if (!has_work()) {
      std::unique_lock lock(sleep_mutex_);
      wake_.wait_for(lock, std::chrono::nanoseconds(nanos), [this] {
        return !asleep_.load(std::memory_order_acquire);
      });
    }
    asleep_.exchange(false, std::memory_order_acq_rel);
  }

  // ---- Producers waiting for space ----

  enum class Waited { kFreed, kExhausted, kClosed };

  // Called by a producer that found no space; blocks until `fits()` is true
  // (kFreed), the stall budget of this ring is spent (kExhausted) or the ring
  // closes (kClosed). Waiting is charged to the budget only while nothing is
  // freed for longer than a twentieth of it: a slow but moving sink holds the
  // program back without losing anything, a dead one does so for one budget.
  //
  // `held_up`: other devices may be waiting for this one at a collective, where
  // XLA ends the process after a while. Such producers wait for at most four
  // budgets on end, and two thirds of the time in the long run, whatever moves.
  template <typename Fits>
  Waited WaitForSpace(bool held_up, Fits fits) {
    std::unique_lock lock(mutex_);
    const int64_t begin = base::MonotonicNanos();
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) == 0) {
      quiet_since_ = begin;
    }
    Age(begin);
    if (held_up) ++holding_up_;
    WakeDrain();
    Waited outcome = Waited::kFreed;
    while (!fits()) {
      if (closed_) {
        outcome = Waited::kClosed;
        break;
      }
      const int64_t now = base::MonotonicNanos();
      Age(now);
      int64_t left = budget_ - spent_ - (now - quiet_since_);
      if (held_up) left = std::min(left, 3 * (most_held_ - held_));
      if (exhausted_ || left <= 0) {
        exhausted_ = true;
        outcome = Waited::kExhausted;
        break;
      }
      freed_.wait_for(lock, std::chrono::nanoseconds(left));
    }
    Age(base::MonotonicNanos());
    if (held_up) --holding_up_;
    waiting_.fetch_sub(1, std::memory_order_acq_rel);
    return outcome;
  }

  // Called after the tail moved; takes the lock only where somebody waits.
  // The read-modify-write pairs with the one in `WaitForSpace`.
  void SpaceFreed() {
    if (waiting_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    std::lock_guard lock(mutex_);
    const int64_t now = base::MonotonicNanos();
    if (const int64_t quiet = now - quiet_since_; quiet > budget_ / 20) {
      spent_ += quiet;
    }
    quiet_since_ = now;
    freed_.notify_all();
  }

  // Called when the drain failed: nothing will be freed any more, so every
  // wait, now and later, ends as if the budget were spent.
  void GiveUp() {
    std::lock_guard lock(mutex_);
    exhausted_ = true;
    freed_.notify_all();
  }

  // Wakes every producer for good; they drop what they hold.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    freed_.notify_all();
  }

  bool somebody_waits() const {
    return waiting_.load(std::memory_order_acquire) > 0;
  }

 private:
  // No process lives long enough to spend it.
  static constexpr int64_t kLongBudget = 1'000'000'000'000'000'000;

  // What other devices were held up leaks away at two thirds of the time.
  void Age(int64_t now) {
    const int64_t passed = now - aged_at_;
    if (holding_up_ > 0) held_ += passed;
    held_ = std::max<int64_t>(0, held_ - passed / 3 * 2);
    aged_at_ = now;
  }

  const int64_t budget_;
  const int64_t most_held_;
  std::atomic<bool> asleep_{false};
  base::Mutex sleep_mutex_;
  base::Condition wake_;

  std::atomic<int> waiting_{0};
  base::Mutex mutex_;
  base::Condition freed_;
  // Guarded by mutex_.
  int64_t quiet_since_ = 0;
  int64_t spent_ = 0;
  int holding_up_ = 0;  // waiting now
  int64_t held_ = 0;
  int64_t aged_at_ = base::MonotonicNanos();
  bool exhausted_ = false;
  bool closed_ = false;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_HOST_SIGNALS_H_
