// SPDX-License-Identifier: Apache-2.0
// A slot that was overwritten before it was drained ends the run with an error:
// nothing hangs, and what was drained before stays good.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "program/atomics.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::RecordOne;

class OverrunTest : public ::testing::Test {
 protected:
  OverrunTest()
      : flow_(device_, {.bytes = 4096, .slots = 16, .stall_nanos = kForever},
              {.linger_nanos = kForever}) {
    flow_.Start();
  }

  // Two good records, drained; then a third whose slot says it is of a lap
  // later.
  void Overrun() {
    RecordOne(device_, 0, 0, 64);
    RecordOne(device_, 0, 1, 64);
    ASSERT_EQ(flow_.drain().Seal(kForever), 2u);
    Publish(2 + 16);
  }
  void Publish(uint32_t sequence) {
    wire::RingHeader& header = flow_.ring().header();
    auto* slots = reinterpret_cast<wire::Slot*>(header.slots);
    program::StoreRelease(slots[sequence % 16].publication,
                          wire::PublicationOf(sequence));
    const uint32_t head = sequence % 16 + 1;
    program::StoreRelease(header.head, wire::Pack({head, head}));
    flow_.ring().signals().WakeDrain();
  }

  const Deadline deadline_{std::chrono::seconds(30)};
  Device device_;
  Flow flow_;
};

TEST_F(OverrunTest, IsLatchedAndEndsASeal) {
  Overrun();
  EXPECT_EQ(flow_.drain().Seal(kForever), 2u);
  EXPECT_EQ(flow_.drain().failure().count(), 1u);
  EXPECT_NE(flow_.drain().failure().text().find("record 2 "),
            std::string::npos);
  // Again, and at the end: still no hang.
  EXPECT_EQ(flow_.drain().Seal(kForever), 2u);
  flow_.Stop();
  EXPECT_EQ(flow_.drain().failure().count(), 1u);
  Checker checker;
  checker.Run(flow_.queue());
  EXPECT_EQ(checker.records(), 2u);
}

TEST_F(OverrunTest, EndsASealThatWaits) {
  RecordOne(device_, 0, 0, 64);
  ASSERT_EQ(flow_.drain().Seal(kForever), 1u);
  program::StoreRelease(flow_.ring().header().head, wire::Pack({2, 2}));
  std::jthread sealer([&] { EXPECT_EQ(flow_.drain().Seal(kForever), 1u); });
  Publish(1 + 16);
  sealer.join();
  EXPECT_EQ(flow_.drain().failure().count(), 1u);
}

TEST_F(OverrunTest, AnOlderLapIsNotAnOverrun) {
  // Three laps, and every slot keeps what the lap before left in it.
  Checker checker;
  for (uint64_t i = 0; i < 50; ++i) {
    RecordOne(device_, 0, i, 64);
    ASSERT_EQ(flow_.drain().Seal(kForever), i + 1);
    for (const auto& batch : flow_.queue().Pop(1, 0)) checker.Check(*batch);
  }
  EXPECT_EQ(flow_.drain().failure().count(), 0u);
  EXPECT_EQ(checker.records(), 50u);
}

// Nobody frees space any more, so waiting for it is pointless however large the
// stall budget is.
TEST_F(OverrunTest, ProducersDoNotWaitForADeadDrain) {
  Overrun();
  flow_.drain().Seal(kForever);
  for (uint64_t i = 0; i < 100; ++i) RecordOne(device_, 1, i, 512);
  EXPECT_GT(flow_.lost(wire::kLostStalled), 0u);
  EXPECT_EQ(flow_.lost(wire::kLostStalled) + flow_.recorded(), 102u);
}

TEST_F(OverrunTest, ProducersThatWaitAreLetGo) {
  RecordOne(device_, 0, 0, 64);
  ASSERT_EQ(flow_.drain().Seal(kForever), 1u);
  std::vector<std::jthread> producers;
  for (uint64_t producer = 1; producer < 4; ++producer) {
    producers.emplace_back([&, producer] {
      for (uint64_t i = 0; i < 20; ++i) RecordOne(device_, producer, i, 1024);
    });
  }
  while (!flow_.ring().signals().somebody_waits()) std::this_thread::yield();
  // Everything that fits was drained; the next record is due at this slot.
  uint64_t next = flow_.drain().reserved();
  while (flow_.drain().Seal(kForever) != next) {
    next = flow_.drain().reserved();
  }
  auto* slots = reinterpret_cast<wire::Slot*>(flow_.ring().header().slots);
  program::StoreRelease(slots[next % 16].publication,
                        wire::PublicationOf(static_cast<uint32_t>(next + 16)));
  flow_.ring().signals().WakeDrain();
  producers.clear();
  EXPECT_EQ(flow_.drain().failure().count(), 1u);
  EXPECT_EQ(flow_.lost(wire::kLostStalled) + flow_.recorded(), 61u);
}

}  // namespace
}  // namespace dmi::drain
