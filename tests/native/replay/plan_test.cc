// SPDX-License-Identifier: Apache-2.0
// Layouts and images: every size checked, nothing overlapping, all of it
// counted.
#include "replay/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace dmi::replay {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
using wire::kSubmissionAlign;

Fault Try(std::vector<Argument> arguments, SubmissionLayout* layout,
          uint64_t limit = wire::kMaxArenaBytes) {
  size_t faulty = 99;
  return LayOut(arguments, layout, &faulty, limit);
}

TEST(LayOut, PutsTheWidestElementsFirst) {
  SubmissionLayout layout;
  ASSERT_EQ(Try({{8, {3}}, {64, {2}}, {16, {}}, {4, {3}}, {32, {5}}}, &layout),
            Fault::kNone);
  EXPECT_EQ(layout.regions[1].offset, 0u);
  EXPECT_EQ(layout.regions[4].offset, 16u);
  EXPECT_EQ(layout.regions[2].offset, 36u);
  EXPECT_EQ(layout.regions[0].offset, 38u);
  EXPECT_EQ(layout.regions[3].offset, 41u);
  EXPECT_EQ(layout.regions[3].bytes, 2u);
  EXPECT_EQ(layout.bytes, 64u);
  EXPECT_EQ(layout.live_bytes, 43u);
}

TEST(LayOut, TakesNoArgumentsAndEmptyOnes) {
  SubmissionLayout layout;
  ASSERT_EQ(Try({}, &layout), Fault::kNone);
  EXPECT_EQ(layout.bytes, 0u);
  // However large the other dimensions: nothing is stored.
  ASSERT_EQ(Try({{32, {kMost, kMost, 0}}, {32, {}}}, &layout), Fault::kNone);
  EXPECT_EQ(layout.regions[0].bytes, 0u);
  EXPECT_EQ(layout.bytes, kSubmissionAlign);
}

TEST(LayOut, RefusesWhatCannotBeCountedAndLeavesTheLayout) {
  SubmissionLayout layout;
  ASSERT_EQ(Try({{32, {7}}}, &layout), Fault::kNone);
  EXPECT_EQ(Try({{32, {7}}, {32, {kMost, 2}}}, &layout), Fault::kTooLarge);
  EXPECT_EQ(Try({{32, {int64_t{1} << 32, int64_t{1} << 32}}}, &layout),
            Fault::kTooLarge);
  EXPECT_EQ(Try({{128, {kMost / 16}}}, &layout), Fault::kTooLarge);
  EXPECT_EQ(Try({{32, {-1}}}, &layout), Fault::kNegative);
  EXPECT_EQ(Try({{32, {0, -1}}}, &layout), Fault::kNegative);
  for (const uint32_t bits : {0u, 3u, 6u, 24u, 256u}) {
    EXPECT_EQ(Try({{bits, {1}}}, &layout), Fault::kBits);
  }
  ASSERT_EQ(layout.regions.size(), 1u);
  EXPECT_EQ(layout.live_bytes, 28u);
}

TEST(LayOut, NamesTheArgument) {
  SubmissionLayout layout;
  size_t faulty = 99;
  const std::vector<Argument> wrong = {{32, {7}}, {64, {1}}, {8, {-1}}};
  EXPECT_EQ(LayOut(wrong, &layout, &faulty), Fault::kNegative);
  EXPECT_EQ(faulty, 2u);
  // The widest lies first, so it is the narrow one that is too much.
  const std::vector<Argument> many = {{8, {100}}, {64, {10}}};
  EXPECT_EQ(LayOut(many, &layout, &faulty, 128), Fault::kTooLarge);
  EXPECT_EQ(faulty, 0u);
}

TEST(LayOut, ReachesTheLimitExactly) {
  SubmissionLayout layout;
  const auto words = static_cast<int64_t>(wire::kMaxArenaBytes / 4);
  EXPECT_EQ(Try({{32, {words}}}, &layout), Fault::kNone);
  EXPECT_EQ(layout.bytes, wire::kMaxArenaBytes);
  EXPECT_EQ(Try({{32, {words + 1}}}, &layout), Fault::kTooLarge);
  EXPECT_EQ(Try({{32, {words}}, {8, {1}}}, &layout), Fault::kTooLarge);
  EXPECT_EQ(Try({{4, {8 * words}}}, &layout), Fault::kNone);
  EXPECT_EQ(Try({{4, {8 * words + 1}}}, &layout), Fault::kTooLarge);
}

