// SPDX-License-Identifier: Apache-2.0
// The site table: what the ids inside records stand for.
//
// Filled while executables are instantiated, so a program that came out of a
// compilation cache still names its records. Lives as long as the process.
#ifndef DMI_PROGRAM_SITE_TABLE_H_
#define DMI_PROGRAM_SITE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fork.h"
#include "wire/control.h"

namespace dmi::program {

// Any thread may call any method; all but IndexOf take a short lock.
class SiteTable {
 public:
  // The last index belongs to no site: every one without its own shares it.
  static constexpr uint32_t kSharedIndex = wire::kMaxSites - 1;

  static SiteTable& Get();

  // The dense index of a site's gate and counters. Lock-free: runs on every
  // record. A site nobody added has the shared index.
  uint32_t IndexOf(uint64_t id) const;

  // Adds the site unless it is known. Once all indices are given away, further
  // sites keep their descriptors and share an index.
  void AddSite(uint64_t id, std::string_view descriptor);
  void AddLayout(uint64_t id, std::string_view descriptor);

  // Whether a program of several devices that records was ever instantiated.
  void NoteMultiDevice() { multi_device_.store(true); }
  bool multi_device_seen() const { return multi_device_.load(); }

  std::optional<std::string> Site(uint64_t id) const;
  std::optional<std::string> Layout(uint64_t id) const;

  // Ids by index; an id with the shared index is not listed.
  std::vector<uint64_t> Sites() const;

 private:
  // Open addressing, at most half full. The id is written last, with release
  // order, under the lock.
  struct Bucket {
    std::atomic<uint64_t> id;  // 0 = empty
    uint32_t index;
  };
  static constexpr uint64_t kBuckets = 2 * uint64_t{wire::kMaxSites};

  SiteTable() : buckets_(new Bucket[kBuckets]()) {}

  const std::unique_ptr<Bucket[]> buckets_;
  std::atomic<bool> multi_device_{false};
  mutable base::Mutex mutex_;
  std::unordered_map<uint64_t, std::string> sites_;
  std::unordered_map<uint64_t, std::string> layouts_;
  std::vector<uint64_t> order_;
};

}  // namespace dmi::program

#endif  // DMI_PROGRAM_SITE_TABLE_H_
