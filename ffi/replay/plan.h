// SPDX-License-Identifier: Apache-2.0
// Plans an image: where everything goes, before a byte is written.
//
// Pure arithmetic, checked for overflow; nothing here allocates storage for an
// image or touches it. A refusal changes nothing.
#ifndef DMI_REPLAY_PLAN_H_
#define DMI_REPLAY_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/arena.h"

namespace dmi::replay {

// Why something cannot be laid out.
enum class Fault {
  kNone = 0,
  kBits,      // no element has that many bits
  kNegative,  // a dimension is negative
  kTooLarge,  // over the limit, or over what 64 bits can count
};

struct Argument {
  uint32_t bits;  // of an element: 1, 2, 4 or whole bytes up to 16
  std::vector<int64_t> shape;
};

// Where an argument lies in its submission. Elements below a byte are packed,
// the first one in the low bits; the caller holds one of them per byte.
struct Region {
  uint64_t offset;  // bytes from the start of the submission
  uint64_t bytes;
  uint64_t elements;
  uint32_t bits;

  uint64_t source_bytes() const { return bits < 8 ? elements : bytes; }
};

struct Gap {
  uint64_t offset;
  uint64_t bytes;
};

// A submission of one definition: all of them are laid out alike.
struct SubmissionLayout {
  std::vector<Region> regions;  // in the order of the arguments
  std::vector<Gap> gaps;        // what no region covers
  uint64_t bytes = 0;           // a multiple of kSubmissionAlign
  uint64_t live_bytes = 0;      // sum over the regions
};

// Lays the arguments out: widest elements first, so that each lies on a
// multiple of its element. On a fault `*faulty` is the index of the argument
// and
// `*layout` is as before.
Fault LayOut(std::span<const Argument> arguments, SubmissionLayout* layout,
             size_t* faulty, uint64_t limit = wire::kMaxArenaBytes);

// The cursor of one image.
class Image {
 public:
  explicit Image(size_t definitions, uint64_t limit = wire::kMaxArenaBytes);

  // Whether another submission of `bytes`, a multiple of kSubmissionAlign,
  // still fits beside its list item. It would begin at end().
  bool Fits(uint64_t bytes) const;

  // Makes sure that the next Take cannot fail. Throws std::bad_alloc.
  void Reserve(size_t definition);

  // Claims what Fits promised and returns the submission's index within its
  // definition. Requires Reserve since the last Take.
  uint32_t Take(size_t definition, uint64_t bytes) noexcept;

  uint64_t end() const { return end_; }
  uint64_t submissions() const { return submissions_; }
  size_t definitions() const { return starts_.size(); }
  uint32_t count(size_t definition) const;

  // Size of the complete image, a multiple of kSubmissionAlign.
  uint64_t bytes() const { return TotalWith(end_, submissions_); }

  // Writes entries and lists into `image`, of bytes() bytes, and zeros between
  // them.
  void WriteTable(uint8_t* image) const;

 private:
  static uint64_t TotalWith(uint64_t end, uint64_t submissions);

  std::vector<std::vector<uint32_t>> starts_;  // words, per definition
  uint64_t limit_;
  uint64_t end_;
  uint64_t submissions_ = 0;
};

// The class of sizes `bytes` belongs to: the smallest one that holds it and is
// a multiple of `multiple`. Classes are a sixteenth apart, so that an upload
// carries little more than it must and programs, compiled for a class, are
// rarely compiled again. Requires bytes <= kMaxArenaBytes.
uint64_t CapacityClass(uint64_t bytes, uint64_t multiple);

}  // namespace dmi::replay

#endif  // DMI_REPLAY_PLAN_H_
