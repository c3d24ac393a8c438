// SPDX-License-Identifier: Apache-2.0
// An image on its way from staging to devices.
#ifndef DMI_REPLAY_UPLOAD_H_
#define DMI_REPLAY_UPLOAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "replay/staging.h"

namespace dmi::replay {

// A device, and which bytes of the image it gets.
struct UploadPart {
  int32_t ordinal;
  uint64_t offset;
  uint64_t bytes;
};

// Holds a lease on the staging as long as it lives.
class Upload {
 public:
  virtual ~Upload() = default;
  Upload() = default;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Whether every device has its part. Any thread; does not block.
  virtual bool passed() = 0;
};

// Pins the image of `staging`, of which `used` bytes are not zero, and lets the
// `dmi_upload` calls that name its number copy it, once for every part. Throws
// base::CudaError, and then nothing has changed.
std::shared_ptr<Upload> BeginCudaUpload(Staging& staging, uint64_t used,
                                        const std::vector<UploadPart>& parts);

}  // namespace dmi::replay

#endif  // DMI_REPLAY_UPLOAD_H_
