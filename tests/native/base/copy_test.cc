// SPDX-License-Identifier: Apache-2.0
// Copies, with the crc and without, through the cache and around it.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "support/deadline.h"
#include "support/payload.h"

namespace dmi::base {
namespace {

using dmi::testing::Deadline;
using dmi::testing::FillPayload;

constexpr size_t kGuard = 64;
constexpr uint8_t kUntouched = 0xA5;

// A destination with guard bytes on both sides, aligned to 64 bytes plus `at`.
class Destination {
 public:
  explicit Destination(size_t most) : memory_(most + 4 * kGuard) {}

  uint8_t* Prepare(size_t at) {
    std::memset(memory_.data(), kUntouched, memory_.size());
    auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    address = (address + 63) / 64 * 64 + at;
    return reinterpret_cast<uint8_t*>(address);
  }
  // Whether only [to, to + size) was written.
  bool GuardsHold(const uint8_t* to, size_t size) const {
    const uint8_t* begin = memory_.data();
    const uint8_t* end = begin + memory_.size();
    for (const uint8_t* p = begin; p < end; ++p) {
      if ((p < to || p >= to + size) && *p != kUntouched) return false;
    }
    return true;
  }

 private:
  std::vector<uint8_t> memory_;
};

std::vector<size_t> Sizes() {
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= 520; ++size) sizes.push_back(size);
  for (const size_t size : {767, 1024, 4097, 24575, 24576, 24577, 50001}) {
    sizes.push_back(size);
  }
  return sizes;
}

TEST(CopyTest, IsExactAtAnySizeAndAlignment) {
  std::vector<uint8_t> source;
  FillPayload(3, 3, 60000, source);
  Destination destination(60000);
  size_t turn = 0;
  for (const size_t size : Sizes()) {
    for (const bool streaming : {false, true}) {
      for (const size_t at : {size_t{0}, ++turn % 64}) {
        const uint8_t* from = source.data() + turn % 61;
        uint8_t* to = destination.Prepare(at);
        Copy(to, from, size, streaming);
        ASSERT_EQ(std::memcmp(to, from, size), 0) << size << " at " << at;
        ASSERT_TRUE(destination.GuardsHold(to, size)) << size << " at " << at;
      }
    }
  }
}

TEST(CopyTest, WithCrcIsExactAndReturnsTheCrc) {
  std::vector<uint8_t> source;
  FillPayload(4, 4, 60000, source);
  Destination destination(60000);
  size_t turn = 0;
  for (const size_t size : Sizes()) {
    for (const bool streaming : {false, true}) {
      for (const size_t at : {size_t{0}, ++turn % 64}) {
        const uint8_t* from = source.data() + turn % 61;
        uint8_t* to = destination.Prepare(at);
        const uint32_t crc = CopyWithCrc32c(to, from, size, streaming);
        ASSERT_EQ(crc, Crc32c(from, size)) << size << " at " << at;
        ASSERT_EQ(std::memcmp(to, from, size), 0) << size << " at " << at;
        ASSERT_TRUE(destination.GuardsHold(to, size)) << size << " at " << at;
      }
    }
  }
}

// XLA may give a buffer of no elements no address.
TEST(CopyTest, OfNothingNeedsNoAddress) {
  uint8_t to[64];
  for (const bool streaming : {false, true}) {
    Copy(to, nullptr, 0, streaming);
    EXPECT_EQ(CopyWithCrc32c(to, nullptr, 0, streaming), 0u);
  }
}

// Puts a thread on the n-th processor it may use: two threads that yield to
// each other on one processor never see anything out of order.
class Pinned {
 public:
  explicit Pinned(int n) {
    sched_getaffinity(0, sizeof before_, &before_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_) || n-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
  }
  ~Pinned() { sched_setaffinity(0, sizeof before_, &before_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_;
};

// Looks again and again before it gives up its core: what the test is after
// shows in the first nanoseconds only.
template <typename Done>
void SpinUntil(Done done) {
  while (true) {
    for (int i = 0; i < 2000; ++i) {
      if (done()) return;
    }
    std::this_thread::yield();
  }
}

// Streaming stores are weakly ordered: without a fence a reader that acquires a
// flag stored behind the copy may find old bytes. Checked where it shows first,
// in the lines written last.
template <typename CopyOnce>
void StreamedBytesFollowTheirFlag(CopyOnce copy) {
  const Deadline deadline(std::chrono::seconds(30));
  // As many rounds as fit: where the two threads share a core with others,
  // each takes as long as a time slice.
  constexpr uint64_t kRounds = 20000;
  constexpr uint64_t kNoMore = ~uint64_t{0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  constexpr size_t kBytes = 4096;
  constexpr size_t kWords = kBytes / 8;
  alignas(64) static uint64_t shared[kWords];
  alignas(64) static std::atomic<uint64_t> written;
  alignas(64) static std::atomic<uint64_t> checked;
  written = 0;
  checked = 0;
  uint64_t stale = 0;
  std::jthread reader([&] {
    const Pinned pinned(0);
    for (uint64_t round = 1;; ++round) {
      uint64_t seen;
      SpinUntil([&] {
        return (seen = written.load(std::memory_order_acquire)) >= round;
      });
      if (seen == kNoMore) return;
      for (size_t i = kWords; i-- > 0;) stale += shared[i] != round;
      checked.store(round, std::memory_order_release);
    }
  });
  const Pinned pinned(1);
  std::vector<uint64_t> source(kWords);
  for (uint64_t round = 1;
       round <= kRounds && std::chrono::steady_clock::now() < end; ++round) {
    for (uint64_t& word : source) word = round;
    copy(shared, source.data(), kBytes);
    written.store(round, std::memory_order_release);
    SpinUntil([&] { return checked.load(std::memory_order_acquire) >= round; });
  }
  written.store(kNoMore, std::memory_order_release);
  reader.join();
  EXPECT_EQ(stale, 0u);
}

TEST(CopyTest, StreamedBytesComeBeforeALaterReleaseStore) {
  StreamedBytesFollowTheirFlag([](void* to, const void* from, size_t size) {
    Copy(to, from, size, true);
  });
}

TEST(CopyTest, StreamedBytesWithCrcComeBeforeALaterReleaseStore) {
  StreamedBytesFollowTheirFlag([](void* to, const void* from, size_t size) {
    CopyWithCrc32c(to, from, size, true);
  });
}

}  // namespace
}  // namespace dmi::base
