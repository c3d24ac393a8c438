// SPDX-License-Identifier: Apache-2.0
// The ring of a device: many producers, wraps, and every way to lose a record.
#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "cuda/device.h"

namespace dmi::testing {
namespace {

class CudaRingTest : public CudaTest {
 protected:
  // Enqueues words where a step or gate program finds them.
  cudaError_t Step(CudaProgram& program, int64_t step, bool has_step,
                   bool recording, wire::ProgramKind kind) {
    return Words(program, &program::LaunchStep,
                 {static_cast<uint32_t>(step),
                  static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32),
                  (has_step ? 1u : 0u) | (recording ? 2u : 0u), kind});
  }
  cudaError_t Words(CudaProgram& program,
                    cudaError_t (*launch)(const program::WordsArguments&,
                                          cudaStream_t),
                    std::vector<uint32_t> words) {
    words_.push_back(std::make_unique<std::vector<uint32_t>>(std::move(words)));
    return launch(
        {&device().block(), words_.back()->data(), words_.back()->size()},
        program.stream());
  }
  static void WaitUntil(const std::function<bool()>& done) {
    while (!done()) std::this_thread::yield();
  }

 private:
  std::vector<std::unique_ptr<std::vector<uint32_t>>> words_;
};

TEST_F(CudaRingTest, ManyProducersWrapATinyRingAndLoseNothing) {
  for (const auto& [bytes, slots] :
       {std::pair{4096u, 4u}, {640u, 64u}, {1u << 14, 16u}}) {
    CudaCapture capture(
        device(), {.bytes = bytes, .slots = slots, .stall_nanos = kForever},
        {.batch_bytes = 512,
         .batch_records = 7,
         .linger_nanos = 0,
         .staging_bytes = 1u << 14});
    capture.Start();
    Consumer consumer(capture);
    constexpr uint64_t kProducers = 3;
    constexpr uint64_t kRecords = 120;
    {
      std::vector<std::jthread> threads;
      for (uint64_t producer = 0; producer < kProducers; ++producer) {
        threads.emplace_back([&, producer, most = bytes / 2] {
          CudaProgram program(device());
          Random random(producer);
          for (uint64_t i = 0; i < kRecords; ++i) {
            EXPECT_EQ(
                program.Record(producer, i, random.UpTo(std::min(most, 5000u))),
                cudaSuccess);
          }
          EXPECT_EQ(program.Wait(), cudaSuccess);
        });
      }
    }
    const uint64_t head = wire::Unpack(capture.ring().Head()).sequence;
    EXPECT_EQ(head, kProducers * kRecords);
    EXPECT_EQ(capture.drain().reserved(), kProducers * kRecords);
    EXPECT_EQ(capture.drain().Seal(kForever), kProducers * kRecords);
    EXPECT_EQ(capture.recorded(), kProducers * kRecords);
    const auto counters = capture.ring().Counters(1, 2);
    EXPECT_EQ(counters[0].recorded, kRecords);
    EXPECT_EQ(counters[1].recorded, kRecords);
    capture.Stop();
    EXPECT_EQ(consumer.Join().records(), kProducers * kRecords);
    EXPECT_EQ(capture.failure(), "");
  }
}

// Large records reserve in one kernel and copy in another.
TEST_F(CudaRingTest, LargeRecordsOfSeveralStreamsWrap) {
  CudaCapture capture(device(),
                      {.bytes = 1u << 20, .slots = 8, .stall_nanos = kForever},
                      {.linger_nanos = 0, .staging_bytes = 1u << 20});
  capture.Start();
  Consumer consumer(capture);
  {
    std::vector<std::jthread> threads;
    for (uint64_t producer = 0; producer < 3; ++producer) {
      threads.emplace_back([&, producer] {
        CudaProgram program(device());
        for (uint64_t i = 0; i < 10; ++i) {
          const uint64_t bytes = (70u << 10) + 40'000 * ((i + producer) % 4);
          EXPECT_EQ(program.Record(producer, i, bytes), cudaSuccess);
        }
      });
    }
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 30u);
}

TEST_F(CudaRingTest, AFullRingHoldsTheProgramUntilThereIsSpace) {
  CudaCapture capture(device(),
                      {.bytes = 1024, .slots = 16, .stall_nanos = kForever},
                      {.linger_nanos = 0, .staging_bytes = 512});
  capture.Start();
  Checker checker;
  CudaProgram program(device());
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(program.Record(0, i, 512), cudaSuccess);
  }
  // One is in staging, held here, and two are in the ring.
  auto held = capture.queue().Pop(1, kForever);
  WaitUntil([&] { return capture.ring().somebody_waits(); });
  EXPECT_EQ(cudaStreamQuery(program.stream()), cudaErrorNotReady);
  EXPECT_LE(wire::Unpack(capture.ring().Head()).sequence, 3u);
  for (const auto& batch : held) checker.Check(*batch);
  held.clear();
  std::jthread waiter([&] {
    program.Wait();
    capture.Stop();
  });
  checker.Run(capture.queue());
  waiter.join();
  EXPECT_EQ(checker.records(), 6u);
  EXPECT_FALSE(capture.ring().somebody_waits());
  EXPECT_EQ(capture.lost(wire::kLostStalled), 0u);
}

