// SPDX-License-Identifier: Apache-2.0
// Uploads to CUDA devices, see the header.
#include "replay/cuda_upload.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "base/fork.h"

namespace dmi::replay {
namespace {

// Leaked: programs may run while the process exits.
struct Table {
  base::Mutex mutex;
  std::map<int64_t, std::weak_ptr<CudaUpload>> uploads;
  std::vector<std::shared_ptr<const void>> kept;  // for good

  static Table& Get() {
    static auto* table = new Table;
    return *table;
  }
};

// Pinned memory, let go of on the device it was pinned by.
class Pin {
 public:
  Pin(int32_t ordinal, void* data, uint64_t bytes) : ordinal_(ordinal) {
    const base::OnDevice here(ordinal);
    pinned_.emplace(data, bytes,
                    "an image (use a smaller arena: upload less at once, or "
                    "from fewer banks)");
  }
  ~Pin() {
    try {
      const base::OnDevice here(ordinal_);
      pinned_.reset();
    } catch (const base::CudaError&) {
      // The device is lost, or we are a child without one.
    }
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  const int32_t ordinal_;
  std::optional<base::Pinned> pinned_;
};

}  // namespace

std::shared_ptr<Upload> BeginCudaUpload(Staging& staging, uint64_t used,
                                        const std::vector<UploadPart>& parts) {
  auto upload = std::make_shared<CudaUpload>(staging, used, parts);
  Table& table = Table::Get();
  std::lock_guard lock(table.mutex);
  table.uploads[staging.number()->value()] = upload;
  return upload;
}

std::shared_ptr<CudaUpload> CudaUpload::Find(int64_t number) {
  Table& table = Table::Get();
  std::lock_guard lock(table.mutex);
  const auto found = table.uploads.find(number);
  return found == table.uploads.end() ? nullptr : found->second.lock();
}

CudaUpload::CudaUpload(Staging& staging, uint64_t used,
                       const std::vector<UploadPart>& parts)
    : number_(staging.number()), used_(used) {
  for (const UploadPart& what : parts) {
    if (what.offset > staging.capacity() ||
        what.bytes > staging.capacity() - what.offset) {
      throw std::logic_error("a part of an upload is not in its staging");
    }
    const base::OnDevice here(what.ordinal);
    Part& part = parts_.emplace_back();
    part.what = what;
    part.copied = std::make_unique<base::CudaEvent>();
  }
  if (!parts.empty()) {
    staging.Pin([&](void* data, uint64_t bytes) {
      return std::make_shared<Pin>(parts.front().ordinal, data, bytes);
    });
  }
  lease_ = staging.Lease();
}

CudaUpload::~CudaUpload() {
  for (Part& part : parts_) {
    const State state = part.state.load(std::memory_order_acquire);
    if (state == kDue || state == kOver || Passed(part)) continue;
    // The copy reads the memory, and nothing will tell when it is over.
    Table& table = Table::Get();
    std::lock_guard lock(table.mutex);
    table.kept.push_back(std::move(lease_));
    return;
  }
}

void CudaUpload::Copy(int32_t ordinal, void* to, uint64_t bytes,
                      cudaStream_t stream) {
  const auto part = std::find_if(
      parts_.begin(), parts_.end(),
      [&](const Part& one) { return one.what.ordinal == ordinal; });
  if (part == parts_.end() || part->what.bytes != bytes) {
    throw std::logic_error("this is no part of the upload");
  }
  State due = kDue;
  if (!part->state.compare_exchange_strong(due, kCopying,
                                           std::memory_order_relaxed)) {
    throw std::logic_error("this part was uploaded already");
  }
  const uint64_t offset = part->what.offset;
  const uint64_t used = std::min(used_ - std::min(used_, offset), bytes);
  try {
    base::CheckCuda(
        cudaMemcpyAsync(to, static_cast<const uint8_t*>(lease_.get()) + offset,
                        used, cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync of an image");
    if (used < bytes) {
      base::CheckCuda(cudaMemsetAsync(static_cast<uint8_t*>(to) + used, 0,
                                      bytes - used, stream),
                      "cudaMemsetAsync behind an image");
    }
    part->copied->Record(stream);
  } catch (const base::CudaError&) {
    // Some of it may be queued. Where this fails too, it stays in doubt.
    if (cudaStreamSynchronize(stream) == cudaSuccess) {
      part->state.store(kOver, std::memory_order_release);
    }
    throw;
  }
  part->state.store(kQueued, std::memory_order_release);
}

bool CudaUpload::Passed(Part& part) {
  if (part.state.load(std::memory_order_acquire) != kQueued) return false;
  try {
    const base::OnDevice here(part.what.ordinal);
    if (!part.copied->Passed()) return false;
  } catch (const base::CudaError&) {
    return false;
  }
  part.state.store(kOver, std::memory_order_release);
  return true;
}

bool CudaUpload::passed() {
  return std::all_of(parts_.begin(), parts_.end(), [](Part& part) {
    return part.state.load(std::memory_order_acquire) == kOver || Passed(part);
  });
}

}  // namespace dmi::replay
