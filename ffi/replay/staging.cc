// SPDX-License-Identifier: Apache-2.0
#include "replay/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

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

}  // namespace

const StagingMemory& HostMemory() {
  static constexpr StagingMemory kMemory{&Map, &Unmap};
  return kMemory;
}

Staging::Staging(const StagingMemory& memory) : memory_(memory) {}

Staging::~Staging() {
  if (image_) memory_.release(image_ - kImageOffset, capacity_ + kImageOffset);
}

void Staging::Grow(uint64_t bytes, uint64_t used) {
  if (bytes <= capacity_) return;
  // Whole pages, so that small growth costs nothing.
  const uint64_t rounded = (bytes + kImageOffset + kStagingAlign - 1) /
                           kStagingAlign * kStagingAlign;
  auto* memory = static_cast<uint8_t*>(memory_.allocate(rounded));
  if (!memory) throw std::bad_alloc();
  uint8_t* image = memory + kImageOffset;
  // Also brings the pages into memory, which a packer should not wait for.
  std::memset(image, 0, rounded - kImageOffset);
  if (used > 0) std::memcpy(image, image_, used);
  if (image_) memory_.release(image_ - kImageOffset, capacity_ + kImageOffset);
  image_ = image;
  capacity_ = rounded - kImageOffset;
  touched_ = used;
  ++allocations_;
}

void Staging::Clear(uint64_t from, uint64_t to) {
  const uint64_t dirty = std::min(to, touched_);
  if (dirty > from) std::memset(image_ + from, 0, dirty - from);
  if (touched_ <= to) touched_ = std::min(touched_, from);
}

void Staging::Fill(uint8_t value) {
  if (image_) std::memset(image_, value, capacity_);
  touched_ = capacity_;
}

}  // namespace dmi::replay