TEST_F(CudaRingTest, ASpentBudgetDropsAndCountsAndStaysSpent) {
  CudaCapture capture(
      device(), {.bytes = 1024, .slots = 16, .stall_nanos = 50 * kMillisecond},
      {.linger_nanos = 0, .staging_bytes = 512});
  capture.Start();
  CudaProgram program(device());
  const int64_t begin = base::MonotonicNanos();
  Checker checker;
  ASSERT_EQ(program.Record(0, 0, 512), cudaSuccess);
  auto held = capture.queue().Pop(1, kForever);
  for (uint64_t i = 1; i < 5; ++i) {
    ASSERT_EQ(program.Record(0, i, 512), cudaSuccess);
  }
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_GE(base::MonotonicNanos() - begin, 50 * kMillisecond);
  EXPECT_EQ(capture.lost(wire::kLostStalled), 2u);
  // Nobody waits any more, and what finds space is recorded.
  const int64_t spent = base::MonotonicNanos();
  for (uint64_t i = 5; i < 25; ++i) {
    ASSERT_EQ(program.Record(0, i, 512), cudaSuccess);
  }
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_LT(base::MonotonicNanos() - spent, 20 * 50 * kMillisecond);
  EXPECT_EQ(capture.lost(wire::kLostStalled), 22u);
  for (const auto& batch : held) checker.Check(*batch);
  held.clear();
  Consumer consumer(capture, checker.next_sequence());
  EXPECT_EQ(capture.drain().Seal(kForever), 3u);
  ASSERT_EQ(program.Record(1, 0, 512), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(capture.recorded(), 4u);
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 3u);
}

// Each wait is shorter than the budget; nothing was freed in any of them.
TEST_F(CudaRingTest, QuietTimesAddUp) {
  constexpr int64_t kBudget = 400 * kMillisecond;
  CudaCapture capture(device(),
                      {.bytes = 1024, .slots = 16, .stall_nanos = kBudget},
                      {.linger_nanos = 0, .staging_bytes = 512});
  capture.Start();
  CudaProgram program(device());
  uint64_t index = 0;
  for (; index < 3; ++index) {
    ASSERT_EQ(program.Record(0, index, 512), cudaSuccess);
  }
  int rounds = 0;
  auto held = capture.queue().Pop(1, kForever);
  for (; rounds < 20 && capture.lost(wire::kLostStalled) == 0; ++rounds) {
    ASSERT_EQ(program.Record(0, index++, 512), cudaSuccess);
    WaitUntil([&] { return capture.ring().somebody_waits(); });
    const int64_t begin = base::MonotonicNanos();
    WaitUntil([&] {
      return base::MonotonicNanos() - begin > kBudget / 4 ||
             !capture.ring().somebody_waits();
    });
    held.clear();
    held = capture.queue().Pop(1, kForever);
    EXPECT_EQ(program.Wait(), cudaSuccess);
  }
  EXPECT_LE(rounds, 5);
  EXPECT_GE(rounds, 2);
  held.clear();
  std::jthread consumer([&] {
    while (!capture.queue().finished()) capture.queue().Pop(1, kForever);
  });
  capture.Stop();
}

