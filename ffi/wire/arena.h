// SPDX-License-Identifier: Apache-2.0
// The image of an arena: what one upload carries, as a program reads it.
//
//   [entry of each definition][submissions, in submit order][lists][zeros]
//
// An image is an array of 32-bit words, little endian, and every reference in
// it counts words from its start: it means the same wherever it lies. The entry
// of a definition leads to its list, which leads to its submissions. All of
// them are read at run time, so one compiled program serves any number of
// submissions.
//
// Every byte is defined: what no argument occupies is 0.
#ifndef DMI_WIRE_ARENA_H_
#define DMI_WIRE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace dmi::wire {

inline constexpr uint64_t kArenaWord = 4;  // bytes

// Submissions, and the end of the entries, lie on multiples of it.
inline constexpr uint64_t kSubmissionAlign = 64;

struct ArenaEntry {
  uint32_t count;  // submissions of the definition
  uint32_t list;   // word of the first list item: the word its submission is at
};
static_assert(sizeof(ArenaEntry) == 8);
static_assert(offsetof(ArenaEntry, list) == 4);
static_assert(std::is_trivially_copyable_v<ArenaEntry> &&
              std::is_standard_layout_v<ArenaEntry>);

// Programs index words with 32-bit integers, signed ones on some platforms.
inline constexpr uint64_t kMaxArenaBytes = ((uint64_t{1} << 31) - 1) *
                                           kArenaWord / kSubmissionAlign *
                                           kSubmissionAlign;
static_assert(kMaxArenaBytes % kSubmissionAlign == 0);
static_assert(kMaxArenaBytes / kArenaWord < uint64_t{1} << 31);

}  // namespace dmi::wire

#endif  // DMI_WIRE_ARENA_H_
