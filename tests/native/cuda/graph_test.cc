// SPDX-License-Identifier: Apache-2.0
// Command buffers: records that were captured once and run many times, whatever
// ring is there then.
#include "cuda/device.h"

namespace dmi::testing {
namespace {

// A step and three records of a program, captured.
class CapturedProgram {
 public:
  CapturedProgram(CudaDevice& device, uint64_t producer)
      : program_(device),
        small_(producer, 0, 100),
        large_(producer + 1, 0, 150'000),
        empty_(producer + 2, 0, 0) {
    EXPECT_EQ(cudaStreamBeginCapture(program_.stream(),
                                     cudaStreamCaptureModeThreadLocal),
              cudaSuccess);
    EXPECT_EQ(program_.Launch(small_), cudaSuccess);
    EXPECT_EQ(program_.Launch(large_), cudaSuccess);
    EXPECT_EQ(program_.Advance(), cudaSuccess);
    EXPECT_EQ(program_.Launch(empty_), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(program_.stream(), &graph), cudaSuccess);
    using enum fake_cuda::NodeKind;
    EXPECT_EQ(fake_cuda::Nodes(graph),
              std::vector<fake_cuda::NodeKind>(5, kKernel));
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~CapturedProgram() { cudaGraphExecDestroy(executable_); }

  // Runs it once, with new values in the same buffers.
  void Run(uint64_t index) {
    small_.Refill(small_.words[0], index);
    large_.Refill(large_.words[0], index);
    empty_.Refill(empty_.words[0], index);
    EXPECT_EQ(cudaGraphLaunch(executable_, program_.stream()), cudaSuccess);
    EXPECT_EQ(program_.Wait(), cudaSuccess);
  }

 private:
  CudaProgram program_;
  CudaRecord small_;
  CudaRecord large_;
  CudaRecord empty_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaGraphTest : public CudaTest {
 protected:
  static constexpr ring::RingOptions kRing{
      .bytes = 1u << 20, .slots = 16, .stall_nanos = kForever};
};

TEST_F(CudaGraphTest, OneCaptureRunsWithEveryRing) {
  CapturedProgram program(device(), 0);
  for (int ring = 0; ring < 2; ++ring) {
    const uint64_t lost = device().lost(wire::kLostClosed);
    {
      CudaCapture capture(device(), kRing, kPrompt);
      capture.Start();
      Consumer consumer(capture);
      for (uint64_t i = 0; i < 64; ++i) program.Run(i);
      capture.Stop();
      EXPECT_EQ(consumer.Join().records(), 3u * 64);
      EXPECT_EQ(capture.failure(), "");
      EXPECT_EQ(device().lost(wire::kLostClosed), lost);
      // The ring is still there, but not for programs.
      program.Run(64);
      EXPECT_EQ(capture.recorded(), 3u * 64);
      EXPECT_EQ(device().lost(wire::kLostClosed), lost + 3);
    }
    program.Run(65);
    EXPECT_EQ(device().lost(wire::kLostClosed), lost + 6);
  }
}

TEST_F(CudaGraphTest, TwoGraphsRunAtOnce) {
  CudaCapture capture(device(), kRing, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  {
    std::vector<std::jthread> threads;
    for (const uint64_t producer : {0, 3}) {
      threads.emplace_back([&, producer] {
        CapturedProgram program(device(), producer);
        for (uint64_t i = 0; i < 32; ++i) program.Run(i);
      });
    }
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 2u * 3 * 32);
}

}  // namespace
}  // namespace dmi::testing
