// SPDX-License-Identifier: Apache-2.0
// Arithmetic of an image.
#include "replay/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

namespace dmi::replay {
namespace {

using wire::kArenaWord;
using wire::kSubmissionAlign;

constexpr uint64_t kSmallestClass = 256;

// Requires value <= UINT64_MAX - (to - 1).
constexpr uint64_t RoundUp(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

bool IsElement(uint32_t bits) {
  return std::has_single_bit(bits) && bits <= 128;
}

Fault Measure(const Argument& argument, uint64_t limit, Region* region) {
  if (!IsElement(argument.bits)) return Fault::kBits;
  uint64_t elements = 1;
  bool empty = false;
  bool overflow = false;
  for (const int64_t size : argument.shape) {
    if (size < 0) return Fault::kNegative;
    if (size == 0) {
      empty = true;  // however large the other dimensions are
    } else {
      overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(size),
                                         &elements);
    }
  }
  if (empty) {
    elements = 0;
  } else if (overflow || elements > limit * 8 / argument.bits) {
    return Fault::kTooLarge;
  }
  region->elements = elements;
  region->bits = argument.bits;
  region->bytes = (elements * argument.bits + 7) / 8;
  return Fault::kNone;
}

// Never 0: an image without definitions is valid, too.
uint64_t HeaderBytes(size_t definitions) {
  const uint64_t bytes = definitions * sizeof(wire::ArenaEntry);
  return std::max(RoundUp(bytes, kSubmissionAlign), kSubmissionAlign);
}

}  // namespace

Fault LayOut(std::span<const Argument> arguments, SubmissionLayout* layout,
             size_t* faulty, uint64_t limit) {
  SubmissionLayout next;
  next.regions.resize(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    *faulty = i;
    const Fault fault = Measure(arguments[i], limit, &next.regions[i]);
    if (fault != Fault::kNone) return fault;
  }
  std::vector<size_t> order(arguments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return next.regions[a].bits > next.regions[b].bits;
  });
  uint64_t cursor = 0;
  for (const size_t i : order) {
    Region& region = next.regions[i];
    // Sizes and the cursor stay below 2^33, so these sums cannot wrap.
    region.offset = RoundUp(cursor, std::max<uint64_t>(region.bits / 8, 1));
    if (region.offset > cursor) {
      next.gaps.push_back({cursor, region.offset - cursor});
    }
    cursor = region.offset + region.bytes;
    next.live_bytes += region.bytes;
    if (cursor > limit) {
      *faulty = i;
      return Fault::kTooLarge;
    }
  }
  next.bytes = RoundUp(cursor, kSubmissionAlign);
  if (next.bytes > cursor) next.gaps.push_back({cursor, next.bytes - cursor});
  *layout = std::move(next);
  return Fault::kNone;
}

Image::Image(size_t definitions, uint64_t limit)
    : starts_(definitions),
      limit_(std::min(limit, wire::kMaxArenaBytes)),
      end_(HeaderBytes(definitions)) {}

uint64_t Image::TotalWith(uint64_t end, uint64_t submissions) {
  return RoundUp(end + submissions * kArenaWord, kSubmissionAlign);
}

bool Image::Fits(uint64_t bytes) const {
  // Each term is at most kMaxArenaBytes: no sum wraps.
  return bytes <= limit_ && TotalWith(end_ + bytes, submissions_ + 1) <= limit_;
}

void Image::Reserve(size_t definition) {
  std::vector<uint32_t>& starts = starts_[definition];
  if (starts.size() == starts.capacity()) {
    starts.reserve(std::max<size_t>(64, 2 * starts.size()));
  }
}

uint32_t Image::Take(size_t definition, uint64_t bytes) noexcept {
  std::vector<uint32_t>& starts = starts_[definition];
  starts.push_back(static_cast<uint32_t>(end_ / kArenaWord));
  end_ += bytes;
  ++submissions_;
  return static_cast<uint32_t>(starts.size() - 1);
}

uint32_t Image::count(size_t definition) const {
  return static_cast<uint32_t>(starts_[definition].size());
}

void Image::WriteTable(uint8_t* image) const {
  const uint64_t entries = starts_.size() * sizeof(wire::ArenaEntry);
  std::memset(image + entries, 0, HeaderBytes(starts_.size()) - entries);
  uint64_t cursor = end_;
  for (size_t d = 0; d < starts_.size(); ++d) {
    const wire::ArenaEntry entry{count(d),
                                 static_cast<uint32_t>(cursor / kArenaWord)};
    std::memcpy(image + d * sizeof(entry), &entry, sizeof(entry));
    const uint64_t size = starts_[d].size() * kArenaWord;
    if (size > 0) std::memcpy(image + cursor, starts_[d].data(), size);
    cursor += size;
  }
  std::memset(image + cursor, 0, bytes() - cursor);
}

uint64_t CapacityClass(uint64_t bytes, uint64_t multiple) {
  const uint64_t wanted = std::max(bytes, kSmallestClass);
  const uint64_t step = std::bit_floor(wanted) / 16;
  const uint64_t rounded = RoundUp(wanted, std::max(step, kSubmissionAlign));
  return RoundUp(std::min(rounded, wire::kMaxArenaBytes), multiple);
}

}  // namespace dmi::replay
