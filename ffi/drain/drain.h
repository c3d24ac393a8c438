// SPDX-License-Identifier: Apache-2.0
// The drain: the one thread that takes records out of a ring.
//
//   ring slots -> move over the link -> cut a batch -> queue
//
// Where transfers keep to windows, the window controller says what moves. Else
// a flush rule does: `batch_bytes` or `batch_records` wait, half the ring is
// used, the oldest waiting record is `linger` old. In both cases a producer
// that waits for space, a seal and a stop force a transfer, and inside windows
// a record that grows too old. On the host link the ring is already where the
// sink reads from, so nothing is copied.
//
// A window grants one transfer at a time, and none while another is under way.
// Outside windows as many are under way as the link is deep.
//
// Threads: Start, Stop and the destructor belong to the control thread; Seal,
// Pause, Resume and everything const may be called by any thread. Turn belongs
// to the thread, or where it was not started, to whoever drives the drain
// instead. The thread never calls Python and allocates only while columns grow
// to their final size.
#ifndef DMI_DRAIN_DRAIN_H_
#define DMI_DRAIN_DRAIN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/failure.h"
#include "base/fork.h"
#include "base/time_source.h"
#include "batch/queue.h"
#include "drain/cutter.h"
#include "drain/mover.h"
#include "drain/transfer_log.h"
#include "drain/window_driver.h"
#include "ring/ring.h"
#include "ring/staging.h"
#include "transfer/link.h"

namespace dmi::drain {

struct DrainOptions {
  uint64_t batch_bytes = 16u << 20;
  uint32_t batch_records = 4096;
  int64_t linger_nanos = 200'000'000;
  // Of staging, for links that copy; at least the largest record.
  uint64_t staging_bytes = 256u << 20;
};

// How a device is reached, and what its transfers keep to.
struct DrainParts {
  std::shared_ptr<transfer::Link> link = std::make_shared<transfer::HostLink>();
  std::shared_ptr<const base::TimeSource> time =
      std::make_shared<base::SystemTime>();
  std::optional<windows::WindowConfig> windows;
  // The word that holds the progress of the device; windows need it.
  const uint64_t* progress = nullptr;
};

class Drain {
 public:
  // Takes up the ring where it stands; nothing may have been recorded behind
  // its tail yet.
  Drain(std::shared_ptr<ring::Ring> ring, int64_t device,
        const DrainOptions& options, std::shared_ptr<batch::BatchQueue> queue,
        DrainParts parts = {});
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  // Throws std::runtime_error in a forked child.
  void Start();

  // Moves and cuts everything that was published and ends the thread. Requires
  // that no producer is left: the ring was uninstalled.
  void Stop();

  // Cuts every record reserved before the call, however young, and waits until
  // it is queued. Returns the sequence after the last of them; less than it
  // should be when `nanos` passed first or the drain failed.
  uint64_t Seal(int64_t nanos);

  // Moves and cuts nothing from the return of Pause until Resume; a stop does
  // all the same. Pause blocks while a batch is being cut and, where the drain
  // was started, until every transfer under way has landed.
  void Pause();
  void Resume();

  // Does everything that is due; never blocks. Returns how many nanoseconds the
  // caller may sleep, or -1 when the drain has failed.
  int64_t Turn(bool everything = false);

  // Sequence after the last record reserved so far.
  uint64_t reserved() const;
  // Sequence after the last record queued so far.
  uint64_t queued() const { return cutter_.queued(); }
  // Payload bytes that consumers hold.
  uint64_t pinned() const { return cutter_.pinned(); }

  const ring::Ring& ring() const { return *ring_; }
  ring::Ring& ring() { return *ring_; }
  int64_t device() const { return device_; }
  const base::FailureLatch& failure() const { return failure_; }
  const TransferLog& transfers() const { return transfers_; }
  // nullptr where no windows were configured.
  windows::WindowController* controller() {
    return windows_ ? &windows_->controller() : nullptr;
  }

 private:
  // A transfer under way.
  struct Flight {
    Chunk chunk;
    TransferKind kind;
    std::optional<windows::Admission> admission;
    int64_t begin;
    uint64_t begin_progress;
  };

  void Loop();
  // Looks for newly published records; false when one overran its slot.
  bool Scan();
  // Moves and cuts while a rule, a window or `everything` says so.
  void Work(bool everything);
  // Begins the next transfer; false if none is due or possible.
  bool Move(bool everything);
  bool Begin(const Chunk& chunk, TransferKind kind,
             std::optional<windows::Admission> admission);
  // Takes in every transfer that has landed.
  void Land();
  // Whether one more transfer may be under way.
  bool HasRoom() const;
  bool MoveInWindow();
  bool Forced(bool everything);
  // Of ordinary batching.
  bool Due(int64_t now) const;
  // Whether going to sleep now would delay something that is due.
  bool WorkAppeared();
  // Queues one batch of records before `end`; returns its payload bytes.
  uint64_t CutBatch(uint64_t end);
  void CutLanded();
  // After a failure: what landed before it is whole.
  void CutWhatLanded() noexcept;
  // Nothing more will happen that Seal or Pause could wait for.
  void WakeWaiters();
  void Log(const Flight& flight, uint64_t bytes);
  void NoteForcedMoved();
  // The progress word; 0 where there is none.
  uint64_t Progress() const;
  int64_t SleepNanos(int64_t now);
  // Likewise, transfers under way aside.
  int64_t SleepUntilDue(int64_t now) const;
  bool Published(uint64_t sequence) const;
  // Of the ring, padding included, that is ready and not issued.
  uint64_t WaitingBytes() const;
  // Of the first record that is ready and not issued whole.
  int64_t AgeOfOldest(int64_t now) const;
  bool confining() const { return windows_ && windows_->confining(); }

  const std::shared_ptr<ring::Ring> ring_;
  const int64_t device_;
  const DrainOptions options_;
  const std::shared_ptr<const base::TimeSource> time_;
  const std::shared_ptr<ring::Staging> staging_;  // nullptr in place
  const std::shared_ptr<transfer::Link> link_;    // goes before staging
  const transfer::Pace pace_;
  const size_t depth_;
  const uint64_t* const progress_;
  base::FailureLatch failure_;
  TransferLog transfers_;

  // Drain thread only, and changed under cut_mutex_.
  Cutter cutter_;
  Mover mover_;
  std::optional<WindowDriver> windows_;
  std::vector<Flight> flights_;  // oldest first, at most `depth_`
  uint64_t ready_;               // sequence after the last published record
  uint64_t ready_bytes_ = 0;     // of them, what is not issued yet
  uint64_t landed_bytes_ = 0;    // of the records that landed and are not cut
  uint64_t forced_to_ = 0;       // records before it move without a window
  bool full_ = false;            // because a producer found no space
  bool blocked_ = false;         // staging had no room
  bool attached_ = false;

  std::atomic<uint64_t> seal_to_{0};  // records before it are to be cut now
  std::atomic<bool> stopping_{false};
  std::atomic<bool> started_{false};
  base::Mutex cut_mutex_;            // held while batches are cut
  base::Condition landed_;           // under cut_mutex_: no flights, or failed
  std::atomic<bool> paused_{false};  // changes under cut_mutex_
  base::Mutex sealed_mutex_;
  base::Condition sealed_;
  std::thread thread_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_DRAIN_H_
