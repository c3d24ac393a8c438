// SPDX-License-Identifier: Apache-2.0
// Which devices are known, see the header.
#include "ring/control.h"

#include <map>
#include <mutex>
#include <stdexcept>

namespace dmi::ring {
namespace {

struct Known {
  base::Mutex mutex;
  std::map<int64_t, std::unique_ptr<Control>> by_device;
};

// Leaked, as control blocks are: programs may run while the process exits.
Known& TheKnown() {
  static auto* known = new Known;
  return *known;
}

}  // namespace

Control& ControlOf(Platform platform, int32_t ordinal, int64_t device) {
  Known& known = TheKnown();
  std::lock_guard lock(known.mutex);
  std::unique_ptr<Control>& control = known.by_device[device];
  if (control != nullptr) return *control;
  if (platform == Platform::kHost) {
    control = MakeHostControl(ordinal, device);
  } else {
#if defined(DMI_CUDA)
    control = MakeCudaControl(ordinal, device);
#else
    throw std::logic_error("jax_dmi was built without CUDA");
#endif
  }
  return *control;
}

Control* FindControl(int64_t device) {
  Known& known = TheKnown();
  std::lock_guard lock(known.mutex);
  const auto found = known.by_device.find(device);
  return found == known.by_device.end() ? nullptr : found->second.get();
}

}  // namespace dmi::ring
