// SPDX-License-Identifier: Apache-2.0
// A drain that copies over a link, on its own thread: pauses, stops, failures,
// and what it costs to do nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "program/atomics.h"
#include "program/boundary.h"
#include "support/deadline.h"
#include "support/flow.h"

namespace dmi::drain {
namespace {

using dmi::testing::Checker;
using dmi::testing::Deadline;
using dmi::testing::Device;
using dmi::testing::Flow;
using dmi::testing::kForever;
using dmi::testing::kMillisecond;
using dmi::testing::kSecond;
using dmi::testing::RecordOne;

windows::WindowConfig Chunks(uint64_t bytes) {
  windows::WindowConfig config;
  config.chunk_bytes = bytes;
  return config;
}

// A transfer lands once the test says so.
class HandLink final : public transfer::Link {
 public:
  bool in_place() const override { return false; }
  int depth() const override { return depth_; }
  void Prepare(uint8_t* staging, uint64_t bytes) override {
    EXPECT_EQ(prepared_++, 0);
    staging_ = staging;
    staging_bytes_ = bytes;
  }
  void Attach() override {
    EXPECT_EQ(prepared_, 1);
    EXPECT_EQ(attached_++, 0);
    if (fails_to_attach_) throw std::runtime_error("no such device");
  }
  void Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) override {
    if (begun_.fetch_add(1) >= fails_after_) {
      throw std::runtime_error("the link is down");
    }
    EXPECT_EQ(attached_, 1);
    EXPECT_GE(to, staging_);
    EXPECT_LE(to + bytes, staging_ + staging_bytes_);
    under_way_.push_back({to, from, bytes});
    EXPECT_LE(under_way_.size(), static_cast<size_t>(depth_));
  }
  int64_t Remaining() override {
    if (landed_.load(std::memory_order_acquire) <= retired_) {
      return kMillisecond;
    }
    const Transfer& oldest = under_way_.front();
    if (oldest.bytes > 0) std::memcpy(oldest.to, oldest.from, oldest.bytes);
    return 0;
  }
  void Retire() override {
    under_way_.pop_front();
    ++retired_;
  }

  void set_depth(int depth) { depth_ = depth; }
  void FailToAttach() { fails_to_attach_ = true; }
  void FailAfter(uint64_t transfers) { fails_after_ = transfers; }
  void Open() { LandTo(~uint64_t{0}); }
  // No more transfers land than so many in all.
  void LandTo(uint64_t transfers) {
    landed_.store(transfers, std::memory_order_release);
  }
  uint64_t begun() const { return begun_; }
  void WaitForBegun(uint64_t transfers) const {
    while (begun_ < transfers) std::this_thread::yield();
  }

 private:
  struct Transfer {
    uint8_t* to;
    const uint8_t* from;
    uint64_t bytes;
  };
  std::atomic<uint64_t> landed_{~uint64_t{0}};
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> fails_after_{~uint64_t{0}};
  int depth_ = 1;
  bool fails_to_attach_ = false;
  int prepared_ = 0;
  int attached_ = 0;
  const uint8_t* staging_ = nullptr;
  uint64_t staging_bytes_ = 0;
  std::deque<Transfer> under_way_;
  uint64_t retired_ = 0;
};

class LinkTest : public ::testing::Test {
 protected:
  Flow& Start(const ring::RingOptions& ring, const DrainOptions& drain,
              std::optional<windows::WindowConfig> windows = std::nullopt) {
    flow_.emplace(device_, ring, drain, wire::Cursor{0, 0},
                  DrainParts{.link = link_, .windows = std::move(windows)});
    flow_->Start();
    return *flow_;
  }
  void Install(const windows::WindowPattern& pattern) {
    flow_->drain().controller()->InstallPending(1, pattern);
    program::StoreRelease(device_.block().progress,
                          wire::PackProgress(1, pattern.initial_counter()));
    flow_->ring().signals().WakeDrain();
    while (flow_->drain().controller()->State().version != 1) {
      std::this_thread::yield();
    }
  }
  // Nanoseconds of a core that the process takes while nothing happens.
  int64_t IdleCost(int64_t nanos) {
    timespec before;
    timespec after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    EXPECT_TRUE(flow_->queue().Pop(1, nanos).empty());
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    return (after.tv_sec - before.tv_sec) * kSecond + after.tv_nsec -
           before.tv_nsec;
  }

