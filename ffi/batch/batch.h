// SPDX-License-Identifier: Apache-2.0
// A batch: consecutive records of one device on their way to a sink.
//
// Columns are its own; the payload is a span of the ring (or of staging) that
// stays valid while the batch lives and is handed back when it is destroyed.
#ifndef DMI_BATCH_BATCH_H_
#define DMI_BATCH_BATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "batch/columns.h"

namespace dmi::batch {

// Keeps the columns of dead batches for the next ones. Any thread.
class ColumnPool {
 public:
  std::unique_ptr<Columns> Take() {
    std::lock_guard lock(mutex_);
    if (free_->empty()) return std::make_unique<Columns>();
    auto columns = std::move(free_->back());
    free_->pop_back();
    return columns;
  }
  void Give(std::unique_ptr<Columns> columns) {
    if (base::InForkedChild()) return;
    columns->Clear();
    std::lock_guard lock(mutex_);
    if (free_->size() < kKept) free_->push_back(std::move(columns));
  }

 private:
  static constexpr size_t kKept = 16;
  base::Mutex mutex_;
  base::ParentOnly<std::vector<std::unique_ptr<Columns>>> free_;
};

struct PayloadSpan {
  const uint8_t* data = nullptr;
  uint64_t size = 0;
};

class Batch {
 public:
  // `release` hands the span back; called exactly once, by the thread that
  // drops the last reference.
  Batch(int64_t device, std::unique_ptr<Columns> columns, PayloadSpan payload,
        uint64_t bytes, std::shared_ptr<ColumnPool> pool,
        std::function<void()> release)
      : device_(device),
        columns_(std::move(columns)),
        payload_(payload),
        bytes_(bytes),
        pool_(std::move(pool)),
        release_(std::move(release)) {}
  ~Batch() {
    pool_->Give(std::move(columns_));
    release_();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  int64_t device() const { return device_; }
  const Columns& columns() const { return *columns_; }
  PayloadSpan payload() const { return payload_; }
  // Exact payload bytes of its records, padding not counted.
  uint64_t bytes() const { return bytes_; }
  uint64_t first_sequence() const { return columns_->seq.front(); }
  uint64_t last_sequence() const { return columns_->seq.back(); }

 private:
  int64_t device_;
  std::unique_ptr<Columns> columns_;
  PayloadSpan payload_;
  uint64_t bytes_;
  std::shared_ptr<ColumnPool> pool_;
  std::function<void()> release_;
};

}  // namespace dmi::batch

#endif  // DMI_BATCH_BATCH_H_
