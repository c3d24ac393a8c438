// SPDX-License-Identifier: Apache-2.0
// The kernels, compiled against the model, for fibers.
#ifndef DMI_MODEL_DEVICE_H_
#define DMI_MODEL_DEVICE_H_

#include "model/drain.h"
#include "model/explore.h"
#include "program/kernels.cu"

namespace dmi::model {

// A call that records one unit of `value`; its step is a label.
struct Call {
  Call(Memory& memory, uint64_t value) : value(value) {
    arguments.control = &memory.control;
    arguments.labels.at[0] = {&this->value, wire::DType::kU64, 's', false};
    arguments.labels.count = 1;
    arguments.payload = reinterpret_cast<const uint8_t*>(&this->value);
    arguments.bytes = sizeof value;
    arguments.scratch = scratch;
  }
  Call(const Call&) = delete;

  uint64_t value;
  alignas(64) uint64_t scratch[program::kScratchWords] = {};
  program::RecordArguments arguments{};
};

inline void Control(Memory& memory, program::ControlAction action,
                    uint64_t& answer, uint64_t value = 0) {
  program::Control(
      {&memory.control, &answer, action, wire::kSingleDevice, value, 0});
}

}  // namespace dmi::model

#endif  // DMI_MODEL_DEVICE_H_
