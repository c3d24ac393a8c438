// SPDX-License-Identifier: Apache-2.0
// The mover, see the header.
#include "drain/mover.h"

#include <algorithm>

#include "wire/slot.h"

namespace dmi::drain {
namespace {

// What a record takes of the ring, and of staging.
uint64_t Extent(const wire::Slot& slot) {
  return uint64_t{wire::UnitsFor(slot.bytes)} * wire::kPayloadUnit;
}

}  // namespace

Mover::Mover(ring::Ring& ring, ring::Staging* staging, uint64_t sequence,
             uint64_t reached)
    : ring_(ring),
      staging_(staging),
      moved_(sequence),
      issued_(sequence),
      reached_(reached),
      places_(staging == nullptr ? 0 : ring.header().extent.slots) {}

uint64_t Mover::PositionOf(uint64_t sequence) const {
  return ring_.slot(sequence).position;
}

std::optional<uint64_t> Mover::NextPlace() const {
  if (staging_ == nullptr) return PositionOf(issued_) + partial_;
  if (partial_ > 0) {
    return places_[issued_ & (places_.size() - 1)] + partial_;
  }
  return staging_->PlaceFor(Extent(ring_.slot(issued_)));
}

Mover::Available Mover::Look(uint64_t ready) {
  if (issued_ == ready) return {0, 0};
  const std::optional<uint64_t> place = NextPlace();
  if (!place) return {0, 0};
  const wire::Slot& first = ring_.slot(issued_);
  const wire::Slot& last = ring_.slot(ready - 1);
  const uint64_t start = first.position + partial_;
  // What is ready takes less than a lap, so it wraps at most once; where, only
  // a walk would tell. Up to the end of the ring is close enough.
  const uint64_t end = last.position >= first.position
                           ? last.position + last.bytes
                           : ring_.payload_bytes();
  uint64_t bytes = std::max<uint64_t>(1, end - start);
  if (staging_ != nullptr) {
    // The rest of a record that has begun has its place already.
    const uint64_t room = staging_->RoomAt(*place);
    bytes = std::min(bytes, std::max<uint64_t>(1, room));
  }
  return {bytes, std::max<uint64_t>(1, first.bytes - partial_)};
}

std::optional<Chunk> Mover::Plan(uint64_t ready, uint64_t limit,
                                 uint64_t records, Cut cut) {
  if (issued_ == ready) return std::nullopt;
  const std::optional<uint64_t> place = NextPlace();
  if (!place) return std::nullopt;
  const uint64_t start = PositionOf(issued_) + partial_;
  const uint64_t room = staging_ == nullptr ? ring_.payload_bytes() - start
                                            : staging_->RoomAt(*place);
  Chunk chunk{.place = *place,
              .to = staging_ == nullptr ? nullptr : staging_->at(*place),
              .from = ring_.payload() + start,
              .bytes = 0,
              .payload = 0,
              .sequence = issued_,
              .partial = partial_};
  uint64_t next = start - partial_;
  while (chunk.sequence != ready && records > 0) {
    const wire::Slot& slot = ring_.slot(chunk.sequence);
    if (slot.position != next) break;  // behind the wrap
    const uint64_t begin = slot.position + chunk.partial - start;
    const uint64_t end = slot.position + slot.bytes - start;
    next = slot.position + Extent(slot);
    const bool first = chunk.sequence == issued_;
    if (!first && next - start > room) break;
    if (end > limit) {
      if (cut == Cut::kBetween ? !first : limit <= begin) break;
      if (cut == Cut::kAnywhere) {
        chunk.payload += limit - begin;
        chunk.bytes = limit;
        chunk.partial += limit - begin;
        return chunk;
      }
    }
    chunk.payload += end - begin;
    chunk.bytes = end;
    chunk.partial = 0;
    ++chunk.sequence;
    --records;
  }
  if (chunk.sequence == issued_) return std::nullopt;
  return chunk;
}

void Mover::Take(const Chunk& chunk) {
  const uint64_t start = PositionOf(issued_) + partial_;
  if (staging_ != nullptr) {
    uint64_t end = staging_->head();
    for (uint64_t s = issued_; s != chunk.sequence + (chunk.partial > 0); ++s) {
      const wire::Slot& slot = ring_.slot(s);
      const uint64_t at = chunk.place + slot.position - start;
      places_[s & (places_.size() - 1)] = at;
      end = at + Extent(slot);
    }
    staging_->TakeTo(end);
  }
  if (chunk.sequence != issued_) {
    const wire::Slot& last = ring_.slot(chunk.sequence - 1);
    reached_ = last.position + Extent(last);
  }
  issued_ = chunk.sequence;
  partial_ = chunk.partial;
}

const uint8_t* Mover::PayloadOf(uint64_t sequence) const {
  if (staging_ == nullptr) return ring_.payload() + PositionOf(sequence);
  return staging_->at(places_[sequence & (places_.size() - 1)]);
}

uint64_t Mover::StagingEndOf(uint64_t sequence) const {
  return places_[sequence & (places_.size() - 1)] +
         Extent(ring_.slot(sequence));
}

}  // namespace dmi::drain
