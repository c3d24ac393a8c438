// SPDX-License-Identifier: Apache-2.0
// The cutter, see the header.
#include "drain/cutter.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/crc32c.h"
#include "program/atomics.h"

namespace dmi::drain {
namespace {

// Offsets inside a batch are 32-bit.
constexpr uint64_t kMostBatchSpan = std::numeric_limits<int32_t>::max();

// A device leaves checksums to the host: the first to have the bytes at hand.
wire::Slot WithCrc(const wire::Slot& slot, const uint8_t* payload) {
  wire::Slot checked = slot;
  checked.flags |= wire::kHasCrc;
  checked.crc = base::Crc32c(payload, slot.bytes, 0);
  return checked;
}

}  // namespace

Cutter::Cutter(std::shared_ptr<ring::Ring> ring,
               std::shared_ptr<ring::Staging> staging, int64_t device,
               BatchLimits limits, std::shared_ptr<batch::BatchQueue> queue)
    : ring_(std::move(ring)),
      staging_(std::move(staging)),
      device_(device),
      limits_(limits),
      queue_(std::move(queue)),
      pool_(std::make_shared<batch::ColumnPool>()),
      cursor_(wire::Unpack(program::LoadAcquire(ring_->header().tail))),
      cut_(cursor_.sequence),
      queued_(cut_) {}

uint64_t Cutter::pinned() const {
  return staging_ == nullptr ? ring_->pinned() : staging_->pinned();
}

uint64_t Cutter::CutBatch(uint64_t end, const Mover& mover) {
  const uint64_t ring_start = ring_->slot(cut_).position;
  const uint8_t* base = mover.PayloadOf(cut_);
  auto columns = pool_->Take();
  columns->Reserve(std::min<uint64_t>(limits_.records, end - cut_));
  uint64_t span = 0;       // where it landed
  uint64_t ring_span = 0;  // of the ring
  uint64_t bytes = 0;
  uint64_t next = cut_;
  for (; next != end; ++next) {
    const wire::Slot& slot = ring_->slot(next);
    const uint8_t* payload = mover.PayloadOf(next);
    const bool wrapped =
        slot.position < ring_start + ring_span || payload < base + span;
    const bool full =
        columns->rows() > 0 && (columns->rows() >= limits_.records ||
                                bytes + slot.bytes > limits_.bytes);
    const uint64_t span_then =
        static_cast<uint64_t>(payload - base) + slot.bytes;
    if (wrapped || full || span_then > kMostBatchSpan) break;
    wire::Slot checked;
    const bool unchecked =
        ring_->header().checksum && !(slot.flags & wire::kHasCrc);
    if (unchecked) checked = WithCrc(slot, payload);
    columns->Add(next, unchecked ? checked : slot,
                 ring_->UtcNanos(slot.time_ns), payload, base);
    span = span_then;
    ring_span = slot.position + slot.bytes - ring_start;
    bytes += slot.bytes;
  }
  const auto begin_unit =
      static_cast<uint32_t>(ring_start / wire::kPayloadUnit);
  const auto end_unit =
      static_cast<uint32_t>(begin_unit + wire::UnitsFor(ring_span));
  cursor_ = CursorAfter(next, begin_unit, end_unit);
  const uint64_t staging_end =
      staging_ == nullptr ? 0 : mover.StagingEndOf(next - 1);
  cut_ = next;
  program::StoreRelaxed(ring_->header().batch_begin, wire::Pack(cursor_));
  queue_->Push(std::make_shared<batch::Batch>(
      device_, std::move(columns), batch::PayloadSpan{base, span}, bytes, pool_,
      Lease(staging_end, bytes)));
  reached_unit_ = end_unit;
  queued_.store(cut_, std::memory_order_release);
  return bytes;
}

std::function<void()> Cutter::Lease(uint64_t staging_end, uint64_t bytes) {
  if (staging_ == nullptr) {
    const uint64_t lease = ring_->Lease(cursor_, bytes);
    return [ring = ring_, lease] { ring->Release(lease); };
  }
  // The ring has been read; what is held from now on is staging.
  const uint64_t lease = staging_->Lease(staging_end, bytes);
  ring_->Release(ring_->Lease(cursor_, 0));
  return [ring = ring_, staging = staging_, lease] {
    if (staging->Release(lease)) ring->signals().WakeDrain();
  };
}

wire::Cursor Cutter::CursorAfter(uint64_t sequence, uint32_t begin_unit,
                                 uint32_t end_unit) const {
  const wire::Extent extent = ring_->header().extent;
  const uint32_t offset = cursor_.position % extent.units;
  // A batch that does not begin where the last one ended begins a new lap.
  const uint64_t padding = begin_unit == offset ? 0 : extent.units - offset;
  const uint64_t moved =
      padding > 0 ? padding + end_unit : uint64_t{end_unit} - offset;
  return {static_cast<uint32_t>(sequence),
          wire::Advance(cursor_.position, moved, extent)};
}

}  // namespace dmi::drain
