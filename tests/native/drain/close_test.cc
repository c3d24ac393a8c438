// SPDX-License-Identifier: Apache-2.0
// Rings come and go while programs run: nobody is left waiting, nothing is
// freed under a producer, and every record is either kept or counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "program/atomics.h"
#include "program/boundary.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kSecond;
using dmi::testing::Random;
using dmi::testing::RecordOne;

// Producers that record without pause until told to stop.
class Producers {
 public:
  Producers(Device& device, uint64_t count, uint64_t most_bytes)
      : tried_(count) {
    for (uint64_t producer = 0; producer < count; ++producer) {
      threads_.emplace_back([this, &device, producer, most_bytes] {
        Random random(producer);
        for (uint64_t i = 0; !stop_.load(std::memory_order_relaxed); ++i) {
          RecordOne(device, producer, i, random.UpTo(most_bytes));
          tried_[producer].fetch_add(1, std::memory_order_relaxed);
          if (i % 16 == 0) std::this_thread::yield();  // the rest of a program
        }
      });
    }
  }
  // Ends them and returns how many records they tried.
  uint64_t Stop() {
    stop_ = true;
    threads_.clear();
    return tried();
  }
  uint64_t tried() const {
    uint64_t sum = 0;
    for (const auto& one : tried_) sum += one.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::atomic<uint64_t>> tried_;
  std::vector<std::jthread> threads_;
};

// The ring is full, nobody consumes, and every producer waits: closing wakes
// them all, and they go on without a ring.
TEST(CloseTest, WakesProducersThatWait) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device, {.bytes = 1024, .slots = 16, .stall_nanos = kForever}, {});
  flow.Start();
  Producers producers(device, 6, 512);
  while (!flow.ring().signals().somebody_waits()) std::this_thread::yield();
  flow.Stop();
  const uint64_t before = producers.tried();
  while (producers.tried() < before + 100) std::this_thread::yield();
  const uint64_t tried = producers.Stop();
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), flow.recorded());
  EXPECT_GT(flow.lost(wire::kLostClosed), 0u);
  EXPECT_EQ(flow.recorded() + flow.lost(wire::kLostClosed) +
                device.lost(wire::kLostClosed),
            tried);
}

TEST(CloseTest, UnderLoadKeepsTheAccount) {
  const Deadline deadline(std::chrono::seconds(30));
  for (int round = 0; round < 20; ++round) {
    Device device;
    Flow flow(device, {.bytes = 2048, .slots = 16, .stall_nanos = kForever},
              {});
    Checker checker;
    flow.Start();
    std::jthread consumer([&] { checker.Run(flow.queue()); });
    Producers producers(device, 4, 1024);
    while (producers.tried() < 500) std::this_thread::yield();
    flow.Stop();
    consumer.join();
    const uint64_t tried = producers.Stop();
    ASSERT_EQ(checker.records(), flow.recorded());
    ASSERT_EQ(checker.records(), flow.drain().reserved());
    ASSERT_EQ(flow.recorded() + flow.lost(wire::kLostClosed) +
                  device.lost(wire::kLostClosed),
              tried);
  }
}

TEST(CloseTest, TwoHundredRingsComeAndGoUnderRunningProducers) {
  const Deadline deadline(std::chrono::seconds(60));
  Device device;
  Producers producers(device, 4, 600);
  uint64_t kept = 0;
  uint64_t lost = 0;
  for (int round = 0; round < 200; ++round) {
    auto flow = std::make_unique<Flow>(
        device,
        ring::RingOptions{.bytes = 4096, .slots = 32, .stall_nanos = kForever},
        DrainOptions{});
    flow->Start();
    Checker checker;
    std::jthread consumer([&] { checker.Run(flow->queue()); });
    // Some rings are taken away at once, some after they were in use.
    if (round % 3 != 0) {
      while (flow->drain().queued() < 50) std::this_thread::yield();
    }
    flow->Stop();
    consumer.join();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(checker.records(), flow->recorded());
    kept += checker.records();
    lost += flow->lost(wire::kLostClosed);
  }
  const uint64_t tried = producers.Stop();
  EXPECT_EQ(kept + lost + device.lost(wire::kLostClosed), tried);
}

// A ring is taken away in a moment however many producers knock meanwhile: one
// that comes when the ring is gone must not hold up the close.
TEST(CloseTest, IsNotHeldUpByProducersThatComeLater) {
  const Deadline deadline(std::chrono::seconds(60));
  Device device;
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const uint8_t payload[8] = {};
      while (!stop.load(std::memory_order_relaxed)) {
        for (int n = 0; n < 64; ++n) {
          program::Record(device.block(), {}, {}, payload, 8);
          program::AdvanceBoundary(device.block());
        }
      }
    });
  }
  ring::Ring ring(
      {.bytes = 4096, .slots = 32, .overflow = wire::Overflow::kDrop});
  int64_t longest = 0;
  for (int round = 0; round < 20; ++round) {
    program::Install(device.block(), ring.header());
    const uint64_t entered = program::LoadRelaxed(ring.header().boundary_count);
    while (program::LoadRelaxed(ring.header().boundary_count) == entered) {
      std::this_thread::yield();
    }
    const int64_t begin = base::MonotonicNanos();
    program::Uninstall(device.block());
    longest = std::max(longest, base::MonotonicNanos() - begin);
    // Whoever is inside now came later, and finds no ring.
    const uint64_t left = program::LoadRelaxed(ring.header().boundary_count);
    std::this_thread::yield();
    ASSERT_EQ(program::LoadRelaxed(ring.header().boundary_count), left);
  }
  stop = true;
  threads.clear();
  EXPECT_LT(longest, kSecond);
}

TEST(CloseTest, OfNothingIsNothing) {
  Device device;
  program::Uninstall(device.block());
  Flow never_started(device, {.bytes = 4096, .slots = 16}, {});
  never_started.Stop();
  EXPECT_TRUE(never_started.queue().finished());
}

// Batches outlive the run that made them.
TEST(CloseTest, BatchesKeepTheirRing) {
  const Deadline deadline(std::chrono::seconds(30));
  std::vector<std::shared_ptr<batch::Batch>> held;
  {
    Device device;
    Flow flow(device, {.bytes = 8192, .slots = 64}, {});
    flow.Start();
    for (uint64_t i = 0; i < 20; ++i) RecordOne(device, 0, i, 200);
    flow.Stop();
    while (!flow.queue().finished()) {
      for (auto& batch : flow.queue().Pop(8, kForever)) {
        held.push_back(std::move(batch));
      }
    }
  }
  Checker checker;
  for (const auto& batch : held) checker.Check(*batch);
  EXPECT_EQ(checker.records(), 20u);
}

}  // namespace
}  // namespace dmi::drain
