// SPDX-License-Identifier: Apache-2.0
// The drain: the one thread that takes records out of a ring.
//
//   ring slots -> cut a batch when a flush rule says so -> queue
//
// Flush rules, any of which cuts a batch: `batch_bytes` or `batch_records`
// wait, half the ring is used, the oldest waiting record is `linger` old, a
// producer waits for space, or somebody asked for a seal. On the host the ring
// is already where the sink reads from, so nothing is copied here.
//
// Threads: Start, Stop and the destructor belong to the control thread; Seal,
// and everything const, may be called by any thread. The thread never calls
// Python and allocates only while columns grow to their final size.
#ifndef DMI_DRAIN_DRAIN_H_
#define DMI_DRAIN_DRAIN_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/failure.h"
#include "base/fork.h"
#include "batch/queue.h"
#include "drain/transfer_log.h"
#include "ring/ring.h"

namespace dmi::drain {

struct DrainOptions {
  uint64_t batch_bytes = 16u << 20;
  uint32_t batch_records = 4096;
  int64_t linger_nanos = 200'000'000;
};

class Drain {
 public:
  // Takes up the ring where it stands; nothing may have been recorded behind
  // its tail yet.
  Drain(std::shared_ptr<ring::Ring> ring, int64_t device,
        const DrainOptions& options, std::shared_ptr<batch::BatchQueue> queue);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // Throws std::runtime_error in a forked child.
  void Start();

  // Cuts everything that was published and ends the thread. Requires that no
  // producer is left: the ring was uninstalled.
  void Stop();

  // Cuts every record reserved before the call, however young, and waits until
  // it is queued. Returns the sequence after the last of them; less than it
  // should be when `nanos` passed first or the drain failed.
  uint64_t Seal(int64_t nanos);

  // Cuts nothing from the return of Pause until Resume; a stop cuts all the
  // same. Pause blocks while a batch is being cut.
  void Pause();
  void Resume();

  // Sequence after the last record reserved so far.
  uint64_t reserved() const;
  // Sequence after the last record queued so far.
  uint64_t queued() const { return queued_.load(std::memory_order_acquire); }

  const ring::Ring& ring() const { return *ring_; }
  ring::Ring& ring() { return *ring_; }
  int64_t device() const { return device_; }
  const base::FailureLatch& failure() const { return failure_; }
  const TransferLog& transfers() const { return transfers_; }

 private:
  void Loop();
  // Looks for newly published records; false when one overran its slot.
  bool Scan();
  bool Due(int64_t now) const;
  // Whether going to sleep now would delay something that is due.
  bool WorkAppeared();
  // Cuts batches while a rule or `everything` says so.
  void CutDue(bool everything);
  // The next batch: as many ready records as fit its limits, up to the end of
  // the ring.
  void Cut(TransferKind kind);
  int64_t SleepNanos(int64_t now) const;
  bool Published(uint64_t sequence) const;
  // The cursor after a batch on these units of the payload ring.
  wire::Cursor CursorAfter(uint64_t sequence, uint32_t begin_unit,
                           uint32_t end_unit) const;
  uint64_t WaitingBytes() const;

  const std::shared_ptr<ring::Ring> ring_;
  const int64_t device_;
  const DrainOptions options_;
  const std::shared_ptr<batch::BatchQueue> queue_;
  const std::shared_ptr<batch::ColumnPool> pool_;
  base::FailureLatch failure_;
  TransferLog transfers_;

  // Drain thread only.
  uint64_t ready_ = 0;         // sequence after the last published record
  uint64_t ready_bytes_ = 0;   // of the records between cut_ and ready_
  wire::Cursor cut_cursor_;    // tail once everything cut is released
  uint64_t cut_ = 0;           // sequence after the last record cut
  uint32_t reached_unit_ = 0;  // unit of the payload ring where it ended

  std::atomic<uint64_t> queued_{0};
  std::atomic<uint64_t> seal_to_{0};  // records before it are to be cut now
  std::atomic<bool> stopping_{false};
  base::Mutex cut_mutex_;            // held while batches are cut
  std::atomic<bool> paused_{false};  // changes under cut_mutex_
  base::Mutex sealed_mutex_;
  base::Condition sealed_;
  std::thread thread_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_DRAIN_H_
