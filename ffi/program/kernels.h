// SPDX-License-Identifier: Apache-2.0
// The kernels of the CUDA platform, for those who launch them.
//
// Every launch only enqueues, exactly one kernel but for a large record (two),
// and returns the error of the launch; so all of them may be captured into
// graphs, also into the body of a conditional node. Arguments are baked in
// then: the control block lives as long as the process, and everything else is
// found through it.
#ifndef DMI_PROGRAM_KERNELS_H_
#define DMI_PROGRAM_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "program/gates.h"
#include "program/labels.h"
#include "program/record.h"
#include "wire/control.h"
#include "wire/device_ring.h"

namespace dmi::program {

// Of a copy that fills a device: as many as fit at once. With more, the last
// ones would begin when the others end.
inline constexpr uint32_t kBlocksPerMultiprocessor = 3;

// Of the scratch that comes with every call.
inline constexpr uint32_t kScratchWords = 8;

struct RecordArguments {
  wire::ControlBlock* control;
  RecordSite site;
  LabelOperands labels;
  const uint8_t* payload;
  uint64_t bytes;
  uint64_t* scratch;  // kScratchWords, of this execution alone
};
cudaError_t LaunchRecord(const RecordArguments& call, uint32_t most_blocks,
                         cudaStream_t stream);

struct AdvanceArguments {
  wire::ControlBlock* control;
  const uint8_t* from;  // what goes through the call, where it is not in place
  uint8_t* to;
  uint64_t bytes;
};
cudaError_t LaunchAdvance(const AdvanceArguments& call, cudaStream_t stream);

// The words of a step or gate program, see handlers.
struct WordsArguments {
  wire::ControlBlock* control;
  const uint32_t* words;
  uint64_t count;
};
cudaError_t LaunchStep(const WordsArguments& call, cudaStream_t stream);
cudaError_t LaunchGates(const WordsArguments& call, cudaStream_t stream);
// Ends after everything before it.
cudaError_t LaunchFence(cudaStream_t stream);

// What the host does to a control block.
enum class ControlAction : uint32_t {
  kMake,       // its gates lie behind it
  kInstall,    // value: DeviceRing*
  kUninstall,  // answers how many producers are inside
  kProgress,   // value: the word, which is the answer too
  kStep,       // value: the step, flags
  kGate,       // value: index, flags: whether it closes
  kAdvance,    // a boundary
  kDeselect,   // value
  kClock,      // answers the time of the device, ns
  kClockStep,  // answers the smallest step of that time
};
struct ControlArguments {
  wire::ControlBlock* control;
  uint64_t* answer;  // in host memory; nullptr where nothing answers
  ControlAction action;
  wire::ProgramKind kind;
  uint64_t value;
  uint64_t flags;
};
cudaError_t LaunchControl(const ControlArguments& call, cudaStream_t stream);

// Loads every kernel on the current device, so that no launch has to later,
// when a program may be waiting for the drain.
cudaError_t LoadKernels();

}  // namespace dmi::program

#endif  // DMI_PROGRAM_KERNELS_H_
