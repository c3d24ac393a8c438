// SPDX-License-Identifier: Apache-2.0
// A forked child has neither drain nor consumer, and may have been forked while
// any lock was held: it records nothing, counts that, and never waits.
#include "base/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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

class ForkTest : public ::testing::Test {
 protected:
  ForkTest() { base::NoticeForks(); }

  // Runs `body` in a child; what it returns is the exit status, or minus the
  // signal that ended the child.
  static int InChild(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(body());
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const Deadline deadline_{std::chrono::seconds(90)};
  Device device_;
};

TEST_F(ForkTest, ChildCountsInsteadOfRecording) {
  Flow flow(device_, {.bytes = 128, .slots = 2, .stall_nanos = kForever}, {});
  flow.Start();
  RecordOne(device_, 0, 0, 64);
  EXPECT_FALSE(base::InForkedChild());
  const int status = InChild([&] {
    // More than the ring holds: a child that recorded would wait for ever.
    for (uint64_t i = 0; i < 10; ++i) RecordOne(device_, 0, 1 + i, 64);
    return static_cast<int>(device_.lost(wire::kLostForked) +
                            (flow.recorded() == 1 ? 100 : 0) +
                            (base::InForkedChild() ? 100 : 0));
  });
  EXPECT_EQ(status, 210);
  EXPECT_EQ(device_.lost(wire::kLostForked), 0u) << "the parent's own account";
  RecordOne(device_, 0, 1, 64);
  EXPECT_EQ(flow.recorded(), 2u);
}

// While the parent is busy the child uses, closes and destroys all it has.
TEST_F(ForkTest, ChildOfABusyParentNeverWaits) {
  auto flow = std::make_unique<Flow>(
      device_,
      ring::RingOptions{.bytes = 4096, .slots = 32, .stall_nanos = kForever},
      DrainOptions{});
  flow->Start();
  Checker checker;
  std::shared_ptr<batch::Batch> held;
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  std::jthread consumer([&] { checker.Run(flow->queue()); });
  for (uint64_t producer = 0; producer < 3; ++producer) {
    threads.emplace_back([&, producer] {
      Random random(producer);
      for (uint64_t i = 0; !stop.load(); ++i) {
        RecordOne(device_, producer, i, random.UpTo(1500));
      }
    });
  }
  threads.emplace_back([&] {
    while (!stop.load()) flow->drain().Seal(kForever);
  });
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    EXPECT_EQ(InChild([&] {
                RecordOne(device_, 9, 0, 64);
                flow->drain().Seal(kForever);
                flow->queue().Pop(1, 0);
                flow->ring().pinned();
                flow->Stop();
                flow.reset();
                return 0;
              }),
              0)
        << "round " << round;
  }
  stop = true;
  threads.clear();
  flow->Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), flow->recorded());
}

// Arrays that keep a batch alive may be collected in the child.
TEST_F(ForkTest, ChildMayDropABatch) {
  Flow flow(device_, {.bytes = 4096, .slots = 64, .stall_nanos = kForever},
            {.batch_records = 1});
  flow.Start();
  RecordOne(device_, 0, 0, 64);
  std::shared_ptr<batch::Batch> held = flow.queue().Pop(1, kForever).front();
  std::atomic<bool> stop{false};
  std::jthread consumer([&] {
    while (!flow.queue().finished()) flow.queue().Pop(1, kForever);
  });
  std::jthread producer([&] {
    for (uint64_t i = 1; !stop.load(); ++i) {
      RecordOne(device_, 0, i, 64);
      if (i % 32 == 0) flow.drain().Seal(kForever);
    }
  });
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    EXPECT_EQ(InChild([&] {
                held.reset();
                return 0;
              }),
              0)
        << "round " << round;
  }
  stop = true;
  held.reset();
  producer.join();
  flow.Stop();
}

}  // namespace
}  // namespace dmi::drain
