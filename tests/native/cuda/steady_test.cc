// SPDX-License-Identifier: Apache-2.0
// What a running capture asks of the CUDA runtime.
#include <map>
#include <set>

#include "base/clock.h"
#include "cuda/device.h"

namespace dmi::testing {
namespace {

class CudaSteadyTest : public CudaTest {};

TEST_F(CudaSteadyTest, ACaptureThatRunsOnlyCopiesAndLooks) {
  CudaCapture capture(device(),
                      {.bytes = 1u << 16, .slots = 16, .stall_nanos = kForever},
                      {.linger_nanos = 0, .staging_bytes = 1u << 14});
  capture.Start();
  Consumer consumer(capture);
  CudaProgram program(device());
  CudaRecord record(0, 0, 4000);
  uint64_t records = 0;
  const auto run = [&] {
    record.Refill(0, records++);
    ASSERT_EQ(program.Launch(record), cudaSuccess);
    while (capture.drain().queued() < records) std::this_thread::yield();
  };
  for (int i = 0; i < 10; ++i) run();
  const auto before = fake_cuda::Calls();
  const uint64_t records_before = records;
  const int64_t begin = base::MonotonicNanos();
  while (base::MonotonicNanos() - begin < 2500 * kMillisecond) run();
  const int64_t seconds = (base::MonotonicNanos() - begin) / kSecond + 1;
  auto more = fake_cuda::Calls();
  more.erase("Run");  // what streams do
  for (const auto& [name, count] : before) more[name] -= count;
  more.erase("Run");
  const uint64_t count = records - records_before;
  EXPECT_GT(count, 50u);
  EXPECT_EQ(more["cudaMemcpyAsync"], more["cudaEventRecord"]);
  EXPECT_LE(more["cudaMemcpyAsync"], count + 1);
  EXPECT_GE(more["cudaEventQuery"], more["cudaEventRecord"] - 1);
  // The records themselves, and the clock once a second.
  EXPECT_GE(more["Launch"], count + 2);
  EXPECT_LE(more["Launch"], count + static_cast<uint64_t>(seconds));
  const std::set<std::string> known = {"cudaMemcpyAsync", "cudaEventRecord",
                                       "cudaEventQuery", "Launch"};
  for (const auto& [name, calls] : more) {
    EXPECT_TRUE(calls == 0 || known.contains(name)) << name;
  }
  EXPECT_EQ(program.Wait(), cudaSuccess);
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), records);
}

}  // namespace
}  // namespace dmi::testing