  const Deadline deadline_{std::chrono::seconds(60)};
  Device device_;
  const std::shared_ptr<HandLink> link_ = std::make_shared<HandLink>();
  std::optional<Flow> flow_;
};

TEST_F(LinkTest, APauseWaitsForTheTransferUnderWay) {
  Flow& flow = Start({.bytes = 4096, .slots = 16}, {.linger_nanos = 0});
  link_->LandTo(0);
  RecordOne(device_, 0, 0, 64);
  link_->WaitForBegun(1);
  RecordOne(device_, 0, 1, 64);
  std::atomic<bool> paused{false};
  std::jthread pauser([&] {
    flow.drain().Pause();
    paused = true;
  });
  EXPECT_TRUE(flow.queue().Pop(1, 50 * kMillisecond).empty());
  EXPECT_FALSE(paused);
  link_->Open();
  pauser.join();
  // What has landed may be cut already; nothing else is.
  const uint64_t queued = flow.drain().queued();
  EXPECT_LE(queued, 1u);
  EXPECT_LE(flow.drain().Seal(50 * kMillisecond), 1u);
  EXPECT_EQ(flow.drain().queued(), queued);
  EXPECT_EQ(link_->begun(), 1u);
  flow.drain().Resume();
  EXPECT_EQ(flow.drain().Seal(kForever), 2u);
}

TEST_F(LinkTest, APauseWaitsForEveryTransferUnderWay) {
  link_->set_depth(2);
  Flow& flow = Start({.bytes = 4096, .slots = 16}, {.linger_nanos = 0});
  link_->LandTo(0);
  for (uint64_t i = 0; i < 2; ++i) {
    RecordOne(device_, 0, i, 64);
    link_->WaitForBegun(i + 1);
  }
  RecordOne(device_, 0, 2, 64);
  std::atomic<bool> paused{false};
  std::jthread pauser([&] {
    flow.drain().Pause();
    paused = true;
  });
  EXPECT_TRUE(flow.queue().Pop(1, 50 * kMillisecond).empty());
  link_->LandTo(1);
  EXPECT_EQ(flow.queue().Pop(1, kForever).size(), 1u);
  EXPECT_TRUE(flow.queue().Pop(1, 50 * kMillisecond).empty());
  EXPECT_FALSE(paused);
  link_->Open();
  pauser.join();
  EXPECT_EQ(flow.drain().Seal(50 * kMillisecond), flow.drain().queued());
  EXPECT_LE(flow.drain().queued(), 2u);
  EXPECT_EQ(link_->begun(), 2u);
  flow.drain().Resume();
  EXPECT_EQ(flow.drain().Seal(kForever), 3u);
}

TEST_F(LinkTest, ASealWaitsForEveryTransferUnderWay) {
  link_->set_depth(2);
  Flow& flow = Start({.bytes = 4096, .slots = 16},
                     {.batch_records = 1, .linger_nanos = kForever});
  link_->LandTo(0);
  for (uint64_t i = 0; i < 5; ++i) RecordOne(device_, 0, i, 64);
  EXPECT_EQ(flow.drain().Seal(50 * kMillisecond), 0u);
  EXPECT_EQ(link_->begun(), 2u) << "as deep as the link is, and no deeper";
  for (uint64_t landed = 1; landed <= 5; ++landed) {
    link_->LandTo(landed);
    link_->WaitForBegun(std::min<uint64_t>(5, landed + 2));
  }
  EXPECT_EQ(flow.drain().Seal(kForever), 5u);
  for (const Transfer& t : flow.drain().transfers().Read()) {
    EXPECT_EQ(t.bytes, 64u);
    EXPECT_LE(t.begin_ns, t.end_ns);
  }
  flow.Stop();
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), 5u);
}

