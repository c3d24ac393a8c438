// SPDX-License-Identifier: Apache-2.0
// The columns of a batch, in the memory layout of Arrow arrays.
#ifndef DMI_BATCH_COLUMNS_H_
#define DMI_BATCH_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire/slot.h"

namespace dmi::batch {

// One element of an Arrow binary_view array: short values stand inside, long
// ones as prefix, buffer index and offset.
struct View {
  int32_t size;
  uint8_t rest[12];
};
static_assert(sizeof(View) == 16);

inline constexpr uint64_t kInlineBytes = sizeof(View::rest);

// crc32c over a row's fixed words, so that a flipped bit in any column shows.
// An absent step or layer counts as 0.
uint32_t RowCheck(uint64_t seq, uint64_t site, uint64_t layout, int64_t step,
                  int64_t layer, const uint64_t labels[wire::kMaxLabels],
                  uint64_t boundary, int64_t time, uint32_t flags, uint32_t crc,
                  uint64_t bytes);

// How much of a batch one site is.
struct SiteTally {
  uint64_t site;
  uint64_t records;
  uint64_t bytes;
};

// Filled row by row; `Clear` keeps the memory for the next batch.
struct Columns {
  std::vector<uint64_t> seq, site, layout, boundary;
  std::vector<int64_t> step, layer, time;
  std::vector<uint8_t> step_valid, layer_valid;  // bitmaps, low bit first
  std::vector<uint64_t> labels;                  // kMaxLabels per row
  std::vector<uint32_t> flags, crc, check;
  std::vector<View> views;
  // Not columns: the sites and the layouts (but 0) of the batch, each once.
  std::vector<SiteTally> sites;
  std::vector<uint64_t> layouts;

  size_t rows() const { return seq.size(); }
  void Reserve(size_t rows);
  void Clear();

  // Adds the record of `slot`, stamped at `utc` nanoseconds, whose payload lies
  // at `payload`; offsets count from `base`, the start of the batch's payload.
  void Add(uint64_t sequence, const wire::Slot& slot, int64_t utc,
           const uint8_t* payload, const uint8_t* base);

 private:
  void Tally(const wire::Slot& slot);

  size_t next_site_ = 0;  // where the next record's site is expected
};

}  // namespace dmi::batch

#endif  // DMI_BATCH_COLUMNS_H_
