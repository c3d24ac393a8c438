// SPDX-License-Identifier: Apache-2.0
// Signals between producers and drain: none is lost, none costs too much.
#include "program/host_signals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "support/deadline.h"

namespace dmi::program {
namespace {

using dmi::testing::Deadline;
using Waited = HostSignals::Waited;

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kForever = int64_t{3600} * 1000 * kMillisecond;

// ---- The drain's sleep ----

// Every sleep lasts for ever unless the wake arrives, whenever it comes.
TEST(DrainSleepTest, NoWakeIsLost) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr uint64_t kRounds = 20000;
  HostSignals signals(kForever);
  std::atomic<uint64_t> produced{0};
  std::atomic<uint64_t> consumed{0};
  std::jthread drain([&] {
    while (consumed.load() < kRounds) {
      signals.DrainSleep(kForever, [&] {
        return produced.load(std::memory_order_acquire) > consumed.load();
      });
      consumed.store(produced.load(std::memory_order_acquire));
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    produced.store(round, std::memory_order_release);
    signals.WakeDrain();
    while (consumed.load() < round) std::this_thread::yield();
  }
}

TEST(DrainSleepTest, NoWakeOfManyIsLost) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr uint64_t kEach = 20000;
  constexpr uint64_t kThreads = 4;
  HostSignals signals(kForever);
  std::atomic<uint64_t> produced{0};
  uint64_t consumed = 0;
  std::vector<std::jthread> producers;
  for (uint64_t i = 0; i < kThreads; ++i) {
    producers.emplace_back([&] {
      for (uint64_t n = 0; n < kEach; ++n) {
        produced.fetch_add(1, std::memory_order_release);
        signals.WakeDrain();
      }
    });
  }
  while (consumed < kThreads * kEach) {
    signals.DrainSleep(kForever, [&] {
      return produced.load(std::memory_order_acquire) > consumed;
    });
    consumed = produced.load(std::memory_order_acquire);
  }
  EXPECT_EQ(consumed, kThreads * kEach);
}

TEST(DrainSleepTest, EndsByItself) {
  HostSignals signals(kForever);
  const int64_t begin = base::MonotonicNanos();
  signals.DrainSleep(20 * kMillisecond, [] { return false; });
  EXPECT_GE(base::MonotonicNanos() - begin, 20 * kMillisecond);
}

// Wakes that came while nobody slept any more must not be kept for later: the
// drain would spin through as many sleeps.
TEST(DrainSleepTest, WakesDoNotPileUp) {
  HostSignals signals(kForever);
  for (int i = 0; i < 1000; ++i) {
    signals.DrainSleep(kForever, [&] {
      signals.WakeDrain();
      return true;
    });
  }
  signals.DrainSleep(kMillisecond, [] { return false; });
  const int64_t begin = base::MonotonicNanos();
  signals.DrainSleep(20 * kMillisecond, [] { return false; });
  EXPECT_GE(base::MonotonicNanos() - begin, 20 * kMillisecond);
}

// However long the drain has been asleep, a wake ends it at once. The best of
// several rounds, because a busy machine may delay any of them.
TEST(DrainSleepTest, WakeIsPromptAfterALongSleep) {
  const Deadline deadline(std::chrono::seconds(30));
  int64_t best = kForever;
  for (int round = 0; round < 3; ++round) {
    HostSignals signals(kForever);
    std::atomic<int64_t> woken{0};
    std::atomic<bool> sleeping{false};
    std::jthread drain([&] {
      signals.DrainSleep(kForever, [&] {
        sleeping = true;
        return false;
      });
      woken = base::MonotonicNanos();
    });
    while (!sleeping) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + 30 * round));
    const int64_t begin = base::MonotonicNanos();
    signals.WakeDrain();
    drain.join();
    best = std::min(best, woken - begin);
  }
  EXPECT_LT(best, 2 * kMillisecond);
}

