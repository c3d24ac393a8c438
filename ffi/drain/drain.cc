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
      cutter_(ring_, staging_, device,
              {options.batch_bytes, options.batch_records}, std::move(queue)),
      mover_(*ring_, staging_.get(), cutter_.cut()),
      ready_(cutter_.cut()) {
  if (parts.windows) {
    windows_.emplace(*parts.windows, *parts.progress, *ring_, *time_);
  }
}

Drain::~Drain() { Stop(); }

void Drain::Start() {
  if (base::InForkedChild()) {
    throw std::runtime_error("a forked process cannot capture");
  }
  thread_ = std::thread([this] { Loop(); });
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
  int64_t stuck_since = 0;
  while (true) {
    const bool stopping = stopping_.load(std::memory_order_acquire);
    const uint64_t before = mover_.moved();
    const int64_t nanos = Turn(stopping);
    if (nanos < 0) break;
    if (stopping) {
      if (cutter_.cut() == ready_ && !flight_) break;
      const int64_t now = base::MonotonicNanos();
      if (!blocked_ || mover_.moved() != before) stuck_since = now;
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
  std::lock_guard lock(sealed_mutex_);
  sealed_.notify_all();
}

int64_t Drain::Turn(bool everything) {
  try {
    if (Scan()) Work(everything);
    if (failure_.count() == 0) return SleepNanos(time_->Now());
  } catch (const std::exception& error) {
    failure_.Latch(std::string("the drain stopped: ") + error.what());
  }
  ring_->signals().GiveUp();
  std::lock_guard lock(sealed_mutex_);
  sealed_.notify_all();
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
    const int64_t most = windows_->open() ? kOpenSleep : kLongestSleep;
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
  std::lock_guard lock(cut_mutex_);
  paused_.store(true, std::memory_order_relaxed);
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

// ---- Moving ----

void Drain::Work(bool everything) {
  std::lock_guard lock(cut_mutex_);
  while (Land()) {
    if (paused_.load(std::memory_order_relaxed) && !everything) return;
    if (!Scan() || !Move(everything)) break;
  }
  // Also while a transfer is under way: what landed before it is of use.
  if (!flight_) {
    CutLanded();
  }
}

bool Drain::Move(bool everything) {
  const bool forced = ready_ != mover_.moved() && Forced(everything);
  if (windows_) {
    if (forced) {
      windows_->NoteForced();
      windows_->Poll(0, 0);
    } else if (MoveInWindow()) {
      return true;
    } else if (windows_->confining()) {
      return false;
    }
  }
  if (!forced && !Due(time_->Now())) return false;
  if (windows_) windows_->NoteForced();
  const TransferKind kind =
      forced ? TransferKind::kForced : TransferKind::kBatch;
  if (staging_ == nullptr && mover_.between() &&
      cutter_.cut() == mover_.moved()) {
    // In place, and nothing of a window is left: no need to look twice.
    Flight flight{.chunk = {},
                  .kind = kind,
                  .admission = std::nullopt,
                  .begin = time_->Now(),
                  .begin_progress = Progress()};
    const uint64_t bytes = CutBatch(ready_);
    mover_.SkipTo(cutter_.cut());
    Log(flight, bytes);
    NoteForcedMoved();
    return true;
  }
  const auto chunk = mover_.Plan(ready_, options_.batch_bytes,
                                 options_.batch_records, Cut::kBetween);
  return chunk ? Begin(*chunk, kind, std::nullopt)
               : (blocked_ = mover_.moved() != ready_, false);
}

bool Drain::MoveInWindow() {
  const Mover::Available available = mover_.Look(ready_);
  blocked_ = available.bytes == 0 && mover_.moved() != ready_;
  const auto admission = windows_->Poll(available.bytes, available.first);
  if (!admission) return false;
  const windows::Grant& grant = admission->grant;
  const bool one = grant.kind == windows::GrantKind::kMinimumRecordProbe;
  const Cut cut = grant.kind == windows::GrantKind::kDeadline ? Cut::kAnywhere
                                                              : Cut::kBetween;
  const auto chunk = mover_.Plan(ready_, grant.byte_limit,
                                 one ? 1 : options_.batch_records, cut);
  // Empty values move too, and count as a byte.
  return chunk &&
         windows_->Commit(*admission, std::max<uint64_t>(1, chunk->bytes)) &&
         Begin(*chunk, TransferKind::kWindow, admission);
}

bool Drain::Begin(const Chunk& chunk, TransferKind kind,
                  std::optional<windows::Admission> admission) {
  blocked_ = false;
  mover_.Take(chunk);
  flight_ = Flight{chunk, kind, admission, time_->Now(), Progress()};
  link_->Begin(chunk.to, chunk.from, chunk.bytes);
  return true;
}

bool Drain::Land() {
  if (!flight_) return true;
  if (link_->Remaining() > 0) return false;
  const Flight flight = *flight_;
  flight_.reset();
  mover_.Land(flight.chunk);
  Log(flight, flight.chunk.payload);
  landed_bytes_ += flight.chunk.payload;
  if (flight.admission) {
    windows_->Complete(*flight.admission,
                       std::max<uint64_t>(1, flight.chunk.bytes));
  }
  NoteForcedMoved();
  if (flight.kind != TransferKind::kWindow ||
      landed_bytes_ >= options_.batch_bytes ||
      mover_.moved() - cutter_.cut() >= options_.batch_records) {
    CutLanded();
  }
  return true;
}

uint64_t Drain::CutBatch(uint64_t end) {
  const uint64_t bytes = cutter_.CutBatch(end, mover_);
  ready_bytes_ -= bytes;
  landed_bytes_ -= std::min(landed_bytes_, bytes);
  std::lock_guard lock(sealed_mutex_);
  sealed_.notify_all();
  return bytes;
}

void Drain::CutLanded() {
  while (cutter_.cut() != mover_.moved()) CutBatch(mover_.moved());
}

void Drain::NoteForcedMoved() {
  if (!full_ || mover_.moved() < forced_to_) return;
  full_ = false;
  windows_->NoteCapacityFlush();
}

uint64_t Drain::Progress() const { return windows_ ? windows_->Progress() : 0; }

void Drain::Log(const Flight& flight, uint64_t bytes) {
  const int64_t offset = ring_->header().clock_offset;
  Transfer entry{.begin_ns = flight.begin + offset,
                 .end_ns = time_->Now() + offset,
                 .bytes = bytes,
                 .kind = flight.kind,
                 .version = wire::VersionOf(flight.begin_progress),
                 .window_index = 0,
                 .occurrence = 0,
                 .begin_counter = wire::CounterOf(flight.begin_progress),
                 .end_counter = wire::CounterOf(Progress())};
  if (flight.admission) {
    entry.version = flight.admission->version;
    entry.window_index = flight.admission->match.window_index;
    entry.occurrence = flight.admission->match.occurrence;
  }
  transfers_.Add(entry);
}

}  // namespace dmi::drain
