// SPDX-License-Identifier: Apache-2.0
// An image on its way to CUDA devices.
//
// Python begins an upload and dispatches a program whose only call names the
// staging by its number; the handler finds the upload and copies. Whoever holds
// an upload holds the memory, and an upload that ends before a copy did leaves
// the memory to it for good.
#ifndef DMI_REPLAY_CUDA_UPLOAD_H_
#define DMI_REPLAY_CUDA_UPLOAD_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/cuda.h"
#include "replay/staging.h"
#include "replay/upload.h"

namespace dmi::replay {

class CudaUpload final : public Upload {
 public:
  // Throws base::CudaError.
  CudaUpload(Staging& staging, uint64_t used,
             const std::vector<UploadPart>& parts);
  ~CudaUpload() override;

  // The last one that was begun of a staging, by its number; null where nobody
  // holds it any more. Any thread.
  static std::shared_ptr<CudaUpload> Find(int64_t number);

  // Queues the copy to a device, and zeros behind what is used. Each part once,
  // by a thread of the runtime; does not block unless it fails. Throws
  // base::CudaError, and std::logic_error where no such part is due.
  void Copy(int32_t ordinal, void* to, uint64_t bytes, cudaStream_t stream);

  bool passed() override;

 private:
  // kDue -> kCopying by the handler, and on by it alone; kQueued -> kOver by
  // passed. Release, acquire: the event was recorded.
  enum State : int { kDue, kCopying, kQueued, kOver };

  struct Part {
    UploadPart what;
    std::unique_ptr<base::CudaEvent> copied;
    std::atomic<State> state{kDue};
  };

  static bool Passed(Part& part);

  const std::shared_ptr<const StagingNumber> number_;
  const uint64_t used_;
  std::shared_ptr<const void> lease_;
  std::deque<Part> parts_;
};

}  // namespace dmi::replay

#endif  // DMI_REPLAY_CUDA_UPLOAD_H_
