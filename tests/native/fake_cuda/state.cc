// SPDX-License-Identifier: Apache-2.0
// The state of the fake CUDA runtime: calls, failures, problems and reset.
#include "fake_cuda/state.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "fake_cuda/control.h"

namespace fake_cuda {
namespace {

double Environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atof(text);
}

void Begin(Runtime& runtime) {
  static const int devices =
      static_cast<int>(Environment("DMI_FAKE_CUDA_DEVICES", 1));
  static const double bandwidth = Environment("DMI_FAKE_CUDA_BANDWIDTH", 0);
  static const double drift = Environment("DMI_FAKE_CUDA_DRIFT", 0);
  runtime.settings = Settings{.devices = devices, .bandwidth = bandwidth};
  runtime.devices.resize(devices);
  ResetTimer(drift);
}

// A line for each object of a table.
template <class T>
void Tell(const Table<T>& table, const char* what,
          std::vector<std::string>& lines) {
  lines.insert(lines.end(), table.size(), what);
}

std::vector<std::string> Alive(const Runtime& runtime) {
  static constexpr const char* kKinds[] = {
      "device memory", "adopted memory", "pinned memory", "registered memory"};
  std::vector<std::string> lines;
  for (const auto& [begin, memory] : runtime.memory) {
    lines.push_back(std::to_string(memory.bytes) + " bytes of " +
                    kKinds[memory.kind]);
  }
  Tell(runtime.streams, "a stream", lines);
  Tell(runtime.events, "an event", lines);
  Tell(runtime.graphs, "a graph", lines);
  Tell(runtime.execs, "an executable graph", lines);
  return lines;
}

}  // namespace

Runtime& Runtime::Get() {
  static Runtime* const runtime = [] {
    auto* made = new Runtime;
    Begin(*made);
    static Runtime* child;
    child = made;
    pthread_atfork(nullptr, nullptr, [] { child->forked = true; });
    return made;
  }();
  return *runtime;
}

cudaError_t Runtime::Enter(const char* name) {
  ++calls[name];
  if (current_device >= static_cast<int>(devices.size())) current_device = 0;
  cudaError_t error = cudaSuccess;
  for (auto failure = failures.begin(); failure != failures.end();) {
    if (failure->name != name || failure->after-- != 0) {
      ++failure;
      continue;
    }
    error = failure->error;
    if (failure->sticky) Break(current_device, error);
    failure = failures.erase(failure);
  }
  return error;
}

void Runtime::Problem(std::string what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what.c_str());
  problems.push_back(std::move(what));
}

void Runtime::Break(int device, cudaError_t error) {
  if (device >= static_cast<int>(devices.size())) return;
  if (devices[device].broken == cudaSuccess) devices[device].broken = error;
  for (const auto& [where, run] : runs) {
    if (where == device) Kill(*run);
  }
  for (const auto& [handle, stream] : streams) stream->more.notify_one();
  changed.notify_all();
}

cudaError_t Runtime::Find(cudaStream_t handle,
                          std::shared_ptr<Stream>& stream) {
  // cudaStreamLegacy and cudaStreamPerThread are small numbers.
  if (reinterpret_cast<uintptr_t>(handle) < 0x1000) {
    Problem("the default stream was used");
    return ForbiddenByCapture() ? cudaErrorStreamCaptureUnsupported
                                : cudaErrorInvalidResourceHandle;
  }
  stream = Find(streams, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return devices[stream->device].broken;
}

cudaError_t Runtime::Enqueue(Stream& stream, Node node) {
  if (stream.capture == nullptr) {
    stream.queue.push_back(std::move(node));
    stream.more.notify_one();
    return cudaSuccess;
  }
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  stream.capture->nodes.push_back(std::move(node));
  return cudaSuccess;
}

void Runtime::WaitIdle(int device, Lock& lock) {
  const auto idle = [&](const Stream& stream) {
    // A broken device still waits for what its streams are doing: it ends soon.
    return stream.device != device || stream.Idle() ||
           (devices[device].broken != cudaSuccess && stream.running == nullptr);
  };
  changed.wait(lock, [&] {
    for (const auto& [handle, stream] : streams) {
      if (!idle(*stream)) return false;
    }
    for (const auto& stream : retired) {
      if (!idle(*stream)) return false;
    }
    return true;
  });
}

std::vector<std::string> Reset() {
  Runtime& runtime = Runtime::Get();
  std::vector<std::string> leaks;
  std::vector<std::shared_ptr<Stream>> ended;
  {
    Lock lock(runtime.mutex);
    leaks = Alive(runtime);
    ended = std::move(runtime.retired);
    for (auto& [handle, stream] : runtime.streams) ended.push_back(stream);
    // A broken device ends all kernels, copies and waits.
    for (size_t i = 0; i < runtime.devices.size(); ++i) {
      runtime.Break(static_cast<int>(i), cudaErrorDeviceUninitialized);
    }
    for (const auto& stream : ended) {
      stream->closing = true;
      stream->more.notify_one();
    }
  }
  for (const auto& stream : ended) stream->worker.join();
  Lock lock(runtime.mutex);
  for (const auto& [begin, memory] : runtime.memory) {
    if (memory.kind == Memory::kDevice || memory.kind == Memory::kPinned) {
      std::free(reinterpret_cast<void*>(begin));
    }
  }
  runtime.memory.clear();
  runtime.streams.clear();
  runtime.events.clear();
  runtime.graphs.clear();
  runtime.execs.clear();
  runtime.retired.clear();
  runtime.calls.clear();
  runtime.failures.clear();
  runtime.problems.clear();
  runtime.loaded.clear();
  runtime.late.clear();
  runtime.devices.clear();
  Begin(runtime);
  current_device = 0;
  last_error = cudaSuccess;
  capture_mode = cudaStreamCaptureModeGlobal;
  return leaks;
}

void SetDevices(int devices) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  runtime.devices.resize(devices);
  runtime.settings.devices = devices;
}

void SetMemory(size_t bytes) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  runtime.settings.memory = bytes;
}

void SetBandwidth(double bytes_per_second, std::chrono::nanoseconds latency) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  runtime.settings.bandwidth = bytes_per_second;
  runtime.settings.latency = latency;
}

void Fail(const std::string& name, uint64_t after, cudaError_t error,
          bool sticky) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  runtime.failures.push_back({name, after, error, sticky});
}

uint64_t Calls(const std::string& name) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  const auto found = runtime.calls.find(name);
  return found == runtime.calls.end() ? 0 : found->second;
}

std::map<std::string, uint64_t> Calls() {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  return runtime.calls;
}

int LoadedLate() {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  return static_cast<int>(runtime.late.size());
}

std::vector<std::string> Problems() {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  return runtime.problems;
}

std::vector<std::string> Leaks() {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  return Alive(runtime);
}

}  // namespace fake_cuda
