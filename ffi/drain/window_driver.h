// SPDX-License-Identifier: Apache-2.0
// Between the boundaries of a device and its window controller.
//
// Reads the boundary log and the progress word, declares observation gaps, and
// says where in the program the drain wants to be woken. Drain thread only, but
// for `controller`.
#ifndef DMI_DRAIN_WINDOW_DRIVER_H_
#define DMI_DRAIN_WINDOW_DRIVER_H_

#include <cstdint>
#include <optional>

#include "base/time_source.h"
#include "ring/ring.h"
#include "windows/controller.h"

namespace dmi::drain {

class WindowDriver {
 public:
  // `progress` is the word of the device's control block.
  WindowDriver(const windows::WindowConfig& config, const uint64_t& progress,
               ring::Ring& ring, const base::TimeSource& time)
      : config_(config),
        progress_(progress),
        ring_(ring),
        time_(time),
        controller_(config, time) {}

  // Tells the controller of every boundary since the last call, then asks what
  // may move; see WindowController::Poll.
  std::optional<windows::Admission> Poll(uint64_t bytes, uint64_t first);
  bool Commit(const windows::Admission& admission, uint64_t bytes) {
    return controller_.Commit(admission, bytes, Progress());
  }
  void Complete(const windows::Admission& admission, uint64_t bytes) {
    controller_.Complete(admission, bytes, Progress());
  }
  // Something moves that no window allowed.
  void NoteForced() { controller_.NoteObservationGap(); }
  void NoteCapacityFlush() { controller_.RecordCapacityFlush(Progress()); }

  // Whether transfers keep to windows now.
  bool confining() const {
    return controller_.mode() == windows::Mode::kActive &&
           !controller_.Stalled();
  }
  // How long no boundary has passed, where the last poll saw a window open.
  std::optional<int64_t> open_nanos() const { return controller_.OpenNanos(); }
  // Whether the program has reached what a poll would want to see.
  bool Woken() const;

  const windows::WindowConfig& config() const { return config_; }
  windows::WindowController& controller() { return controller_; }

 private:
  uint64_t Progress() const;
  void ReadBoundaries();

  const windows::WindowConfig config_;
  const uint64_t& progress_;
  ring::Ring& ring_;
  const base::TimeSource& time_;
  windows::WindowController controller_;
  uint64_t boundaries_ = 0;  // read so far
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_WINDOW_DRIVER_H_