// The ring moves all the time, so the budget itself is never spent, but what
// comes free is taken by others.
TEST_F(CudaRingTest, AProgramOfSeveralDevicesIsHeldForAtMostTwoBudgets) {
  constexpr int64_t kBudget = 400 * kMillisecond;
  const auto ring = device().control().MakeRing(
      {.bytes = 1024, .slots = 16, .stall_nanos = kBudget});
  const uint64_t& head =
      static_cast<ring::CudaRing&>(*ring).on_device()->ring.head;
  device().control().Install(ring);
  CudaProgram small(device());
  CudaProgram program(device());
  std::atomic<bool> held{true};
  std::atomic<bool> moves{true};
  // Every record takes one unit: so both parts of a cursor are the same.
  std::jthread mover([&] {
    for (uint32_t tail = 0; moves;) {
      if (wire::Unpack(program::LoadAcquire(head)).sequence - tail < 16) {
        std::this_thread::yield();
        continue;
      }
      ++tail;
      program::StoreRelease(ring->header().tail, wire::Pack({tail, tail}));
    }
  });
  std::jthread others([&] {
    for (uint64_t i = 0; held; ++i) {
      EXPECT_EQ(small.Record(1, i, 64), cudaSuccess);
      EXPECT_EQ(small.Wait(), cudaSuccess);
    }
  });
  while (wire::Unpack(program::LoadAcquire(head)).sequence < 16) {
    std::this_thread::yield();
  }
  const int64_t begin = base::MonotonicNanos();
  EXPECT_EQ(program.Record(0, 0, 512, wire::kMultiDevice), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  const int64_t waited = base::MonotonicNanos() - begin;
  EXPECT_GE(waited, 2 * kBudget);
  EXPECT_LT(waited, 4 * kBudget);
  EXPECT_EQ(ring->Counters(0, 1)[0].lost[wire::kLostStalled], 1u);
  held = false;
  others.join();
  moves = false;
  mover.join();
  device().control().Uninstall(*ring);
}

TEST_F(CudaRingTest, ARingThatDropsCountsAtOnce) {
  CudaCapture capture(device(),
                      {.bytes = 1024,
                       .slots = 16,
                       .overflow = wire::Overflow::kDrop,
                       .stall_nanos = kForever},
                      {.linger_nanos = 0, .staging_bytes = 512});
  capture.Start();
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 512), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  auto held = capture.queue().Pop(1, kForever);
  for (uint64_t i = 1; i < 10; ++i) {
    ASSERT_EQ(program.Record(0, i, 512), cudaSuccess);
  }
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(capture.lost(wire::kLostOverflow), 7u);
  EXPECT_EQ(capture.recorded(), 3u);
  Checker checker;
  for (const auto& batch : held) checker.Check(*batch);
  held.clear();
  Consumer consumer(capture, checker.next_sequence());
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 2u);
}

TEST_F(CudaRingTest, WhatIsTooLargeIsCounted) {
  CudaCapture capture(device(), {.bytes = 1u << 18, .slots = 16}, kPrompt);
  capture.Start();
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, (1u << 17) + 1), cudaSuccess);
  ASSERT_EQ(program.Record(1, 0, 1u << 17), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(capture.ring().Counters(0, 1)[0].lost[wire::kLostTooLarge], 1u);
  Checker checker;
  capture.Finish(checker);
  EXPECT_EQ(checker.of(1), 1u);
  EXPECT_EQ(checker.records(), 1u);
}

