// SPDX-License-Identifier: Apache-2.0
// What one turn of the drain does: move what may move, cut what has landed.
#include <algorithm>
#include <optional>

#include "drain/drain.h"
#include "program/atomics.h"

namespace dmi::drain {

void Drain::Work(bool everything) {
  std::lock_guard lock(cut_mutex_);
  while (true) {
    Land();
    if (paused_.load(std::memory_order_relaxed) && !everything) {
      if (!flights_.empty()) return;
      landed_.notify_all();
      if (windows_) windows_->Poll(0, 0);  // sees what passes meanwhile
      return;
    }
    if (!HasRoom() || !Scan() || !Move(everything)) break;
  }
  if (flights_.empty()) CutLanded();
}

bool Drain::HasRoom() const {
  return flights_.empty() || (flights_.size() < depth_ &&
                              flights_.back().kind != TransferKind::kWindow);
}

bool Drain::Move(bool everything) {
  const bool forced = ready_ != mover_.issued() && Forced(everything);
  blocked_ = false;
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
      cutter_.cut() == mover_.issued()) {
    // In place, and nothing of a window is left: no need to look twice.
    Flight flight{.chunk = {},
                  .kind = kind,
                  .admission = std::nullopt,
                  .begin = time_->Now(),
                  .begin_progress = Progress()};
    const uint64_t bytes = CutBatch(ready_);
    ready_bytes_ -= bytes;
    mover_.SkipTo(cutter_.cut(),
                  uint64_t{cutter_.reached_unit()} * wire::kPayloadUnit);
    Log(flight, bytes);
    NoteForcedMoved();
    return true;
  }
  const auto chunk = mover_.Plan(ready_, options_.batch_bytes,
                                 options_.batch_records, Cut::kBetween);
  if (chunk) return Begin(*chunk, kind, std::nullopt);
  blocked_ = mover_.issued() != ready_;
  return false;
}

bool Drain::MoveInWindow() {
  if (!flights_.empty()) {
    windows_->Poll(0, 0);
    return false;
  }
  const Mover::Available available = mover_.Look(ready_);
  blocked_ = available.bytes == 0 && mover_.issued() != ready_;
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
  const Flight flight{chunk, kind, admission, time_->Now(), Progress()};
  link_->Begin(chunk.to, chunk.from, chunk.bytes);
  blocked_ = false;
  mover_.Take(chunk);
  ready_bytes_ -= chunk.payload;
  flights_.push_back(flight);
  return true;
}

void Drain::Land() {
  bool cut = false;
  while (!flights_.empty() && link_->Remaining() <= 0) {
    const Flight flight = flights_.front();
    flights_.erase(flights_.begin());
    link_->Retire();
    mover_.Land(flight.chunk);
    Log(flight, flight.chunk.payload);
    landed_bytes_ += flight.chunk.payload;
    if (flight.admission) {
      windows_->Complete(*flight.admission,
                         std::max<uint64_t>(1, flight.chunk.bytes));
    }
    NoteForcedMoved();
    cut |= flight.kind != TransferKind::kWindow ||
           landed_bytes_ >= options_.batch_bytes ||
           mover_.moved() - cutter_.cut() >= options_.batch_records;
  }
  if (cut) CutLanded();
}

uint64_t Drain::CutBatch(uint64_t end) {
  const uint64_t bytes = cutter_.CutBatch(end, mover_);
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

uint64_t Drain::Progress() const {
  return progress_ ? program::LoadAcquire(*progress_) : 0;
}

void Drain::Log(const Flight& flight, uint64_t bytes) {
  const int64_t offset = ring_->utc_offset();
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