// The second of two transfers is under way, or has just been refused.
TEST_F(LinkTest, AFailureLosesNothingThatLanded) {
  for (uint64_t fails = 0; fails < 8; ++fails) {
    for (uint64_t back = 0; back < 2; ++back) {
      const auto link = std::make_shared<HandLink>();
      link->set_depth(2);
      link->FailAfter(fails);
      const uint64_t landed = fails < back ? 0 : fails - back;
      link->LandTo(landed);
      Device device;
      Flow flow(device, {.bytes = 4096, .slots = 16},
                {.batch_records = 1, .linger_nanos = kForever}, {0, 0},
                {.link = link, .windows = {}});
      flow.Start();
      for (uint64_t i = 0; i < 10; ++i) RecordOne(device, 0, i, 100 + i);
      EXPECT_EQ(flow.drain().Seal(kForever), landed);
      EXPECT_NE(flow.drain().failure().text().find("down"), std::string::npos);
      flow.Stop();
      Checker checker;
      checker.Run(flow.queue());
      EXPECT_EQ(checker.records(), landed);
      EXPECT_EQ(flow.drain().transfers().Read().size(), landed);
    }
  }
}

TEST_F(LinkTest, AThreadThatCannotAttachIsReported) {
  link_->FailToAttach();
  Flow& flow = Start({.bytes = 1024, .slots = 16, .stall_nanos = kForever}, {});
  for (uint64_t i = 0; i < 20; ++i) RecordOne(device_, 0, i, 256);
  EXPECT_GT(flow.lost(wire::kLostStalled), 0u);
  EXPECT_EQ(flow.drain().Seal(kForever), 0u);
  EXPECT_NE(flow.drain().failure().text().find("no such device"),
            std::string::npos);
}

TEST_F(LinkTest, APauseEndsWhereTheLinkFails) {
  Flow& flow = Start({.bytes = 4096, .slots = 16}, {.linger_nanos = 0});
  link_->FailAfter(0);
  RecordOne(device_, 0, 0, 64);
  link_->WaitForBegun(1);
  flow.drain().Pause();
  EXPECT_EQ(flow.drain().Seal(kForever), 0u);
  EXPECT_NE(flow.drain().failure().text().find("down"), std::string::npos);
}

// Everyone who waits is woken, and what landed before comes out.
TEST_F(LinkTest, AFailureWakesEveryoneAndKeepsWhatLanded) {
  Flow& flow = Start({.bytes = 1024, .slots = 16, .stall_nanos = kForever}, {},
                     Chunks(64));
  Install(windows::WindowPattern(2, {{0, 1}}));
  link_->FailAfter(2);
  {
    std::jthread sealer([&] { flow.drain().Seal(kForever); });
    std::jthread producer([&] {
      for (uint64_t i = 0; i < 40; ++i) RecordOne(device_, 0, i, 256);
    });
  }
  EXPECT_GT(flow.lost(wire::kLostStalled), 0u);
  flow.Stop();
  uint64_t landed = 0;
  for (const Transfer& t : flow.drain().transfers().Read()) landed += t.bytes;
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), landed / 256);
}

// A window has carried one record, and more is to come, when the link fails.
TEST_F(LinkTest, WhatAWindowCarriedBeforeAFailureComesOut) {
  Flow& flow = Start({.bytes = 4096, .slots = 16}, {.linger_nanos = kForever},
                     Chunks(256));
  RecordOne(device_, 0, 0, 256);
  RecordOne(device_, 0, 1, 256);
  link_->FailAfter(1);
  Install(windows::WindowPattern(2, {{0, 1}}));
  link_->WaitForBegun(2);
  EXPECT_EQ(flow.drain().Seal(kForever), 1u);
  flow.Stop();
  Checker checker;
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), 1u);
}

