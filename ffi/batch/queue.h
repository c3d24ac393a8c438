// SPDX-License-Identifier: Apache-2.0
// The queue between the drains and the one consumer that writes batches.
//
// Unbounded by itself: what waits in it is bounded by the rings.
#ifndef DMI_BATCH_QUEUE_H_
#define DMI_BATCH_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork.h"
#include "batch/batch.h"

namespace dmi::batch {

class BatchQueue {
 public:
  // Called by drains; never blocks beyond a short lock.
  void Push(std::shared_ptr<Batch> batch) {
    std::lock_guard lock(mutex_);
    batches_->push_back(std::move(batch));
    ready_.notify_one();
  }

  // Called by the consumer: waits for at least one batch and takes up to
  // `most`. Empty when `nanos` passed, or the queue is closed and empty.
  std::vector<std::shared_ptr<Batch>> Pop(size_t most, int64_t nanos) {
    if (base::InForkedChild()) return {};
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, std::chrono::nanoseconds(nanos),
                    [&] { return closed_ || !batches_->empty(); });
    std::vector<std::shared_ptr<Batch>> taken;
    while (!batches_->empty() && taken.size() < most) {
      taken.push_back(std::move(batches_->front()));
      batches_->pop_front();
    }
    return taken;
  }

  // Called by the control thread once no drain will push any more.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    ready_.notify_all();
  }

  // Closed, and everything was taken: the consumer may stop.
  bool finished() const {
    std::lock_guard lock(mutex_);
    return closed_ && batches_->empty();
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return batches_->size();
  }

 private:
  mutable base::Mutex mutex_;
  base::Condition ready_;
  base::ParentOnly<std::deque<std::shared_ptr<Batch>>> batches_;
  bool closed_ = false;
};

}  // namespace dmi::batch

#endif  // DMI_BATCH_QUEUE_H_