// ---- Producers waiting for space ----

TEST(WaitForSpaceTest, NoFreedSpaceIsLost) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr uint64_t kRounds = 20000;
  HostSignals signals(kForever);
  std::atomic<uint64_t> freed{0};
  std::atomic<uint64_t> taken{0};
  std::jthread producer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const Waited waited = signals.WaitForSpace(false, [&] {
        return freed.load(std::memory_order_acquire) >= round;
      });
      ASSERT_EQ(waited, Waited::kFreed);
      taken.store(round);
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    freed.store(round, std::memory_order_release);
    signals.SpaceFreed();
    while (taken.load() < round) std::this_thread::yield();
  }
}

// Several wait for different amounts; each goes when its own is there.
TEST(WaitForSpaceTest, EveryWaiterIsWokenForItsOwnSpace) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr uint64_t kThreads = 6;
  constexpr uint64_t kRounds = 2000;
  HostSignals signals(kForever);
  std::atomic<uint64_t> freed{0};
  std::atomic<uint64_t> gone{0};
  std::vector<std::jthread> producers;
  for (uint64_t i = 0; i < kThreads; ++i) {
    producers.emplace_back([&, i] {
      for (uint64_t round = 0; round < kRounds; ++round) {
        const uint64_t need = round * kThreads + i + 1;
        const Waited waited =
            signals.WaitForSpace(false, [&] { return freed.load() >= need; });
        ASSERT_EQ(waited, Waited::kFreed);
        gone.fetch_add(1);
      }
    });
  }
  for (uint64_t n = 1; n <= kThreads * kRounds; ++n) {
    freed.store(n);
    signals.SpaceFreed();
    if (n % 7 == 0) {
      while (gone.load() < n) std::this_thread::yield();
    }
  }
}

TEST(WaitForSpaceTest, BudgetIsSpentOnceForEverybody) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 100 * kMillisecond;
  HostSignals signals(kBudget);
  const int64_t begin = base::MonotonicNanos();
  {
    std::vector<std::jthread> producers;
    for (int i = 0; i < 4; ++i) {
      producers.emplace_back([&] {
        EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }),
                  Waited::kExhausted);
      });
    }
  }
  const int64_t took = base::MonotonicNanos() - begin;
  EXPECT_GE(took, kBudget);
  EXPECT_LT(took, 10 * kBudget);
  const int64_t again = base::MonotonicNanos();
  EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }),
            Waited::kExhausted);
  EXPECT_LT(base::MonotonicNanos() - again, kBudget / 2);
  EXPECT_EQ(signals.WaitForSpace(false, [] { return true; }), Waited::kFreed);
}

// The budget is one per ring, not one per wait: stalls add up.
TEST(WaitForSpaceTest, StallsAddUp) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 200 * kMillisecond;
  HostSignals signals(kBudget);
  Waited waited = Waited::kFreed;
  int stalls = 0;
  const int64_t begin = base::MonotonicNanos();
  while (waited == Waited::kFreed) {
    std::atomic<bool> there{false};
    std::atomic<bool> waiting{false};
    std::jthread consumer([&] {
      while (!waiting) std::this_thread::yield();
      // Longer than a twentieth of the budget: a stall that counts.
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBudget / 4));
      there = true;
      signals.SpaceFreed();
    });
    waited = signals.WaitForSpace(false, [&] {
      waiting = true;
      return there.load();
    });
    ++stalls;
  }
  EXPECT_EQ(waited, Waited::kExhausted);
  EXPECT_LE(stalls, 4);
  EXPECT_GE(base::MonotonicNanos() - begin, kBudget * 9 / 10);
}

