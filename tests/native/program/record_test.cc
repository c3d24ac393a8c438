// SPDX-License-Identifier: Apache-2.0
// What one record carries, and where one that is not kept is counted.
#include "program/record.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "program/ambient.h"
#include "program/atomics.h"
#include "program/boundary.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::program {
namespace {

using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::RecordOne;

class RecordTest : public ::testing::Test {
 protected:
  void Start(const ring::RingOptions& options) {
    flow_ = std::make_unique<Flow>(
        device_, options, drain::DrainOptions{.linger_nanos = kForever});
    flow_->Start();
  }

  void Record(const RecordSite& site, const RecordLabels& labels,
              uint64_t bytes = 8) {
    program::Record(device_.block(), site, labels, payload_, bytes);
  }

  // Everything recorded so far, as one batch.
  std::shared_ptr<batch::Batch> Batch() {
    flow_->drain().Seal(kForever);
    auto batches = flow_->queue().Pop(2, 0);
    EXPECT_EQ(batches.size(), 1u);
    return batches.empty() ? nullptr : batches.front();
  }

  const Deadline deadline_{std::chrono::seconds(30)};
  const uint8_t payload_[64] = {1, 2, 3, 4, 5, 6, 7, 8};
  Device device_;
  std::unique_ptr<Flow> flow_;
};

TEST_F(RecordTest, FieldsArriveWhereTheyBelong) {
  Start({.bytes = 4096, .slots = 16});
  RecordLabels labels;
  labels.flags = wire::kHasStep | wire::kHasLayer;
  labels.step = -5;
  labels.layer = 6;
  for (uint32_t i = 0; i < wire::kMaxLabels; ++i) labels.words[i] = 10 + i;
  Record({.site = 11, .layout = 12, .index = 3}, labels);
  const auto batch = Batch();
  const batch::Columns& columns = batch->columns();
  EXPECT_EQ(columns.site, std::vector<uint64_t>{11});
  EXPECT_EQ(columns.layout, std::vector<uint64_t>{12});
  EXPECT_EQ(columns.step, std::vector<int64_t>{-5});
  EXPECT_EQ(columns.layer, std::vector<int64_t>{6});
  EXPECT_EQ(columns.labels, (std::vector<uint64_t>{10, 11, 12, 13}));
  EXPECT_EQ(columns.flags[0], wire::kHasStep | wire::kHasLayer | wire::kHasCrc);
  EXPECT_EQ(batch->device(), 7);
}

TEST_F(RecordTest, WithoutChecksumThereIsNone) {
  Start({.bytes = 4096, .slots = 16, .checksum = false});
  Record({}, {});
  const auto batch = Batch();
  EXPECT_EQ(batch->columns().flags[0], 0u);
  EXPECT_EQ(batch->columns().crc[0], 0u);
}

TEST_F(RecordTest, AmbientStepFillsInForAnAbsentOne) {
  Start({.bytes = 4096, .slots = 16, .checksum = false});
  RecordLabels own;
  own.flags = wire::kHasStep;
  own.step = 99;
  Record({}, {});
  SetAmbientStep(device_.block(), wire::kSingleDevice, 41,
                 wire::kAmbientHasStep);
  Record({}, {});
  Record({}, own);
  const auto batch = Batch();
  const batch::Columns& columns = batch->columns();
  EXPECT_EQ(columns.step, (std::vector<int64_t>{0, 41, 99}));
  EXPECT_EQ(columns.flags,
            (std::vector<uint32_t>{0, wire::kHasStep | wire::kStepIsAmbient,
                                   wire::kHasStep}));
  EXPECT_EQ(columns.step_valid, std::vector<uint8_t>{0b110});
}

TEST_F(RecordTest, EachKindOfProgramHasItsOwnAmbientStep) {
  Start({.bytes = 4096, .slots = 16});
  SetAmbientStep(device_.block(), wire::kSingleDevice, 1,
                 wire::kAmbientHasStep);
  SetAmbientStep(device_.block(), wire::kMultiDevice, 2, wire::kAmbientHasStep);
  Record({.kind = wire::kMultiDevice}, {});
  Record({.kind = wire::kSingleDevice}, {});
  EXPECT_EQ(Batch()->columns().step, (std::vector<int64_t>{2, 1}));
}

TEST_F(RecordTest, PausedStepsAreNeitherKeptNorCounted) {
  Start({.bytes = 4096, .slots = 16});
  const auto set = [&](uint64_t flags) {
    SetAmbientStep(device_.block(), wire::kSingleDevice, 5, flags);
  };
  set(wire::kAmbientHasStep | wire::kAmbientPaused);
  Record({.site = 1}, {});
  Record({.site = 2, .kind = wire::kMultiDevice}, {});
  set(wire::kAmbientHasStep);
  Record({.site = 3}, {});
  EXPECT_EQ(Batch()->columns().site, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(flow_->recorded(), 2u);
  for (uint32_t reason = 0; reason < wire::kLossReasons; ++reason) {
    EXPECT_EQ(flow_->lost(static_cast<wire::LossReason>(reason)), 0u);
  }
}

TEST_F(RecordTest, ClosedGateKeepsASiteOut) {
  Start({.bytes = 4096, .slots = 16});
  auto* gates = reinterpret_cast<uint32_t*>(device_.block().gates);
  StoreRelaxed(gates[4], 1u);
  Record({.site = 1, .index = 4}, {});
  Record({.site = 2, .index = 5}, {});
  StoreRelaxed(gates[4], 0u);
  Record({.site = 3, .index = 4}, {});
  EXPECT_EQ(Batch()->columns().site, (std::vector<uint64_t>{2, 3}));
}

TEST_F(RecordTest, BoundariesPassedAreStamped) {
  Start({.bytes = 4096, .slots = 16});
  Record({}, {});
  AdvanceBoundary(device_.block());
  AdvanceBoundary(device_.block());
  Record({}, {});
  EXPECT_EQ(Batch()->columns().boundary, (std::vector<uint64_t>{0, 2}));
}

TEST_F(RecordTest, HalfTheRingIsTheLargestRecord) {
  Start({.bytes = 4096, .slots = 16});
  RecordOne(device_, 1, 0, 2048);
  RecordOne(device_, 1, 1, 2049);
  EXPECT_EQ(flow_->recorded(), 1u);
  EXPECT_EQ(flow_->lost(wire::kLostTooLarge), 1u);
}

// Refused before anything is read or computed from the size.
TEST_F(RecordTest, AnySizeAtAllIsRefusedNotWrapped) {
  Start({.bytes = 4096, .slots = 16});
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const uint64_t bytes : {kMost, kMost - 62, kMost - 63, uint64_t{1} << 63,
                               uint64_t{1} << 38, wire::kMaxRecordBytes + 1}) {
    Record({}, {}, bytes);
  }
  EXPECT_EQ(flow_->recorded(), 0u);
  EXPECT_EQ(flow_->lost(wire::kLostTooLarge), 6u);
}

TEST_F(RecordTest, NothingAtNoAddressIsARecord) {
  Start({.bytes = 128, .slots = 2});
  program::Record(device_.block(), {.site = 9}, {}, nullptr, 0);
  const auto batch = Batch();
  EXPECT_EQ(batch->columns().site, std::vector<uint64_t>{9});
  EXPECT_EQ(batch->bytes(), 0u);
  EXPECT_EQ(batch->columns().views[0].size, 0);
}

TEST_F(RecordTest, WithoutARingItIsCountedOnTheDevice) {
  Record({}, {});
  EXPECT_EQ(device_.lost(wire::kLostClosed), 1u);
  Start({.bytes = 4096, .slots = 16});
  Record({}, {});
  flow_->Stop();
  Record({}, {});
  EXPECT_EQ(device_.lost(wire::kLostClosed), 2u);
  EXPECT_EQ(flow_->recorded(), 1u);
}

TEST_F(RecordTest, DeselectedDeviceCountsNothing) {
  StoreRelaxed(device_.block().deselected, uint64_t{1});
  Record({}, {});
  EXPECT_EQ(device_.lost(wire::kLostClosed), 0u);
}

}  // namespace
}  // namespace dmi::program
