// SPDX-License-Identifier: Apache-2.0
// The columns of a batch, see the header.
#include "batch/columns.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace dmi::batch {
namespace {

View ViewOf(const uint8_t* payload, uint64_t bytes, const uint8_t* base) {
  View view{static_cast<int32_t>(bytes), {}};
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(view.rest, payload, bytes);
    return view;
  }
  const int32_t buffer = 0;
  const auto offset = static_cast<int32_t>(payload - base);
  std::memcpy(view.rest, payload, 4);
  std::memcpy(view.rest + 4, &buffer, 4);
  std::memcpy(view.rest + 8, &offset, 4);
  return view;
}

void AddBit(std::vector<uint8_t>& bitmap, size_t row, bool bit) {
  if (row % 8 == 0) bitmap.push_back(0);
  if (bit) bitmap.back() |= static_cast<uint8_t>(1u << row % 8);
}

}  // namespace

uint32_t RowCheck(uint64_t seq, uint64_t site, uint64_t layout, int64_t step,
                  int64_t layer, const uint64_t labels[wire::kMaxLabels],
                  uint64_t boundary, int64_t time, uint32_t flags, uint32_t crc,
                  uint64_t bytes) {
  const uint64_t words[] = {seq,
                            site,
                            layout,
                            static_cast<uint64_t>(step),
                            static_cast<uint64_t>(layer),
                            labels[0],
                            labels[1],
                            labels[2],
                            labels[3],
                            boundary,
                            static_cast<uint64_t>(time),
                            uint64_t{flags} | uint64_t{crc} << 32,
                            bytes};
  return base::Crc32c(words, sizeof words);
}

void Columns::Reserve(size_t rows) {
  for (auto* column : {&seq, &site, &layout, &boundary}) column->reserve(rows);
  for (auto* column : {&step, &layer, &time}) column->reserve(rows);
  for (auto* column : {&step_valid, &layer_valid}) {
    column->reserve((rows + 7) / 8);
  }
  labels.reserve(rows * wire::kMaxLabels);
  for (auto* column : {&flags, &crc, &check}) column->reserve(rows);
  views.reserve(rows);
}

void Columns::Clear() {
  for (auto* column : {&seq, &site, &layout, &boundary, &labels}) {
    column->clear();
  }
  for (auto* column : {&step, &layer, &time}) column->clear();
  for (auto* column : {&step_valid, &layer_valid}) column->clear();
  for (auto* column : {&flags, &crc, &check}) column->clear();
  views.clear();
  sites.clear();
  layouts.clear();
  next_site_ = 0;
}

void Columns::Tally(const wire::Slot& slot) {
  // Programs repeat, so the next site is mostly the one that came next before.
  size_t i = 0;
  for (; i < sites.size(); ++i) {
    const size_t at = (next_site_ + i) % sites.size();
    if (sites[at].site == slot.site) {
      ++sites[at].records;
      sites[at].bytes += slot.bytes;
      next_site_ = at + 1;
      break;
    }
  }
  if (i == sites.size()) {
    sites.push_back({slot.site, 1, slot.bytes});
    next_site_ = 0;
  }
  if (slot.layout != 0 && std::find(layouts.rbegin(), layouts.rend(),
                                    slot.layout) == layouts.rend()) {
    layouts.push_back(slot.layout);
  }
}

void Columns::Add(uint64_t sequence, const wire::Slot& slot, int64_t utc,
                  const uint8_t* payload, const uint8_t* base) {
  const size_t row = rows();
  const bool has_step = slot.flags & wire::kHasStep;
  const bool has_layer = slot.flags & wire::kHasLayer;
  const int64_t row_step = has_step ? slot.step : 0;
  const int64_t row_layer = has_layer ? slot.layer : 0;
  seq.push_back(sequence);
  site.push_back(slot.site);
  layout.push_back(slot.layout);
  step.push_back(row_step);
  layer.push_back(row_layer);
  AddBit(step_valid, row, has_step);
  AddBit(layer_valid, row, has_layer);
  labels.insert(labels.end(), slot.labels, slot.labels + wire::kMaxLabels);
  boundary.push_back(slot.boundary);
  time.push_back(utc);
  flags.push_back(slot.flags);
  crc.push_back(slot.crc);
  check.push_back(RowCheck(sequence, slot.site, slot.layout, row_step,
                           row_layer, slot.labels, slot.boundary, utc,
                           slot.flags, slot.crc, slot.bytes));
  views.push_back(ViewOf(payload, slot.bytes, base));
  Tally(slot);
}

}  // namespace dmi::batch
