// SPDX-License-Identifier: Apache-2.0
// The simulated link, see the header.
#include "transfer/simulated_link.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace dmi::transfer {

void SimulatedLink::Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (left_.load(std::memory_order_relaxed) == 0) {
    throw std::runtime_error("the simulated link failed");
  }
  left_.fetch_sub(1, std::memory_order_relaxed);
  const double rate = bytes_per_second_.load(std::memory_order_relaxed);
  const double moving = static_cast<double>(bytes) / rate * 1e9;
  const double ideal = static_cast<double>(options_.latency_nanos) + moving;
  std::uniform_real_distribution<double> jitter(1 - options_.jitter,
                                                1 + options_.jitter);
  const double factor = options_.jitter > 0 ? jitter(random_) : 1;
  last_lands_at_ =
      std::max(time_->Now() + static_cast<int64_t>(ideal * factor),
               last_lands_at_ + static_cast<int64_t>(moving * factor));
  under_way_.push_back({to, from, bytes, last_lands_at_});
}

int64_t SimulatedLink::Remaining() {
  Transfer& oldest = under_way_.front();
  const int64_t left = oldest.lands_at - time_->Now();
  if (left > 0) return left;
  if (oldest.bytes > 0) std::memcpy(oldest.to, oldest.from, oldest.bytes);
  oldest.bytes = 0;
  return 0;
}

}  // namespace dmi::transfer