// Held back for three budgets by a consumer that moves all the time.
TEST(WaitForSpaceTest, SlowButMovingConsumerIsNeverCharged) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 600 * kMillisecond;
  HostSignals signals(kBudget);
  const int64_t begin = base::MonotonicNanos();
  const int64_t end = begin + 3 * kBudget;
  int64_t paused = 0;  // by the machine, which may be charged
  std::jthread consumer([&] {
    int64_t last = begin;
    while (last < end + kBudget / 50) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBudget / 200));
      signals.SpaceFreed();
      const int64_t now = base::MonotonicNanos();
      if (now - last > kBudget / 25) paused += now - last;
      last = now;
    }
  });
  EXPECT_EQ(signals.WaitForSpace(false,
                                 [&] { return base::MonotonicNanos() >= end; }),
            Waited::kFreed);
  consumer.join();
  // The budget is still there for a consumer that dies.
  const int64_t stalled = base::MonotonicNanos();
  EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }),
            Waited::kExhausted);
  EXPECT_GE(base::MonotonicNanos() - stalled, kBudget / 10 * 9 - paused);
}

// Where other devices wait for the producer, a consumer that moves all the time
// may hold it back for four budgets, and the next one not again for as long.
TEST(WaitForSpaceTest, OtherDevicesAreNotHeldUpForLong) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int64_t kBudget = 300 * kMillisecond;
  HostSignals signals(kBudget);
  std::atomic<bool> done{false};
  std::jthread consumer([&] {
    while (!done) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kBudget / 200));
      signals.SpaceFreed();
    }
  });
  const int64_t begin = base::MonotonicNanos();
  const auto waits = [&](int64_t until) {
    return signals.WaitForSpace(
        true, [&] { return base::MonotonicNanos() - begin >= until; });
  };
  EXPECT_EQ(waits(2 * kBudget), Waited::kFreed);
  EXPECT_EQ(waits(8 * kBudget), Waited::kExhausted);
  const int64_t waited = base::MonotonicNanos() - begin;
  EXPECT_GE(waited, 4 * kBudget);
  EXPECT_LE(waited, 5 * kBudget);
  done = true;
}

TEST(WaitForSpaceTest, CloseWakesEverybody) {
  const Deadline deadline(std::chrono::seconds(30));
  constexpr int kThreads = 8;
  HostSignals signals(kForever);
  std::atomic<int> looked{0};
  {
    std::vector<std::jthread> producers;
    for (int i = 0; i < kThreads; ++i) {
      producers.emplace_back([&] {
        EXPECT_EQ(signals.WaitForSpace(false,
                                       [&] {
                                         looked.fetch_add(1);
                                         return false;
                                       }),
                  Waited::kClosed);
      });
    }
    while (looked.load() < kThreads) std::this_thread::yield();
    EXPECT_TRUE(signals.somebody_waits());
    signals.Close();
  }
  EXPECT_FALSE(signals.somebody_waits());
  EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }), Waited::kClosed);
}

TEST(WaitForSpaceTest, GivingUpEndsEveryWait) {
  const Deadline deadline(std::chrono::seconds(30));
  HostSignals signals(kForever);
  std::jthread producer([&] {
    EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }),
              Waited::kExhausted);
  });
  while (!signals.somebody_waits()) std::this_thread::yield();
  signals.GiveUp();
  producer.join();
  EXPECT_EQ(signals.WaitForSpace(false, [] { return false; }),
            Waited::kExhausted);
  EXPECT_EQ(signals.WaitForSpace(false, [] { return true; }), Waited::kFreed);
}

TEST(WaitForSpaceTest, WakesTheDrain) {
  const Deadline deadline(std::chrono::seconds(30));
  HostSignals signals(kForever);
  std::atomic<bool> space{false};
  std::jthread producer([&] {
    EXPECT_EQ(signals.WaitForSpace(false, [&] { return space.load(); }),
              Waited::kFreed);
  });
  while (!signals.somebody_waits()) {
    signals.DrainSleep(kForever, [&] { return signals.somebody_waits(); });
  }
  space = true;
  signals.SpaceFreed();
}

}  // namespace
}  // namespace dmi::program
