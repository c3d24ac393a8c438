// SPDX-License-Identifier: Apache-2.0
// The memory that the bodies under test run on.
//
// Every thread of a test is a fiber of Relacy, which decides at each access of
// a watched word who runs next and, as far as the orders allow, which value is
// seen. A suite watches the words that its threads meet by; the others are
// accessed as they are, which no other thread comes between.
//
// Payloads and slots are variables of Relacy: two accesses, one of them a
// write, with nothing to order them are an error. So is an access to a ring
// that has been freed, because freeing writes what every access reads.
#ifndef DMI_MODEL_MEMORY_H_
#define DMI_MODEL_MEMORY_H_

#include "model/relacy.h"
#include "wire/control.h"
#include "wire/device_ring.h"
#include "wire/slot.h"

namespace dmi::model {

enum class Access {
  kLoadRelaxed,
  kLoadAcquire,
  kLoadSeqCst,
  kStoreRelaxed,
  kStoreRelease,
  kStoreSeqCst,
  kAddRelaxed,
  kAddAcqRel,
  kAddSeqCst,
  kExchangeAcquire,
  kExchangeAcqRel,
  kReplaceRelease,
};

enum class Word {
  kAny,  // of those that are watched
  kControlRing,
  kInFlight,
  kProgress,
  kHead,
  kCachedTail,
  kTail,
  kPublication,
  kBoundaryCount,
  kTag,
  kStampProgress,
  kStampTime,
  kMirror,
  kAnswer,
  kClosed,
  kArrived,
  kWaiting,
  kSeenTail,
  kQuietSince,
  kSpent,
};

// One order of the product, weakened: each has to be found out.
struct Mutation {
  const char* name = "as it is";
  Word word = Word::kAny;
  Access access = Access::kLoadRelaxed;
  rl::memory_order order = rl::mo_relaxed;
  // Whoever takes the ring away does not wait for publications.
  bool believe_published = false;

  bool Hits(Word what, Access how) const {
    return word != Word::kAny && word == what && access == how;
  }
};

// How sequentially consistent accesses are made: as C++ has them, or by the
// instructions of atomics_ptx.h, a fence before a weaker access.
enum class Mapping { kCpp, kPtx };

inline Mutation mutation;
inline Mapping mapping = Mapping::kCpp;

inline void Yield() { rl::yield(1, RL_INFO); }
inline void Require(bool holds, const char* what) {
  if (!holds) {
    rl::ctx().fail_test(what, rl::test_result_user_assert_failed, RL_INFO);
  }
}

inline constexpr uint32_t kUnits = 2;  // and slots
inline constexpr int kParts = 2;       // of a payload, by the blocks that copy

// Everything of one ring, as the product lays it out.
struct RingWords {
  wire::DeviceRing device;  // of a ring of the host only the header in it
  wire::DeviceMirror mirror;
  wire::Slot slots[kUnits];
  wire::BoundaryStamp log[wire::kBoundaryLogSize];
  wire::SiteCounters sites[1];
  alignas(64) uint8_t payload[kUnits * wire::kPayloadUnit];
  alignas(64) uint8_t signals[64];
};

class Memory {
 public:
  static constexpr int kRings = 2;

