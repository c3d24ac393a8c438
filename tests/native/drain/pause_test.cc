// SPDX-License-Identifier: Apache-2.0
// Pauses: nothing is cut while one lasts, and nothing is lost by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kMillisecond;
using dmi::testing::kSecond;
using dmi::testing::Random;
using dmi::testing::RecordOne;

class PauseTest : public ::testing::Test {
 protected:
  PauseTest()
      : flow_(device_, {.bytes = 8192, .slots = 64, .stall_nanos = kForever},
              {.batch_records = 1, .linger_nanos = 0}) {
    flow_.Start();
  }

  const Deadline deadline_{std::chrono::seconds(60)};
  Device device_;
  Flow flow_;
};

TEST_F(PauseTest, NothingIsCutUntilItEnds) {
  flow_.drain().Pause();
  RecordOne(device_, 0, 0, 64);
  EXPECT_EQ(flow_.drain().Seal(100 * kMillisecond), 0u);
  EXPECT_EQ(flow_.queue().size(), 0u);
  flow_.drain().Resume();
  EXPECT_EQ(flow_.queue().Pop(1, kForever).size(), 1u);
}

TEST_F(PauseTest, StopCutsAllTheSame) {
  flow_.drain().Pause();
  RecordOne(device_, 0, 0, 64);
  flow_.Stop();
  EXPECT_EQ(flow_.drain().queued(), 1u);
}

// A drain that is always behind must still let go between two batches.
TEST_F(PauseTest, ComesSoonUnderLoadAndLosesNothing) {
  Checker checker;
  std::jthread consumer([&] { checker.Run(flow_.queue()); });
  std::atomic<bool> stop{false};
  std::vector<std::jthread> producers;
  for (uint64_t producer = 0; producer < 3; ++producer) {
    producers.emplace_back([&, producer] {
      Random random(producer);
      for (uint64_t i = 0; !stop.load(); ++i) {
        RecordOne(device_, producer, i, random.UpTo(200));
      }
    });
  }
  int64_t longest = 0;
  for (int round = 0; round < 50; ++round) {
    const uint64_t before = flow_.drain().queued();
    while (flow_.drain().queued() == before) std::this_thread::yield();
    const int64_t begin = base::MonotonicNanos();
    flow_.drain().Pause();
    longest = std::max(longest, base::MonotonicNanos() - begin);
    const uint64_t paused = flow_.drain().queued();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    ASSERT_EQ(flow_.drain().queued(), paused);
    flow_.drain().Resume();
  }
  stop = true;
  producers.clear();
  flow_.Stop();
  consumer.join();
  EXPECT_LT(longest, kSecond);
  EXPECT_EQ(checker.records(), flow_.recorded());
  EXPECT_EQ(flow_.lost(wire::kLostStalled), 0u);
}

}  // namespace
}  // namespace dmi::drain
