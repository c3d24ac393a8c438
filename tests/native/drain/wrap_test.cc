// SPDX-License-Identifier: Apache-2.0
// Rings in use for so long that 32-bit sequences and positions start over.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::Random;
using dmi::testing::RecordOne;

constexpr uint32_t kLastSequence = ~uint32_t{0};

struct Case {
  const char* name;
  uint64_t bytes;
  uint32_t slots;
  uint32_t sequence;  // where the ring stands
  uint64_t before;    // units before its positions start over
};

class WrapWalkTest : public ::testing::TestWithParam<Case> {};

TEST_P(WrapWalkTest, NothingIsLostOrChanged) {
  const Deadline deadline(std::chrono::seconds(60));
  constexpr uint64_t kProducers = 3;
  constexpr uint64_t kEach = 1500;
  const Case& at = GetParam();
  const auto units = static_cast<uint32_t>(at.bytes / wire::kPayloadUnit);
  const wire::Cursor start{
      at.sequence, static_cast<uint32_t>(wire::SpanOf(units) - at.before)};
  Device device;
  Flow flow(device,
            {.bytes = at.bytes, .slots = at.slots, .stall_nanos = kForever}, {},
            start);
  flow.Start();
  Checker checker(at.sequence);
  const uint64_t end = uint64_t{at.sequence} + kProducers * kEach;
  std::jthread consumer([&] {
    while (!flow.queue().finished()) {
      for (const auto& batch : flow.queue().Pop(1, kForever)) {
        checker.Check(*batch);
        // Wherever the two stand, one of them over the wrap already.
        const uint64_t reserved = flow.drain().reserved();
        EXPECT_GT(reserved, batch->last_sequence());
        EXPECT_LE(reserved, end);
      }
    }
  });
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        Random random(producer);
        for (uint64_t i = 0; i < kEach; ++i) {
          RecordOne(device, producer, i, random.UpTo(at.bytes / 2));
        }
      });
    }
  }
  EXPECT_EQ(flow.drain().Seal(kForever), end);
  EXPECT_EQ(flow.drain().reserved(), end);
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), kProducers * kEach);
  EXPECT_EQ(checker.next_sequence(), end);
  EXPECT_EQ(flow.drain().failure().text(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Rings, WrapWalkTest,
    ::testing::Values(Case{"Sequence", 4096, 16, kLastSequence - 700, 4096},
                      Case{"Position", 4096, 16, 0, 500},
                      Case{"PositionOfAnOddRing", 64 * 30, 16, 0, 500},
                      Case{"Both", 64 * 102, 64, kLastSequence - 3, 7},
                      Case{"TwoSlots", 256, 2, kLastSequence, 1}),
    [](const auto& info) { return info.param.name; });

// The head is over the wrap, the drain is not yet.
TEST(WrapTest, ReservedCountsOnAcrossTheWrap) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device, {.bytes = 4096, .slots = 16}, {.linger_nanos = kForever},
            {kLastSequence, 0});
  flow.Start();
  for (uint64_t i = 0; i < 3; ++i) RecordOne(device, 0, i, 64);
  EXPECT_EQ(flow.drain().queued(), kLastSequence);
  EXPECT_EQ(flow.drain().reserved(), uint64_t{kLastSequence} + 3);
  EXPECT_EQ(flow.drain().Seal(kForever), uint64_t{kLastSequence} + 3);
}

}  // namespace
}  // namespace dmi::drain
