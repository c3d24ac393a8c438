// SPDX-License-Identifier: Apache-2.0
// Memory of images.
#include "replay/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "base/fork.h"

namespace dmi::replay {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

void* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void Unmap(void* memory, size_t bytes) { munmap(memory, bytes); }

// Leaked: staging may go while the process exits.
struct Numbers {
  base::Mutex mutex;
  std::set<int64_t> taken;

  static Numbers& Get() {
    static auto* numbers = new Numbers;
    return *numbers;
  }
};

}  // namespace

const StagingMemory& HostMemory() {
  static constexpr StagingMemory kMemory{&Map, &Unmap};
  return kMemory;
}

StagingNumber::StagingNumber() : value_(0) {
  Numbers& numbers = Numbers::Get();
  std::lock_guard lock(numbers.mutex);
  while (!numbers.taken.insert(value_).second) ++value_;
}

StagingNumber::~StagingNumber() {
  Numbers& numbers = Numbers::Get();
  std::lock_guard lock(numbers.mutex);
  numbers.taken.erase(value_);
}

Staging::Block::Block(const StagingMemory& memory, uint64_t bytes)
    : memory(memory),
      bytes(bytes),
      data(static_cast<uint8_t*>(memory.allocate(bytes))) {
  if (!data) throw std::bad_alloc();
}

Staging::Block::~Block() {
  pin.reset();
  memory.release(data, bytes);
}

Staging::Staging(const StagingMemory& memory) : memory_(memory) {}

std::shared_ptr<const void> Staging::Lease() const {
  block_->leased.fetch_add(1, std::memory_order_relaxed);
  // Release: whoever gives the lease back is done with the memory.
  return {block_->data, [block = block_](const void*) {
            block->leased.fetch_sub(1, std::memory_order_release);
          }};
}

uint64_t Staging::leases() const {
  return block_ ? block_->leased.load(std::memory_order_acquire) : 0;
}

void Staging::Grow(uint64_t bytes, uint64_t used) {
  if (bytes <= capacity()) return;
  // Whole pages, so that small growth costs nothing.
  const uint64_t rounded =
      (bytes + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
  auto next = std::make_shared<Block>(memory_, rounded);
  // Also brings the pages into memory, which a packer should not wait for.
  std::memset(next->data, 0, next->bytes);
  const uint64_t kept = std::min(used, capacity());
  if (kept > 0) std::memcpy(next->data, image(), kept);
  block_ = std::move(next);
  touched_ = kept;
  ++allocations_;
}

void Staging::Clear(uint64_t from, uint64_t to) {
  const uint64_t dirty = std::min(to, touched_);
  if (dirty > from) std::memset(image() + from, 0, dirty - from);
  if (touched_ <= to) touched_ = std::min(touched_, from);
}

void Staging::Fill(uint8_t value) {
  if (block_) std::memset(image(), value, capacity());
  touched_ = capacity();
}

}  // namespace dmi::replay
