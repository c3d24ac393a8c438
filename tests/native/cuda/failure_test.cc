// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime fails once: what is told, kept and left over.
#include <algorithm>
#include <map>

#include "cuda/device.h"

namespace dmi::testing {
namespace {

// What one capture came to, from nothing to nothing.
struct Life {
  std::string told;                        // by exceptions and latches
  bool whole = false;                      // nothing was lost
  bool accounted = false;                  // what was lost was counted
  std::map<std::string, uint64_t> calls;   // until the end began
  std::map<std::string, uint64_t> counts;  // of all of it
};

class CudaFailureTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRecords = 9;

  CudaFailureTest() { Fresh(); }
  ~CudaFailureTest() override { fake_cuda::Reset(); }

  // Only the program's stream is there.
  void Fresh() {
    fake_cuda::Reset();
    ASSERT_EQ(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0),
              cudaSuccess);
    before_ = fake_cuda::Calls();
  }
  std::map<std::string, uint64_t> Calls() const {
    auto calls = fake_cuda::Calls();
    for (const auto& [name, count] : before_) calls[name] -= count;
    return calls;
  }

  // Errors of the program's own calls are told as those of ours.
  void Program(CudaDevice& device, Life& life, uint64_t& launched) {
    const auto tell = [&](cudaError_t error, const char* what) {
      if (error != cudaSuccess) life.told += base::CudaMessage(error, what);
      return error == cudaSuccess;
    };
    for (uint64_t i = 0; i < kRecords; ++i) {
      records_.push_back(std::make_unique<CudaRecord>(
          0, i, i == 4 || i == 7 ? 70'000 + i : 100 * i));
      launched += tell(program::LaunchRecord(records_.back()->Arguments(device),
                                             device.most_blocks(), stream_),
                       "cudaLaunchKernel of a record");
      tell(program::LaunchAdvance({&device.block(), nullptr, nullptr, 0},
                                  stream_),
           "cudaLaunchKernel of a boundary");
    }
    if (!tell(cudaStreamSynchronize(stream_), "cudaStreamSynchronize")) {
      cudaStreamSynchronize(stream_);
    }
  }

  Life Live() {
    Life life;
    Checker checker;
    try {
      CudaDevice device;
      CudaCapture capture(
          device,
          {.bytes = 1u << 20, .slots = 16, .stall_nanos = 50 * kMillisecond},
          {.linger_nanos = 0, .staging_bytes = 1u << 20});
      try {
        capture.Start();
        uint64_t launched = 0;
        Program(device, life, launched);
        capture.drain().Seal(5 * kSecond);
        // Where the first look failed, the second tells.
        capture.ring().Counters(0, 1);
        const wire::SiteCounters site = capture.ring().Counters(0, 1)[0];
        capture.Stop();
        checker.Run(capture.queue());
        life.told += capture.failure();
        life.calls = Calls();
        uint64_t closed = 0;
        for (int look = 0; look < 2; ++look) {
          closed = device.lost(wire::kLostClosed);
        }
        life.accounted =
            site.recorded + site.lost[wire::kLostStalled] + closed ==
                launched &&
            checker.records() <= site.recorded;
        life.whole = site.recorded == kRecords && checker.records() == kRecords;
      } catch (const base::CudaError& error) {
        life.told += error.what();
        capture.Stop();
        checker.Run(capture.queue());
        EXPECT_EQ(checker.records(), 0u);
        life.accounted = true;
        life.calls = Calls();
      }
    } catch (const base::CudaError& error) {
      life.told += error.what();
      life.accounted = true;
      if (life.calls.empty()) life.calls = Calls();
    }
    cudaStreamSynchronize(stream_);
    records_.clear();
    program::DeviceTable::Get().Clear();
    cudaStreamDestroy(stream_);
    life.counts = Calls();
    EXPECT_EQ(fake_cuda::Problems(), std::vector<std::string>{});
    EXPECT_EQ(fake_cuda::Leaks(), std::vector<std::string>{});
    EXPECT_EQ(fake_cuda::LoadedLate(), 0);
    return life;
  }

  // Frees something, restores something, or is tried again: no matter for
  // whoever captures.
  static bool IsQuiet(const std::string& name) {
    for (const char* quiet :
         {"cudaFree", "cudaHostUnregister", "cudaEventDestroy",
          "cudaStreamDestroy", "cudaThreadExchangeStreamCaptureMode",
          "Launch"}) {
      if (name == quiet) return true;
    }
    return false;
  }
  // As the package calls it.
  static std::string Named(const std::string& name) {
    return name == "Launch" ? "cudaLaunchKernel" : name;
  }

 private:
  const Deadline deadline_{std::chrono::seconds(280)};
  cudaStream_t stream_ = nullptr;
  std::map<std::string, uint64_t> before_;
  std::vector<std::unique_ptr<CudaRecord>> records_;
};

TEST_F(CudaFailureTest, ACallThatFailsIsToldAndWhatIsLostIsCounted) {
  const Life clean = Live();
  ASSERT_EQ(clean.told, "");
  ASSERT_TRUE(clean.whole);
  ASSERT_TRUE(clean.accounted);
  int lives = 0;
  for (const auto& [name, count] : clean.counts) {
    if (name == "Run") continue;  // breaks the device
    for (uint64_t index = 0; index < count; ++index) {
      SCOPED_TRACE(name + " call " + std::to_string(index));
      Fresh();
      fake_cuda::Fail(name, index, cudaErrorUnknown);
      const Life life = Live();
      ++lives;
      const auto reached = life.calls.find(name);
      const bool early = reached != life.calls.end() && reached->second > index;
      const bool named =
          life.told.find(Named(name)) != std::string::npos &&
          life.told.find("cudaErrorUnknown") != std::string::npos;
      // The end is quiet, and the number of looks varies.
      EXPECT_TRUE(named || (life.told.empty() && (!early || IsQuiet(name))))
          << life.told;
      EXPECT_TRUE(life.accounted) << life.told;
      EXPECT_TRUE(life.whole || !life.told.empty());
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(lives, 100);
}

TEST_F(CudaFailureTest, ABrokenDeviceIsToldAndNobodyHangs) {
  const Life clean = Live();
  int lives = 0;
  for (const auto& [name, count] : clean.counts) {
    for (uint64_t index = 0; index < count; ++index) {
      SCOPED_TRACE(name + " call " + std::to_string(index));
      Fresh();
      fake_cuda::Fail(name, index, cudaErrorIllegalAddress, true);
      const Life life = Live();
      ++lives;
      const bool named =
          life.told.find("cudaErrorIllegalAddress") != std::string::npos;
      EXPECT_TRUE(named || (life.told.empty() && life.whole)) << life.told;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(lives, 100);
}

TEST_F(CudaFailureTest, ARingThatDoesNotFitSaysHowMuchThereIs) {
  fake_cuda::SetMemory(64u << 20);
  CudaDevice device;
  try {
    device.control().MakeRing({.bytes = 100u << 20, .slots = 16});
    ADD_FAILURE() << "it fits";
  } catch (const base::CudaError& error) {
    EXPECT_EQ(error.code(), cudaErrorMemoryAllocation);
    const std::string what = error.what();
    EXPECT_NE(what.find("cudaMalloc of 100 MiB for"), std::string::npos)
        << what;
    EXPECT_NE(what.find("with 64 MiB of 64 MiB free"), std::string::npos)
        << what;
  }
  // And nothing is broken.
  EXPECT_NE(device.control().MakeRing({.bytes = 10u << 20, .slots = 16}),
            nullptr);
  program::DeviceTable::Get().Clear();
}

}  // namespace
}  // namespace dmi::testing
