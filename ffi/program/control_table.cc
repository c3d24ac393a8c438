// SPDX-License-Identifier: Apache-2.0
// Control blocks, see the header.
#include "program/control_table.h"

#include <sys/mman.h>

#include <new>

#include "base/fork.h"

namespace dmi::program {
namespace {

// Untouched gates cost no memory.
uint64_t MakeGates() {
  void* memory =
      mmap(nullptr, wire::kMaxSites * sizeof(uint32_t), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return reinterpret_cast<uint64_t>(memory);
}

}  // namespace

ControlTable& ControlTable::Host() {
  // Leaked: programs may run while the process exits.
  static ControlTable* table = new ControlTable;
  return *table;
}

wire::ControlBlock* ControlTable::Find(int32_t ordinal) const {
  const int count = count_.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (entries_[i].ordinal == ordinal) return entries_[i].block;
  }
  return nullptr;
}

wire::ControlBlock* ControlTable::FindDevice(int64_t device) const {
  const int count = count_.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (entries_[i].block->device == device) return entries_[i].block;
  }
  return nullptr;
}

wire::ControlBlock* ControlTable::Ensure(int32_t ordinal, int64_t device) {
  std::lock_guard lock(mutex_);
  if (wire::ControlBlock* block = Find(ordinal)) return block;
  const int count = count_.load(std::memory_order_relaxed);
  if (count == kMaxDevices) throw std::bad_alloc();
  base::NoticeForks();
  auto* block = new wire::ControlBlock{};
  block->device = device;
  block->gates = MakeGates();
  entries_[count] = {ordinal, block};
  count_.store(count + 1, std::memory_order_release);
  return block;
}

}  // namespace dmi::program
