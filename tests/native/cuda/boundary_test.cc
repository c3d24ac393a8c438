// SPDX-License-Identifier: Apache-2.0
// Boundaries on a device: the log, the progress word, the two mirrored here.
#include "program/boundary.h"

#include "base/clock.h"
#include "cuda/device.h"

namespace dmi::testing {
namespace {

constexpr uint64_t kLog = wire::kBoundaryLogSize;

class CudaBoundaryTest : public CudaTest {
 protected:
  CudaBoundaryTest()
      : capture_(device(), {.bytes = 1u << 16, .slots = 16}, kPrompt) {
    capture_.Start();
  }
  std::vector<wire::BoundaryStamp> Read(uint64_t first = 0) {
    return program::ReadBoundaries(capture_.ring().header(), first);
  }
  uint64_t progress() {
    return program::LoadAcquire(device().control().ProgressOf(capture_.ring()));
  }

  CudaCapture capture_;
};

TEST_F(CudaBoundaryTest, EachIsStampedWithItsNumberAndTime) {
  CudaProgram program(device());
  const int64_t before = base::UtcNanos();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(program.Advance(), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  const int64_t after = base::UtcNanos();
  const auto stamps = Read();
  ASSERT_EQ(stamps.size(), 100u);
  EXPECT_EQ(progress(), wire::PackProgress(0, 100));
  int64_t last = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(stamps[i].tag, i + 1);
    EXPECT_EQ(stamps[i].progress, i + 1);
    const int64_t time = capture_.ring().UtcNanos(stamps[i].time_ns);
    EXPECT_GE(time, last);
    last = time;
  }
  constexpr int64_t kSlack = 50'000'000;
  EXPECT_GE(capture_.ring().UtcNanos(stamps.front().time_ns), before - kSlack);
  EXPECT_LE(last, after + kSlack);
}

TEST_F(CudaBoundaryTest, RecordsCarryTheBoundariesBeforeThem) {
  CudaProgram program(device());
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(program.Record(0, i, 8), cudaSuccess);
    ASSERT_EQ(program.Advance(), cudaSuccess);
  }
  EXPECT_EQ(program.Wait(), cudaSuccess);
  capture_.Stop();
  uint64_t next = 0;
  for (const auto& batch : capture_.queue().Pop(100, kForever)) {
    for (const uint64_t boundary : batch->columns().boundary) {
      EXPECT_EQ(boundary, next++);
    }
  }
  EXPECT_EQ(next, 5u);
}

TEST_F(CudaBoundaryTest, TheHostAdvancesAndSetsToo) {
  device().control().SetProgress(capture_.ring(), wire::PackProgress(3, 17));
  EXPECT_EQ(progress(), wire::PackProgress(3, 17));
  device().control().AdvanceBoundary();
  EXPECT_EQ(progress(), wire::PackProgress(3, 18));
  device().control().SetProgress(capture_.ring(),
                                 wire::PackProgress(4, wire::kCounterMask));
  device().control().AdvanceBoundary();
  EXPECT_EQ(progress(), wire::PackProgress(4, wire::kCounterMask));
  EXPECT_EQ(Read().size(), 2u);
}

TEST_F(CudaBoundaryTest, ABufferGoesThroughWhole) {
  CudaProgram program(device());
  for (const uint64_t bytes : {0u, 1u, 15u, 64u, 1000u, 100'000u}) {
    CudaRecord from(0, bytes, bytes);
    // The destination is a buffer of XLA: aligned as memory from new is.
    const std::unique_ptr<uint8_t[]> to(new uint8_t[bytes]);
    ASSERT_EQ(program::LaunchAdvance(
                  {&device().block(), from.payload, to.get(), bytes},
                  program.stream()),
              cudaSuccess);
    ASSERT_EQ(program.Wait(), cudaSuccess);
    EXPECT_TRUE(bytes == 0 || std::memcmp(to.get(), from.payload, bytes) == 0);
  }
  EXPECT_EQ(progress(), wire::PackProgress(0, 6));
}

TEST_F(CudaBoundaryTest, TheNewestAreKeptWhereTheLogWraps) {
  // As if it had been in use for long.
  program::StoreRelaxed(capture_.ring().on_device()->ring.boundary_count,
                        kLog - 3);
  device().control().SetProgress(capture_.ring(), kLog - 3);
  CudaProgram program(device());
  for (int i = 0; i < 10; ++i) ASSERT_EQ(program.Advance(), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  const auto stamps = Read(kLog - 3);
  ASSERT_EQ(stamps.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(stamps[i].tag, kLog - 3 + i + 1);
    EXPECT_EQ(stamps[i].progress, stamps[i].tag);
  }
  EXPECT_EQ(progress(), kLog + 7);
}

TEST_F(CudaBoundaryTest, TheCountOfTwoStreamsIsExact) {
  constexpr uint64_t kEach = 400;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        CudaProgram program(device());
        for (uint64_t n = 0; n < kEach; ++n) {
          EXPECT_EQ(program.Advance(), cudaSuccess);
        }
        EXPECT_EQ(program.Wait(), cudaSuccess);
      });
    }
  }
  EXPECT_EQ(progress(), 2 * kEach);
  const auto stamps = Read();
  ASSERT_EQ(stamps.size(), 2 * kEach);
  std::vector<bool> seen(2 * kEach + 1);
  for (const auto& stamp : stamps) {
    ASSERT_FALSE(seen[stamp.progress]);
    seen[stamp.progress] = true;
  }
}

TEST_F(CudaBoundaryTest, WithoutARingNothingIsCounted) {
  capture_.Stop();
  CudaProgram program(device());
  ASSERT_EQ(program.Advance(), cudaSuccess);
  EXPECT_EQ(program.Wait(), cudaSuccess);
  EXPECT_EQ(progress(), 0u);
  EXPECT_EQ(Read().size(), 0u);
}

}  // namespace
}  // namespace dmi::testing
