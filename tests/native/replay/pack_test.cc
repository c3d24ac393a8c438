// SPDX-License-Identifier: Apache-2.0
// Packing: every byte of a submission, and none beside it.
#include "replay/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "replay/staging.h"

namespace dmi::replay {
namespace {

constexpr size_t kGuard = 128;
constexpr uint8_t kDirty = 0xAA;

struct Submission {
  SubmissionLayout layout;
  std::vector<Argument> arguments;
  // Each of its own size exactly, so that a sanitizer sees a read beyond it.
  std::vector<std::unique_ptr<uint8_t[]>> values;

  std::vector<const void*> sources() const {
    std::vector<const void*> sources;
    for (const auto& value : values) sources.push_back(value.get());
    return sources;
  }
};

Submission Random(std::mt19937& random, int most_arguments) {
  const uint32_t widths[] = {1, 2, 4, 8, 8, 16, 32, 32, 64, 128};
  Submission submission;
  submission.arguments.resize(random() % most_arguments);
  for (Argument& argument : submission.arguments) {
    argument.bits = widths[random() % 10];
    argument.shape.resize(random() % 9);
    for (int64_t& size : argument.shape) size = random() % 7 == 0 ? 0 : 1;
    if (!argument.shape.empty()) argument.shape[0] *= random() % 70;
  }
  size_t faulty = 0;
  EXPECT_EQ(LayOut(submission.arguments, &submission.layout, &faulty),
            Fault::kNone);
  for (const Region& region : submission.layout.regions) {
    auto value = std::make_unique<uint8_t[]>(region.source_bytes());
    for (uint64_t i = 0; i < region.source_bytes(); ++i) value[i] = random();
    submission.values.push_back(std::move(value));
  }
  return submission;
}

// The same, one bit at a time and by the definition of the layout.
std::vector<uint8_t> Expected(const Submission& submission) {
  std::vector<uint8_t> bytes(submission.layout.bytes, 0);
  for (size_t a = 0; a < submission.arguments.size(); ++a) {
    const Region& region = submission.layout.regions[a];
    const uint8_t* value = submission.values[a].get();
    for (uint64_t bit = 0; bit < region.elements * region.bits; ++bit) {
      const uint64_t from =
          region.bits >= 8 ? bit : bit / region.bits * 8 + bit % region.bits;
      const uint8_t set = value[from / 8] >> (from % 8) & 1;
      bytes[region.offset + bit / 8] |= static_cast<uint8_t>(set << (bit % 8));
    }
  }
  return bytes;
}

TEST(Pack, WritesEveryByteAndNoneBeside) {
  std::mt19937 random(2);
  for (int round = 0; round < 4000; ++round) {
    const Submission submission = Random(random, 40);
    const uint64_t size = submission.layout.bytes;
    std::vector<uint8_t> memory(size + 2 * kGuard, kDirty);
    Pack(submission.layout, submission.sources().data(),
         memory.data() + kGuard);
    const auto begin = memory.begin() + kGuard;
    const auto is_guard = [](uint8_t byte) { return byte == kDirty; };
    ASSERT_TRUE(std::all_of(memory.begin(), begin, is_guard));
    ASSERT_TRUE(std::all_of(begin + size, memory.end(), is_guard));
    ASSERT_TRUE(std::equal(begin, begin + size, Expected(submission).begin()));
  }
}

TEST(Pack, TakesThousandsOfArguments) {
  for (const int count : {0, 1, 128, 129, 1024, 5000}) {
    std::vector<Argument> arguments(count, Argument{32, {3}});
    SubmissionLayout layout;
    size_t faulty = 0;
    ASSERT_EQ(LayOut(arguments, &layout, &faulty), Fault::kNone);
    std::vector<uint32_t> values(3 * count);
    for (size_t i = 0; i < values.size(); ++i) values[i] = i;
    std::vector<const void*> sources;
    for (int i = 0; i < count; ++i) sources.push_back(&values[3 * i]);
    std::vector<uint8_t> to(layout.bytes, kDirty);
    Pack(layout, sources.data(), to.data());
    ASSERT_TRUE(count == 0 ||
                std::memcmp(to.data(), values.data(), 12 * count) == 0);
  }
}

TEST(Pack, TakesNoAddressForNothing) {
  SubmissionLayout layout;
  size_t faulty = 0;
  const std::vector<Argument> arguments = {{32, {0}}, {8, {1}}};
  ASSERT_EQ(LayOut(arguments, &layout, &faulty), Fault::kNone);
  const uint8_t one = 1;
  const void* sources[] = {nullptr, &one};
  std::vector<uint8_t> to(layout.bytes, kDirty);
  Pack(layout, sources, to.data());
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(std::count(to.begin(), to.end(), 0), 63);
}

TEST(PackSubByte, IgnoresTheUpperBits) {
  const uint8_t from[] = {0xF1, 0xF2, 0xF3};
  uint8_t to[2] = {kDirty, kDirty};
  PackSubByte(from, 3, 4, to);
  EXPECT_EQ(to[0], 0x21);
  EXPECT_EQ(to[1], 0x03);
}

// A whole image the way an upload makes it: growth while packing, then again in
// other memory that holds something else.
std::vector<uint8_t> PackImage(const std::vector<Submission>& kinds,
                               const std::vector<size_t>& order, uint8_t dirt,
                               uint64_t first_size) {
  Staging staging;
  staging.Grow(first_size, 0);
  staging.Fill(dirt);
  Image image(kinds.size());
  for (const size_t kind : order) {
    const SubmissionLayout& layout = kinds[kind].layout;
    EXPECT_TRUE(image.Fits(layout.bytes));
    image.Reserve(kind);
    const uint64_t begin = image.end();
    if (begin + layout.bytes > staging.capacity()) {
      staging.Grow(begin + layout.bytes, begin);
    }
    staging.Touch(begin + layout.bytes);
    Pack(layout, kinds[kind].sources().data(), staging.image() + begin);
    image.Take(kind, layout.bytes);
  }
  const uint64_t capacity = CapacityClass(image.bytes(), 64);
  staging.Grow(capacity, image.end());
  staging.Touch(image.bytes());
  image.WriteTable(staging.image());
  staging.Clear(image.bytes(), capacity);
  return {staging.image(), staging.image() + capacity};
}

TEST(PackImage, GivesTheSameBytesWhateverTheStagingHeld) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Submission> kinds;
    for (size_t i = 0; i < 1 + random() % 7; ++i) {
      kinds.push_back(Random(random, 30));
    }
    std::vector<size_t> order(random() % 60);
    for (size_t& kind : order) kind = random() % kinds.size();
    const auto clean = PackImage(kinds, order, 0, 1 << 20);
    const auto dirty = PackImage(kinds, order, kDirty, 1);
    ASSERT_EQ(clean, dirty);
    // Followed from entry to list to submission, in a copy at another address.
    const std::vector<uint8_t> moved(clean);
    const auto word = [&](uint64_t index) {
      uint32_t value;
      std::memcpy(&value, &moved[4 * index], sizeof(value));
      return value;
    };
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto count = std::count(order.begin(), order.end(), kind);
      ASSERT_EQ(word(2 * kind), static_cast<uint32_t>(count));
      const auto expected = Expected(kinds[kind]);
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t begin = uint64_t{4} * word(word(2 * kind + 1) + i);
        ASSERT_EQ(begin % wire::kSubmissionAlign, 0u);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                               moved.begin() + begin));
      }
    }
  }
}

}  // namespace
}  // namespace dmi::replay
