// SPDX-License-Identifier: Apache-2.0
// A ring is taken away while programs use it, and while they wait for it.
#include <atomic>

#include "cuda/device.h"

namespace dmi::testing {
namespace {

class CudaCloseTest : public CudaTest {
 protected:
  // Programs that record until `done`; what they recorded or lost is counted.
  class Load {
   public:
    explicit Load(CudaDevice& device) {
      for (uint64_t producer = 0; producer < 3; ++producer) {
        threads_.emplace_back([this, &device, producer] {
          CudaProgram program(device);
          Random random(producer);
          for (uint64_t i = 0; !done_; ++i) {
            const uint64_t bytes = producer == 2 ? (65u << 10) + random.UpTo(99)
                                                 : random.UpTo(3000);
            EXPECT_EQ(program.Record(producer, i, bytes), cudaSuccess);
            EXPECT_EQ(program.Advance(), cudaSuccess);
            EXPECT_EQ(program.Wait(), cudaSuccess);
            ++records_;
          }
        });
      }
    }
    uint64_t records() const { return records_; }
    uint64_t Finish() {
      done_ = true;
      threads_.clear();
      return records_;
    }

   private:
    std::atomic<bool> done_{false};
    std::atomic<uint64_t> records_{0};
    std::vector<std::jthread> threads_;
  };

  static constexpr ring::RingOptions kRing{
      .bytes = 140u << 10, .slots = 16, .stall_nanos = kForever};
};

TEST_F(CudaCloseTest, ProgramsRunOnWhileRingsComeAndGo) {
  Load load(device());
  uint64_t recorded = 0;
  for (int round = 0; round < 25; ++round) {
    CudaCapture capture(device(), kRing, kPrompt);
    Consumer consumer(capture);
    const uint64_t before = load.records();
    capture.Start();
    while (load.records() < before + 5) std::this_thread::yield();
    capture.Stop();
    EXPECT_EQ(consumer.Join().records(), capture.recorded());
    EXPECT_EQ(capture.failure(), "");
    EXPECT_EQ(capture.lost(wire::kLostStalled), 0u);
    recorded += capture.recorded() + capture.lost(wire::kLostClosed);
  }
  const uint64_t all = load.Finish();
  EXPECT_EQ(recorded + device().lost(wire::kLostClosed), all);
}

// Nobody takes anything: everyone waits when the ring is closed.
TEST_F(CudaCloseTest, ProgramsThatWaitForSpaceGoOn) {
  Load load(device());
  for (int round = 0; round < 25; ++round) {
    CudaCapture capture(
        device(), kRing,
        {.batch_records = 1, .linger_nanos = 0, .staging_bytes = 70u << 10});
    capture.Start();
    while (!capture.ring().somebody_waits()) std::this_thread::yield();
    Consumer consumer(capture);
    capture.Stop();
    EXPECT_EQ(consumer.Join().records(), capture.recorded());
    EXPECT_EQ(capture.failure(), "");
  }
  load.Finish();
}

TEST_F(CudaCloseTest, AFailedDrainFreesProgramsThatWait) {
  CudaCapture capture(device(),
                      {.bytes = 1024, .slots = 16, .stall_nanos = kForever},
                      {.linger_nanos = kForever, .staging_bytes = 512});
  capture.Start();
  CudaProgram program(device());
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(program.Record(0, i, 512), cudaSuccess);
  }
  // One is in staging, two in the ring, and the last one waits.
  auto held = capture.queue().Pop(1, kForever);
  while (!capture.ring().somebody_waits()) std::this_thread::yield();
  fake_cuda::Fail("cudaMemcpyAsync", 0, cudaErrorUnknown);
  held.clear();
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(capture.lost(wire::kLostStalled), 1u);
  // None waits later either.
  ASSERT_EQ(program.Record(0, 4, 512), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(capture.lost(wire::kLostStalled), 2u);
  EXPECT_NE(capture.failure().find("cudaMemcpyAsync"), std::string::npos)
      << capture.failure();
}

// It may still write to the ring, so the ring stays.
TEST_F(CudaCloseTest, ARingThatAProducerNeverLeavesIsKept) {
  const auto control = ring::MakeCudaControl(0, 7, 100 * kMillisecond);
  auto ring = control->MakeRing({.bytes = 4096, .slots = 16});
  control->Install(ring);
  program::AddSeqCst(device().block().in_flight, uint64_t{1});
  control->Uninstall(*ring);
  EXPECT_NE(ring->failure().find("did not end"), std::string::npos);
  const std::weak_ptr<ring::Ring> kept = ring;
  ring.reset();
  EXPECT_FALSE(kept.expired());
  program::AddSeqCst(device().block().in_flight, ~uint64_t{0});
  // Whoever comes later does not get in, and the next ring is as any other.
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(device().lost(wire::kLostClosed), 1u);
  CudaCapture capture(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  capture.Start();
  ASSERT_EQ(program.Record(0, 1, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  Checker checker;
  capture.Finish(checker);
  EXPECT_EQ(checker.records(), 1u);
}

TEST_F(CudaCloseTest, AnotherRingIsLeftInPlace) {
  CudaCapture first(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  first.Start();
  first.Stop();
  CudaCapture second(device(), {.bytes = 4096, .slots = 16}, kPrompt);
  second.Start();
  first.Stop();
  CudaProgram program(device());
  ASSERT_EQ(program.Record(0, 0, 8), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  Checker checker;
  second.Finish(checker);
  EXPECT_EQ(checker.records(), 1u);
}

}  // namespace
}  // namespace dmi::testing
