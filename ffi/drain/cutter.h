// SPDX-License-Identifier: Apache-2.0
// Cuts batches out of records that have landed, and leases what they lie in.
//
// Drain thread only, but for `queued` and `pinned`.
#ifndef DMI_DRAIN_CUTTER_H_
#define DMI_DRAIN_CUTTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "batch/queue.h"
#include "drain/mover.h"
#include "ring/ring.h"
#include "ring/staging.h"
#include "wire/cursor.h"

namespace dmi::drain {

struct BatchLimits {
  uint64_t bytes;
  uint32_t records;
};

class Cutter {
 public:
  Cutter(std::shared_ptr<ring::Ring> ring,
         std::shared_ptr<ring::Staging> staging, int64_t device,
         BatchLimits limits, std::shared_ptr<batch::BatchQueue> queue);

  // Queues the next batch: as many records before `end` as fit its limits, up
  // to the end of the ring and of staging. Returns its payload bytes.
  uint64_t CutBatch(uint64_t end, const Mover& mover);

  // Sequence after the last record cut, and the tail once all that is released.
  uint64_t cut() const { return cut_; }
  wire::Cursor cursor() const { return cursor_; }
  // Unit of the payload ring where the last batch ended.
  uint32_t reached_unit() const { return reached_unit_; }

  // Any thread: sequence after the last record queued; bytes out on lease.
  uint64_t queued() const { return queued_.load(std::memory_order_acquire); }
  uint64_t pinned() const;

 private:
  // Hands the batch's place back when called.
  std::function<void()> Lease(uint64_t staging_end, uint64_t bytes);
  // The cursor after a batch on these units of the payload ring.
  wire::Cursor CursorAfter(uint64_t sequence, uint32_t begin_unit,
                           uint32_t end_unit) const;

  const std::shared_ptr<ring::Ring> ring_;
  const std::shared_ptr<ring::Staging> staging_;  // nullptr in place
  const int64_t device_;
  const BatchLimits limits_;
  const std::shared_ptr<batch::BatchQueue> queue_;
  const std::shared_ptr<batch::ColumnPool> pool_;
  wire::Cursor cursor_;
  uint64_t cut_;
  uint32_t reached_unit_ = 0;
  // Release after the push, so whoever reads it finds the batch queued.
  std::atomic<uint64_t> queued_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_CUTTER_H_