  Memory() {
    current_ = this;
    control.gates = reinterpret_cast<uint64_t>(&gate);
    for (RingWords& words : rings) {
      wire::RingHeader& header = words.device.ring;
      header.payload = reinterpret_cast<uint64_t>(words.payload);
      header.slots = reinterpret_cast<uint64_t>(words.slots);
      header.sites = reinterpret_cast<uint64_t>(words.sites);
      header.boundaries = reinterpret_cast<uint64_t>(words.log);
      header.signals = reinterpret_cast<uint64_t>(words.signals);
      header.extent = {kUnits, kUnits, wire::SpanOf(kUnits)};
      header.overflow = wire::Overflow::kDrop;
      header.wake_records = header.wake_units = ~uint32_t{0};
      words.device.mirror = reinterpret_cast<uint64_t>(&words.mirror);
      words.mirror.ring = header;
      words.mirror.answer = ~uint64_t{0};  // none yet
    }
    control.ring = reinterpret_cast<uint64_t>(&rings[0].device);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static Memory& Current() { return *current_; }

  // Before the threads run; its value then is the word's first.
  template <typename T>
  void Watch(Word what, const T& word) {
    const size_t at = Place(&word);
    Require(at < kPlaces && count_ < kMost, "cannot be watched");
    index_[at] = static_cast<uint8_t>(count_ + 1);
    what_[count_] = what;
    words_[count_++].emplace(static_cast<uint64_t>(word));
  }

  // Its last value, after the threads have ended.
  template <typename T>
  T Last(const T& word) {
    rl::atomic<uint64_t>* atomic = Find(word);
    return atomic ? static_cast<T>(atomic->debug_value()) : word;
  }

  // ---- What atomics.h is made of ----

  template <typename T>
  static T Load(const T& word, Access how) {
    Memory& memory = Current();
    memory.Touch(&word);
    rl::atomic<uint64_t>* atomic = memory.Find(word);
    if (!atomic) return word;
    const Word what = memory.WhatIs(word);
    if (mutation.believe_published && what == Word::kPublication) {
      return static_cast<T>(wire::PublicationOf(1));
    }
    rl::memory_order order = how == Access::kLoadRelaxed   ? rl::mo_relaxed
                             : how == Access::kLoadAcquire ? rl::mo_acquire
                                                           : rl::mo_seq_cst;
    order = Order(what, how, order, rl::mo_acquire);
    return static_cast<T>((*atomic)(RL_INFO).load(order));
  }

  template <typename T>
  static void Store(T& word, T value, Access how) {
    Memory& memory = Current();
    memory.Touch(&word);
    rl::atomic<uint64_t>* atomic = memory.Find(word);
    if (!atomic) {
      word = value;
      return;
    }
    const Word what = memory.WhatIs(word);
    if (what == Word::kPublication) memory.Slot (&word)(RL_INFO) = 1;
    rl::memory_order order = how == Access::kStoreRelaxed   ? rl::mo_relaxed
                             : how == Access::kStoreRelease ? rl::mo_release
                                                            : rl::mo_seq_cst;
    order = Order(what, how, order, rl::mo_release);
    (*atomic)(RL_INFO).store(static_cast<uint64_t>(value), order);
  }

  template <typename T>
  static T Add(T& word, T value, Access how) {
    Memory& memory = Current();
    memory.Touch(&word);
    rl::atomic<uint64_t>* atomic = memory.Find(word);
    if (!atomic) {
      const T old = word;
      word = old + value;
      return old;
    }
    rl::memory_order order = how == Access::kAddRelaxed  ? rl::mo_relaxed
                             : how == Access::kAddAcqRel ? rl::mo_acq_rel
                                                         : rl::mo_seq_cst;
    order = Order(memory.WhatIs(word), how, order, rl::mo_acq_rel);
    return static_cast<T>(
        (*atomic)(RL_INFO).fetch_add(static_cast<uint64_t>(value), order));
  }

  template <typename T>
  static bool Exchange(T& word, T& expected, T desired, Access how) {
    Memory& memory = Current();
    memory.Touch(&word);
    rl::atomic<uint64_t>* atomic = memory.Find(word);
    if (!atomic) {
      const bool same = word == expected;
      (same ? word : expected) = same ? desired : word;
      return same;
    }
    rl::memory_order order = how == Access::kExchangeAcquire  ? rl::mo_acquire
                             : how == Access::kExchangeAcqRel ? rl::mo_acq_rel
                                                              : rl::mo_release;
    order = Order(memory.WhatIs(word), how, order, order);
    const rl::memory_order failure =
        order == rl::mo_acquire ? rl::mo_acquire : rl::mo_relaxed;
    auto access = (*atomic)(RL_INFO);
    return how == Access::kReplaceRelease
               ? access.compare_exchange_strong(expected, desired, order,
                                                failure)
               : access.compare_exchange_weak(expected, desired, order,
                                              failure);
  }

  // ---- Plain memory ----

  // One access, of any kind, to what a ring consists of.
  void Touch(const void* address) {
    const auto at = reinterpret_cast<uint64_t>(address);
    for (int i = 0; i < kRings; ++i) {
      const auto begin = reinterpret_cast<uint64_t>(&rings[i]);
      if (at - begin < sizeof(RingWords)) alive_[i](RL_INFO).load();
    }
  }
  void Free(int ring) { alive_[ring](RL_INFO) = 0; }
  void Make(int ring) { alive_[ring](RL_INFO) = 1; }

  // Part `part` of the unit of payload at `to`, or both parts.
  void WritePayload(const void* to, uint64_t value, uint64_t part) {
    Touch(to);
    Payload(to, part)(RL_INFO) = value;
  }
  // What both parts hold.
  uint64_t ReadPayload(const void* from) {
    const uint64_t first = Payload(from, 0)(RL_INFO).load();
    Require(Payload(from, 1)(RL_INFO).load() == first, "a torn payload");
    return first;
  }
  void ReadSlot(const wire::Slot& slot) { Slot (&slot)(RL_INFO).load(); }

  wire::ControlBlock control{};
  uint32_t gate = 0;
  RingWords rings[kRings]{};
  alignas(64) uint64_t scratch[8]{};
  uint32_t blocks = 1;  // that copy a record
  int64_t nanos = 0;    // device time

 private:
  static constexpr size_t kMost = 32;

  size_t Place(const void* address) const {
    return (reinterpret_cast<uint64_t>(address) -
            reinterpret_cast<uint64_t>(&control)) /
           sizeof(uint32_t);
  }
  rl::atomic<uint64_t>* Find(const auto& word) {
    const size_t at = Place(&word);
    if (at >= kPlaces || index_[at] == 0) return nullptr;
    return &*words_[index_[at] - 1];
  }
  Word WhatIs(const auto& word) const {
    return what_[index_[Place(&word)] - 1];
  }

  // The order of an access, and the fence before it where there is one.
  static rl::memory_order Order(Word what, Access how, rl::memory_order order,
                                rl::memory_order behind_fence) {
    if (mutation.Hits(what, how)) return mutation.order;
    if (order != rl::mo_seq_cst || mapping == Mapping::kCpp) return order;
    rl::atomic_thread_fence(rl::mo_seq_cst, RL_INFO);
    return behind_fence;
  }

  rl::var<uint64_t>& Slot(const void* in) {
    for (int i = 0; i < kRings; ++i) {
      const auto* slots = rings[i].slots;
      for (uint32_t k = 0; k < kUnits; ++k) {
        if (in == &slots[k]) return slot_[i * kUnits + k];
      }
    }
    Require(false, "not a slot");
    return slot_[0];
  }
  rl::var<uint64_t>& Payload(const void* at, uint64_t part) {
    for (int i = 0; i < kRings; ++i) {
      for (uint32_t k = 0; k < kUnits; ++k) {
        if (at == rings[i].payload + k * wire::kPayloadUnit) {
          return payload_[(i * kUnits + k) * kParts + part];
        }
      }
    }
    Require(false, "not a unit of a payload");
    return payload_[0];
  }

  inline static Memory* current_;

  static constexpr size_t kPlaces =
      (sizeof(wire::ControlBlock) + sizeof(RingWords) * kRings + 1024) /
      sizeof(uint32_t);
  std::array<uint8_t, kPlaces> index_{};
  Word what_[kMost]{};
  size_t count_ = 0;
  std::optional<rl::atomic<uint64_t>> words_[kMost];
  rl::var<uint64_t> alive_[kRings]{1, 1};
  rl::var<uint64_t> slot_[kRings * kUnits];
  rl::var<uint64_t> payload_[kRings * kUnits * kParts];
};

}  // namespace dmi::model

#endif  // DMI_MODEL_MEMORY_H_
