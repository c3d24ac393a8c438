// SPDX-License-Identifier: Apache-2.0
// Columns: views, bitmaps and the check of a row, against their definitions.
#include "batch/columns.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "base/crc32c.h"
#include "support/payload.h"

namespace dmi::batch {
namespace {

using dmi::testing::FillPayload;

// One row, every field unlike the others.
struct Row {
  uint64_t seq = 0x0102030405060708;
  uint64_t site = 0x1112131415161718;
  uint64_t layout = 0x2122232425262728;
  int64_t step = -0x3132333435363738;
  int64_t layer = 0x4142434445464748;
  uint64_t labels[wire::kMaxLabels] = {0x51, 0x52535455, 0x535657, ~0ull};
  uint64_t boundary = 0x6162636465666768;
  int64_t time = 0x7172737475767778;
  uint32_t flags = 0x81828384;
  uint32_t crc = 0x91929394;
  uint64_t bytes = 0xA1A2A3A4A5A6A7A8;

  uint32_t Check() const {
    return RowCheck(seq, site, layout, step, layer, labels, boundary, time,
                    flags, crc, bytes);
  }
};

// The documented encoding, byte by byte: little-endian, in this order.
uint32_t Encoded(const Row& row) {
  std::vector<uint8_t> bytes;
  const auto put = [&](uint64_t word, int size) {
    for (int i = 0; i < size; ++i) {
      bytes.push_back(static_cast<uint8_t>(word >> (8 * i)));
    }
  };
  put(row.seq, 8);
  put(row.site, 8);
  put(row.layout, 8);
  put(static_cast<uint64_t>(row.step), 8);
  put(static_cast<uint64_t>(row.layer), 8);
  for (const uint64_t label : row.labels) put(label, 8);
  put(row.boundary, 8);
  put(static_cast<uint64_t>(row.time), 8);
  put(row.flags, 4);
  put(row.crc, 4);
  put(row.bytes, 8);
  return base::Crc32c(bytes.data(), bytes.size());
}

TEST(RowCheckTest, IsTheCrcOfTheDocumentedEncoding) {
  const Row row;
  EXPECT_EQ(row.Check(), Encoded(row));
  EXPECT_EQ(Row{.seq = 0}.Check(), Encoded(Row{.seq = 0}));
}

TEST(RowCheckTest, EveryFieldCounts) {
  const std::vector<std::function<void(Row&)>> flips = {
      [](Row& r) { r.seq ^= 1; },
      [](Row& r) { r.site ^= uint64_t{1} << 63; },
      [](Row& r) { r.layout ^= 1; },
      [](Row& r) { r.step ^= 1; },
      [](Row& r) { r.layer ^= 1; },
      [](Row& r) { r.labels[0] ^= 1; },
      [](Row& r) { r.labels[1] ^= 1; },
      [](Row& r) { r.labels[2] ^= 1; },
      [](Row& r) { r.labels[3] ^= uint64_t{1} << 63; },
      [](Row& r) { r.boundary ^= 1; },
      [](Row& r) { r.time ^= 1; },
      [](Row& r) { r.flags ^= 1u << 31; },
      [](Row& r) { r.crc ^= 1; },
      [](Row& r) { r.bytes ^= uint64_t{1} << 63; },
      [](Row& r) { std::swap(r.site, r.layout); },
      [](Row& r) { std::swap(r.step, r.layer); },
      [](Row& r) { std::swap(r.flags, r.crc); },
  };
  for (size_t i = 0; i < flips.size(); ++i) {
    Row row;
    flips[i](row);
    EXPECT_NE(row.Check(), Row().Check()) << "flip " << i;
    EXPECT_EQ(row.Check(), Encoded(row)) << "flip " << i;
  }
}

wire::Slot SlotOf(uint64_t index, uint64_t bytes, uint32_t flags) {
  wire::Slot slot{};
  slot.bytes = bytes;
  slot.site = 100 + index;
  slot.layout = 200 + index;
  slot.step = 300 + static_cast<int64_t>(index);
  slot.layer = -400 - static_cast<int64_t>(index);
  slot.boundary = 500 + index;
  slot.time_ns = 600 + static_cast<int64_t>(index);
  slot.flags = flags;
  slot.crc = 700 + static_cast<uint32_t>(index);
  for (uint32_t i = 0; i < wire::kMaxLabels; ++i) {
    slot.labels[i] = 1000 * (i + 1) + index;
  }
  return slot;
}

// Unlike what the slot was stamped with.
int64_t UtcOf(uint64_t i) { return 1'700'000'000'000'000'000 + 3 * int64_t(i); }

TEST(ColumnsTest, ShortPayloadsStandInsideTheirView) {
  std::vector<uint8_t> payload;
  FillPayload(1, 1, 64, payload);
  for (uint64_t bytes = 0; bytes <= kInlineBytes; ++bytes) {
    Columns columns;
    columns.Add(0, SlotOf(0, bytes, 0), 0, payload.data(), payload.data());
    View expected{static_cast<int32_t>(bytes), {}};
    std::memcpy(expected.rest, payload.data(), bytes);
    EXPECT_EQ(std::memcmp(&columns.views[0], &expected, sizeof(View)), 0)
        << bytes << " bytes; what follows them must be zero";
  }
}

TEST(ColumnsTest, LongPayloadsHavePrefixBufferAndOffset) {
  std::vector<uint8_t> payload;
  FillPayload(2, 2, 4096, payload);
  for (const uint64_t at : {0, 64, 1024}) {
    for (const uint64_t bytes : {13, 14, 64, 1000}) {
      Columns columns;
      columns.Add(0, SlotOf(0, bytes, 0), 0, payload.data() + at,
                  payload.data());
      int32_t words[4];
      std::memcpy(words, &columns.views[0], sizeof words);
      EXPECT_EQ(words[0], static_cast<int32_t>(bytes));
      EXPECT_EQ(std::memcmp(&words[1], payload.data() + at, 4), 0);
      EXPECT_EQ(words[2], 0);
      EXPECT_EQ(words[3], static_cast<int32_t>(at));
    }
  }
}

TEST(ColumnsTest, EveryFieldStandsInItsColumn) {
  const uint8_t payload[64] = {};
  Columns columns;
  columns.Reserve(100);
  for (uint64_t i = 0; i < 100; ++i) {
    const uint32_t flags =
        (i % 3 == 0 ? wire::kHasStep : 0u) | (i % 5 < 2 ? wire::kHasLayer : 0u);
    columns.Add(10 + i, SlotOf(i, 8, flags), UtcOf(i), payload, payload);
  }
  ASSERT_EQ(columns.rows(), 100u);
  ASSERT_EQ(columns.step_valid.size(), 13u);
  ASSERT_EQ(columns.layer_valid.size(), 13u);
  for (uint64_t i = 0; i < 100; ++i) {
    const wire::Slot slot = SlotOf(i, 8, 0);
    const bool has_step = i % 3 == 0;
    const bool has_layer = i % 5 < 2;
    ASSERT_EQ(columns.seq[i], 10 + i);
    ASSERT_EQ(columns.site[i], slot.site);
    ASSERT_EQ(columns.layout[i], slot.layout);
    ASSERT_EQ(columns.boundary[i], slot.boundary);
    ASSERT_EQ(columns.time[i], UtcOf(i));
    ASSERT_EQ(columns.crc[i], slot.crc);
    ASSERT_EQ(columns.step_valid[i / 8] >> i % 8 & 1, has_step);
    ASSERT_EQ(columns.layer_valid[i / 8] >> i % 8 & 1, has_layer);
    // What is absent stands as 0, in the column and in the check.
    ASSERT_EQ(columns.step[i], has_step ? slot.step : 0);
    ASSERT_EQ(columns.layer[i], has_layer ? slot.layer : 0);
    for (uint32_t label = 0; label < wire::kMaxLabels; ++label) {
      ASSERT_EQ(columns.labels[i * wire::kMaxLabels + label],
                slot.labels[label]);
    }
    ASSERT_EQ(columns.check[i],
              RowCheck(10 + i, slot.site, slot.layout, columns.step[i],
                       columns.layer[i], slot.labels, slot.boundary, UtcOf(i),
                       columns.flags[i], slot.crc, 8));
  }
}

TEST(ColumnsTest, ClearForgetsRowsAndKeepsMemory) {
  const uint8_t payload[64] = {};
  Columns columns;
  for (uint64_t i = 0; i < 20; ++i) {
    columns.Add(i, SlotOf(i, 8, wire::kHasStep), 0, payload, payload);
  }
  const uint64_t* before = columns.seq.data();
  columns.Clear();
  EXPECT_EQ(columns.rows(), 0u);
  columns.Add(50, SlotOf(5, 8, 0), 0, payload, payload);
  EXPECT_EQ(columns.seq.data(), before);
  EXPECT_EQ(columns.rows(), 1u);
  EXPECT_EQ(columns.seq[0], 50u);
  EXPECT_EQ(columns.step_valid, std::vector<uint8_t>{0});
  EXPECT_EQ(columns.labels.size(), wire::kMaxLabels);
  EXPECT_EQ(columns.views.size(), 1u);
}

}  // namespace
}  // namespace dmi::batch
