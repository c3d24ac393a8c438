// SPDX-License-Identifier: Apache-2.0
// A drain that runs out of memory ends the run with an error and hangs nobody.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "support/deadline.h"
#include "support/flow.h"

namespace {

// While armed, no allocation of this size or more succeeds.
std::atomic<bool> out_of_memory{false};
constexpr std::size_t kLarge = 4096;

}  // namespace

// Not inline: compilers would see free and new in one place and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (size >= kLarge && out_of_memory.load()) throw std::bad_alloc();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory,
                                       std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::RecordOne;

TEST(OutOfMemoryTest, IsLatchedAndEndsEveryWait) {
  const Deadline deadline(std::chrono::seconds(30));
  Device device;
  Flow flow(device, {.bytes = 1 << 20, .slots = 2048, .stall_nanos = kForever},
            {.linger_nanos = kForever});
  flow.Start();
  RecordOne(device, 0, 0, 64);
  ASSERT_EQ(flow.drain().Seal(kForever), 1u);
  for (uint64_t i = 1; i < 1000; ++i) RecordOne(device, 0, i, 64);
  // A thousand rows want columns of eight thousand bytes.
  out_of_memory = true;
  EXPECT_EQ(flow.drain().Seal(kForever), 1u);
  out_of_memory = false;
  EXPECT_NE(flow.drain().failure().text().find("bad_alloc"), std::string::npos);
  {
    std::vector<std::jthread> producers;
    for (uint64_t producer = 1; producer < 4; ++producer) {
      producers.emplace_back([&, producer] {
        for (uint64_t i = 0; i < 2000; ++i) RecordOne(device, producer, i, 64);
      });
    }
  }
  EXPECT_GT(flow.lost(wire::kLostStalled), 0u);
  EXPECT_EQ(flow.lost(wire::kLostStalled) + flow.recorded(), 7000u);
  flow.Stop();
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), 1u) << "what was queued before stays good";
}

}  // namespace
}  // namespace dmi::drain
