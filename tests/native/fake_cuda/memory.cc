// SPDX-License-Identifier: Apache-2.0
// Memory of the fake CUDA runtime: allocation, pinning, copies.
//
// All memory is memory of the host, filled before it is given out so that a
// missing initialisation shows, and really freed so that a late use shows.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "fake_cuda/control.h"
#include "fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr size_t kChunk = size_t{256} << 10;
constexpr uintptr_t kPage = 4096;

uintptr_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

bool Overlap(const void* a, size_t a_bytes, uintptr_t b, size_t b_bytes) {
  return Address(a) < b + b_bytes && b < Address(a) + a_bytes;
}

bool Touches(const Node& node, uintptr_t begin, size_t bytes) {
  return std::visit(
      [&](const auto& what) {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, Copy>) {
          return Overlap(what.to, what.bytes, begin, bytes) ||
                 Overlap(what.from, what.bytes, begin, bytes);
        } else if constexpr (std::is_same_v<What, Set>) {
          return Overlap(what.to, what.bytes, begin, bytes);
        } else if constexpr (std::is_same_v<What, Replay>) {
          return std::any_of(
              what.exec->nodes.begin(), what.exec->nodes.end(),
              [&](const Node& inner) { return Touches(inner, begin, bytes); });
        } else {
          return false;
        }
      },
      node);
}

bool Touches(const Stream& stream, uintptr_t begin, size_t bytes) {
  if (stream.running != nullptr && Touches(*stream.running, begin, bytes)) {
    return true;
  }
  return std::any_of(
      stream.queue.begin(), stream.queue.end(),
      [&](const Node& node) { return Touches(node, begin, bytes); });
}

// Finds memory by its first byte; the end of the table where it is not of one
// of two kinds.
auto Find(Runtime& runtime, const void* memory, Memory::Kind kind) {
  const auto found = runtime.memory.find(Address(memory));
  return found != runtime.memory.end() && found->second.kind == kind
             ? found
             : runtime.memory.end();
}

// Enters memory that was given out, or null where there is none left.
void* Allocate(Runtime& runtime, Memory memory, size_t alignment) {
  void* made = nullptr;
  if (posix_memalign(&made, alignment, memory.bytes) != 0) return nullptr;
  std::memset(made, kUninitialised, memory.bytes);
  runtime.memory.emplace(Address(made), memory);
  return made;
}

cudaError_t Release(Runtime& runtime, void* memory, Memory::Kind kind,
                    Lock& lock) {
  if (memory == nullptr) return cudaSuccess;
  const auto found = Find(runtime, memory, kind);
  if (found == runtime.memory.end()) {
    runtime.Problem("memory was freed that was not allocated");
    return cudaErrorInvalidValue;
  }
  const Memory released = found->second;
  // As the real one, and so as dangerous beside a kernel that waits. Kept until
  // then: work that is pending may use it.
  runtime.WaitIdle(released.device, lock);
  if (runtime.memory.erase(Address(memory)) == 0) return cudaErrorInvalidValue;
  if (kind == Memory::kDevice) {
    runtime.devices[released.device].used -= released.bytes;
  }
  std::free(memory);
  return runtime.devices[released.device].broken;
}

// Waits as Release does, though nothing says that the real one would: what a
// kernel writes to must not vanish under it.
cudaError_t Unregister(Runtime& runtime, void* memory, Lock& lock) {
  const auto found = Find(runtime, memory, Memory::kRegistered);
  if (found == runtime.memory.end()) {
    runtime.Problem("memory was unregistered that was not registered");
    return cudaErrorHostMemoryNotRegistered;
  }
  const Memory registered = found->second;
  const bool works = runtime.devices[registered.device].broken == cudaSuccess;
  for (const auto& [handle, stream] : runtime.streams) {
    if (works && Touches(*stream, Address(memory), registered.bytes)) {
      runtime.Problem("memory of a pending copy was unregistered");
    }
  }
  runtime.WaitIdle(registered.device, lock);
  runtime.memory.erase(Address(memory));
  return runtime.devices[registered.device].broken;
}

