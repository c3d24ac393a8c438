// SPDX-License-Identifier: Apache-2.0
// Record, drain, queue, release: nothing is lost, changed or out of order,
// however small the ring and however many producers.
#include "support/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/deadline.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kMillisecond;
using dmi::testing::Random;
using dmi::testing::RecordOne;

struct Load {
  uint64_t producers = 1;
  uint64_t each = 1000;
  std::function<uint64_t(Random&)> bytes;
};

std::function<uint64_t(Random&)> UpTo(uint64_t most) {
  return [most](Random& random) { return random.UpTo(most); };
}

std::function<uint64_t(Random&)> Always(uint64_t bytes) {
  return [bytes](Random&) { return bytes; };
}

// Starts the producers of `load`; they are joined when the result goes.
std::vector<std::jthread> Produce(Device& device, const Load& load) {
  std::vector<std::jthread> threads;
  for (uint64_t producer = 0; producer < load.producers; ++producer) {
    threads.emplace_back([&device, load, producer] {
      Random random(producer);
      for (uint64_t i = 0; i < load.each; ++i) {
        RecordOne(device, producer, i, load.bytes(random));
      }
    });
  }
  return threads;
}

// A lossless run: everything arrives, byte for byte.
void RunLossless(ring::RingOptions ring, const DrainOptions& drain,
                 const Load& load) {
  const Deadline deadline(std::chrono::seconds(60));
  ring.stall_nanos = kForever;
  Device device;
  Flow flow(device, ring, drain);
  Checker checker;
  flow.Start();
  std::jthread consumer([&] { checker.Run(flow.queue()); });
  Produce(device, load).clear();
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), load.producers * load.each);
  EXPECT_EQ(flow.recorded(), load.producers * load.each);
  EXPECT_EQ(flow.drain().queued(), load.producers * load.each);
  EXPECT_EQ(flow.drain().reserved(), load.producers * load.each);
  EXPECT_EQ(flow.ring().pinned(), 0u);
  EXPECT_EQ(flow.drain().failure().text(), "");
  for (uint32_t reason = 0; reason < wire::kLossReasons; ++reason) {
    EXPECT_EQ(flow.lost(static_cast<wire::LossReason>(reason)), 0u) << reason;
  }
}

TEST(FlowTest, TenThousandRecordsThroughARingOfTwo) {
  RunLossless({.bytes = 256, .slots = 16}, {}, {1, 10000, Always(80)});
}

TEST(FlowTest, FourProducersOfUnevenSizes) {
  RunLossless({.bytes = 16384, .slots = 256}, {}, {4, 3000, UpTo(2000)});
}

TEST(FlowTest, FourProducersInATinyRing) {
  RunLossless({.bytes = 256, .slots = 8}, {}, {4, 1500, UpTo(128)});
}

TEST(FlowTest, SmallestRingThereIs) {
  RunLossless({.bytes = 128, .slots = 2}, {}, {3, 1000, UpTo(64)});
}

TEST(FlowTest, SlotsRunOutBeforeBytes) {
  RunLossless({.bytes = 1 << 20, .slots = 4}, {}, {3, 3000, UpTo(100)});
}

TEST(FlowTest, RingOfAnOddNumberOfPages) {
  RunLossless({.bytes = 64 * 334, .slots = 64}, {}, {3, 3000, UpTo(64 * 167)});
}

TEST(FlowTest, RecordsOfNothing) {
  RunLossless({.bytes = 128, .slots = 8}, {}, {3, 3000, Always(0)});
}

TEST(FlowTest, RecordsOfNothingBetweenOthers) {
  RunLossless({.bytes = 1024, .slots = 16}, {},
              {3, 3000, [](Random& random) {
                 return random.UpTo(2) == 0 ? 0 : random.UpTo(512);
               }});
}

TEST(FlowTest, LargeRecordsAreStreamed) {
  RunLossless({.bytes = 4 << 20, .slots = 64}, {},
              {2, 60, [](Random& random) {
                 return 32768 + random.UpTo((2 << 20) - 32768);
               }});
}

TEST(FlowTest, WithoutChecksum) {
  RunLossless({.bytes = 4096, .slots = 64, .checksum = false}, {},
              {3, 2000, UpTo(1024)});
}

