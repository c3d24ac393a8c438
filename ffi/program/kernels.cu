// SPDX-License-Identifier: Apache-2.0
// The kernels, see the header.
#include <algorithm>

#include "base/launch.h"
#include "program/ambient.h"
#include "program/device_copy.h"
#include "program/device_record.h"
#include "program/kernels.h"
#include "program/mirror.h"
#include "program/stamp.h"

namespace dmi::program {
namespace {

using base::kBlockThreads;

// Up to here one block is faster than two kernels.
constexpr uint64_t kOneBlockBytes = 64 * 1024;
// What a block of a larger copy should have to do at least.
constexpr uint64_t kBytesPerBlock = 32 * 1024;

// ---- Records ----

__global__ void __launch_bounds__(kBlockThreads)
    RecordInOneBlock(RecordArguments call) {
  DMI_SHARED(Ticket, ticket);
  if (threadIdx.x == 0) ticket = BeginRecord(call);
  __syncthreads();
  if (ticket.ring == nullptr) return;
  CopyShare(ticket.to, call.payload, call.bytes, threadIdx.x, blockDim.x);
  // Makes the copies of the block part of what the publication releases.
  __syncthreads();
  if (threadIdx.x == 0) EndRecord(*call.control, ticket);
}

__global__ void RecordReserve(RecordArguments call) {
  *reinterpret_cast<Ticket*>(call.scratch) = BeginRecord(call);
}

__global__ void __launch_bounds__(kBlockThreads, kBlocksPerMultiprocessor)
    RecordCopy(RecordArguments call) {
  auto& ticket = *reinterpret_cast<Ticket*>(call.scratch);
  if (ticket.ring == nullptr) return;
  CopyShare(ticket.to, call.payload, call.bytes,
            uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
            uint64_t{gridDim.x} * blockDim.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Releases this block's copies, acquires those of the blocks before.
  if (AddAcqRel(ticket.arrived, 1u) == gridDim.x - 1) {
    EndRecord(*call.control, ticket);
  }
}

// ---- Boundaries, steps, gates ----

__device__ void Boundary(wire::ControlBlock& control) {
  const Inside inside(control);
  if (inside.ring() == nullptr) return;
  auto& ring = *reinterpret_cast<wire::DeviceRing*>(inside.ring());
  StampBoundary(ring.ring, NextProgress(control),
                base::DeviceNanos() + ring.ring.clock_offset);
  MirrorLatest(control.progress, MirrorOf(ring).progress);
  MirrorLatest(ring.ring.boundary_count, MirrorOf(ring).ring.boundary_count);
}

__global__ void __launch_bounds__(kBlockThreads)
    Advance(AdvanceArguments call) {
  if (call.to != call.from) {
    CopyShare(call.to, call.from, call.bytes, threadIdx.x, blockDim.x);
  }
  if (threadIdx.x == 0) Boundary(*call.control);
}

__global__ void Step(WordsArguments call) {
  ApplyStepWords(*call.control, call.words);
}

__global__ void Gates(WordsArguments call) {
  ApplyGateWords(*call.control, call.words, call.count);
}

struct Nothing {};
__global__ void Fence(Nothing) {}

// ---- What the host does ----

__device__ uint64_t ClockStep() {
  constexpr int kSteps = 16;
  constexpr int kMostLooks = 1'000'000;
  int64_t last = base::DeviceNanos();
  auto smallest = INT64_MAX;
  for (int step = 0, look = 0; step < kSteps && look < kMostLooks; ++look) {
    const int64_t now = base::DeviceNanos();
    if (now == last) continue;
    if (now - last < smallest) smallest = now - last;
    last = now;
    ++step;
  }
  return static_cast<uint64_t>(smallest);
}

__global__ void Control(ControlArguments call) {
  wire::ControlBlock& control = *call.control;
  switch (call.action) {
    case ControlAction::kMake:
      control.gates = reinterpret_cast<uint64_t>(&control + 1);
      break;
    case ControlAction::kInstall:
      StoreSeqCst(control.ring, call.value);
      break;
    case ControlAction::kUninstall:
      StoreSeqCst(control.ring, uint64_t{0});
      StoreRelease(*call.answer, LoadSeqCst(control.in_flight));
      break;
    case ControlAction::kProgress:
      // A program may pass a boundary meanwhile.
      StoreRelaxed(control.progress, call.value);
      MirrorLatest(control.progress, *call.answer);
      break;
    case ControlAction::kStep:
      SetAmbientStep(control, call.kind, static_cast<int64_t>(call.value),
                     call.flags);
      break;
    case ControlAction::kGate:
      SetGate(control, {static_cast<uint32_t>(call.value), call.flags != 0},
              call.kind);
      break;
    case ControlAction::kAdvance:
      Boundary(control);
      break;
    case ControlAction::kDeselect:
      StoreRelaxed(control.deselected, call.value);
      break;
    case ControlAction::kClock:
      StoreRelease(*call.answer, static_cast<uint64_t>(base::DeviceNanos()));
      break;
    case ControlAction::kClockStep:
      StoreRelease(*call.answer, ClockStep());
      break;
  }
}

template <typename Arguments>
cudaError_t Load(void (*kernel)(Arguments)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes,
                               reinterpret_cast<const void*>(kernel));
}

}  // namespace

cudaError_t LaunchRecord(const RecordArguments& call, uint32_t most_blocks,
                         cudaStream_t stream) {
  if (call.bytes <= kOneBlockBytes) {
    return base::Launch(RecordInOneBlock, 1, kBlockThreads, stream, call);
  }
  const uint64_t blocks =
      std::min<uint64_t>(call.bytes / kBytesPerBlock, most_blocks);
  cudaError_t error = base::Launch(RecordReserve, 1, 1, stream, call);
  if (error != cudaSuccess) return error;
  // What is reserved must be published, or nothing behind it gets out.
  for (int tries = 0; tries < 2; ++tries) {
    error = base::Launch(RecordCopy, static_cast<uint32_t>(blocks),
                         kBlockThreads, stream, call);
    if (error == cudaSuccess) break;
  }
  return error;
}

cudaError_t LaunchAdvance(const AdvanceArguments& call, cudaStream_t stream) {
  const bool small = call.to == call.from || call.bytes <= sizeof(Word16);
  const uint32_t threads = small ? 1 : kBlockThreads;
  return base::Launch(Advance, 1, threads, stream, call);
}

cudaError_t LaunchStep(const WordsArguments& call, cudaStream_t stream) {
  return base::Launch(Step, 1, 1, stream, call);
}

cudaError_t LaunchGates(const WordsArguments& call, cudaStream_t stream) {
  return base::Launch(Gates, 1, 1, stream, call);
}

cudaError_t LaunchFence(cudaStream_t stream) {
  return base::Launch(Fence, 1, 1, stream, Nothing{});
}

cudaError_t LaunchControl(const ControlArguments& call, cudaStream_t stream) {
  return base::Launch(Control, 1, 1, stream, call);
}

cudaError_t LoadKernels() {
  for (const cudaError_t error :
       {Load(RecordInOneBlock), Load(RecordReserve), Load(RecordCopy),
        Load(Advance), Load(Step), Load(Gates), Load(Fence), Load(Control)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace dmi::program
