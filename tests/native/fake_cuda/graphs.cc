// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs of the fake CUDA runtime.
//
// One stream is captured at a time into one graph, whose nodes run in order;
// events cannot be captured.
#include <utility>

#include "fake_cuda/control.h"
#include "fake_cuda/state.h"

namespace fake_cuda {

bool Runtime::ForbiddenByCapture() {
  if (capture_mode == cudaStreamCaptureModeRelaxed) return false;
  bool forbidden = false;
  for (const auto& [handle, stream] : streams) {
    if (stream->capture == nullptr) continue;
    Capture& capture = *stream->capture;
    const bool own = capture.thread == std::this_thread::get_id();
    const bool forbids = own ? capture.mode != cudaStreamCaptureModeRelaxed
                             : capture.mode == cudaStreamCaptureModeGlobal &&
                                   capture_mode == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    capture.invalid = true;
    forbidden = true;
  }
  return forbidden;
}

std::vector<NodeKind> Nodes(cudaGraph_t handle) {
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  std::vector<NodeKind> kinds;
  const auto graph = runtime.Find(runtime.graphs, handle);
  if (graph == nullptr) return kinds;
  for (const Node& node : graph->nodes) {
    kinds.push_back(std::holds_alternative<Kernel>(node) ? NodeKind::kKernel
                    : std::holds_alternative<Copy>(node) ? NodeKind::kCopy
                                                         : NodeKind::kSet);
  }
  return kinds;
}

}  // namespace fake_cuda

using fake_cuda::Call;
using fake_cuda::Capture;
using fake_cuda::Exec;
using fake_cuda::Graph;
using fake_cuda::kAnyDevice;
using fake_cuda::kPlain;
using fake_cuda::kRelease;
using fake_cuda::Lock;
using fake_cuda::Runtime;
using fake_cuda::Stream;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Call(__func__, kAnyDevice, [&](Runtime&, Lock&) {
    std::swap(fake_cuda::capture_mode, *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle,
                                   cudaStreamCaptureMode mode) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>();
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->mode = mode;
    return cudaSuccess;
  });
}

// Ends the capture even where it fails; the graph is lost then.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* made) {
  *made = nullptr;
  auto graph = std::make_shared<Graph>();
  const auto end = [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(handle, stream);
    if (stream == nullptr) return error;
    if (stream->capture == nullptr) return cudaErrorIllegalState;
    if (stream->capture->mode != cudaStreamCaptureModeRelaxed &&
        stream->capture->thread != std::this_thread::get_id()) {
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureWrongThread;
    }
    const auto ended = std::exchange(stream->capture, nullptr);
    graph->nodes = std::move(ended->nodes);
    if (error != cudaSuccess) return error;
    return ended->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  };
  const cudaError_t error = Call(__func__, kAnyDevice | kRelease, end);
  if (error != cudaSuccess) return error;
  Runtime& runtime = Runtime::Get();
  Lock lock(runtime.mutex);
  *made = runtime.Add<Graph, cudaGraph_t>(runtime.graphs, std::move(graph));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle,
                                  cudaStreamCaptureStatus* status) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess) return error;
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t handle,
                                 unsigned long long) {
  *made = nullptr;
  return Call(__func__, kPlain, [&](Runtime& runtime, Lock&) {
    const auto graph = runtime.Find(runtime.graphs, handle);
    if (graph == nullptr) return cudaErrorInvalidValue;
    auto exec = std::make_shared<Exec>();
    exec->nodes = graph->nodes;
    *made = runtime.Add<Exec, cudaGraphExec_t>(runtime.execs, std::move(exec));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  return Call(__func__, kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(on, stream);
    if (error != cudaSuccess) return error;
    const auto exec = runtime.Find(runtime.execs, handle);
    if (exec == nullptr) return cudaErrorInvalidValue;
    if (stream->capture == nullptr) {
      return runtime.Enqueue(*stream, fake_cuda::Replay{exec});
    }
    runtime.Problem("a graph was launched on a captured stream");
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  return Call(__func__, kPlain | kRelease, [&](Runtime& runtime, Lock&) {
    if (runtime.Find(runtime.execs, handle) == nullptr) {
      return cudaErrorInvalidValue;
    }
    runtime.execs.erase(reinterpret_cast<uintptr_t>(handle));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  return Call(__func__, kPlain | kRelease, [&](Runtime& runtime, Lock&) {
    if (runtime.Find(runtime.graphs, handle) == nullptr) {
      return cudaErrorInvalidValue;
    }
    runtime.graphs.erase(reinterpret_cast<uintptr_t>(handle));
    return cudaSuccess;
  });
}

}  // extern "C"