// A little is moved word by word, as a device does: programs may be changing
// the words meanwhile, by atomic operations.
void Move(void* to, const void* from, size_t bytes) {
  constexpr size_t kLittle = 4096;
  if (bytes > kLittle || (Address(to) | Address(from) | bytes) % 8 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  const auto* words = static_cast<const uint64_t*>(from);
  for (size_t i = 0; i < bytes / 8; ++i) {
    static_cast<uint64_t*>(to)[i] =
        std::atomic_ref(const_cast<uint64_t&>(words[i]))
            .load(std::memory_order_relaxed);
  }
}

// How a copy moves: to the device, from it, or on one side.
enum class Way { kUp, kDown, kSame, kRefused };

Way WayOf(const Runtime& runtime, const Copy& copy) {
  const Memory* to = runtime.Holder(copy.to, copy.bytes);
  const Memory* from = runtime.Holder(copy.from, copy.bytes);
  if (to == nullptr || from == nullptr) return Way::kRefused;
  if (to->OnDevice() == from->OnDevice()) return Way::kSame;
  return to->OnDevice() ? Way::kUp : Way::kDown;
}

bool Matches(cudaMemcpyKind kind, const Memory& to, const Memory& from) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to.OnDevice() && !from.OnDevice();
    case cudaMemcpyDeviceToHost:
      return !to.OnDevice() && from.OnDevice();
    case cudaMemcpyDeviceToDevice:
      return to.OnDevice() && from.OnDevice();
    default:
      return kind == cudaMemcpyDefault;
  }
}

cudaError_t CheckCopy(Runtime& runtime, const Copy& copy, cudaMemcpyKind kind) {
  const Memory* to = runtime.Holder(copy.to, copy.bytes);
  const Memory* from = runtime.Holder(copy.from, copy.bytes);
  if (to == nullptr || from == nullptr) {
    runtime.Problem("a copy is not between device and pinned memory");
    return cudaErrorInvalidValue;
  }
  if (!Matches(kind, *to, *from)) {
    runtime.Problem("a copy does not go the way it says");
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

}  // namespace

const Memory* Runtime::Holder(const void* begin, size_t bytes) const {
  auto next = memory.upper_bound(Address(begin));
  if (next == memory.begin()) return nullptr;
  const auto& [first, found] = *--next;
  const size_t before = Address(begin) - first;
  return before <= found.bytes && bytes <= found.bytes - before ? &found
                                                                : nullptr;
}

void Perform(Runtime& runtime, Stream& stream, const Copy& copy, Lock& lock) {
  const Way way = WayOf(runtime, copy);
  if (way == Way::kRefused) {
    runtime.Problem("memory of a copy was freed before it ran");
    return runtime.Break(stream.device, cudaErrorIllegalAddress);
  }
  const auto broken = [&] {
    return runtime.devices[stream.device].broken != cudaSuccess;
  };
  const auto nobody = Clock::time_point::min();
  Clock::time_point& link_free =
      runtime.devices[stream.device].link_free[way == Way::kUp ? 1 : 0];
  if (way != Way::kSame && runtime.settings.latency.count() > 0) {
    runtime.changed.wait_until(lock, Clock::now() + runtime.settings.latency,
                               broken);
  }
  for (size_t done = 0; done < copy.bytes && !broken();) {
    const size_t bytes = std::min(kChunk, copy.bytes - done);
    Clock::time_point end = nobody;
    if (way != Way::kSame && runtime.settings.bandwidth > 0) {
      const std::chrono::duration<double> time(static_cast<double>(bytes) /
                                               runtime.settings.bandwidth);
      end = std::max(Clock::now(), link_free) +
            std::chrono::duration_cast<Clock::duration>(time);
      link_free = end;
    }
    lock.unlock();
    Move(static_cast<char*>(copy.to) + done,
         static_cast<const char*>(copy.from) + done, bytes);
    lock.lock();
    if (end != nobody) runtime.changed.wait_until(lock, end, broken);
    done += bytes;
  }
}

void Perform(Runtime& runtime, Stream& stream, const Set& set, Lock& lock) {
  if (runtime.Holder(set.to, set.bytes) == nullptr) {
    runtime.Problem("memory was freed before it was set");
    return runtime.Break(stream.device, cudaErrorIllegalAddress);
  }
  lock.unlock();
  std::memset(set.to, set.value, set.bytes);
  lock.lock();
}

void Adopt(void* memory, size_t bytes) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  runtime.memory[Address(memory)] =
      Memory{Memory::kAdopted, bytes, current_device, true};
}

