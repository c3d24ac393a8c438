// SPDX-License-Identifier: Apache-2.0
// The site table, beyond its size and from many threads.
#include "program/site_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace dmi::program {
namespace {

constexpr uint32_t kShared = SiteTable::kSharedIndex;

// Ids that all want the same bucket, and ids like hashes.
uint64_t IdOf(uint64_t i) {
  return i % 2 == 0 ? (i + 1) * 2 * wire::kMaxSites : i * 0x9E3779B97F4A7C15;
}

// One table per process, so one test walks through its whole life.
TEST(SiteTableTest, FillsUpAndSharesTheLastIndex) {
  SiteTable& table = SiteTable::Get();
  EXPECT_EQ(table.IndexOf(123), kShared);
  EXPECT_EQ(table.IndexOf(0), kShared) << "0 is what an empty bucket holds";
  EXPECT_FALSE(table.Site(123).has_value());

  // Readers look sites up while they are added.
  constexpr uint64_t kSome = 2000;
  constexpr uint64_t kExtra = 100;
  {
    std::atomic<bool> done{false};
    std::jthread reader([&] {
      while (!done.load()) {
        for (uint64_t i = 0; i < kSome; i += 7) {
          const uint32_t index = table.IndexOf(IdOf(i));
          ASSERT_TRUE(index < kSome || index == kShared);
        }
      }
    });
    std::vector<std::jthread> writers;
    for (int thread = 0; thread < 3; ++thread) {
      writers.emplace_back([&] {
        for (uint64_t i = 0; i < kSome; ++i) {
          table.AddSite(IdOf(i), "site " + std::to_string(i));
        }
      });
    }
    writers.clear();
    done = true;
  }
  EXPECT_EQ(table.Sites().size(), kSome) << "each is added once";

  for (uint64_t i = kSome; i < wire::kMaxSites + kExtra; ++i) {
    table.AddSite(0x9E3779B97F4A7C15 * (i + 1'000'000), std::to_string(i));
  }
  const std::vector<uint64_t> sites = table.Sites();
  ASSERT_EQ(sites.size(), kShared);
  for (uint32_t i = 0; i < sites.size(); ++i) {
    ASSERT_EQ(table.IndexOf(sites[i]), i);
  }
  for (uint64_t i = wire::kMaxSites; i < wire::kMaxSites + kExtra; ++i) {
    const uint64_t id = 0x9E3779B97F4A7C15 * (i + 1'000'000);
    ASSERT_EQ(table.IndexOf(id), kShared);
    // A site without an index of its own still has its name.
    ASSERT_EQ(table.Site(id), std::to_string(i));
    ASSERT_EQ(std::count(sites.begin(), sites.end(), id), 0);
  }
  EXPECT_EQ(table.IndexOf(123), kShared);
}

TEST(SiteTableTest, FirstDescriptorStays) {
  SiteTable& table = SiteTable::Get();
  table.AddSite(5, "first");
  table.AddSite(5, "second");
  EXPECT_EQ(table.Site(5), "first");
  table.AddLayout(5, "layout");
  table.AddLayout(5, "other");
  EXPECT_EQ(table.Layout(5), "layout");
  EXPECT_FALSE(table.Layout(6).has_value());
}

}  // namespace
}  // namespace dmi::program
