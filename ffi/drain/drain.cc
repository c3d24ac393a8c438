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
// looks a second while nothing happens.
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
      link_(std::move(parts.link)),
      staging_(link_->in_place()
                   ? nullptr
                   : std::make_shared<ring::Staging>(options.staging_bytes)),
      progress_(parts.progress),
      cutter_(ring_, staging_, device,
              {options.batch_bytes, options.batch_records}, std::move(queue)),
      mover_(*ring_, staging_.get(), cutter_.cut()),
      ready_(cutter_.cut()) {
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
  const wire::Cursor head =
      wire::Unpack(program::LoadAcquire(ring_->header().head));
  return wire::Extend(head.sequence, queued);
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
      if (cutter_.cut() == ready_ && !flight_) break;
      const int64_t now = base::MonotonicNanos();
      const bool stuck = blocked_ && mover_.moved() == before;
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
  try {
    std::lock_guard lock(cut_mutex_);
    if (staging_ != nullptr) CutLanded();
  } catch (const std::exception&) {
    // Its failure is known already.
  }
}

int64_t Drain::Turn(bool everything) {
  try {
    if (Scan()) Work(everything);
    if (failure_.count() == 0) return SleepNanos(time_->Now());
  } catch (const std::exception& error) {
    failure_.Latch(std::string("the drain stopped: ") + error.what());
  }
  CutWhatLanded();
  ring_->signals().GiveUp();
  WakeWaiters();
  return -1;
}

bool Drain::WorkAppeared() {
  if (!Scan()) return true;  // ends the loop
  if (flight_) return false;
  if (windows_ && windows_->Woken()) return true;
  if (ready_ == cutter_.cut() || paused_.load(std::memory_order_relaxed))
    return false;
  if (blocked_) return mover_.Look(ready_).bytes > 0;
  return seal_to_.load(std::memory_order_acquire) > cutter_.cut() ||
         ring_->signals().somebody_waits() ||
         (!confining() && Due(time_->Now()));
}

int64_t Drain::SleepNanos(int64_t now) {
  if (flight_) return link_->Remaining();
  if (paused_.load(std::memory_order_relaxed) || blocked_) return kLongestSleep;
  // A seal waits for records that are reserved but not yet published.
  if (seal_to_.load(std::memory_order_acquire) > queued()) {
    return kShortestSleep;
  }
  if (confining()) {
    // The longer a window has been open, the less its time is worth.
    const auto open = windows_->open_nanos();
    const int64_t most =
        open ? std::clamp(*open / 8, kOpenSleep, kLongestSleep) : kLongestSleep;
    if (ready_ == cutter_.cut()) return most;
    const int64_t left = windows_->config().max_age_nanos - AgeOfOldest(now);
    return std::clamp(left, kShortestSleep, most);
  }
  if (ready_ == cutter_.cut()) {
    return std::clamp(options_.linger_nanos / 8, kShortestIdleSleep,
                      kLongestSleep);
  }
  return std::clamp(options_.linger_nanos - AgeOfOldest(now), kShortestSleep,
                    kLongestSleep);
}

void Drain::Pause() {
  std::unique_lock lock(cut_mutex_);
  paused_.store(true, std::memory_order_relaxed);
  if (!started_.load(std::memory_order_acquire)) return;
  landed_.wait(lock, [&] { return !flight_ || failure_.count() > 0; });
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
  const wire::Cursor head =
      wire::Unpack(program::LoadRelaxed(ring_->header().head));
  return wire::UnitsBetween(cutter_.cursor(), head, ring_->header().extent) *
         wire::kPayloadUnit;
}

int64_t Drain::AgeOfOldest(int64_t now) const {
  return now -
         (ring_->slot(cutter_.cut()).time_ns - ring_->header().clock_offset);
}

bool Drain::Due(int64_t now) const {
  if (ready_ == cutter_.cut()) return false;
  return ready_ - cutter_.cut() >= options_.batch_records ||
         ready_bytes_ >= options_.batch_bytes ||
         ready_ - cutter_.cut() >= ring_->header().extent.slots / 2 ||
         WaitingBytes() >= ring_->payload_bytes() / 2 ||
         AgeOfOldest(now) >= options_.linger_nanos;
}

bool Drain::Forced(bool everything) {
  const uint64_t moved = mover_.moved();
  if (everything || moved < forced_to_ ||
      moved < seal_to_.load(std::memory_order_acquire)) {
    return true;
  }
  const bool confined = confining();
  bool full = ring_->signals().somebody_waits();
  if (confined && ring_->header().overflow == wire::Overflow::kDrop) {
    full = NearlyFull(WaitingBytes(), ring_->payload_bytes()) ||
           NearlyFull(ready_ - cutter_.cut(), ring_->header().extent.slots);
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