TEST(LayOut, CoversEveryByteOnceWhateverTheArguments) {
  std::mt19937 random(1);
  const uint32_t widths[] = {1, 2, 4, 8, 16, 32, 64, 128};
  for (int round = 0; round < 5000; ++round) {
    std::vector<Argument> arguments(random() % 40);
    for (Argument& argument : arguments) {
      argument.bits = widths[random() % 8];
      argument.shape.resize(random() % 9);
      for (int64_t& size : argument.shape) size = random() % 4;
    }
    SubmissionLayout layout;
    ASSERT_EQ(Try(arguments, &layout), Fault::kNone);
    std::vector<int> covered(layout.bytes, 0);
    for (const Region& region : layout.regions) {
      const uint64_t align = std::max<uint64_t>(region.bits / 8, 1);
      ASSERT_TRUE(region.bytes == 0 || region.offset % align == 0);
      for (uint64_t i = 0; i < region.bytes; ++i) ++covered[region.offset + i];
    }
    for (const Gap& gap : layout.gaps) {
      for (uint64_t i = 0; i < gap.bytes; ++i) ++covered[gap.offset + i];
    }
    ASSERT_EQ(std::count(covered.begin(), covered.end(), 1),
              static_cast<int64_t>(layout.bytes));
  }
}

std::vector<uint32_t> Written(const Image& image) {
  std::vector<uint32_t> words(image.bytes() / 4, 0xAAAAAAAA);
  image.WriteTable(reinterpret_cast<uint8_t*>(words.data()));
  return words;
}

TEST(Image, ListsSubmissionsByDefinition) {
  Image image(2);
  for (const auto& [definition, bytes] :
       std::vector<std::pair<size_t, uint64_t>>{{0, 64}, {1, 128}, {0, 64}}) {
    ASSERT_TRUE(image.Fits(bytes));
    image.Reserve(definition);
    image.Take(definition, bytes);
  }
  EXPECT_EQ(image.count(0), 2u);
  EXPECT_EQ(image.end(), 64u + 256u);
  EXPECT_EQ(image.bytes(), 64u + 256u + 64u);
  const auto words = Written(image);
  const std::vector<uint32_t> head(words.begin(), words.begin() + 4);
  EXPECT_EQ(head, (std::vector<uint32_t>{2, 80, 1, 82}));
  EXPECT_EQ(words[80], 16u);
  EXPECT_EQ(words[81], 64u);
  EXPECT_EQ(words[82], 32u);
  EXPECT_TRUE(std::all_of(words.begin() + 4, words.begin() + 16,
                          [](uint32_t word) { return word == 0; }));
  EXPECT_TRUE(std::all_of(words.begin() + 83, words.end(),
                          [](uint32_t word) { return word == 0; }));
}

TEST(Image, IsValidWithoutSubmissionsAndWithoutDefinitions) {
  EXPECT_EQ(Written(Image(0)), std::vector<uint32_t>(16, 0));
  const Image image(9);
  EXPECT_EQ(image.bytes(), 128u);
  EXPECT_EQ(Written(image)[0], 0u);
}

TEST(Image, TurnsDownWhatDoesNotFitWithItsListItem) {
  Image image(1, 64 + 128 + 64);
  EXPECT_FALSE(image.Fits(256));
  EXPECT_FALSE(image.Fits(192));
  ASSERT_TRUE(image.Fits(128));
  image.Reserve(0);
  image.Take(0, 128);
  EXPECT_FALSE(image.Fits(64));
  EXPECT_TRUE(image.Fits(0));
  EXPECT_FALSE(Image(1).Fits(std::numeric_limits<uint64_t>::max() - 63));
}

TEST(Image, FillsUpToTheLimitOfAnArena) {
  Image image(1);
  const uint64_t half = wire::kMaxArenaBytes / 2 / 64 * 64;
  ASSERT_TRUE(image.Fits(half));
  image.Reserve(0);
  image.Take(0, half);
  EXPECT_FALSE(image.Fits(half));
  EXPECT_TRUE(image.Fits(half - 128));
}

TEST(Image, HoldsManySubmissionsWithoutBytes) {
  Image image(1);
  for (uint32_t i = 0; i < 10000; ++i) {
    image.Reserve(0);
    ASSERT_EQ(image.Take(0, 0), i);
  }
  EXPECT_EQ(image.bytes(), 64u + 40000u);
}

TEST(CapacityClass, HoldsTheImageAndLittleMore) {
  for (uint64_t bytes = 0; bytes < 1 << 20; bytes += 13) {
    for (const uint64_t multiple : {64u, 192u, 512u}) {
      const uint64_t size = CapacityClass(bytes, multiple);
      ASSERT_GE(size, bytes);
      ASSERT_EQ(size % multiple, 0u);
      ASSERT_LE(size, CapacityClass(bytes + 1, multiple));
      ASSERT_LE(size,
                std::max<uint64_t>(256, bytes + bytes / 16 + 64) + multiple);
    }
  }
  EXPECT_EQ(CapacityClass(wire::kMaxArenaBytes, 64), wire::kMaxArenaBytes);
  EXPECT_EQ(CapacityClass(wire::kMaxArenaBytes - 64, 64), wire::kMaxArenaBytes);
}

TEST(CapacityClass, IsFewSizes) {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 64 << 10; bytes < 128 << 10; bytes += 64) {
    sizes.push_back(CapacityClass(bytes, 64));
  }
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  EXPECT_LE(sizes.size(), 17u);
}

}  // namespace
}  // namespace dmi::replay
