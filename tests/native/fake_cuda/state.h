// SPDX-License-Identifier: Apache-2.0
// The state of the fake CUDA runtime, and how each of its functions begins.
#ifndef DMI_TESTS_NATIVE_FAKE_CUDA_STATE_H_
#define DMI_TESTS_NATIVE_FAKE_CUDA_STATE_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "fake_cuda/launch.h"

namespace fake_cuda {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

constexpr int kUninitialised = 0xA5;

struct Device {
  size_t used = 0;
  cudaError_t broken = cudaSuccess;
  // When the link to and from the host is free again.
  Clock::time_point link_free[2];
};

// What a piece of memory is to the runtime.
struct Memory {
  enum Kind { kDevice, kAdopted, kPinned, kRegistered };

  Kind kind;
  size_t bytes;
  int device;
  bool mapped;

  bool OnDevice() const { return kind == kDevice || kind == kAdopted; }
};

struct Event {
  int device;
  bool timing;
  uint64_t recorded = 0;   // how often it was recorded
  uint64_t completed = 0;  // which of the records ran last
  Clock::time_point when;
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
struct Set {
  void* to;
  int value;
  size_t bytes;
};
struct Record {
  std::shared_ptr<Event> event;
  uint64_t number;
};
struct Wait {
  std::shared_ptr<Event> event;
  uint64_t number;
};
struct Exec;
struct Replay {
  std::shared_ptr<Exec> exec;
};
using Node = std::variant<Kernel, Copy, Set, Record, Wait, Replay>;

struct Graph {
  std::vector<Node> nodes;
};
// Runs once at a time, on whatever streams it is launched.
struct Exec {
  std::vector<Node> nodes;
  bool running = false;
};

struct Capture {
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  bool invalid = false;
  std::vector<Node> nodes;
};

// Its worker runs the queue in order.
struct Stream {
  int device;
  std::deque<Node> queue;
  const Node* running = nullptr;
  bool closing = false;  // the worker ends when the queue is empty
  std::shared_ptr<Capture> capture;
  std::condition_variable more;
  std::thread worker;

  bool Idle() const { return queue.empty() && running == nullptr; }
};

struct Failure {
  std::string name;
  uint64_t after;
  cudaError_t error;
  bool sticky;
};

struct Settings {
  int devices = 1;
  size_t memory = size_t{8} << 30;
  double bandwidth = 0;
  std::chrono::nanoseconds latency{};
};

// Handles are numbers that are never used again, so that a destroyed object is
// always known as such.
template <class T>
using Table = std::map<uintptr_t, std::shared_ptr<T>>;

class Run;

// One per process, never destroyed: threads may be inside at exit. Everything
// is guarded by `mutex`; it is not held while memory is copied or a kernel
// runs.
struct Runtime {
  std::mutex mutex;
  // Some work or a wait may be over: a node ran, a device broke.
  std::condition_variable changed;
  // In a child of the process nothing works, as with the real runtime.
  std::atomic<bool> forked{false};

  Settings settings;
  std::deque<Device> devices;
  std::map<uintptr_t, Memory> memory;  // by first byte
  Table<Stream> streams;
  Table<Event> events;
  Table<Graph> graphs;
  Table<Exec> execs;
  std::vector<std::shared_ptr<Stream>> retired;  // destroyed with work pending
  uintptr_t next_handle = 0x1000;
  std::map<std::string, uint64_t> calls;
  std::vector<Failure> failures;
  std::vector<std::string> problems;
  std::set<std::pair<int, Kernel::Function>> loaded;
  std::set<std::pair<int, Kernel::Function>> late;
  std::set<std::pair<int, Run*>> runs;  // kernels that run now, by device

  static Runtime& Get();

  // Counts a call and says which failure was ordered for it.
  cudaError_t Enter(const char* name);
  void Problem(std::string what);
  void Break(int device, cudaError_t error);
  // Whether a capture forbids this thread a call; it is invalid then.
  bool ForbiddenByCapture();

  template <class T, class Handle>
  Handle Add(Table<T>& table, std::shared_ptr<T> object) {
    next_handle += 0x10;
    table.emplace(next_handle, std::move(object));
    return reinterpret_cast<Handle>(next_handle);
  }
  template <class T, class Handle>
  std::shared_ptr<T> Find(const Table<T>& table, Handle handle) {
    const auto found = table.find(reinterpret_cast<uintptr_t>(handle));
    if (found != table.end()) return found->second;
    Problem("a handle was used that is not alive");
    return nullptr;
  }

  // Finds a stream of a device that works.
  cudaError_t Find(cudaStream_t handle, std::shared_ptr<Stream>& stream);
  // Queues a node, or records it where the stream is captured.
  cudaError_t Enqueue(Stream& stream, Node node);
  // Waits until all streams of a device are idle, or it is broken.
  void WaitIdle(int device, Lock& lock);
  // The memory that holds a whole range, or null.
  const Memory* Holder(const void* begin, size_t bytes) const;
};

// Of the calling thread.
inline constinit thread_local int current_device = 0;
inline constinit thread_local cudaError_t last_error = cudaSuccess;
inline constinit thread_local cudaStreamCaptureMode capture_mode =
    cudaStreamCaptureModeGlobal;

inline cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

enum Rules : unsigned {
  kPlain = 0,
  kUnsafe = 1,     // refused during a capture
  kRelease = 2,    // done even where it fails
  kAnyDevice = 4,  // not about the current device
};

// A function of the runtime: `body` runs under the lock where the call is
// neither refused nor ordered to fail.
template <class Body>
cudaError_t Call(const char* name, unsigned rules, Body body) {
  Runtime& runtime = Runtime::Get();
  if (runtime.forked.load(std::memory_order_relaxed)) {
    return Remember(cudaErrorInitializationError);
  }
  try {
    Lock lock(runtime.mutex);
    cudaError_t error = runtime.Enter(name);
    if ((rules & kUnsafe) != 0 && runtime.ForbiddenByCapture()) {
      runtime.Problem(std::string(name) + " was called during a capture");
      return Remember(cudaErrorStreamCaptureUnsupported);
    }
    if (runtime.devices.empty()) return Remember(cudaErrorNoDevice);
    if (error == cudaSuccess && (rules & kAnyDevice) == 0) {
      error = runtime.devices[current_device].broken;
    }
    if (error != cudaSuccess && (rules & kRelease) == 0) return Remember(error);
    const cudaError_t own = body(runtime, lock);
    return Remember(error != cudaSuccess ? error : own);
  } catch (const std::bad_alloc&) {
    return Remember(cudaErrorMemoryAllocation);
  }
}

// The loop of a stream's thread.
void Work(Stream& stream);
// Does a copy or set, or breaks the device where its memory is gone.
void Perform(Runtime& runtime, Stream& stream, const Copy& copy, Lock& lock);
void Perform(Runtime& runtime, Stream& stream, const Set& set, Lock& lock);
void Perform(Runtime& runtime, Stream& stream, const Kernel& kernel,
             Lock& lock);
// Lets a kernel end at its next wait.
void Kill(Run& run);
void ResetTimer(double drift);

}  // namespace fake_cuda

#endif  // DMI_TESTS_NATIVE_FAKE_CUDA_STATE_H_
