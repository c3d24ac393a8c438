// SPDX-License-Identifier: Apache-2.0
// The drain, see the header.
#include "drain/drain.h"

#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "program/atomics.h"
#include "wire/cursor.h"

namespace dmi::drain {
namespace {

// Bounds how long a lone record waits beyond its linger time, at some fifty
// looks a second while nothing happens. Links may want it shorter.
constexpr int64_t kLongestSleep = 20'000'000;
// With nothing to wait for, however short the linger time: looking more often
// would cost more of a core than an idle capture may.
constexpr int64_t kShortestIdleSleep = 10'000'000;
constexpr int64_t kShortestSleep = 200'000;
// While a window is open, for records that come meanwhile.
constexpr int64_t kOpenSleep = 500'000;
// A sleep ends some tens of microseconds late; what ends sooner is waited for.
constexpr int64_t kSpin = 50'000;

// How long a stop waits for a consumer that frees no staging.
constexpr int64_t kStopPatience = 30'000'000'000;

// Of a ring under Overflow::kDrop, where nobody waits for space: so full that
// the next record may be lost.
bool NearlyFull(uint64_t used, uint64_t size) { return used >= size / 8 * 7; }

}  // namespace

Drain::Drain(std::shared_ptr<ring::Ring> ring, int64_t device,
             const DrainOptions& options,
             std::shared_ptr<batch::BatchQueue> queue, DrainParts parts)
    : ring_(std::move(ring)),
      device_(device),
      options_(options),
      time_(std::move(parts.time)),
      staging_(parts.link->in_place()
                   ? nullptr
                   : std::make_shared<ring::Staging>(options.staging_bytes)),
      link_(std::move(parts.link)),
      pace_(link_->pace()),
      depth_(static_cast<size_t>(link_->depth())),
      progress_(parts.progress),
      cutter_(ring_, staging_, device,
              {options.batch_bytes, options.batch_records}, std::move(queue)),
      mover_(
          *ring_, staging_.get(), cutter_.cut(),
          uint64_t{cutter_.cursor().position % ring_->header().extent.units} *
              wire::kPayloadUnit),
      ready_(cutter_.cut()) {
  flights_.reserve(depth_);
  if (staging_ != nullptr) link_->Prepare(staging_->at(0), staging_->size());
  if (parts.windows) {
    windows_.emplace(*parts.windows, *progress_, *ring_, *time_);
  }
}

Drain::~Drain() { Stop(); }

void Drain::Start() {
  if (base::InForkedChild()) {
    throw std::runtime_error("a forked process cannot capture");
  }
  thread_ = std::thread([this] { Loop(); });
  started_.store(true, std::memory_order_release);
}

void Drain::Stop() {
  if (!thread_.joinable()) return;
  if (base::InForkedChild()) {
    thread_.detach();  // it stayed in the parent
    return;
  }
  stopping_.store(true, std::memory_order_release);
  ring_->signals().WakeDrain();
  thread_.join();
}

uint64_t Drain::reserved() const {
  const uint64_t queued = cutter_.queued();
  return wire::Extend(wire::Unpack(ring_->Head()).sequence, queued);
}

uint64_t Drain::Seal(int64_t nanos) {
  if (base::InForkedChild()) return queued();
  const uint64_t target = reserved();
  uint64_t seen = seal_to_.load(std::memory_order_relaxed);
  while (seen < target && !seal_to_.compare_exchange_weak(
                              seen, target, std::memory_order_release)) {
  }
  ring_->signals().WakeDrain();
  std::unique_lock lock(sealed_mutex_);
  sealed_.wait_for(lock, std::chrono::nanoseconds(nanos),
                   [&] { return queued() >= target || failure_.count() > 0; });
  return std::min(target, queued());
}

// ---- The loop ----

void Drain::Loop() {
  // Sleeps are for transfers and windows of milliseconds.
  prctl(PR_SET_TIMERSLACK, 1000);
  int64_t stuck_since = 0;  // 0 while it moves on
  while (true) {
    const bool stopping = stopping_.load(std::memory_order_acquire);
    const uint64_t before = mover_.moved();
    const int64_t nanos = Turn(stopping);
    if (nanos < 0) break;
    if (stopping) {
      if (cutter_.cut() == ready_ && flights_.empty()) break;
      const int64_t now = base::MonotonicNanos();
      const bool stuck =
          blocked_ && flights_.empty() && mover_.moved() == before;
      if (!stuck || stuck_since == 0) stuck_since = now;
      if (now - stuck_since > kStopPatience) {
        failure_.Latch(
            std::to_string(ready_ - cutter_.cut()) +
            " records stayed in the ring: the sink freed no staging");
        break;
      }
    }
    ring_->PopulateAhead(cutter_.cut(), cutter_.reached_unit());
    if (nanos < kSpin) {
      std::this_thread::yield();
      continue;
    }
    ring_->signals().DrainSleep(time_->RealNanos(nanos), [&] {
      return stopping_.load(std::memory_order_acquire) != stopping ||
             WorkAppeared();
    });
  }
  WakeWaiters();
}

void Drain::WakeWaiters() {
  {
    std::lock_guard lock(cut_mutex_);
    landed_.notify_all();
  }
  std::lock_guard lock(sealed_mutex_);
  sealed_.notify_all();
}

void Drain::CutWhatLanded() noexcept {
  std::lock_guard lock(cut_mutex_);
  if (staging_ == nullptr) return;
  // Why each may fail is known already, and neither depends on the other.
  try {
    Land();
  } catch (const std::exception&) {
  }
  try {
    CutLanded();
  } catch (const std::exception&) {
  }
}

int64_t Drain::Turn(bool everything) {
  try {
    if (!std::exchange(attached_, true)) link_->Attach();
    ring_->Tick();
    if (Scan()) Work(everything);
    if (failure_.count() == 0) return SleepNanos(time_->Now());
  } catch (const std::exception& error) {
    failure_.Latch(std::string("the drain stopped: ") + error.what());
  }
  CutWhatLanded();
  ring_->GiveUp();
  WakeWaiters();
  return -1;
}

bool Drain::WorkAppeared() {
  if (!Scan()) return true;  // ends the loop
  if (!HasRoom()) return false;
  const bool paused = paused_.load(std::memory_order_relaxed);
  if (paused && !flights_.empty()) return false;
  if (windows_ && windows_->Woken()) return true;
  if (paused) return false;
  if (ready_ == mover_.issued()) {
    return flights_.empty() && cutter_.cut() != ready_;  // a pause left it
  }
  if (blocked_) return mover_.Look(ready_).bytes > 0;
  if (seal_to_.load(std::memory_order_acquire) > mover_.issued()) return true;
  if (confining()) return flights_.empty() && ring_->somebody_waits();
  return ring_->somebody_waits() || Due(time_->Now());
}

int64_t Drain::SleepNanos(int64_t now) {
  const int64_t landing = flights_.empty() ? kLongestSleep : link_->Remaining();
  return HasRoom() ? std::min(landing, SleepUntilDue(now)) : landing;
}

int64_t Drain::SleepUntilDue(int64_t now) const {
  const bool waiting = ready_ != mover_.issued();
  const int64_t pace = waiting ? pace_.waiting : pace_.idle;
  if (paused_.load(std::memory_order_relaxed) || blocked_) {
    return std::min(kLongestSleep, pace_.idle);
  }
  // A seal waits for records that are reserved but not yet published.
  if (seal_to_.load(std::memory_order_acquire) > queued()) {
    return std::min(kShortestSleep, pace);
  }
  if (confining()) {
    // The longer a window has been open, the less its time is worth.
    const auto open = windows_->open_nanos();
    const int64_t most =
        open ? std::clamp(*open / 8, kOpenSleep, kLongestSleep) : kLongestSleep;
    const int64_t left =
        waiting ? windows_->config().max_age_nanos - AgeOfOldest(now) : most;
    return std::min(std::clamp(left, kShortestSleep, most),
                    waiting ? pace_.confining : pace_.waiting);
  }
  const int64_t due = waiting
                          ? std::clamp(options_.linger_nanos - AgeOfOldest(now),
                                       kShortestSleep, kLongestSleep)
                          : std::clamp(options_.linger_nanos / 8,
                                       kShortestIdleSleep, kLongestSleep);
  return std::min(due, pace);
}

void Drain::Pause() {
  std::unique_lock lock(cut_mutex_);
  paused_.store(true, std::memory_order_relaxed);
  if (!started_.load(std::memory_order_acquire)) return;
  landed_.wait(lock, [&] { return flights_.empty() || failure_.count() > 0; });
}

void Drain::Resume() {
  {
    std::lock_guard lock(cut_mutex_);
    paused_.store(false, std::memory_order_relaxed);
  }
  ring_->signals().WakeDrain();
}

// ---- What is there ----

bool Drain::Published(uint64_t sequence) const {
  const uint64_t word = program::LoadAcquire(ring_->slot(sequence).publication);
  return word == wire::PublicationOf(static_cast<uint32_t>(sequence));
}

bool Drain::Scan() {
  if (failure_.count() > 0) return false;
  const uint32_t slots = ring_->header().extent.slots;
  while (ready_ - cutter_.cut() < slots && Published(ready_)) {
    ready_bytes_ += ring_->slot(ready_).bytes;
    ++ready_;
  }
  const uint64_t word = program::LoadAcquire(ring_->slot(ready_).publication);
  const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(word) -
                                          static_cast<uint32_t>(ready_));
  if (word != 0 && ahead > 0) {
    failure_.Latch("record " + std::to_string(ready_) +
                   " was overwritten before it was drained");
    return false;
  }
  return true;
}

