// SPDX-License-Identifier: Apache-2.0
// The ring, see the header.
#include "ring/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>

#include "base/clock.h"
#include "wire/progress.h"

namespace dmi::ring {
namespace {

constexpr uint64_t kHugePage = 2u << 20;
constexpr uint64_t kMostAhead = 64u << 20;

uint64_t RoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

// An even number of units, so that half the ring is a whole number of them.
uint32_t UnitsOf(uint64_t bytes) {
  const uint64_t units =
      std::max<uint64_t>(2, RoundUp(wire::UnitsFor(bytes), 2));
  if (units > wire::kMaxUnits) {
    throw std::invalid_argument("a ring holds at most 64 GiB");
  }
  return static_cast<uint32_t>(units);
}

uint32_t SlotsOf(uint32_t slots) {
  if (slots > wire::kMaxSlots) {
    throw std::invalid_argument("a ring has at most 2^30 slots");
  }
  return std::bit_ceil(std::max(2u, slots));
}

}  // namespace

Pages::Pages(uint64_t bytes, bool huge) : size_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(memory);
  // Only advice: large copies run twice as fast into huge pages.
  if (huge && bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, size_);
}

Ring::Ring(const RingOptions& options, Payload payload)
    : header_page_(payload == Payload::kHere ? 0 : kHeaderBytes, false),
      payload_(payload == Payload::kHere
                   ? uint64_t{UnitsOf(options.bytes)} * wire::kPayloadUnit
                   : 0,
               true),
      slots_(SlotsOf(options.slots) * sizeof(wire::Slot), false),
      sites_(payload == Payload::kHere
                 ? wire::kMaxSites * sizeof(wire::SiteCounters)
                 : 0,
             false),
      boundaries_(wire::kBoundaryLogSize * sizeof(wire::BoundaryStamp), false),
      signals_(options.stall_nanos),
      header_(payload == Payload::kHere
                  ? own_header_
                  : *reinterpret_cast<wire::RingHeader*>(header_page_.data())) {
  const uint32_t units = UnitsOf(options.bytes);
  const uint64_t wake_units =
      std::min<uint64_t>(wire::UnitsFor(options.wake_bytes), units / 2);
  const uint32_t slots = SlotsOf(options.slots);
  header_.payload = reinterpret_cast<uint64_t>(payload_.data());
  header_.slots = reinterpret_cast<uint64_t>(slots_.data());
  header_.sites = reinterpret_cast<uint64_t>(sites_.data());
  header_.boundaries = reinterpret_cast<uint64_t>(boundaries_.data());
  header_.extent = {units, slots, wire::SpanOf(units)};
  header_.overflow = options.overflow;
  header_.checksum = options.checksum ? 1 : 0;
  header_.wake_records = std::clamp(options.wake_records, 1u, slots / 2);
  header_.wake_units = static_cast<uint32_t>(std::max<uint64_t>(1, wake_units));
  header_.clock = reinterpret_cast<uint64_t>(options.clock);
  header_.clock_offset = options.clock == nullptr
                             ? base::UtcOffsetNanos()
                             : base::UtcNanos() - options.clock->load();
  header_.wake_progress = ~uint64_t{0};
  header_.signals = reinterpret_cast<uint64_t>(&signals_);
}

std::vector<wire::SiteCounters> Ring::Counters(size_t first,
                                               size_t count) const {
  const auto* all =
      reinterpret_cast<const wire::SiteCounters*>(header_.sites) + first;
  std::vector<wire::SiteCounters> counters(count);
  for (size_t site = 0; site < count; ++site) {
    counters[site].recorded = program::LoadRelaxed(all[site].recorded);
    for (uint32_t i = 0; i < wire::kLossReasons; ++i) {
      counters[site].lost[i] = program::LoadRelaxed(all[site].lost[i]);
    }
  }
  return counters;
}

const wire::Slot& Ring::slot(uint64_t sequence) const {
  return reinterpret_cast<const wire::Slot*>(
      slots_.data())[sequence & (header_.extent.slots - 1)];
}

void Pages::PopulateAhead(uint64_t reached) {
  if (populated_ == size_) return;
  // Four times what is in use: a lone record takes no memory in advance.
  const uint64_t ahead = reached + std::min(4 * reached, kMostAhead);
  const uint64_t wanted =
      ahead >= size_ ? size_ : ahead / kHugePage * kHugePage;
  if (wanted <= populated_) return;
#ifdef MADV_POPULATE_WRITE
  // Where it fails, producers take the faults instead.
  madvise(data_ + populated_, wanted - populated_, MADV_POPULATE_WRITE);
#endif
  populated_ = wanted;
}

void Ring::PopulateAhead(uint64_t sequence, uint32_t position) {
  slots_.PopulateAhead(sequence * sizeof(wire::Slot));
  payload_.PopulateAhead(uint64_t{position} * wire::kPayloadUnit);
}

void Ring::Release(uint64_t id) {
  // Release: whatever read the span is done with it.
  const bool freed = leases_.Release(id, [&](wire::Cursor end) {
    program::StoreRelease(header_.tail, wire::Pack(end));
  });
  if (freed) signals_.SpaceFreed();
}

}  // namespace dmi::ring
