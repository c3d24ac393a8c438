// SPDX-License-Identifier: Apache-2.0
// How much memory a ring takes, and when.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ring/ring.h"

namespace dmi::ring {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPage = 4096;

uint64_t Resident(const uint8_t* data, uint64_t size) {
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  EXPECT_EQ(mincore(const_cast<uint8_t*>(data), size, pages.data()), 0);
  return kPage * static_cast<uint64_t>(std::count_if(
                     pages.begin(), pages.end(),
                     [](unsigned char page) { return page & 1; }));
}

uint64_t Resident(const Ring& ring) {
  return Resident(ring.payload(), ring.payload_bytes());
}

// Whether this kernel can bring pages in on request.
bool CanPopulate() {
#ifdef MADV_POPULATE_WRITE
  const Pages pages(kPage, false);
  return madvise(pages.data(), kPage, MADV_POPULATE_WRITE) == 0;
#else
  return false;
#endif
}

TEST(PagesTest, UntouchedRingTakesNoMemory) {
  const Ring ring({.bytes = 1024 * kMiB});
  EXPECT_EQ(Resident(ring), 0u);
}

TEST(PagesTest, LoneRecordTakesNoMemoryInAdvance) {
  Ring ring({.bytes = 256 * kMiB});
  ring.PopulateAhead(0, 0);
  ring.PopulateAhead(1, 1);
  EXPECT_EQ(Resident(ring), 0u);
}

TEST(PagesTest, StreamFindsItsPagesInMemory) {
  Ring ring({.bytes = 256 * kMiB});
  const auto position = static_cast<uint32_t>(16 * kMiB / wire::kPayloadUnit);
  ring.PopulateAhead(16, position);
  EXPECT_EQ(Resident(ring), CanPopulate() ? 80 * kMiB : 0);
  ring.PopulateAhead(16, position);
  EXPECT_EQ(Resident(ring), CanPopulate() ? 80 * kMiB : 0);
  ring.PopulateAhead(250, 250 * kMiB / wire::kPayloadUnit);
  EXPECT_EQ(Resident(ring), CanPopulate() ? 256 * kMiB : 0);
}

TEST(PagesTest, SmallRingsArePopulatedWhole) {
  Ring ring({.bytes = 8192});
  ring.PopulateAhead(1, 64);
  EXPECT_EQ(Resident(ring), CanPopulate() ? 8192 : 0);
}

}  // namespace
}  // namespace dmi::ring
