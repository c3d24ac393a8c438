// SPDX-License-Identifier: Apache-2.0
// The end-to-end harness, see the header.
#include "support/flow.h"

#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "program/atomics.h"

namespace dmi::testing {

uint64_t Device::lost(wire::LossReason reason) const {
  return program::LoadRelaxed(block_.lost[reason]);
}

void RecordOne(Device& device, uint64_t producer, uint64_t index,
               uint64_t bytes) {
  thread_local std::vector<uint8_t> payload;
  FillPayload(producer, index, bytes, payload);
  program::RecordSite site;
  site.site = 1000 + producer;
  site.layout = 2000 + producer;
  site.index = static_cast<uint32_t>(producer);
  program::RecordLabels labels;
  labels.flags = wire::kHasStep | wire::kHasLayer;
  labels.step = static_cast<int64_t>(index);
  labels.layer = -static_cast<int64_t>(producer);
  labels.words[0] = producer;
  labels.words[1] = index;
  labels.words[2] = bytes;
  labels.words[3] = ~index;
  program::Record(device.block(), site, labels, payload.data(), bytes);
}

Flow::Flow(Device& device, const ring::RingOptions& ring,
           const drain::DrainOptions& drain, wire::Cursor start,
           drain::DrainParts parts)
    : device_(device),
      ring_(std::make_shared<ring::Ring>(ring)),
      queue_(std::make_shared<batch::BatchQueue>()) {
  wire::RingHeader& header = ring_->header();
  for (uint64_t* word :
       {&header.head, &header.cached_tail, &header.tail, &header.batch_begin}) {
    *word = wire::Pack(start);
  }
  parts.progress = &device_.block().progress;
  drain_ =
      std::make_unique<drain::Drain>(ring_, 7, drain, queue_, std::move(parts));
}

void Flow::Start() {
  drain_->Start();
  program::Install(device_.block(), ring_->header());
}

void Flow::Stop() {
  program::Uninstall(device_.block());
  drain_->Stop();
  queue_->Close();
}

uint64_t Flow::recorded() const {
  const auto* sites =
      reinterpret_cast<const wire::SiteCounters*>(ring_->header().sites);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < wire::kMaxSites; ++i) {
    sum += program::LoadRelaxed(sites[i].recorded);
  }
  return sum;
}

uint64_t Flow::lost(wire::LossReason reason) const {
  const auto* sites =
      reinterpret_cast<const wire::SiteCounters*>(ring_->header().sites);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < wire::kMaxSites; ++i) {
    sum += program::LoadRelaxed(sites[i].lost[reason]);
  }
  return sum;
}

const uint8_t* PayloadOf(const batch::Batch& batch, size_t row) {
  const batch::View& view = batch.columns().views[row];
  if (view.size <= static_cast<int32_t>(batch::kInlineBytes)) return view.rest;
  int32_t buffer;
  int32_t offset;
  std::memcpy(&buffer, view.rest + 4, 4);
  std::memcpy(&offset, view.rest + 8, 4);
  EXPECT_EQ(buffer, 0);
  EXPECT_GE(offset, 0);
  EXPECT_LE(int64_t{offset} + view.size,
            static_cast<int64_t>(batch.payload().size));
  return batch.payload().data + offset;
}

void Checker::CheckRow(const batch::Batch& batch, size_t row) {
  const batch::Columns& columns = batch.columns();
  const uint64_t* labels = &columns.labels[row * wire::kMaxLabels];
  const uint64_t producer = labels[0];
  const uint64_t index = labels[1];
  const uint64_t bytes = labels[2];
  ASSERT_EQ(columns.seq[row], next_);
  ++next_;
  ASSERT_EQ(labels[3], ~index);
  ASSERT_EQ(columns.site[row], 1000 + producer);
  ASSERT_EQ(columns.layout[row], 2000 + producer);
  ASSERT_EQ(columns.step[row], static_cast<int64_t>(index));
  ASSERT_EQ(columns.layer[row], -static_cast<int64_t>(producer));
  ASSERT_TRUE(columns.step_valid[row / 8] >> row % 8 & 1);
  ASSERT_TRUE(columns.layer_valid[row / 8] >> row % 8 & 1);
  FillPayload(producer, index, bytes, expected_);
  ASSERT_EQ(static_cast<uint64_t>(columns.views[row].size), bytes);
  const uint8_t* payload = PayloadOf(batch, row);
  ASSERT_TRUE(bytes == 0 || std::memcmp(payload, expected_.data(), bytes) == 0)
      << "record " << columns.seq[row] << " of producer " << producer;
  const uint32_t flags = columns.flags[row];
  ASSERT_EQ(columns.crc[row],
            flags & wire::kHasCrc ? base::Crc32c(payload, bytes) : 0u);
  ASSERT_EQ(columns.check[row],
            batch::RowCheck(columns.seq[row], columns.site[row],
                            columns.layout[row], columns.step[row],
                            columns.layer[row], labels, columns.boundary[row],
                            columns.time[row], flags, columns.crc[row], bytes));
  const auto last = last_index_.find(producer);
  ASSERT_TRUE(last == last_index_.end() ||
              last->second < static_cast<int64_t>(index));
  last_index_[producer] = static_cast<int64_t>(index);
  ++count_[producer];
  ++records_;
  if (flags & wire::kHasCrc) ++checksummed_;
}

void Checker::Check(const batch::Batch& batch) {
  const size_t rows = batch.columns().rows();
  ASSERT_GT(rows, 0u);
  uint64_t bytes = 0;
  for (size_t row = 0; row < rows; ++row) {
    CheckRow(batch, row);
    if (::testing::Test::HasFatalFailure()) return;
    bytes += batch.columns().labels[row * wire::kMaxLabels + 2];
  }
  ASSERT_EQ(batch.bytes(), bytes);
  ASSERT_EQ(batch.first_sequence(), batch.columns().seq.front());
  ASSERT_EQ(batch.last_sequence() - batch.first_sequence() + 1, rows);
}

void Checker::Run(batch::BatchQueue& queue) {
  while (!queue.finished()) {
    for (const auto& batch : queue.Pop(1, kForever)) {
      // One failure tells enough; the flow must still come to its end.
      if (!::testing::Test::HasFatalFailure()) Check(*batch);
    }
  }
}

uint64_t Checker::of(uint64_t producer) const {
  const auto found = count_.find(producer);
  return found == count_.end() ? 0 : found->second;
}

}  // namespace dmi::testing
