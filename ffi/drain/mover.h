// SPDX-License-Identifier: Apache-2.0
// Which bytes move next over the link, and where every moved record lies.
//
//   moved  <=  issued  <=  ready
//
//   up to `moved`   records that landed whole, maybe a part of the next one
//   up to `issued`  chunks under way, each in one piece in the ring and in
//                   staging, maybe a part of the next record
//   up to `ready`   what the next chunks are planned of
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
  // Without staging, records are where they land. Begins at a record, which
  // lies at `reached` or at the start of the ring.
  Mover(ring::Ring& ring, ring::Staging* staging, uint64_t sequence,
        uint64_t reached);

  // What could move in one piece behind what was issued: bytes up to record
  // `ready`, and of the first one; 0, 0 if nothing can.
  struct Available {
    uint64_t bytes;
    uint64_t first;
  };
  Available Look(uint64_t ready);

  // The next chunk of at most `limit` bytes and `records` records, or nullopt.
  // Changes nothing.
  std::optional<Chunk> Plan(uint64_t ready, uint64_t limit, uint64_t records,
                            Cut cut);
  // The chunk that was planned last is issued: its place is taken.
  void Take(const Chunk& chunk);
  // The oldest chunk under way has landed.
  void Land(const Chunk& chunk) { moved_ = chunk.sequence; }

  // Sequence after the last record that landed whole.
  uint64_t moved() const { return moved_; }
  // Sequence after the last record that was issued whole.
  uint64_t issued() const { return issued_; }
  // Whether every record was issued whole or not at all.
  bool between() const { return partial_ == 0; }
  // Where in the ring the last record issued whole ends, in bytes; padding may
  // follow.
  uint64_t reached() const { return reached_; }
  // In place only, between records and with nothing under way: records before
  // `sequence`, which end at `reached`, count as moved.
  void SkipTo(uint64_t sequence, uint64_t reached) {
    moved_ = issued_ = sequence;
    reached_ = reached;
  }

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
  uint64_t moved_;
  uint64_t issued_;
  uint64_t partial_ = 0;  // bytes issued of record `issued_`
  uint64_t reached_;
  // By slot: where records that are moving or moved lie in staging.
  std::vector<uint64_t> places_;
};

}  // namespace dmi::drain

#endif  // DMI_DRAIN_MOVER_H_
