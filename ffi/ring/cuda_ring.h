// SPDX-License-Identifier: Apache-2.0
// The ring of a CUDA device: the payload there, the slots here.
#ifndef DMI_RING_CUDA_RING_H_
#define DMI_RING_CUDA_RING_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda.h"
#include "base/failure.h"
#include "ring/clock_fit.h"
#include "ring/ring.h"
#include "wire/device_ring.h"

namespace dmi::ring {

class CudaRing final : public Ring {
 public:
  // Throws base::CudaError with the numbers where it does not fit, and what
  // Ring throws. `control` is the block of the device.
  CudaRing(const RingOptions& options, int ordinal,
           wire::ControlBlock* control);
  // No program may be inside.
  ~CudaRing() override;

  wire::DeviceMirror& mirror() { return page().mirror; }
  wire::DeviceRing* on_device() const {
    return device_->as<wire::DeviceRing>();
  }
  wire::DeviceMirror* mirror_on_device() const { return mirror_on_device_; }

  uint64_t Head() const override;
  bool somebody_waits() const override;
  void GiveUp() override;
  std::vector<wire::SiteCounters> Counters(size_t first,
                                           size_t count) const override;
  int64_t HostNanos(int64_t stamp) const override;
  int64_t UtcNanos(int64_t stamp) const override;
  // Reads the clock of the device again, about once a second. Throws
  // base::CudaError: so a capture sees that its device is lost.
  void Tick() override;
  int64_t utc_offset() const override { return utc_offset_; }
  std::string failure() const override { return failure_.text(); }
  ClockState clock() const override;

  // Any thread: what the device did wrong.
  void Latch(const std::string& what) { failure_.Latch(what); }

 private:
  // Host memory the device reaches, one page: the mirror, then what is on its
  // way from or to the device.
  struct Page {
    wire::DeviceMirror mirror;
    wire::DeviceRing ring;
    uint64_t head;
    wire::SiteCounters counters[32];
  };
  static_assert(sizeof(Page) <= kHeaderBytes);

  Page& page() const;
  void CalibrateClock();
  // Asks the device for its time; nullopt where it does not answer in time.
  std::optional<ClockReading> ReadClock(int64_t patience_nanos);
  // The time that was asked for, 0 while there is none.
  uint64_t AwaitClock(int64_t patience_nanos);
  // From the device, through `there` in the page.
  template <typename T>
  void Fetch(T* there, const T* from, size_t count) const;

  const int ordinal_;
  wire::ControlBlock* const control_;
  const int64_t utc_offset_;  // UTC minus the host's clock
  mutable base::FailureLatch failure_;

  std::optional<base::CudaStream> stream_;
  std::optional<base::Pinned> pinned_page_;
  std::optional<base::Pinned> pinned_slots_;
  std::optional<base::Pinned> pinned_boundaries_;
  std::optional<base::DeviceMemory> payload_on_device_;
  std::optional<base::DeviceMemory> sites_on_device_;
  std::optional<base::DeviceMemory> device_;
  wire::DeviceMirror* mirror_on_device_ = nullptr;

  // Guards the two that follow and the page behind the mirror; held while the
  // device answers.
  mutable base::Mutex mutex_;
  mutable uint64_t last_head_ = 0;
  // What the device said last, for when it no longer answers.
  mutable std::vector<wire::SiteCounters> last_counters_;
  mutable base::Mutex clock_mutex_;  // guards the fit
  std::optional<ClockFit> clock_;
  int64_t device_step_ = 0;
  int64_t clock_offset_ = 0;  // added to the time of the device, in stamps
  int64_t ticked_ = 0;
  bool asked_ = false;  // the device owes an answer
};

}  // namespace dmi::ring

#endif  // DMI_RING_CUDA_RING_H_
