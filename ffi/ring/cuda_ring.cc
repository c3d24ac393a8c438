// SPDX-License-Identifier: Apache-2.0
// The ring of a CUDA device, see the header.
#include "ring/cuda_ring.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "program/atomics.h"
#include "program/kernels.h"

namespace dmi::ring {
namespace {

using program::ControlAction;

constexpr int64_t kTickNanos = 1'000'000'000;
// At the start nothing else is under way; later the drain has better to do than
// to wait for a device that is busy.
constexpr int64_t kFirstPatience = 20'000'000;
constexpr int kMostSlow = 100;
constexpr int64_t kTickPatience = 200'000;
constexpr int kFirstReadings = 16;

}  // namespace

CudaRing::CudaRing(const RingOptions& options, int ordinal,
                   wire::ControlBlock* control)
    : Ring(options, Payload::kElsewhere),
      ordinal_(ordinal),
      control_(control),
      utc_offset_(base::UtcOffsetNanos()) {
  const base::OnDevice here(ordinal_);
  stream_.emplace();
  pinned_page_.emplace(header_page(), kHeaderBytes, "the ring's header");
  pinned_slots_.emplace(slots().data(), slots().size(), "the ring's slots");
  pinned_boundaries_.emplace(boundaries().data(), boundaries().size(),
                             "the boundary log");
  payload_on_device_.emplace(payload_bytes(), *stream_,
                             "the ring (ring_bytes)");
  sites_on_device_.emplace(wire::kMaxSites * sizeof(wire::SiteCounters),
                           *stream_, "counters of sites");
  device_.emplace(sizeof(wire::DeviceRing), *stream_, "the ring's header");
  mirror_on_device_ = pinned_page_->on_device<wire::DeviceMirror>();
  header().payload = reinterpret_cast<uint64_t>(payload_on_device_->as<void>());
  CalibrateClock();

  wire::DeviceRing& image = page().ring;
  image.ring = header();
  image.ring.slots =
      reinterpret_cast<uint64_t>(pinned_slots_->on_device<wire::Slot>());
  image.ring.sites = reinterpret_cast<uint64_t>(sites_on_device_->as<void>());
  image.ring.boundaries =
      reinterpret_cast<uint64_t>(pinned_boundaries_->on_device<void>());
  image.ring.signals = 0;
  image.ring.clock = 0;
  image.ring.clock_offset = clock_offset_;
  image.mirror = reinterpret_cast<uint64_t>(mirror_on_device_);
  image.stall_nanos = options.stall_nanos;
  base::CheckCuda(cudaMemcpyAsync(device_->as<void>(), &image, sizeof image,
                                  cudaMemcpyHostToDevice, stream_->get()),
                  "cudaMemcpyAsync of the ring's header");
  stream_->Wait();
}

CudaRing::~CudaRing() {
  if (base::InForkedChild()) return;
  try {
    const base::OnDevice here(ordinal_);
    device_.reset();
    sites_on_device_.reset();
    payload_on_device_.reset();
    pinned_boundaries_.reset();
    pinned_slots_.reset();
    pinned_page_.reset();
    stream_.reset();
  } catch (const base::CudaError&) {
    // The device is lost, and with it everything of ours on it.
  }
}

CudaRing::Page& CudaRing::page() const {
  return *reinterpret_cast<Page*>(header_page());
}

template <typename T>
void CudaRing::Fetch(T* there, const T* from, size_t count) const {
  const base::OnDevice here(ordinal_);
  base::CheckCuda(cudaMemcpyAsync(there, from, count * sizeof(T),
                                  cudaMemcpyDeviceToHost, stream_->get()),
                  "cudaMemcpyAsync of counters");
  stream_->Wait();
}

uint64_t CudaRing::Head() const {
  std::lock_guard lock(mutex_);
  if (base::InForkedChild()) return last_head_;
  try {
    Fetch(&page().head, &on_device()->ring.head, 1);
    last_head_ = page().head;
  } catch (const base::CudaError& error) {
    failure_.Latch(error.what());
  }
  return last_head_;
}

std::vector<wire::SiteCounters> CudaRing::Counters(size_t first,
                                                   size_t count) const {
  std::lock_guard lock(mutex_);
  const size_t end = first + count;
  last_counters_.resize(std::max(end, last_counters_.size()));
  const auto* from = sites_on_device_->as<wire::SiteCounters>();
  constexpr size_t kAtOnce = std::size(Page{}.counters);
  try {
    for (size_t done = first; done < end && !base::InForkedChild();) {
      const size_t now = std::min(kAtOnce, end - done);
      Fetch(page().counters, from + done, now);
      std::copy_n(page().counters, now, last_counters_.begin() + done);
      done += now;
    }
  } catch (const base::CudaError& error) {
    failure_.Latch(error.what());
  }
  return {last_counters_.begin() + first, last_counters_.begin() + end};
}

bool CudaRing::somebody_waits() const {
  return program::LoadAcquire(page().mirror.waiting) != 0;
}

void CudaRing::GiveUp() {
  uint64_t running = wire::kRunning;
  program::ReplaceRelease(page().mirror.ended, running,
                          uint64_t{wire::kGivenUp});
}

// ---- The clock ----

int64_t CudaRing::HostNanos(int64_t stamp) const {
  std::lock_guard lock(clock_mutex_);
  return clock_->HostOf(stamp - clock_offset_);
}

int64_t CudaRing::UtcNanos(int64_t stamp) const {
  return HostNanos(stamp) + utc_offset_;
}

ClockState CudaRing::clock() const {
  std::lock_guard lock(clock_mutex_);
  return {clock_->error(), device_step_, clock_->drift()};
}

uint64_t CudaRing::AwaitClock(int64_t patience_nanos) {
  const int64_t begin = base::MonotonicNanos();
  while (true) {
    const uint64_t device = program::LoadAcquire(page().mirror.clock);
    if (device != 0) asked_ = false;
    if (device != 0 || base::MonotonicNanos() - begin > patience_nanos) {
      return device;
    }
    std::this_thread::yield();
  }
}

std::optional<ClockReading> CudaRing::ReadClock(int64_t patience_nanos) {
  // Of a time nobody bracketed.
  if (asked_ && AwaitClock(patience_nanos) == 0) return std::nullopt;
  program::StoreRelaxed(page().mirror.clock, uint64_t{0});
  const int64_t before = base::MonotonicNanos();
  base::CheckCuda(program::LaunchControl({control_,
                                          &mirror_on_device_->clock,
                                          ControlAction::kClock,
                                          {},
                                          0,
                                          0},
                                         stream_->get()),
                  "cudaLaunchKernel of a control kernel");
  asked_ = true;
  const uint64_t device = AwaitClock(patience_nanos);
  const int64_t after = base::MonotonicNanos();
  if (device == 0) return std::nullopt;
  return ClockReading{static_cast<int64_t>(device), before, after};
}

void CudaRing::CalibrateClock() {
  for (int read = 0, slow = 0; read < kFirstReadings && slow < kMostSlow;) {
    const auto reading = ReadClock(kFirstPatience);
    if (!reading) {
      stream_->Idle();  // throws what is wrong with the device
      ++slow;
      continue;
    }
    ++read;
    if (!clock_ || reading->width() < 2 * clock_->error()) {
      clock_.emplace(*reading);
    }
  }
  if (!clock_) {
    throw base::CudaError(cudaErrorTimeout, "reading the clock of the device");
  }
  page().mirror.answer = 0;
  base::CheckCuda(program::LaunchControl({control_,
                                          &mirror_on_device_->answer,
                                          ControlAction::kClockStep,
                                          {},
                                          0,
                                          0},
                                         stream_->get()),
                  "cudaLaunchKernel of a control kernel");
  stream_->Wait();
  device_step_ = static_cast<int64_t>(page().mirror.answer);
  // At the moment of the calibration stamps are UTC; from then on the fit says.
  clock_offset_ = clock_->HostOf(0) + utc_offset_;
  header().clock_offset = clock_offset_;
  ticked_ = base::MonotonicNanos();
}

void CudaRing::Tick() {
  const int64_t now = base::MonotonicNanos();
  if (now - ticked_ < kTickNanos) return;
  ticked_ = now;
  if (const auto reading = ReadClock(kTickPatience)) {
    std::lock_guard lock(clock_mutex_);
    clock_->Add(*reading);
  }
}

}  // namespace dmi::ring
