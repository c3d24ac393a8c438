// SPDX-License-Identifier: Apache-2.0
// The site table, see the header.
#include "program/site_table.h"

namespace dmi::program {

SiteTable& SiteTable::Get() {
  // Leaked: executables may be instantiated while the process exits.
  static SiteTable* table = new SiteTable;
  return *table;
}

uint32_t SiteTable::IndexOf(uint64_t id) const {
  for (uint64_t i = id % kBuckets;; i = (i + 1) % kBuckets) {
    const uint64_t found = buckets_[i].id.load(std::memory_order_acquire);
    if (found == 0) return kSharedIndex;
    if (found == id) return buckets_[i].index;
  }
}

void SiteTable::AddSite(uint64_t id, std::string_view descriptor) {
  std::lock_guard lock(mutex_);
  if (!sites_.emplace(id, descriptor).second) return;
  if (id == 0 || order_.size() == kSharedIndex) return;
  uint64_t i = id % kBuckets;
  while (buckets_[i].id.load(std::memory_order_relaxed) != 0) {
    i = (i + 1) % kBuckets;
  }
  buckets_[i].index = static_cast<uint32_t>(order_.size());
  buckets_[i].id.store(id, std::memory_order_release);
  order_.push_back(id);
}

void SiteTable::AddLayout(uint64_t id, std::string_view descriptor) {
  std::lock_guard lock(mutex_);
  layouts_.emplace(id, descriptor);
}

std::optional<std::string> SiteTable::Site(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = sites_.find(id);
  if (found == sites_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> SiteTable::Layout(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = layouts_.find(id);
  if (found == layouts_.end()) return std::nullopt;
  return found->second;
}

std::vector<uint64_t> SiteTable::Sites() const {
  std::lock_guard lock(mutex_);
  return order_;
}

}  // namespace dmi::program
