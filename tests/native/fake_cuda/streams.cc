// SPDX-License-Identifier: Apache-2.0
// Streams and events of the fake CUDA runtime: a thread per stream.
#include <algorithm>
#include <system_error>

#include "fake_cuda/state.h"

namespace fake_cuda {
namespace {

void Perform(Runtime& runtime, Stream&, const Record& record, Lock&) {
  record.event->completed = std::max(record.event->completed, record.number);
  record.event->when = Clock::now();
  runtime.changed.notify_all();
}

void Perform(Runtime& runtime, Stream& stream, const Wait& wait, Lock& lock) {
  runtime.changed.wait(lock, [&] {
    return wait.event->completed >= wait.number ||
           runtime.devices[stream.device].broken != cudaSuccess ||
           runtime.devices[wait.event->device].broken != cudaSuccess;
  });
}

void PerformAny(Runtime& runtime, Stream& stream, const Node& node, Lock& lock);

void Perform(Runtime& runtime, Stream& stream, const Replay& replay,
             Lock& lock) {
  Exec& exec = *replay.exec;
  const cudaError_t& broken = runtime.devices[stream.device].broken;
  runtime.changed.wait(lock,
                       [&] { return !exec.running || broken != cudaSuccess; });
  if (broken != cudaSuccess) return;
  exec.running = true;
  for (const Node& node : exec.nodes) {
    if (broken == cudaSuccess) PerformAny(runtime, stream, node, lock);
  }
  exec.running = false;
}

void PerformAny(Runtime& runtime, Stream& stream, const Node& node,
                Lock& lock) {
  const cudaError_t error = runtime.Enter("Run");
  if (error != cudaSuccess) return runtime.Break(stream.device, error);
  std::visit([&](const auto& what) { Perform(runtime, stream, what, lock); },
             node);
}

// Waits for a condition on a device that works; tells what broke it.
template <class Done>
cudaError_t WaitOn(Runtime& runtime, int device, Lock& lock, Done done) {
  const cudaError_t& broken = runtime.devices[device].broken;
  runtime.changed.wait(lock, [&] { return done() || broken != cudaSuccess; });
  return broken;
}

// An event of a device that works.
cudaError_t Find(Runtime& runtime, cudaEvent_t handle,
                 std::shared_ptr<Event>& event) {
  event = runtime.Find(runtime.events, handle);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  return runtime.devices[event->device].broken;
}

// Refuses what a captured stream cannot do.
cudaError_t RefuseCaptured(Runtime& runtime, Stream& stream, const char* name) {
  if (stream.capture == nullptr) return cudaSuccess;
  runtime.Problem(std::string(name) + " was called on a captured stream");
  stream.capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

void Work(Stream& stream) {
  Runtime& runtime = Runtime::Get();
  current_device = stream.device;
  Lock lock(runtime.mutex);
  const cudaError_t& broken = runtime.devices[stream.device].broken;
  while (true) {
    stream.more.wait(lock,
                     [&] { return stream.closing || !stream.queue.empty(); });
    if (broken != cudaSuccess) stream.queue.clear();
    if (stream.queue.empty()) {
      runtime.changed.notify_all();
      if (stream.closing) return;
      continue;
    }
    const Node node = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.running = &node;
    PerformAny(runtime, stream, node, lock);
    stream.running = nullptr;
    runtime.changed.notify_all();
  }
}

}  // namespace fake_cuda

using fake_cuda::Call;
using fake_cuda::current_device;
using fake_cuda::Event;
using fake_cuda::kAnyDevice;
using fake_cuda::kPlain;
using fake_cuda::kRelease;
using fake_cuda::kUnsafe;
using fake_cuda::Lock;
using fake_cuda::Runtime;
using fake_cuda::Stream;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags,
                                         int) {
  *handle = nullptr;
  return Call(__func__, kPlain, [&](Runtime& runtime, Lock&) {
    if ((flags & ~cudaStreamNonBlocking) != 0) return cudaErrorInvalidValue;
    auto stream = std::make_shared<Stream>();
    stream->device = current_device;
    try {
      stream->worker = std::thread(fake_cuda::Work, std::ref(*stream));
    } catch (const std::system_error&) {
      return cudaErrorOperatingSystem;
    }
    *handle =
        runtime.Add<Stream, cudaStream_t>(runtime.streams, std::move(stream));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return Call(__func__, kAnyDevice | kRelease,
              [&](Runtime& runtime, Lock& lock) {
                std::shared_ptr<Stream> stream;
                const cudaError_t error = runtime.Find(handle, stream);
                if (stream == nullptr) return error;
                if (stream->capture != nullptr) {
                  runtime.Problem("a stream was destroyed during its capture");
                }
                runtime.streams.erase(reinterpret_cast<uintptr_t>(handle));
                stream->closing = true;
                stream->more.notify_one();
                if (error == cudaSuccess && !stream->Idle()) {
                  runtime.Problem("a stream was destroyed with work pending");
                  runtime.retired.push_back(std::move(stream));
                  return error;
                }
                lock.unlock();
                stream->worker.join();
                return error;
              });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Call(__func__, kAnyDevice | kUnsafe,
              [&](Runtime& runtime, Lock& lock) {
                std::shared_ptr<Stream> stream;
                cudaError_t error = runtime.Find(handle, stream);
                if (stream == nullptr) return error;
                error = fake_cuda::RefuseCaptured(runtime, *stream,
                                                  "cudaStreamSynchronize");
                if (error != cudaSuccess) return error;
                error = fake_cuda::WaitOn(runtime, stream->device, lock,
                                          [&] { return stream->Idle(); });
                // What runs on a broken device ends soon, and must have ended.
                runtime.changed.wait(lock, [&] {
                  return stream->running == nullptr || error == cudaSuccess;
                });
                return error;
              });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Call(__func__, kAnyDevice | kUnsafe, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess) return error;
    error = fake_cuda::RefuseCaptured(runtime, *stream, "cudaStreamQuery");
    if (error != cudaSuccess) return error;
    return stream->Idle() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle,
                                cudaEvent_t event_handle, unsigned) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
    cudaError_t error = runtime.Find(stream_handle, stream);
    if (error != cudaSuccess) return error;
    error = fake_cuda::Find(runtime, event_handle, event);
    if (error != cudaSuccess) return error;
    error = fake_cuda::RefuseCaptured(runtime, *stream, "cudaStreamWaitEvent");
    if (error != cudaSuccess) return error;
    return runtime.Enqueue(*stream, fake_cuda::Wait{event, event->recorded});
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  *handle = nullptr;
  return Call(__func__, kPlain, [&](Runtime& runtime, Lock&) {
    auto event = std::make_shared<Event>();
    event->device = current_device;
    event->timing = (flags & cudaEventDisableTiming) == 0;
    *handle = runtime.Add<Event, cudaEvent_t>(runtime.events, std::move(event));
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return Call(__func__, kAnyDevice | kRelease, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Event> event;
    const cudaError_t error = fake_cuda::Find(runtime, handle, event);
    if (event != nullptr) {
      runtime.events.erase(reinterpret_cast<uintptr_t>(handle));
    }
    return error;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle,
                            cudaStream_t stream_handle) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
    cudaError_t error = runtime.Find(stream_handle, stream);
    if (error != cudaSuccess) return error;
    error = fake_cuda::Find(runtime, event_handle, event);
    if (error != cudaSuccess) return error;
    if (event->device != stream->device) {
      runtime.Problem("an event was recorded on another device's stream");
      return cudaErrorInvalidResourceHandle;
    }
    error = fake_cuda::RefuseCaptured(runtime, *stream, "cudaEventRecord");
    if (error != cudaSuccess) return error;
    return runtime.Enqueue(*stream,
                           fake_cuda::Record{event, ++event->recorded});
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return Call(__func__, kAnyDevice | kUnsafe, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Event> event;
    const cudaError_t error = fake_cuda::Find(runtime, handle, event);
    if (error != cudaSuccess) return error;
    return event->completed == event->recorded ? cudaSuccess
                                               : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return Call(
      __func__, kAnyDevice | kUnsafe, [&](Runtime& runtime, Lock& lock) {
        std::shared_ptr<Event> event;
        const cudaError_t error = fake_cuda::Find(runtime, handle, event);
        if (event == nullptr || error != cudaSuccess) return error;
        const uint64_t wanted = event->recorded;
        return fake_cuda::WaitOn(runtime, event->device, lock,
                                 [&] { return event->completed >= wanted; });
      });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle,
                                 cudaEvent_t end_handle) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Event> start, end;
    cudaError_t error = fake_cuda::Find(runtime, start_handle, start);
    if (error != cudaSuccess) return error;
    error = fake_cuda::Find(runtime, end_handle, end);
    if (error != cudaSuccess) return error;
    if (!start->timing || !end->timing || start->device != end->device ||
        start->recorded == 0 || end->recorded == 0) {
      return cudaErrorInvalidResourceHandle;
    }
    if (start->completed != start->recorded ||
        end->completed != end->recorded) {
      return cudaErrorNotReady;
    }
    *milliseconds =
        std::chrono::duration<float, std::milli>(end->when - start->when)
            .count();
    return cudaSuccess;
  });
}

}  // extern "C"
