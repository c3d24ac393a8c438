// SPDX-License-Identifier: Apache-2.0
// Several transfers under way at once: how much faster that is, and that every
// record still comes out once, byte for byte.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/deadline.h"
#include "support/simulation.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::Random;
using dmi::testing::RecordOne;
using dmi::testing::Simulation;
using dmi::testing::SimulationOptions;

constexpr int64_t kBytes = 64 << 10;  // of a record: a transfer, and 65536 ns
constexpr int64_t kTransfers = 100;

// Nanoseconds that `kTransfers` transfers take whose latency is as long as
// their bytes take.
int64_t Duration(int depth) {
  SimulationOptions options;
  options.windows.reset();
  options.record_bytes = kBytes;
  options.drain.batch_bytes = kBytes;
  options.link = {
      .bytes_per_second = 1e9, .latency_nanos = kBytes, .depth = depth};
  Simulation simulation(options);
  simulation.set_backlog(false);
  for (int64_t i = 0; i < kTransfers; ++i) simulation.Record(kBytes);
  simulation.Finish();
  const auto transfers = simulation.Transfers();
  EXPECT_EQ(transfers.size(), static_cast<size_t>(kTransfers));
  for (size_t i = 0; i < transfers.size(); ++i) {
    EXPECT_EQ(transfers[i].bytes, static_cast<uint64_t>(kBytes));
    // It begins where there is room for it.
    const auto before = i - static_cast<size_t>(depth);
    EXPECT_EQ(transfers[i].begin_ns, before < i ? transfers[before].end_ns
                                                : transfers.front().begin_ns);
  }
  return transfers.back().end_ns - transfers.front().begin_ns;
}

TEST(DepthTest, TwoUnderWayHideALatency) {
  const int64_t one = Duration(1);
  const int64_t two = Duration(2);
  EXPECT_EQ(one, 2 * kTransfers * kBytes);
  EXPECT_EQ(two, (kTransfers + 1) * kBytes);
  EXPECT_GT(static_cast<double>(one) / static_cast<double>(two), 1.9);
  EXPECT_EQ(Duration(3), two) << "the link is busy all the time already";
}

// Records of every size, many of them empty, over a link and a staging that is
// no larger than the largest record.
TEST(DepthTest, TinyStagingAndRingsStayExact) {
  const Deadline deadline(std::chrono::seconds(60));
  constexpr uint64_t kProducers = 2;
  constexpr uint64_t kEach = 600;
  for (const int depth : {1, 2, 3}) {
    for (const uint64_t bytes : {256u, 64u * 30, 4096u}) {
      Device device;
      SCOPED_TRACE(std::to_string(depth) + " deep, " + std::to_string(bytes));
      const transfer::SimulatedLinkOptions link{
          .bytes_per_second = 1e9, .latency_nanos = 2000, .depth = depth};
      Flow flow(device, {.bytes = bytes, .slots = 16, .stall_nanos = kForever},
                {.batch_bytes = bytes / 4,
                 .batch_records = 3,
                 .staging_bytes = bytes / 2},
                {0, 7},
                {.link = std::make_shared<transfer::SimulatedLink>(
                     link, std::make_shared<base::SystemTime>()),
                 .windows = {}});
      flow.Start();
      Checker checker;
      std::jthread consumer([&] { checker.Run(flow.queue()); });
      {
        std::vector<std::jthread> producers;
        for (uint64_t producer = 0; producer < kProducers; ++producer) {
          producers.emplace_back([&, producer] {
            Random random(producer);
            for (uint64_t i = 0; i < kEach; ++i) {
              const bool empty = random.UpTo(2) == 0;
              RecordOne(device, producer, i,
                        empty ? 0 : random.UpTo(bytes / 2));
              if (i % 100 == 99) flow.drain().Seal(kForever);
            }
          });
        }
      }
      EXPECT_EQ(flow.drain().Seal(kForever), kProducers * kEach);
      flow.Stop();
      consumer.join();
      EXPECT_EQ(flow.drain().failure().text(), "");
      EXPECT_EQ(checker.records(), kProducers * kEach);
    }
  }
}

}  // namespace
}  // namespace dmi::drain
