// SPDX-License-Identifier: Apache-2.0
// Python's units in those of native code.
#ifndef DMI_PYTHON_CONVERT_H_
#define DMI_PYTHON_CONVERT_H_

#include <algorithm>
#include <cstdint>

namespace dmi::python {

// Times too long to count are as long as can be.
inline int64_t Nanos(double seconds) {
  constexpr double kMost = 9e18;
  return static_cast<int64_t>(std::min(seconds * 1e9, kMost));
}

}  // namespace dmi::python

#endif  // DMI_PYTHON_CONVERT_H_