// The consumer holds all of staging when the stop begins, and for a while.
TEST_F(LinkTest, AStopWaitsForAConsumer) {
  Flow& flow =
      Start({.bytes = 1024, .slots = 16},
            {.batch_records = 1, .linger_nanos = 0, .staging_bytes = 512});
  Checker checker;
  RecordOne(device_, 0, 0, 512);
  auto held = flow.queue().Pop(1, kForever);
  for (const auto& batch : held) checker.Check(*batch);
  RecordOne(device_, 0, 1, 512);
  std::jthread stopper([&] { flow.Stop(); });
  EXPECT_TRUE(flow.queue().Pop(1, 200 * kMillisecond).empty());
  EXPECT_EQ(flow.drain().failure().text(), "");
  held.clear();
  checker.Run(flow.queue());
  EXPECT_EQ(checker.records(), 2u);
}

TEST_F(LinkTest, ARecordLargerThanABatchMovesWhole) {
  Flow& flow = Start({.bytes = 4096, .slots = 16},
                     {.batch_bytes = 100, .staging_bytes = 2048});
  for (uint64_t i = 0; i < 6; ++i) RecordOne(device_, 0, i, i % 2 ? 2048 : 0);
  EXPECT_EQ(flow.drain().Seal(kSecond), 3u) << "all that has room";
  Checker checker;
  std::jthread consumer([&] { checker.Run(flow.queue()); });
  EXPECT_EQ(flow.drain().Seal(10 * kSecond), 6u);
  flow.Stop();
  consumer.join();
  EXPECT_EQ(checker.records(), 6u);
}

// ---- Nothing to do costs next to nothing ----

TEST_F(LinkTest, APauseAmongBoundariesIsCheap) {
  Flow& flow = Start({.bytes = 4096, .slots = 16}, {.linger_nanos = 0},
                     windows::WindowConfig{});
  Install(windows::WindowPattern(2, {{0, 1}}));
  flow.drain().Pause();
  RecordOne(device_, 0, 0, 64);
  program::AdvanceBoundary(device_.block());
  program::AdvanceBoundary(device_.block());
  EXPECT_LT(IdleCost(500 * kMillisecond), 50 * kMillisecond);
  flow.drain().Resume();
  EXPECT_EQ(flow.queue().Pop(1, kForever).size(), 1u);
}

TEST_F(LinkTest, ACounterNearItsEndIsCheap) {
  Start({.bytes = 4096, .slots = 16}, {}, windows::WindowConfig{});
  Install(windows::WindowPattern(4, {{0, 1}}, wire::kCounterMask - 1));
  program::AdvanceBoundary(device_.block());
  program::AdvanceBoundary(device_.block());
  EXPECT_EQ(device_.block().progress,
            wire::PackProgress(1, wire::kCounterMask));
  EXPECT_LT(IdleCost(500 * kMillisecond), 50 * kMillisecond);
}

TEST_F(LinkTest, AnOpenWindowIsCheap) {
  Start({.bytes = 4096, .slots = 16}, {}, windows::WindowConfig{});
  Install(windows::WindowPattern(4, {{0, 2}}));
  program::AdvanceBoundary(device_.block());
  IdleCost(200 * kMillisecond);
  EXPECT_LT(IdleCost(500 * kMillisecond), 10 * kMillisecond);
}

// A producer found no space, no staging came free, and it gave up; then there
// was room, and no hurry any more.
TEST_F(LinkTest, RoomThatNobodyNeedsIsCheap) {
  Flow& flow =
      Start({.bytes = 1024, .slots = 16, .stall_nanos = 100 * kMillisecond},
            {.linger_nanos = kForever, .staging_bytes = 512});
  for (uint64_t i = 0; i < 2; ++i) RecordOne(device_, 0, i, 512);
  auto held = flow.queue().Pop(1, kForever);
  while (flow.lost(wire::kLostStalled) == 0) RecordOne(device_, 0, 2, 64);
  held.clear();
  while (!flow.queue().Pop(1, 100 * kMillisecond).empty()) {
  }
  EXPECT_LT(IdleCost(500 * kMillisecond), 50 * kMillisecond);
}

}  // namespace
}  // namespace dmi::drain
