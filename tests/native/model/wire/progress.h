// SPDX-License-Identifier: Apache-2.0
// The product's header with a boundary log of two stamps.
#ifndef DMI_MODEL_WIRE_PROGRESS_H_
#define DMI_MODEL_WIRE_PROGRESS_H_

#define kBoundaryLogSize kWholeBoundaryLogSize

#include_next "wire/progress.h"
#undef kBoundaryLogSize

namespace dmi::wire {
inline constexpr uint32_t kBoundaryLogSize = 2;
}  // namespace dmi::wire

#endif  // DMI_MODEL_WIRE_PROGRESS_H_
