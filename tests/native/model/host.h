// SPDX-License-Identifier: Apache-2.0
// The host form of `record`, compiled against the model, for fibers.
#ifndef DMI_MODEL_HOST_H_
#define DMI_MODEL_HOST_H_

#include "model/drain.h"
#include "model/explore.h"

// Sleeping in Uninstall lets the other fibers go on.
#define sleep_for(duration) yield(), ::dmi::model::Yield()
#include "program/record.cc"
#undef sleep_for

namespace dmi::model {

// Records one unit of `value`, with the same as its step.
inline void RecordOne(Memory& memory, uint64_t value) {
  const program::RecordLabels labels{wire::kHasStep,
                                     static_cast<int64_t>(value)};
  program::Record(memory.control, {}, labels, &value, sizeof value);
}

}  // namespace dmi::model

#endif  // DMI_MODEL_HOST_H_
