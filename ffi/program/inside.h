// SPDX-License-Identifier: Apache-2.0
// How a program holds on to the ring while it uses it.
#ifndef DMI_PROGRAM_INSIDE_H_
#define DMI_PROGRAM_INSIDE_H_

#include <cstdint>

#include "program/atomics.h"
#include "wire/control.h"
#include "wire/host_device.h"

namespace dmi::program {

// Keeps the ring from being freed while a producer is inside. The increment and
// the second load of `ring` are sequentially consistent, as are the store of
// `ring` and the load of `in_flight` in Uninstall: either the producer sees no
// ring, or Uninstall sees the producer.
//
// The first load keeps producers out that come after the ring was taken away:
// were they counted, however briefly, Uninstall might never see a count of 0.
class Inside {
 public:
  DMI_HOST_DEVICE explicit Inside(wire::ControlBlock& control)
      : control_(control) {
    if (LoadRelaxed(control_.ring) == 0) return;
    AddSeqCst(control_.in_flight, uint64_t{1});
    counted_ = true;
    ring_ = reinterpret_cast<wire::RingHeader*>(LoadSeqCst(control_.ring));
  }
  DMI_HOST_DEVICE ~Inside() { Leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  // After this the ring itself may be gone at any time; what was reserved in it
  // stays until it is published.
  DMI_HOST_DEVICE void Leave() {
    // Release: what was written to the ring comes before its owner's free.
    if (counted_) LeaveFor(control_);
    counted_ = false;
  }

  // Somebody else leaves, by LeaveFor.
  DMI_HOST_DEVICE void Stay() { counted_ = false; }
  DMI_HOST_DEVICE static void LeaveFor(wire::ControlBlock& control) {
    AddAcqRel(control.in_flight, ~uint64_t{0});
  }

  // nullptr where no ring is installed.
  DMI_HOST_DEVICE wire::RingHeader* ring() const { return ring_; }

 private:
  wire::ControlBlock& control_;
  wire::RingHeader* ring_ = nullptr;
  bool counted_ = false;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_INSIDE_H_
