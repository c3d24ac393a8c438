// SPDX-License-Identifier: Apache-2.0
// Which bytes move next over the link, and where every moved record lies.
//
//   [moved)  records that landed whole, maybe the first part of the next one
//   chunk    the bytes under way: in one piece in the ring and where they land
//
// Drain thread only.
#ifndef DMI_DRAIN_MOVER_H_
#define DMI_DRAIN_MOVER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ring/ring.h"
#include "ring/staging.h"

namespace dmi::drain {

struct Chunk {
  uint64_t place;  // in staging; 0 in place
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;    // over the link, with what lies between records
  uint64_t payload;  // of records only
  // Where it ends: records before `sequence`, and so much of that one.
  uint64_t sequence;
  uint64_t partial;
};

// How a limit cuts.
enum class Cut {
  kAnywhere,  // also inside a record
  kBetween,  // only between records, behind at least one, or what is left of it
};

class Mover {
 public:
  // Without staging, records are where they land. Begins at `sequence`.
  Mover(ring::Ring& ring, ring::Staging* staging, uint64_t sequence);

  // What could move in one piece: bytes up to record `ready`, and of the first
  // one; 0, 0 if nothing can.
  struct Available {
    uint64_t bytes;
    uint64_t first;
  };
  Available Look(uint64_t ready);

  // The next chunk of at most `limit` bytes and `records` records, or nullopt.
  // Changes nothing.
  std::optional<Chunk> Plan(uint64_t ready, uint64_t limit, uint64_t records,
                            Cut cut);
  // The chunk will move: its place is taken.
  void Take(const Chunk& chunk);
  void Land(const Chunk& chunk);

  // Sequence after the last record that moved whole.
  uint64_t moved() const { return sequence_; }
  // Whether no record has moved in part.
  bool between() const { return partial_ == 0; }
  // In place only: records before `sequence` count as moved.
  void SkipTo(uint64_t sequence) { sequence_ = sequence; }

  // The payload of a record that moved.
  const uint8_t* PayloadOf(uint64_t sequence) const;
  // Position in staging after a record that moved.
  uint64_t StagingEndOf(uint64_t sequence) const;

 private:
  uint64_t PositionOf(uint64_t sequence) const;
  // Where the next byte would land; nullopt while there is no room.
  std::optional<uint64_t> NextPlace() const;

  ring::Ring& ring_;
  ring::Staging* const staging_;
  uint64_t sequence_;
  uint64_t partial_ = 0;
  // By slot: where records that are moving or moved lie in staging.
  std::vector<uint64_t> places_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_MOVER_H_