TEST(FlowTest, OneRecordPerBatch) {
  RunLossless({.bytes = 4096, .slots = 64, .wake_records = 1},
              {.batch_records = 1}, {2, 2000, UpTo(256)});
}

TEST(FlowTest, OneBytePerBatch) {
  RunLossless({.bytes = 4096, .slots = 64, .wake_bytes = 1}, {.batch_bytes = 1},
              {2, 2000, UpTo(256)});
}

TEST(FlowTest, LimitsOfZeroAreThoseOfOne) {
  RunLossless({.bytes = 4096, .slots = 64, .wake_records = 0, .wake_bytes = 0},
              {.batch_bytes = 0, .batch_records = 0, .linger_nanos = 0},
              {2, 2000, UpTo(256)});
}

TEST(FlowTest, LimitsBeyondTheRing) {
  RunLossless({.bytes = 4096,
               .slots = 64,
               .wake_records = ~uint32_t{0},
               .wake_bytes = ~uint64_t{0}},
              {.batch_bytes = ~uint64_t{0},
               .batch_records = ~uint32_t{0},
               .linger_nanos = kForever},
              {2, 2000, UpTo(256)});
}

TEST(FlowTest, BatchesKeepTheirLimits) {
  const Deadline deadline(std::chrono::seconds(60));
  Device device;
  Flow flow(device, {.bytes = 1 << 20, .slots = 4096},
            {.batch_bytes = 5000, .batch_records = 7});
  flow.Start();
  uint64_t most_rows = 0;
  Checker checker;
  std::jthread consumer([&] {
    while (!flow.queue().finished()) {
      for (const auto& batch : flow.queue().Pop(3, kForever)) {
        checker.Check(*batch);
        const uint64_t rows = batch->columns().rows();
        most_rows = std::max(most_rows, rows);
        EXPECT_LE(rows, 7u);
        EXPECT_TRUE(batch->bytes() <= 5000 || rows == 1) << batch->bytes();
      }
    }
  });
  Produce(device, {2, 5000,
                   [](Random& random) {
                     return random.UpTo(9) == 0 ? 6000 : random.UpTo(500);
                   }})
      .clear();
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), 10000u);
  EXPECT_EQ(most_rows, 7u);
}

// A consumer that keeps several batches and drops them in any order: what it
// holds is pinned, is not overwritten, and holds the producers back.
TEST(FlowTest, SlowConsumerHoldsLeases) {
  const Deadline deadline(std::chrono::seconds(60));
  Device device;
  Flow flow(device, {.bytes = 8192, .slots = 64, .stall_nanos = kForever}, {});
  flow.Start();
  Checker checker;
  std::jthread consumer([&] {
    Random random(5);
    std::vector<std::shared_ptr<batch::Batch>> held;
    std::vector<std::vector<uint8_t>> copies;
    const auto drop = [&](size_t pick) {
      const auto payload = held[pick]->payload();
      EXPECT_EQ(copies[pick], std::vector<uint8_t>(
                                  payload.data, payload.data + payload.size));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
      copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(pick));
    };
    while (!flow.queue().finished()) {
      for (auto& batch :
           flow.queue().Pop(1, held.empty() ? kForever : kMillisecond)) {
        checker.Check(*batch);
        const auto payload = batch->payload();
        copies.emplace_back(payload.data, payload.data + payload.size);
        held.push_back(std::move(batch));
        uint64_t bytes = 0;
        for (const auto& one : held) bytes += one->bytes();
        EXPECT_GE(flow.ring().pinned(), bytes);
      }
      // Nothing came, or it holds enough: one of them goes.
      if (!held.empty()) {
        if (flow.queue().size() == 0 || held.size() > 4) {
          drop(random.UpTo(held.size() - 1));
        }
      }
    }
    while (!held.empty()) drop(random.UpTo(held.size() - 1));
  });
  Produce(device, {3, 1500, UpTo(1500)}).clear();
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), 4500u);
  EXPECT_EQ(flow.ring().pinned(), 0u);
}

}  // namespace
}  // namespace dmi::drain
