// SPDX-License-Identifier: Apache-2.0
// The simulation, see the header.
#include "support/simulation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "program/atomics.h"
#include "program/boundary.h"

namespace dmi::testing {

Simulation::Simulation(SimulationOptions options)
    : options_(std::move(options)),
      time_(std::make_shared<base::ManualTime>()),
      queue_(std::make_shared<batch::BatchQueue>()) {
  time_->Advance(kSecond);
  options_.ring.clock = &time_->word();
  ring_ = std::make_shared<ring::Ring>(options_.ring);
  link_ = std::make_shared<transfer::SimulatedLink>(options_.link, time_);
  drain::DrainParts parts;
  parts.link = link_;
  parts.time = time_;
  parts.windows = options_.windows;
  parts.progress = &device_.block().progress;
  drain_ = std::make_unique<drain::Drain>(ring_, 7, options_.drain, queue_,
                                          std::move(parts));
  program::Install(device_.block(), ring_->header());
  boundaries_.push_back(now());
  next_turn_ = now();
  next_boundary_ =
      now() + (options_.schedule ? options_.schedule(0) : kForever);
}

Simulation::~Simulation() { program::Uninstall(device_.block()); }

void Simulation::Install(uint16_t version,
                         const windows::WindowPattern& pattern) {
  controller().InstallPending(version, pattern);
  program::StoreRelease(device_.block().progress,
                        wire::PackProgress(version, pattern.initial_counter()));
  next_turn_ = now();
}

void Simulation::Suspend() {
  controller().Suspend();
  const uint64_t progress = program::LoadAcquire(device_.block().progress);
  program::StoreRelease(device_.block().progress,
                        wire::PackProgress(0, wire::CounterOf(progress)));
  next_turn_ = now();
}

void Simulation::Record(uint64_t bytes) {
  RecordOne(device_, 0, recorded_++, bytes);
}

void Simulation::Fill() {
  if (!backlog_) return;
  const wire::RingHeader& header = ring_->header();
  // At the end of the ring a record may take twice its space.
  const uint64_t most = 2 * wire::UnitsFor(options_.record_bytes);
  while (true) {
    const wire::Cursor tail = wire::Unpack(header.tail);
    const wire::Cursor head = wire::Unpack(header.head);
    const uint64_t used = wire::UnitsBetween(tail, head, header.extent);
    if (used + most > header.extent.units ||
        head.sequence - tail.sequence == header.extent.slots) {
      return;
    }
    Record(options_.record_bytes);
  }
}

void Simulation::Turn() {
  Fill();
  ++turns_;
  const int64_t nanos = drain_->Turn();
  ASSERT_GE(nanos, 0) << drain_->failure().text();
  next_turn_ = now() + std::max<int64_t>(nanos, kMicrosecond);
  for (const auto& batch : queue_->Pop(1000, 0)) checker_.Check(*batch);
}

void Simulation::Step(int64_t most) {
  const int64_t next = std::min({next_boundary_, next_turn_, most});
  time_->Advance(std::max<int64_t>(0, next - now()));
  if (now() >= next_boundary_) {
    program::AdvanceBoundary(device_.block());
    const uint64_t progress = program::LoadAcquire(device_.block().progress);
    boundaries_.push_back(now());
    next_boundary_ = now() + options_.schedule(boundaries_.size() - 1);
    const uint64_t wake = program::LoadAcquire(ring_->header().wake_progress);
    if (progress >= wake) {
      next_turn_ = std::min(next_turn_, now() + options_.wake_nanos);
    }
  }
  if (now() >= next_turn_) Turn();
}

void Simulation::RunTo(uint64_t boundaries) {
  while (boundaries_.size() <= boundaries && !::testing::Test::HasFailure()) {
    Step(std::numeric_limits<int64_t>::max());
  }
}

void Simulation::RunFor(int64_t nanos) {
  const int64_t end = now() + nanos;
  const int64_t resume = next_boundary_ - now();
  next_boundary_ = std::numeric_limits<int64_t>::max();
  while (now() < end && !::testing::Test::HasFailure()) Step(end);
  next_boundary_ = now() + resume;
}

void Simulation::Finish() {
  backlog_ = false;
  while (checker_.records() < recorded_ && !::testing::Test::HasFailure()) {
    const int64_t nanos = drain_->Turn(true);
    ASSERT_GE(nanos, 0) << drain_->failure().text();
    for (const auto& batch : queue_->Pop(1000, 0)) checker_.Check(*batch);
    time_->Advance(std::max<int64_t>(nanos, kMicrosecond));
  }
  EXPECT_EQ(checker_.records(), recorded_);
}

std::vector<drain::Transfer> Simulation::Transfers(int64_t from) const {
  std::vector<drain::Transfer> found = drain_->transfers().Read();
  const int64_t offset = ring_->header().clock_offset;
  for (drain::Transfer& transfer : found) {
    transfer.begin_ns -= offset;
    transfer.end_ns -= offset;
  }
  std::erase_if(found, [&](const auto& t) { return t.begin_ns < from; });
  return found;
}

Overlap Measure(const Simulation& simulation,
                const windows::WindowPattern& pattern, int64_t from) {
  const std::vector<int64_t>& at = simulation.boundaries();
  Overlap overlap;
  std::vector<std::pair<int64_t, int64_t>> windows;
  for (uint64_t counter = 0; counter + 1 < at.size(); ++counter) {
    if (at[counter] >= from && pattern.Match(counter)) {
      windows.emplace_back(at[counter], at[counter + 1]);
      overlap.windows += at[counter + 1] - at[counter];
    }
  }
  size_t first = 0;
  for (const drain::Transfer& transfer : simulation.Transfers(from)) {
    if (transfer.end_ns > at.back()) break;
    while (first < windows.size() &&
           windows[first].second < transfer.begin_ns) {
      ++first;
    }
    int64_t inside = 0;
    for (size_t i = first;
         i < windows.size() && windows[i].first < transfer.end_ns; ++i) {
      inside += std::max<int64_t>(
          0, std::min(windows[i].second, transfer.end_ns) -
                 std::max(windows[i].first, transfer.begin_ns));
    }
    overlap.friendly += inside;
    overlap.critical += transfer.end_ns - transfer.begin_ns - inside;
    overlap.bytes += transfer.bytes;
  }
  return overlap;
}

}  // namespace dmi::testing
