// SPDX-License-Identifier: Apache-2.0
// A link of a given latency and bandwidth, in real or in virtual time.
#ifndef DMI_TRANSFER_SIMULATED_LINK_H_
#define DMI_TRANSFER_SIMULATED_LINK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>

#include "base/time_source.h"
#include "transfer/link.h"

namespace dmi::transfer {

struct SimulatedLinkOptions {
  double bytes_per_second = 1e9;
  int64_t latency_nanos = 10'000;
  double jitter = 0;  // each transfer takes (1 +- jitter) of its time, uniform
  uint64_t seed = 0;
  int depth = 1;
  Pace pace = {};
};

// Transfers share the bandwidth one after the other; the latency of one passes
// while the one before it is under way.
class SimulatedLink final : public Link {
 public:
  SimulatedLink(const SimulatedLinkOptions& options,
                std::shared_ptr<const base::TimeSource> time)
      : bytes_per_second_(options.bytes_per_second),
        options_(options),
        time_(std::move(time)),
        random_(options.seed) {}

  bool in_place() const override { return false; }
  int depth() const override { return options_.depth; }
  Pace pace() const override { return options_.pace; }
  // Bytes land together at the end, as if the link delivered the last one last.
  void Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) override;
  int64_t Remaining() override;
  void Retire() override { under_way_.pop_front(); }

  // ---- Any thread, for tests ----
  void SetRate(double bytes_per_second) {
    bytes_per_second_.store(bytes_per_second, std::memory_order_relaxed);
  }
  // After so many more transfers, every one fails.
  void FailAfter(uint64_t transfers) {
    left_.store(transfers, std::memory_order_relaxed);
  }

 private:
  std::atomic<double> bytes_per_second_;
  const SimulatedLinkOptions options_;
  const std::shared_ptr<const base::TimeSource> time_;
  std::mt19937_64 random_;
  std::atomic<uint64_t> left_{std::numeric_limits<uint64_t>::max()};

  struct Transfer {
    uint8_t* to;
    const uint8_t* from;
    uint64_t bytes;  // 0 once they landed
    int64_t lands_at;
  };
  std::deque<Transfer> under_way_;  // oldest first
  int64_t last_lands_at_ = std::numeric_limits<int64_t>::min() / 2;
};

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_SIMULATED_LINK_H_