uint64_t Drain::WaitingBytes() const {
  if (ready_ == mover_.issued()) return 0;
  const wire::Slot& last = ring_->slot(ready_ - 1);
  const uint64_t size = ring_->payload_bytes();
  const uint64_t begin = mover_.reached() % size;
  const uint64_t end =
      last.position + wire::UnitsFor(last.bytes) * wire::kPayloadUnit;
  // Empty records end where they begin; so does what fills the whole ring.
  const bool wrapped = end <= begin && ready_bytes_ > 0;
  return wrapped ? end + size - begin : end - begin;
}

int64_t Drain::AgeOfOldest(int64_t now) const {
  return now - ring_->HostNanos(ring_->slot(mover_.issued()).time_ns);
}

bool Drain::Due(int64_t now) const {
  const uint64_t records = ready_ - mover_.issued();
  if (records == 0) return false;
  return records >= options_.batch_records ||
         ready_bytes_ >= options_.batch_bytes ||
         records >= ring_->header().extent.slots / 2 ||
         WaitingBytes() >= ring_->payload_bytes() / 2 ||
         AgeOfOldest(now) >= options_.linger_nanos;
}

bool Drain::Forced(bool everything) {
  const uint64_t issued = mover_.issued();
  if (everything || issued < forced_to_ ||
      issued < seal_to_.load(std::memory_order_acquire)) {
    return true;
  }
  const bool confined = confining();
  // Whoever waits for space may get it from what is under way.
  if (confined && !flights_.empty()) return false;
  bool full = ring_->somebody_waits();
  if (confined && ring_->header().overflow == wire::Overflow::kDrop) {
    full = NearlyFull(WaitingBytes(), ring_->payload_bytes()) ||
           NearlyFull(ready_ - issued, ring_->header().extent.slots);
  }
  const bool old =
      confined && AgeOfOldest(time_->Now()) >= windows_->config().max_age_nanos;
  if (confined && (full || old)) {
    // All of it: a ring that stays nearly full would be full again at once.
    forced_to_ = ready_;
    full_ = full;
  }
  return full || old;
}

}  // namespace dmi::drain
