// SPDX-License-Identifier: Apache-2.0
// What a ring is watched by, and a drain for it.
#ifndef DMI_MODEL_DRAIN_H_
#define DMI_MODEL_DRAIN_H_

#include "model/memory.h"
#include "program/atomics.h"

namespace dmi::model {

// Watches what producers and a drain meet by.
inline void WatchRing(Memory& memory, RingWords& words, uint64_t& tail) {
  memory.Watch(Word::kHead, words.device.ring.head);
  memory.Watch(Word::kCachedTail, words.device.ring.cached_tail);
  memory.Watch(Word::kTail, tail);
  for (wire::Slot& slot : words.slots) {
    memory.Watch(Word::kPublication, slot.publication);
  }
}

// One thread, like the drain: reads published records in order and frees each.
class Drain {
 public:
  Drain(Memory& memory, RingWords& words, uint64_t& tail)
      : memory_(memory), words_(words), tail_(tail) {}

  // False where the next record is not there yet.
  bool Consume() {
    const wire::Slot& slot = words_.slots[next_.sequence % kUnits];
    const uint64_t word = program::LoadAcquire(slot.publication);
    if (word != wire::PublicationOf(next_.sequence)) {
      Require(word == 0 || word < wire::PublicationOf(next_.sequence),
              "overrun");
      return false;
    }
    memory_.ReadSlot(slot);
    const uint64_t value = memory_.ReadPayload(words_.payload + slot.position);
    Require(static_cast<uint64_t>(slot.step) == value,
            "a slot of another payload");
    const uint32_t bit = 1u << value;
    Require(!(seen_ & bit), "a record came twice");
    seen_ |= bit;
    next_ = {next_.sequence + 1, next_.position + 1};
    program::StoreRelease(tail_, wire::Pack(next_));
    return true;
  }

  uint32_t seen() const { return seen_; }  // a bit per value
  uint32_t count() const { return next_.sequence; }

 private:
  Memory& memory_;
  RingWords& words_;
  uint64_t& tail_;
  wire::Cursor next_{};
  uint32_t seen_ = 0;
};

}  // namespace dmi::model

#endif  // DMI_MODEL_DRAIN_H_
