// SPDX-License-Identifier: Apache-2.0
// The CUDA handlers for devices of the host.
//
// XLA:CPU calls them as it would call those of its own platform. Each call gets
// a stream of the device's own and is waited for, because nothing else orders
// what the host does next behind it. With DMI_FAKE_CUDA_CAPTURE=1 a handler is
// called as XLA:GPU does it with command buffers: once per set of addresses, to
// be captured, and what it captured is launched on every execution.
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda.h"
#include "fake_cuda/control.h"
#include "handlers/registrations.h"
#include "program/device_table.h"
#include "xla/ffi/api/c_api.h"

namespace dmi::handlers {
namespace {

thread_local cudaStream_t current_stream = nullptr;

XLA_FFI_Error* StreamGet(XLA_FFI_Stream_Get_Args* args) {
  args->stream = current_stream;
  return nullptr;
}

bool Captures() {
  static const bool captures = [] {
    const char* value = std::getenv("DMI_FAKE_CUDA_CAPTURE");
    return value != nullptr && std::string(value) == "1";
  }();
  return captures;
}

int32_t OrdinalOf(const XLA_FFI_CallFrame& frame) {
  XLA_FFI_DeviceOrdinal_Get_Args args{};
  args.struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE;
  args.ctx = frame.ctx;
  frame.api->XLA_FFI_DeviceOrdinal_Get(&args);
  return args.device_ordinal;
}

// The buffers of a call.
std::vector<const XLA_FFI_Buffer*> BuffersOf(const XLA_FFI_CallFrame& frame) {
  std::vector<const XLA_FFI_Buffer*> buffers;
  for (int64_t i = 0; i < frame.args.size; ++i) {
    buffers.push_back(static_cast<XLA_FFI_Buffer*>(frame.args.args[i]));
  }
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    buffers.push_back(static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i]));
  }
  return buffers;
}

// What tells one call from another. The attributes by value: another program
// may have its own where those of one that is gone were.
using Key = std::vector<uint64_t>;

Key KeyOf(const XLA_FFI_CallFrame& frame) {
  Key key{reinterpret_cast<uint64_t>(frame.attrs.attrs)};
  for (int64_t i = 0; i < frame.attrs.size; ++i) {
    if (frame.attrs.types[i] != XLA_FFI_AttrType_SCALAR) continue;
    const auto* scalar = static_cast<XLA_FFI_Scalar*>(frame.attrs.attrs[i]);
    if (scalar->dtype != XLA_FFI_DataType_S64) continue;
    key.push_back(*static_cast<uint64_t*>(scalar->value));
  }
  for (const XLA_FFI_Buffer* buffer : BuffersOf(frame)) {
    key.push_back(reinterpret_cast<uint64_t>(buffer->data));
    key.push_back(static_cast<uint64_t>(buffer->dtype));
    key.insert(key.end(), buffer->dims, buffer->dims + buffer->rank);
    key.push_back(~uint64_t{0});
  }
  return key;
}

// A stream per thread and device: programs run on several at once.
cudaStream_t StreamOn(int32_t ordinal) {
  static thread_local auto* streams = new std::map<int32_t, cudaStream_t>;
  cudaStream_t& stream = (*streams)[ordinal];
  if (stream == nullptr) {
    base::CheckCuda(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0),
        "cudaStreamCreateWithPriority");
  }
  return stream;
}

// Launches what the handler captured when it met these addresses first.
XLA_FFI_Error* Replay(XLA_FFI_Handler* handler, XLA_FFI_CallFrame& frame,
                      int32_t ordinal) {
  static auto* mutex = new std::mutex;
  static auto* graphs = new std::map<Key, cudaGraphExec_t>;
  Key key = KeyOf(frame);
  key.push_back(reinterpret_cast<uint64_t>(handler));
  key.push_back(static_cast<uint64_t>(ordinal));
  std::unique_lock lock(*mutex);
  cudaGraphExec_t& executable = (*graphs)[key];
  if (executable == nullptr) {
    cudaGraph_t graph = nullptr;
    base::CheckCuda(cudaStreamBeginCapture(current_stream,
                                           cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture");
    XLA_FFI_Error* const error = handler(&frame);
    base::CheckCuda(cudaStreamEndCapture(current_stream, &graph),
                    "cudaStreamEndCapture");
    if (error != nullptr) return error;
    if (fake_cuda::Nodes(graph).empty()) std::abort();
    base::CheckCuda(cudaGraphInstantiate(&executable, graph, 0),
                    "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  const cudaGraphExec_t launched = executable;
  lock.unlock();
  base::CheckCuda(cudaGraphLaunch(launched, current_stream), "cudaGraphLaunch");
  return nullptr;
}

// Only what cannot be captured copies from and to the buffers of a program.
XLA_FFI_Error* CallAdopted(XLA_FFI_Handler* handler, XLA_FFI_CallFrame& frame) {
  std::vector<void*> adopted;
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    const auto* buffer = static_cast<XLA_FFI_Buffer*>(frame.rets.rets[i]);
    uint64_t bytes = sizeof(uint32_t);
    for (int64_t d = 0; d < buffer->rank; ++d) bytes *= buffer->dims[d];
    fake_cuda::Adopt(buffer->data, bytes);
    adopted.push_back(buffer->data);
  }
  XLA_FFI_Error* const error = handler(&frame);
  cudaStreamSynchronize(current_stream);
  for (void* data : adopted) fake_cuda::Disown(data);
  return error;
}

XLA_FFI_Error* CallEmulated(XLA_FFI_Handler* handler, bool captured,
                            XLA_FFI_CallFrame* frame) {
  // XLA asks what the handler is.
  if (frame->extension_start != nullptr) return handler(frame);
  XLA_FFI_Api api = *frame->api;
  api.XLA_FFI_Stream_Get = &StreamGet;
  XLA_FFI_CallFrame copy = *frame;
  copy.api = &api;
  const int32_t ordinal = OrdinalOf(*frame);
  program::DeviceTable::Get().Ensure(ordinal);
  const base::OnDevice here(ordinal);
  current_stream = StreamOn(ordinal);
  XLA_FFI_Error* const error = !captured    ? CallAdopted(handler, copy)
                               : Captures() ? Replay(handler, copy, ordinal)
                                            : handler(&copy);
  // What goes wrong on the device is found by the next call.
  cudaStreamSynchronize(current_stream);
  return error;
}

// Handlers are functions without a context of their own.
constexpr int kMostHandlers = 8;
XLA_FFI_Handler* originals[kMostHandlers];
bool capturable[kMostHandlers];
template <int N>
XLA_FFI_Error* Emulated(XLA_FFI_CallFrame* frame) {
  return CallEmulated(originals[N], capturable[N], frame);
}
template <int... N>
void* Wrapper(int n, std::integer_sequence<int, N...>) {
  XLA_FFI_Handler* const wrappers[] = {&Emulated<N>...};
  return reinterpret_cast<void*>(wrappers[n]);
}

}  // namespace

std::vector<Registration> EmulatedRegistrations() {
  std::vector<Registration> all = CudaRegistrations();
  int n = 0;
  for (Registration& one : all) {
    originals[n] = reinterpret_cast<XLA_FFI_Handler*>(one.execute);
    capturable[n] = MetadataOf(one.execute).traits != 0;
    one.execute =
        Wrapper(n++, std::make_integer_sequence<int, kMostHandlers>());
    one.platform = "cpu";
    one.initialize = nullptr;
  }
  return all;
}

}  // namespace dmi::handlers
