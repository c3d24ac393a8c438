// SPDX-License-Identifier: Apache-2.0
// A clock that tests move, as Python holds it.
#ifndef DMI_PYTHON_WINDOWS_H_
#define DMI_PYTHON_WINDOWS_H_

#include <memory>

#include "base/time_source.h"

namespace dmi::python {

struct ManualClock {
  std::shared_ptr<base::ManualTime> time = std::make_shared<base::ManualTime>();
};

}  // namespace dmi::python

#endif  // DMI_PYTHON_WINDOWS_H_
