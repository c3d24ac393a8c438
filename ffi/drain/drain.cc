// SPDX-License-Identifier: Apache-2.0
// The drain, see the header.
#include "drain/drain.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/clock.h"
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

// Offsets inside a batch are 32-bit.
constexpr uint64_t kMostBatchSpan = std::numeric_limits<int32_t>::max();

}  // namespace

Drain::Drain(std::shared_ptr<ring::Ring> ring, int64_t device,
             const DrainOptions& options,
             std::shared_ptr<batch::BatchQueue> queue)
    : ring_(std::move(ring)),
      device_(device),
      options_(options),
      queue_(std::move(queue)),
      pool_(std::make_shared<batch::ColumnPool>()),
      cut_cursor_(wire::Unpack(program::LoadAcquire(ring_->header().tail))) {
  ready_ = cut_ = cut_cursor_.sequence;
  queued_.store(cut_, std::memory_order_relaxed);
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
  const uint64_t queued = queued_.load(std::memory_order_acquire);
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

void Drain::Loop() {
  try {
    while (true) {
      const bool stopping = stopping_.load(std::memory_order_acquire);
      if (!Scan()) break;
      CutDue(stopping);
      if (stopping) break;
      ring_->PopulateAhead(cut_, reached_unit_);
      ring_->signals().DrainSleep(SleepNanos(base::MonotonicNanos()), [&] {
        return stopping_.load(std::memory_order_acquire) || WorkAppeared();
      });
    }
  } catch (const std::exception& error) {
    failure_.Latch(std::string("the drain stopped: ") + error.what());
  }
  if (failure_.count() > 0) ring_->signals().GiveUp();
  std::lock_guard lock(sealed_mutex_);
  sealed_.notify_all();
}

bool Drain::WorkAppeared() {
  if (!Scan()) return true;  // ends the loop
  if (ready_ == cut_ || paused_.load(std::memory_order_relaxed)) return false;
  return seal_to_.load(std::memory_order_acquire) > cut_ ||
         ring_->signals().somebody_waits() || Due(base::MonotonicNanos());
}

bool Drain::Published(uint64_t sequence) const {
  const uint64_t word = program::LoadAcquire(ring_->slot(sequence).publication);
  return word == wire::PublicationOf(static_cast<uint32_t>(sequence));
}

bool Drain::Scan() {
  if (failure_.count() > 0) return false;
  const uint32_t slots = ring_->header().extent.slots;
  while (ready_ - cut_ < slots && Published(ready_)) {
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
  return wire::UnitsBetween(cut_cursor_, head, ring_->header().extent) *
         wire::kPayloadUnit;
}

bool Drain::Due(int64_t now) const {
  if (ready_ == cut_) return false;
  if (ready_ - cut_ >= options_.batch_records ||
      ready_bytes_ >= options_.batch_bytes ||
      ready_ - cut_ >= ring_->header().extent.slots / 2 ||
      WaitingBytes() >= ring_->payload_bytes() / 2) {
    return true;
  }
  const int64_t oldest =
      ring_->slot(cut_).time_ns - ring_->header().clock_offset;
  return now - oldest >= options_.linger_nanos;
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

void Drain::CutDue(bool everything) {
  std::lock_guard lock(cut_mutex_);
  if (paused_.load(std::memory_order_relaxed) && !everything) return;
  while (ready_ != cut_) {
    const bool forced = everything ||
                        seal_to_.load(std::memory_order_acquire) > cut_ ||
                        ring_->signals().somebody_waits();
    if (!forced && !Due(base::MonotonicNanos())) break;
    Cut(forced ? TransferKind::kForced : TransferKind::kBatch);
    Scan();
  }
}

int64_t Drain::SleepNanos(int64_t now) const {
  if (paused_.load(std::memory_order_relaxed)) return kLongestSleep;
  // A seal waits for records that are reserved but not yet published.
  if (seal_to_.load(std::memory_order_acquire) > queued()) {
    return kShortestSleep;
  }
  if (ready_ == cut_) {
    return std::clamp(options_.linger_nanos / 8, kShortestIdleSleep,
                      kLongestSleep);
  }
  const int64_t oldest =
      ring_->slot(cut_).time_ns - ring_->header().clock_offset;
  return std::clamp(oldest + options_.linger_nanos - now, kShortestSleep,
                    kLongestSleep);
}

void Drain::Cut(TransferKind kind) {
  const int64_t begin = base::MonotonicNanos();
  const uint64_t start = ring_->slot(cut_).position;
  const uint8_t* base = ring_->payload() + start;
  auto columns = pool_->Take();
  columns->Reserve(std::min<uint64_t>(options_.batch_records, ready_ - cut_));
  uint64_t span = 0;
  uint64_t bytes = 0;
  uint64_t next = cut_;
  for (; next != ready_; ++next) {
    const wire::Slot& slot = ring_->slot(next);
    const bool wrapped = slot.position < start + span;
    const uint64_t end = slot.position + slot.bytes;
    const bool full =
        columns->rows() > 0 && (columns->rows() >= options_.batch_records ||
                                bytes + slot.bytes > options_.batch_bytes);
    if (wrapped || full || end - start > kMostBatchSpan) break;
    columns->Add(next, slot, ring_->payload() + slot.position, base);
    span = end - start;
    bytes += slot.bytes;
  }
  const auto end_unit =
      static_cast<uint32_t>(start / wire::kPayloadUnit + wire::UnitsFor(span));
  cut_cursor_ = CursorAfter(
      next, static_cast<uint32_t>(start / wire::kPayloadUnit), end_unit);
  ready_bytes_ -= bytes;
  cut_ = next;
  program::StoreRelaxed(ring_->header().batch_begin, wire::Pack(cut_cursor_));
  const uint64_t lease = ring_->Lease(cut_cursor_, bytes);
  queue_->Push(std::make_shared<batch::Batch>(
      device_, std::move(columns), batch::PayloadSpan{base, span}, bytes, pool_,
      [ring = ring_, lease] { ring->Release(lease); }));
  reached_unit_ = end_unit;
  const int64_t offset = ring_->header().clock_offset;
  transfers_.Add({begin + offset, base::MonotonicNanos() + offset, bytes, kind,
                  0, 0, 0, 0, 0});
  {
    std::lock_guard lock(sealed_mutex_);
    queued_.store(cut_, std::memory_order_release);
  }
  sealed_.notify_all();
}

wire::Cursor Drain::CursorAfter(uint64_t sequence, uint32_t begin_unit,
                                uint32_t end_unit) const {
  const wire::Extent extent = ring_->header().extent;
  const uint32_t offset = cut_cursor_.position % extent.units;
  // A batch that does not begin where the last one ended begins a new lap.
  const uint64_t padding = begin_unit == offset ? 0 : extent.units - offset;
  const uint64_t moved =
      padding > 0 ? padding + end_unit : uint64_t{end_unit} - offset;
  return {static_cast<uint32_t>(sequence),
          wire::Advance(cut_cursor_.position, moved, extent)};
}

}  // namespace dmi::drain
