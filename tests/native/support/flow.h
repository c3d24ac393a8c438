// SPDX-License-Identifier: Apache-2.0
// One device captured from end to end, and a consumer that checks every byte.
#ifndef DMI_TESTS_NATIVE_SUPPORT_FLOW_H_
#define DMI_TESTS_NATIVE_SUPPORT_FLOW_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "batch/queue.h"
#include "drain/drain.h"
#include "program/record.h"
#include "ring/ring.h"
#include "support/payload.h"

namespace dmi::testing {

// A control block nobody else knows.
class Device {
 public:
  Device() : gates_(wire::kMaxSites) {
    block_.gates = reinterpret_cast<uint64_t>(gates_.data());
  }
  wire::ControlBlock& block() { return block_; }
  uint64_t lost(wire::LossReason reason) const;

 private:
  std::vector<uint32_t> gates_;
  wire::ControlBlock block_{};
};

inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
// For waits that end earlier unless something is broken.
inline constexpr int64_t kForever = 3600 * kSecond;

// Records payload `index` of `producer`, which names itself in every field.
void RecordOne(Device& device, uint64_t producer, uint64_t index,
               uint64_t bytes);

// Ring, drain and queue of one run on `device`.
class Flow {
 public:
  // The ring stands at `start`, as if it had been in use for long.
  Flow(Device& device, const ring::RingOptions& ring,
       const drain::DrainOptions& drain, wire::Cursor start = {0, 0},
       drain::DrainParts parts = {});
  ~Flow() { Stop(); }

  void Start();
  // Ends the run: everything recorded is queued and the queue is closed.
  void Stop();

  ring::Ring& ring() { return *ring_; }
  drain::Drain& drain() { return *drain_; }
  batch::BatchQueue& queue() { return *queue_; }

  // Sums over all sites.
  uint64_t recorded() const;
  uint64_t lost(wire::LossReason reason) const;

 private:
  Device& device_;
  std::shared_ptr<ring::Ring> ring_;
  std::shared_ptr<batch::BatchQueue> queue_;
  std::unique_ptr<drain::Drain> drain_;
};

// Checks batches as they come: dense sequences, and every field and byte of
// every record against what its producer must have written.
class Checker {
 public:
  explicit Checker(uint64_t first_sequence = 0) : next_(first_sequence) {}

  void Check(const batch::Batch& batch);
  // Takes batches until the queue is closed and empty, dropping each at once.
  void Run(batch::BatchQueue& queue);

  uint64_t records() const { return records_; }
  // Of them, those that came with a crc32c of their payload.
  uint64_t checksummed() const { return checksummed_; }
  uint64_t next_sequence() const { return next_; }
  // Records seen of one producer.
  uint64_t of(uint64_t producer) const;

 private:
  void CheckRow(const batch::Batch& batch, size_t row);

  uint64_t next_;
  uint64_t records_ = 0;
  uint64_t checksummed_ = 0;
  std::map<uint64_t, uint64_t> count_;
  std::map<uint64_t, int64_t> last_index_;
  std::vector<uint8_t> expected_;
};

// The payload of a row, wherever its view says it is.
const uint8_t* PayloadOf(const batch::Batch& batch, size_t row);

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_SUPPORT_FLOW_H_
