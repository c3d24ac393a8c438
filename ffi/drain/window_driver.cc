// SPDX-License-Identifier: Apache-2.0
// The window driver, see the header.
#include "drain/window_driver.h"

#include "program/atomics.h"
#include "wire/progress.h"

namespace dmi::drain {
namespace {

using wire::BoundaryStamp;

// A drain that comes this long after a boundary was away: what it issues then
// says nothing about how much a whole window carries.
constexpr int64_t kLateNanos = 500'000;

}  // namespace

uint64_t WindowDriver::Progress() const {
  return program::LoadAcquire(progress_);
}

bool WindowDriver::Woken() const {
  return Progress() >= program::LoadRelaxed(ring_.header().wake_progress);
}

void WindowDriver::ReadBoundaries() {
  const wire::RingHeader& header = ring_.header();
  const auto* log = reinterpret_cast<const BoundaryStamp*>(header.boundaries);
  const uint64_t count = program::LoadAcquire(header.boundary_count);
  if (boundaries_ == count) return;
  if (count - boundaries_ > wire::kBoundaryLogSize / 2) {
    boundaries_ = count - wire::kBoundaryLogSize / 2;
    controller_.NoteObservationGap();
  }
  const int64_t now = time_.Now();
  bool late = false;
  for (; boundaries_ < count; ++boundaries_) {
    const BoundaryStamp& stamp = log[boundaries_ % wire::kBoundaryLogSize];
    if (program::LoadAcquire(stamp.tag) < boundaries_ + 1)
      break;  // not there yet
    const uint64_t progress = program::LoadAcquire(stamp.progress);
    const int64_t time = ring_.HostNanos(program::LoadAcquire(stamp.time_ns));
    if (program::LoadAcquire(stamp.tag) != boundaries_ + 1) {
      controller_.NoteObservationGap();  // overwritten
      continue;
    }
    controller_.ObserveBoundary(progress, time);
    late = now - time > kLateNanos;
  }
  if (late) controller_.NoteObservationGap();
}

std::optional<windows::Admission> WindowDriver::Poll(uint64_t bytes,
                                                     uint64_t first) {
  ReadBoundaries();
  const uint64_t progress = Progress();
  auto admission = controller_.Poll(progress, bytes, first);
  const uint64_t edge = controller_.NextEdge();
  // A counter never gets further than its 48 bits.
  program::StoreRelaxed(
      ring_.header().wake_progress,
      edge > wire::kCounterMask
          ? windows::kUnbounded
          : wire::PackProgress(wire::VersionOf(progress), edge));
  return admission;
}

}  // namespace dmi::drain