void Disown(void* memory) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  const auto found = Find(runtime, memory, Memory::kAdopted);
  if (found != runtime.memory.end()) runtime.memory.erase(found);
}

}  // namespace fake_cuda

using fake_cuda::Call;
using fake_cuda::Copy;
using fake_cuda::current_device;
using fake_cuda::kAnyDevice;
using fake_cuda::kPlain;
using fake_cuda::kRelease;
using fake_cuda::kUnsafe;
using fake_cuda::Lock;
using fake_cuda::Memory;
using fake_cuda::Runtime;
using fake_cuda::Set;
using fake_cuda::Stream;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call(__func__, kPlain, [&](Runtime& runtime, Lock&) {
    *total = runtime.settings.memory;
    *free = *total - std::min(*total, runtime.devices[current_device].used);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = nullptr;
  return Call(__func__, kUnsafe, [&](Runtime& runtime, Lock&) {
    if (bytes == 0) return cudaSuccess;
    size_t& used = runtime.devices[current_device].used;
    if (bytes >
        runtime.settings.memory - std::min(used, runtime.settings.memory)) {
      return cudaErrorMemoryAllocation;
    }
    *memory = fake_cuda::Allocate(
        runtime, {Memory::kDevice, bytes, current_device, true}, 256);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    used += bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* memory) {
  return Call(__func__, kUnsafe | kRelease, [&](Runtime& runtime, Lock& lock) {
    return fake_cuda::Release(runtime, memory, Memory::kDevice, lock);
  });
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = nullptr;
  return Call(__func__, kUnsafe, [&](Runtime& runtime, Lock&) {
    if (bytes == 0) return cudaSuccess;
    *memory = fake_cuda::Allocate(
        runtime, {Memory::kPinned, bytes, current_device, true},
        fake_cuda::kPage);
    return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return Call(__func__, kUnsafe | kRelease, [&](Runtime& runtime, Lock& lock) {
    return fake_cuda::Release(runtime, memory, Memory::kPinned, lock);
  });
}

// Pins pages: two registrations may not share one.
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  return Call(__func__, kUnsafe, [&](Runtime& runtime, Lock&) {
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    const auto first = fake_cuda::Address(memory) / fake_cuda::kPage;
    const auto last =
        (fake_cuda::Address(memory) + bytes - 1) / fake_cuda::kPage;
    for (const auto& [begin, other] : runtime.memory) {
      if (first <= (begin + other.bytes - 1) / fake_cuda::kPage &&
          begin / fake_cuda::kPage <= last &&
          (other.kind == Memory::kRegistered ||
           other.kind == Memory::kPinned)) {
        return cudaErrorHostMemoryAlreadyRegistered;
      }
    }
    runtime.memory[fake_cuda::Address(memory)] =
        Memory{Memory::kRegistered, bytes, current_device,
               (flags & cudaHostRegisterMapped) != 0};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return Call(__func__, kUnsafe | kRelease, [&](Runtime& runtime, Lock& lock) {
    return fake_cuda::Unregister(runtime, memory, lock);
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = nullptr;
  return Call(__func__, kPlain, [&](Runtime& runtime, Lock&) {
    const Memory* memory = runtime.Holder(host, 1);
    if (memory == nullptr || memory->OnDevice() || !memory->mapped) {
      return cudaErrorInvalidValue;
    }
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t handle) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess || bytes == 0) return error;
    const Copy copy{to, from, bytes};
    error = fake_cuda::CheckCopy(runtime, copy, kind);
    return error != cudaSuccess ? error : runtime.Enqueue(*stream, copy);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                            cudaStream_t handle) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess || bytes == 0) return error;
    if (runtime.Holder(to, bytes) == nullptr) {
      runtime.Problem("memory is set that is neither device nor pinned");
      return cudaErrorInvalidValue;
    }
    return runtime.Enqueue(*stream, Set{to, value, bytes});
  });
}

}  // extern "C"