TEST_F(CudaRingTest, WhatComesWhileNobodyCapturesIsCountedOnTheDevice) {
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 8), cudaSuccess);
  ASSERT_EQ(program.Record(0, 1, 100 << 10), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 2u);
  CudaCapture capture(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  capture.Start();
  ASSERT_EQ(program.Record(0, 2, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 2u);
  capture.Stop();
  ASSERT_EQ(program.Record(0, 3, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 3u);
  EXPECT_EQ(capture.recorded(), 1u);
}

TEST_F(CudaRingTest, ADeviceThatIsLeftOutCountsNothing) {
  device().control().Deselect(true);
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 0u);
  device().control().Deselect(false);
  ASSERT_EQ(program.Record(0, 1, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 1u);
}

// ---- Gates and steps ----

TEST_F(CudaRingTest, GatesCloseForOneKindOfProgram) {
  CudaCapture capture(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  capture.Start();
  CudaProgram program(device());
  uint64_t index = 0;
  const auto both = [&] {
    for (const auto kind : {wire::kSingleDevice, wire::kMultiDevice}) {
      ASSERT_EQ(program.Record(kind, index, 8, kind), cudaSuccess);
    }
    ++index;
  };
  // Index 0 closed, index 1 as it is, one out of range.
  const uint32_t none = ~uint32_t{0} << 1;
  ASSERT_EQ(Words(program, &program::LaunchGates,
                  {wire::kSingleDevice, 0u << 1 | 1, none, 1u << 1 | 1}),
            cudaSuccess);
  both();  // 1 is of several devices, and its gate is closed for the others
  ASSERT_EQ(
      Words(program, &program::LaunchGates, {wire::kMultiDevice, 1u << 1 | 1}),
      cudaSuccess);
  both();
  EXPECT_EQ(program.Wait(), cudaSuccess);
  device().control().SetGate({0, false}, wire::kSingleDevice);
  both();
  EXPECT_EQ(program.Wait(), cudaSuccess);
  Checker checker;
  capture.Finish(checker);
  EXPECT_EQ(checker.of(0), 1u);
  EXPECT_EQ(checker.of(1), 1u);
  EXPECT_EQ(capture.lost(wire::kLostClosed), 0u);
}

TEST_F(CudaRingTest, AmbientStepsAreOfOneKindOfProgram) {
  CudaCapture capture(device(), {.bytes = 4096, .slots = 64},
                      {.linger_nanos = kForever});
  capture.Start();
  CudaProgram program(device());
  const auto record = [&](wire::ProgramKind kind) {
    auto one = std::make_unique<CudaRecord>(0, 0, 8);
    one->site.kind = kind;
    program::RecordArguments call = one->Arguments(device());
    call.labels = {};
    EXPECT_EQ(program::LaunchRecord(call, 1, program.stream()), cudaSuccess);
    EXPECT_EQ(program.Wait(), cudaSuccess);
  };
  record(wire::kSingleDevice);  // no step
  constexpr int64_t kStep = -(int64_t{5} << 33) + 3;
  ASSERT_EQ(Step(program, kStep, true, true, wire::kMultiDevice), cudaSuccess);
  record(wire::kSingleDevice);  // no step
  record(wire::kMultiDevice);   // kStep
  ASSERT_EQ(Step(program, 1, true, false, wire::kMultiDevice), cudaSuccess);
  record(wire::kMultiDevice);  // skipped
  device().control().SetAmbientStep(wire::kSingleDevice, 9,
                                    wire::kAmbientHasStep);
  record(wire::kSingleDevice);  // 9
  capture.Stop();
  const auto batches = capture.queue().Pop(10, kForever);
  ASSERT_EQ(batches.size(), 1u);
  const batch::Columns& columns = batches[0]->columns();
  ASSERT_EQ(columns.rows(), 4u);
  EXPECT_EQ(columns.step_valid[0] & 15, 0b1100);
  EXPECT_EQ(columns.step[2], kStep);
  EXPECT_EQ(columns.step[3], 9);
  EXPECT_EQ(columns.flags[2] & wire::kStepIsAmbient, wire::kStepIsAmbient);
}

}  // namespace
}  // namespace dmi::testing
