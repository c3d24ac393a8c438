// SPDX-License-Identifier: Apache-2.0
// The handler that uploads an image of a replay arena.
//
// What it copies differs from execution to execution, so it cannot be part of a
// command buffer: XLA calls it every time.
#include "replay/cuda_upload.h"

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "base/cuda.h"
#include "handlers/registrations.h"
#include "xla/ffi/api/ffi.h"

namespace dmi::handlers {
namespace {

namespace ffi = xla::ffi;
using Words = ffi::BufferR1<ffi::U32>;

// `ended` is there for its readiness: it tells when the program is over, also
// where it failed before it got here.
ffi::Error UploadExecute(cudaStream_t stream, int32_t ordinal, int64_t staging,
                         ffi::Result<Words> words,
                         ffi::Result<Words> /*ended*/) {
  const auto upload = replay::CudaUpload::Find(staging);
  if (upload == nullptr) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      "dmi_upload: the image is not there any more");
  }
  try {
    upload->Copy(ordinal, words->typed_data(), words->size_bytes(), stream);
  } catch (const base::CudaError& error) {
    cudaGetLastError();
    return ffi::Error(ffi::ErrorCode::kInternal,
                      std::string("dmi_upload: ") + error.what());
  } catch (const std::logic_error& error) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      std::string("dmi_upload: ") + error.what());
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kUpload, UploadExecute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cudaStream_t>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attr<int64_t>("staging")
                           .Ret<Words>()
                           .Ret<Words>());

}  // namespace

Registration UploadRegistration() {
  return {"dmi_upload", "CUDA", nullptr, nullptr,
          reinterpret_cast<void*>(static_cast<XLA_FFI_Handler*>(kUpload))};
}

}  // namespace dmi::handlers
