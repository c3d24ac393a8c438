// SPDX-License-Identifier: Apache-2.0
// Staging: growth that fails, memory on lease, zeros.
#include "replay/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace dmi::replay {
namespace {

int g_held = 0;
bool g_fails = false;

void* Allocate(size_t bytes) {
  if (g_fails) return nullptr;
  ++g_held;
  void* memory = std::aligned_alloc(kStagingAlign, bytes);
  std::memset(memory, 0xAA, bytes);
  return memory;
}

void Release(void* memory, size_t) {
  --g_held;
  std::free(memory);
}

constexpr StagingMemory kMemory{&Allocate, &Release};

bool IsZero(const uint8_t* begin, uint64_t size) {
  return std::all_of(begin, begin + size, [](uint8_t b) { return b == 0; });
}

TEST(Staging, TakesNoMemoryBeforeItIsNeeded) {
  Staging staging(kMemory);
  EXPECT_EQ(staging.image(), nullptr);
  EXPECT_EQ(staging.capacity(), 0u);
  EXPECT_EQ(staging.leases(), 0u);
  staging.Grow(0, 0);
  EXPECT_EQ(staging.allocations(), 0u);
}

TEST(Staging, GrowsAndKeepsWhatIsUsed) {
  {
    Staging staging(kMemory);
    staging.Grow(100, 0);
    EXPECT_TRUE(IsZero(staging.image(), staging.capacity()));
    std::memset(staging.image(), 7, 80);
    staging.Touch(80);
    staging.Grow(100000, 64);
    EXPECT_EQ(staging.image()[63], 7);
    EXPECT_TRUE(IsZero(staging.image() + 64, staging.capacity() - 64));
    EXPECT_EQ(staging.allocations(), 2u);
    staging.Grow(100000, 64);
    EXPECT_EQ(staging.allocations(), 2u);
    EXPECT_EQ(g_held, 1);
  }
  EXPECT_EQ(g_held, 0);
}

TEST(Staging, StaysAsItWasWhenGrowthFails) {
  Staging staging(kMemory);
  staging.Grow(100, 0);
  std::memset(staging.image(), 7, 100);
  const uint8_t* image = staging.image();
  const uint64_t capacity = staging.capacity();
  g_fails = true;
  EXPECT_THROW(staging.Grow(1 << 20, 100), std::bad_alloc);
  g_fails = false;
  EXPECT_EQ(staging.image(), image);
  EXPECT_EQ(staging.capacity(), capacity);
  EXPECT_EQ(staging.allocations(), 1u);
  EXPECT_EQ(staging.image()[99], 7);
  staging.Grow(50, 0);  // a smaller request still finds its room
  EXPECT_EQ(staging.image(), image);
}

TEST(Staging, FreesMemoryAfterItsLastLease) {
  auto staging = std::make_unique<Staging>(kMemory);
  staging->Grow(100, 0);
  auto lease = staging->Lease();
  auto another = staging->Lease();
  EXPECT_EQ(staging->leases(), 2u);
  staging->Grow(1 << 20, 100);
  EXPECT_EQ(staging->leases(), 0u);
  EXPECT_EQ(g_held, 2);
  lease.reset();
  EXPECT_EQ(g_held, 2);
  another.reset();
  EXPECT_EQ(g_held, 1);
  auto last = staging->Lease();
  staging.reset();
  EXPECT_EQ(g_held, 1);
  last.reset();
  EXPECT_EQ(g_held, 0);
}

TEST(Staging, ClearsWhateverWasThere) {
  Staging staging(kMemory);
  staging.Grow(4096, 0);
  staging.Fill(0xAA);
  staging.Clear(100, 200);
  EXPECT_TRUE(IsZero(staging.image() + 100, 100));
  EXPECT_EQ(staging.image()[99], 0xAA);
  EXPECT_EQ(staging.image()[200], 0xAA);
  staging.Clear(50, staging.capacity());
  EXPECT_TRUE(IsZero(staging.image() + 50, staging.capacity() - 50));
  // What was touched since is cleared again.
  std::memset(staging.image() + 50, 7, 100);
  staging.Touch(150);
  staging.Clear(60, 4096);
  EXPECT_EQ(staging.image()[59], 7);
  EXPECT_TRUE(IsZero(staging.image() + 60, staging.capacity() - 60));
}

TEST(HostMemory, IsAlignedAndZero) {
  Staging staging;
  staging.Grow(3 << 20, 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(staging.image()) % kStagingAlign, 0u);
  EXPECT_TRUE(IsZero(staging.image(), staging.capacity()));
}

}  // namespace
}  // namespace dmi::replay
