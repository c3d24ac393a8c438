// SPDX-License-Identifier: Apache-2.0
// What a test sets, breaks and reads of the fake CUDA runtime.
//
// The runtime is linked in place of the real one and has the functions of
// cuda_runtime_api.h that the package calls. It is stricter than the real one:
// what would be a mistake on a GPU is refused and listed in Problems().
//
// Every function here may be called by any thread, except Reset and SetDevices:
// no other thread may be inside the runtime then.
#ifndef DMI_TESTS_NATIVE_FAKE_CUDA_CONTROL_H_
#define DMI_TESTS_NATIVE_FAKE_CUDA_CONTROL_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake_cuda {

// Ends all work, destroys every object, forgets calls, failures, problems and
// settings, and gives the calling thread device 0. Settings start as the
// environment says: DMI_FAKE_CUDA_DEVICES, DMI_FAKE_CUDA_BANDWIDTH (bytes per
// second) and DMI_FAKE_CUDA_DRIFT.
// Returns what was still alive, as Leaks() does.
std::vector<std::string> Reset();

// With 0 devices every call fails with cudaErrorNoDevice.
void SetDevices(int devices);
// Memory of each device; 8 GiB at first.
void SetMemory(size_t bytes);
// Of each device and direction between host and device, shared by its streams;
// 0: as fast as memory is. `latency` passes before each copy.
void SetBandwidth(double bytes_per_second,
                  std::chrono::nanoseconds latency = {});
// DeviceNanos() is monotonic nanoseconds * (1 + drift) + offset, rounded down
// to a multiple of `step_ns`.
void SetTimer(int64_t offset_ns, double drift, int64_t step_ns);

// Lets ordinary memory count as memory of the current device, until Disown:
// what a program on CPU devices passes as its buffers.
void Adopt(void* memory, size_t bytes);
void Disown(void* memory);

// Lets `after` more calls of `name` pass and fails the one after with `error`.
// A sticky error breaks the device, as an illegal access does: its kernels end
// at their next wait, its streams drop their work, and every later call on it
// returns the error. What releases something releases it nevertheless.
// Names: those of the functions; "Launch"; and "Run", what a stream does next,
// which always breaks its device.
void Fail(const std::string& name, uint64_t after, cudaError_t error,
          bool sticky = false);

// Calls since Reset, of one name or of each that was called.
uint64_t Calls(const std::string& name);
std::map<std::string, uint64_t> Calls();

// Kernels that were launched on a device before cudaFuncGetAttributes loaded
// them there: the real runtime may wait for the device then.
int LoadedLate();

// What was refused or done wrong since Reset, a sentence each.
std::vector<std::string> Problems();
// What has not been freed, unregistered or destroyed, a line each.
std::vector<std::string> Leaks();

enum class NodeKind { kKernel, kCopy, kSet };
std::vector<NodeKind> Nodes(cudaGraph_t graph);

}  // namespace fake_cuda

#endif  // DMI_TESTS_NATIVE_FAKE_CUDA_CONTROL_H_
