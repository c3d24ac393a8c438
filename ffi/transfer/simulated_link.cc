// SPDX-License-Identifier: Apache-2.0
// The simulated link, see the header.
#include "transfer/simulated_link.h"

#include <cstring>
#include <stdexcept>

namespace dmi::transfer {

void SimulatedLink::Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (left_.load(std::memory_order_relaxed) == 0) {
    throw std::runtime_error("the simulated link failed");
  }
  left_.fetch_sub(1, std::memory_order_relaxed);
  to_ = to;
  from_ = from;
  bytes_ = bytes;
  const double rate = bytes_per_second_.load(std::memory_order_relaxed);
  const double ideal = static_cast<double>(options_.latency_nanos) +
                       static_cast<double>(bytes) / rate * 1e9;
  std::uniform_real_distribution<double> factor(1 - options_.jitter,
                                                1 + options_.jitter);
  const double nanos = options_.jitter > 0 ? ideal * factor(random_) : ideal;
  lands_at_ = time_->Now() + static_cast<int64_t>(nanos);
}

int64_t SimulatedLink::Remaining() {
  const int64_t left = lands_at_ - time_->Now();
  if (left > 0) return left;
  if (bytes_ > 0) std::memcpy(to_, from_, bytes_);
  bytes_ = 0;
  return 0;
}

}  // namespace dmi::transfer
