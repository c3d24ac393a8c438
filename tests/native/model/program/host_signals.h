// SPDX-License-Identifier: Apache-2.0
// The product's signals for fibers, which must not block: they look again.
#ifndef DMI_PROGRAM_HOST_SIGNALS_H_
#define DMI_PROGRAM_HOST_SIGNALS_H_

#include "model/memory.h"
#include "program/atomics.h"

namespace dmi::program {

class HostSignals {
 public:
  enum class Waited { kFreed, kExhausted, kClosed };

  void WakeDrain() { model::Memory::Current().Touch(this); }

  template <typename Fits>
  Waited WaitForSpace(bool, Fits fits) {
    while (!fits()) {
      if (LoadAcquire(closed) != 0) return Waited::kClosed;
      model::Yield();
    }
    return Waited::kFreed;
  }

  void Close() { StoreRelease(closed, uint64_t{1}); }

  uint64_t closed = 0;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_HOST_SIGNALS_H_
