// SPDX-License-Identifier: Apache-2.0
// The bus between a CUDA device and the host, see the header.
#include "transfer/cuda_link.h"

#include <algorithm>
#include <optional>

#include "base/clock.h"

namespace dmi::transfer {
namespace {

// While it is not known how long a copy takes, and at its end.
constexpr int64_t kSoon = 10'000;
// Smaller copies say more of the latency than of the bandwidth.
constexpr uint64_t kTellingBytes = 1u << 20;

}  // namespace

CudaLink::CudaLink(int ordinal) : ordinal_(ordinal) {
  const base::OnDevice here(ordinal_);
  stream_ = std::make_unique<base::CudaStream>();
  for (auto& event : landed_) event = std::make_unique<base::CudaEvent>();
}

CudaLink::~CudaLink() {
  if (base::InForkedChild()) return;
  std::optional<base::OnDevice> here;
  try {
    here.emplace(ordinal_);
  } catch (const base::CudaError&) {
    // What follows waits and frees as well as it can.
  }
  cudaStreamSynchronize(stream_->get());
  staging_.reset();
  for (auto& event : landed_) event.reset();
  stream_.reset();
}

void CudaLink::Prepare(uint8_t* staging, uint64_t bytes) {
  const base::OnDevice here(ordinal_);
  staging_ = std::make_unique<base::Pinned>(staging, bytes, "staging");
}

void CudaLink::Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  const int at = static_cast<int>(begun_ % kDepth);
  if (bytes > 0) {
    base::CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
                                    stream_->get()),
                    "cudaMemcpyAsync to staging");
  }
  landed_[at]->Record(*stream_);
  copies_[at] = {base::MonotonicNanos(), bytes, false};
  ++begun_;
}

int64_t CudaLink::Remaining() {
  const int at = static_cast<int>(retired_ % kDepth);
  Copy& copy = copies_[at];
  if (copy.landed) return 0;
  const int64_t now = base::MonotonicNanos();
  const int64_t begin = std::max(copy.begin, last_landed_);
  if (landed_[at]->Passed()) {
    copy.landed = true;
    if (copy.bytes >= kTellingBytes) {
      nanos_per_byte_ =
          static_cast<double>(now - begin) / static_cast<double>(copy.bytes);
    }
    last_landed_ = now;
    return 0;
  }
  const auto all =
      static_cast<int64_t>(nanos_per_byte_ * static_cast<double>(copy.bytes));
  return std::max(kSoon, begin + all - now);
}

void CudaLink::Retire() { ++retired_; }

}  // namespace dmi::transfer
