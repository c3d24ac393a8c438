// SPDX-License-Identifier: Apache-2.0
// What the host does to a device: takes up its control block, lets a ring in
// and takes it away, and sets what running programs read.
#ifndef DMI_RING_CONTROL_H_
#define DMI_RING_CONTROL_H_

#include <array>
#include <cstdint>
#include <memory>

#include "program/gates.h"
#include "ring/ring.h"
#include "wire/control.h"

namespace dmi::ring {

using Losses = std::array<uint64_t, wire::kLossReasons>;

// One per device, as long as the process. The control thread calls everything;
// Lost may be called by any thread. What a device does wrong is thrown as
// base::CudaError, but for Uninstall and Lost, which latch it in the ring.
class Control {
 public:
  virtual ~Control() = default;
  Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  virtual std::shared_ptr<Ring> MakeRing(const RingOptions& options) = 0;

  // The progress of the device, where the drain reads it.
  virtual const uint64_t& ProgressOf(Ring& ring) const = 0;

  // Lets records in. Progress and ambient steps begin anew. Where it throws,
  // some may be in all the same: Uninstall.
  virtual void Install(std::shared_ptr<Ring> ring) = 0;
  // Takes the ring away, unless another one is in its place: producers that
  // come later drop and count, those inside are woken and waited for.
  virtual void Uninstall(Ring& ring) = 0;

  // ---- While no program can be in flight that the change could overtake ----

  virtual void SetProgress(Ring& ring, uint64_t word) = 0;
  virtual void SetAmbientStep(wire::ProgramKind kind, int64_t step,
                              uint64_t flags) = 0;
  virtual void SetGate(program::GateChange change, wire::ProgramKind kind) = 0;
  virtual void AdvanceBoundary() = 0;
  // Whether the Monitor leaves this device out: its losses do not count.
  virtual void Deselect(bool deselected) = 0;

  // Losses while no ring was installed.
  virtual Losses Lost() const = 0;
};

enum class Platform { kHost, kCuda };

// Finds or makes it. `device` is the global id readers see. Throws
// base::CudaError, or std::logic_error where CUDA was not built.
Control& ControlOf(Platform platform, int32_t ordinal, int64_t device);

// nullptr where there is none. Any thread.
Control* FindControl(int64_t device);

// For ControlOf.
std::unique_ptr<Control> MakeHostControl(int32_t ordinal, int64_t device);
// `patience`: how long the producers inside may take to leave when a ring is
// taken away, ns. Waits have been ended then, so what is left of them is what
// lies before them in their streams.
std::unique_ptr<Control> MakeCudaControl(int32_t ordinal, int64_t device,
                                         int64_t patience = 60'000'000'000);

}  // namespace dmi::ring

#endif  // DMI_RING_CONTROL_H_
