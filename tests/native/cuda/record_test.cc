// SPDX-License-Identifier: Apache-2.0
// Records of the kernels: every size, every alignment, every label.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/device.h"

namespace dmi::testing {
namespace {

class CudaRecordTest : public CudaTest {};

TEST_F(CudaRecordTest, EverySmallSizeComesOutByteForByte) {
  CudaCapture capture(device(), {.bytes = 1u << 20, .slots = 64}, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  {
    CudaProgram program(device());
    for (uint64_t i = 0; i <= 200; ++i) {
      ASSERT_EQ(program.Record(0, i, i), cudaSuccess);
    }
    EXPECT_EQ(program.Wait(), cudaSuccess);
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), 201u);
  EXPECT_EQ(capture.failure(), "");
}

TEST_F(CudaRecordTest, EveryRecordHasAChecksumUnlessItIsSwitchedOff) {
  for (const bool checksum : {true, false}) {
    CudaCapture capture(device(),
                        {.bytes = 1u << 20, .slots = 64, .checksum = checksum},
                        kPrompt);
    capture.Start();
    Consumer consumer(capture);
    CudaProgram program(device());
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_EQ(program.Record(0, i, i * 50'000), cudaSuccess);
    }
    EXPECT_EQ(program.Wait(), cudaSuccess);
    capture.Stop();
    EXPECT_EQ(consumer.Join().checksummed(), checksum ? 3u : 0u);
  }
}

// Around where a second kernel comes in, and where it has many blocks.
TEST_F(CudaRecordTest, SizesAroundEveryLimitComeOutByteForByte) {
  CudaCapture capture(device(), {.bytes = 4u << 20, .slots = 64}, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  uint64_t index = 0;
  {
    CudaProgram program(device());
    for (const uint64_t around : {64u << 10, 96u << 10, 1u << 20}) {
      for (const int64_t off : {-65, -64, -17, -1, 0, 1, 15, 64, 4096}) {
        ASSERT_EQ(program.Record(0, index++, around + off), cudaSuccess);
      }
    }
    EXPECT_EQ(program.Wait(), cudaSuccess);
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), index);
}

TEST_F(CudaRecordTest, NoAlignmentOfTheSourceMatters) {
  CudaCapture capture(device(), {.bytes = 1u << 20, .slots = 64}, kPrompt);
  capture.Start();
  Consumer consumer(capture);
  uint64_t index = 0;
  {
    CudaProgram program(device());
    for (uint64_t misaligned = 0; misaligned <= 16; ++misaligned) {
      for (const uint64_t bytes :
           {1u, 3u, 7u, 8u, 15u, 16u, 17u, 63u, 127u, 1000u, (64u << 10) + 3}) {
        ASSERT_EQ(
            program.Record(0, index++, bytes, wire::kSingleDevice, misaligned),
            cudaSuccess);
      }
    }
    EXPECT_EQ(program.Wait(), cudaSuccess);
  }
  capture.Stop();
  EXPECT_EQ(consumer.Join().records(), index);
}

// ---- Labels ----

// What `when`, a step, a layer and a word of one type come to.
struct Labels {
  uint64_t bits;  // of the operand, low bytes first
  wire::DType dtype;
  bool word = false;
};

class CudaLabelTest : public CudaTest {
 protected:
  CudaLabelTest()
      : capture_(device(), {.bytes = 1u << 16, .slots = 1024},
                 {.linger_nanos = kForever}) {
    capture_.Start();
  }

  // Records with the operands and returns the columns of what came out.
  std::vector<std::shared_ptr<batch::Batch>> Record(
      const std::vector<std::vector<program::LabelOperand>>& records) {
    CudaProgram program(device());
    std::vector<std::unique_ptr<CudaRecord>> made;
    for (const auto& operands : records) {
      made.push_back(std::make_unique<CudaRecord>(0, 0, 8));
      program::RecordArguments call = made.back()->Arguments(device());
      call.labels = {};
      for (const auto& operand : operands) {
        call.labels.at[call.labels.count++] = operand;
      }
      EXPECT_EQ(program::LaunchRecord(call, 1, program.stream()), cudaSuccess);
    }
    EXPECT_EQ(program.Wait(), cudaSuccess);
    capture_.Stop();
    return capture_.queue().Pop(1000, kForever);
  }

  CudaCapture capture_;
};

TEST_F(CudaLabelTest, EveryTypeIsWhatItsHostTwinMakesOfIt) {
  using wire::DType;
  const double wide = -1234.5678901234;
  const float narrow = 1e-40f;  // denormal
  const std::vector<Labels> all = {
      {1, DType::kPred},
      {0xFE, DType::kU8},
      {0xFEDC, DType::kU16},
      {0xFEDCBA98, DType::kU32},
      {0xFEDCBA9876543210, DType::kU64},
      {0xFE, DType::kS8},
      {0xFEDC, DType::kS16},
      {0xFEDCBA98, DType::kS32},
      {0xFEDCBA9876543210, DType::kS64},
      {0xFC01, DType::kF16},
      {0x0001, DType::kF16},
      {0x7F81, DType::kBF16},
      {0x0001, DType::kBF16},
      {std::bit_cast<uint32_t>(narrow), DType::kF32},
      {std::bit_cast<uint64_t>(wide), DType::kF64},
      {0xFEDCBA9876543210, DType::kU32, true},
  };
  std::vector<std::vector<program::LabelOperand>> records;
  for (const Labels& one : all) {
    for (const char role : {'s', 'l', '0', '1', '2', '3'}) {
      records.push_back({{&one.bits, one.dtype, role, one.word}});
    }
  }
  const auto batches = Record(records);
  ASSERT_EQ(batches.size(), 1u);
  const batch::Columns& columns = batches[0]->columns();
  ASSERT_EQ(columns.rows(), records.size());
  for (size_t row = 0; row < records.size(); ++row) {
    program::LabelOperands operands;
    operands.at[operands.count++] = records[row][0];
    program::RecordLabels twin;
    ASSERT_TRUE(program::DecodeLabels(operands, twin));
    EXPECT_EQ(columns.step[row], twin.step);
    EXPECT_EQ(columns.layer[row], twin.layer);
    for (uint32_t i = 0; i < wire::kMaxLabels; ++i) {
      EXPECT_EQ(columns.labels[row * wire::kMaxLabels + i], twin.words[i]);
    }
  }
  // And the twin is right.
  const auto first_word = [&](size_t type) {
    return columns.labels[(type * 6 + 2) * wire::kMaxLabels];
  };
  EXPECT_EQ(first_word(5), static_cast<uint64_t>(int64_t{-2}));
  EXPECT_EQ(first_word(7), static_cast<uint64_t>(int64_t{-0x01234568}));
  EXPECT_EQ(std::bit_cast<double>(first_word(10)), 0x1p-24);
  EXPECT_EQ(std::bit_cast<double>(first_word(13)), double{narrow});
  EXPECT_EQ(std::bit_cast<double>(first_word(14)), wide);
  EXPECT_EQ(first_word(15), 0xFEDCBA9876543210);
}

TEST_F(CudaLabelTest, WhenSaysWhetherToRecord) {
  const uint8_t no = 0;
  const uint8_t yes = 1;
  const std::vector<uint64_t> numbers = {0, 1, 2};
  using wire::DType;
  const auto batches = Record({
      {{&no, DType::kPred, 'w', false}, {&numbers[0], DType::kU64, '0', false}},
      {{&yes, DType::kPred, 'w', false},
       {&numbers[1], DType::kU64, '0', false}},
      {{&numbers[2], DType::kU64, '0', false}},
  });
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0]->columns().rows(), 2u);
  EXPECT_EQ(batches[0]->columns().labels[0], 1u);
  EXPECT_EQ(batches[0]->columns().labels[wire::kMaxLabels], 2u);
  EXPECT_EQ(capture_.recorded(), 2u);
  for (uint32_t i = 0; i < wire::kLossReasons; ++i) {
    EXPECT_EQ(capture_.lost(static_cast<wire::LossReason>(i)), 0u);
  }
}

TEST(HalfTest, EveryHalfIsExact) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto expected = static_cast<double>(std::bit_cast<_Float16>(half));
    const double made = program::HalfAsDouble(half);
    ASSERT_EQ(std::bit_cast<uint64_t>(made), std::bit_cast<uint64_t>(expected))
        << bits;
  }
}

TEST(HalfTest, EveryBrainFloatIsTheUpperHalfOfAFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const program::LabelOperand operand{&half, wire::DType::kBF16, '0', false};
    const auto made = std::bit_cast<double>(program::LabelWord(operand));
    const double expected{std::bit_cast<float>(bits << 16)};
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(made)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint64_t>(made),
                std::bit_cast<uint64_t>(expected))
          << bits;
    }
  }
}

}  // namespace
}  // namespace dmi::testing
