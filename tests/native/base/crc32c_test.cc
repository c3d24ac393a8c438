// SPDX-License-Identifier: Apache-2.0
// crc32c: every implementation against the bit-by-bit definition.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/payload.h"

namespace dmi::base {
namespace {

using dmi::testing::FillPayload;

std::vector<Crc32cVariant> Variants() {
  Crc32cVariant variants[3];
  const size_t count = Crc32cVariants(variants);
  return {variants, variants + count};
}

uint32_t BitByBit(const uint8_t* data, size_t size, uint32_t seed) {
  uint32_t crc = ~seed;
  for (size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    }
  }
  return ~crc;
}

// RFC 3720, appendix B.4.
TEST(Crc32cTest, KnownVectors) {
  std::vector<uint8_t> ascending(32);
  std::vector<uint8_t> descending(32);
  for (uint8_t i = 0; i < 32; ++i) {
    ascending[i] = i;
    descending[i] = static_cast<uint8_t>(31 - i);
  }
  const std::vector<uint8_t> zeros(32, 0);
  const std::vector<uint8_t> ones(32, 0xFF);
  for (const Crc32cVariant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    EXPECT_EQ(variant.crc("123456789", 9, 0), 0xE3069283u);
    EXPECT_EQ(variant.crc(zeros.data(), 32, 0), 0x8A9136AAu);
    EXPECT_EQ(variant.crc(ones.data(), 32, 0), 0x62A8AB43u);
    EXPECT_EQ(variant.crc(ascending.data(), 32, 0), 0x46DD794Eu);
    EXPECT_EQ(variant.crc(descending.data(), 32, 0), 0x113FDB5Cu);
  }
}

TEST(Crc32cTest, OfNothingIsTheSeed) {
  for (const Crc32cVariant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    EXPECT_EQ(variant.crc(nullptr, 0, 0), 0u);
    EXPECT_EQ(variant.crc(nullptr, 0, 0x12345678), 0x12345678u);
  }
}

// Every size up to two strides of the widest form, at every alignment of a
// cache line, and sizes around each block that an implementation works in.
TEST(Crc32cTest, VariantsAgreeOnAllSizesAlignmentsAndSeeds) {
  std::vector<uint8_t> data;
  FillPayload(1, 1, 70000, data);
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= 600; ++size) sizes.push_back(size);
  for (const size_t block : {768u, 1024u, 8192u, 24576u, 65536u}) {
    for (size_t size = block - 9; size <= block + 9; ++size) {
      sizes.push_back(size);
    }
  }
  const std::vector<Crc32cVariant> variants = Variants();
  uint32_t seed = 0;
  for (const size_t size : sizes) {
    const size_t stride = size <= 600 ? 1 : 13;
    for (size_t at = 0; at < 64; at += stride) {
      const uint32_t expected = BitByBit(data.data() + at, size, seed);
      for (const Crc32cVariant& variant : variants) {
        ASSERT_EQ(variant.crc(data.data() + at, size, seed), expected)
            << variant.name << ", " << size << " bytes at " << at;
      }
      seed = expected;
    }
  }
}

TEST(Crc32cTest, ContinuesWhereItWasLeft) {
  std::vector<uint8_t> data;
  FillPayload(2, 2, 30000, data);
  for (const Crc32cVariant& variant : Variants()) {
    const uint32_t whole = variant.crc(data.data(), data.size(), 0);
    for (size_t cut = 0; cut <= data.size(); cut += 997) {
      const uint32_t first = variant.crc(data.data(), cut, 0);
      ASSERT_EQ(variant.crc(data.data() + cut, data.size() - cut, first), whole)
          << variant.name << ", cut at " << cut;
    }
  }
}

TEST(Crc32cTest, TheChosenFormIsTheBestOne) {
  EXPECT_STREQ(Crc32cImplementation(), Variants().back().name);
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
}

}  // namespace
}  // namespace dmi::base
