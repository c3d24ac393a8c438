// SPDX-License-Identifier: Apache-2.0
// Sizes of chunks.
#include "windows/deadline.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dmi::windows {
namespace {

constexpr uint64_t kFirstProbe = 4096;
constexpr uint64_t kProbeGrowth = 4;
// A chunk is at most this part of what a window carries.
constexpr uint64_t kChunksPerWindow = 32;
// A last chunk smaller than this part of a whole one is not worth its latency.
constexpr uint64_t kSmallestPart = 8;
// Estimates, from so many on the smallest is taken for an accident.
constexpr size_t kMany = 8;
constexpr double kMostBytes = 1e18;

}  // namespace

void Lengths::Observe(int64_t length_ns) {
  std::vector<int64_t> sorted = Sorted(lengths_.size());
  if (sorted.size() > kChanged) {
    // Ignores as many at either end as a change consists of.
    const int64_t usual_short =
        sorted[std::min(Accidents(sorted) + kChanged, sorted.size() - 1)];
    const int64_t usual_long = sorted[sorted.size() - 1 - kChanged];
    shorter_ = length_ns * kMuch < usual_short ? shorter_ + 1 : 0;
    longer_ = length_ns > usual_long * kMuch ? longer_ + 1 : 0;
  }
  lengths_.Add(length_ns);
  if (shorter_ == kChanged || longer_ == kChanged) {
    lengths_.KeepNewest(kChanged);
    shorter_ = longer_ = 0;
  }
  short_ns_ = Shortest(Sorted(lengths_.size()));
  if (lengths_.size() > kRecent) {
    const int64_t recent = Shortest(Sorted(kRecent));
    if (recent > short_ns_ * kMore) {
      lengths_.KeepNewest(kRecent);
      short_ns_ = recent;
    }
  }
  const int64_t latest = Shortest(Sorted(kMany));
  short_ns_ = std::min(short_ns_, static_cast<int64_t>(kLess * latest));
}

std::vector<int64_t> Lengths::Sorted(size_t newest) const {
  std::vector<int64_t> values;
  for (size_t i = lengths_.size() - std::min(newest, lengths_.size());
       i < lengths_.size(); ++i) {
    values.push_back(lengths_[i]);
  }
  std::sort(values.begin(), values.end());
  return values;
}

int64_t Lengths::Shortest(const std::vector<int64_t>& sorted) {
  const size_t accidents = sorted.size() < kMany ? 0 : Accidents(sorted);
  return sorted[std::max<size_t>(accidents, sorted.size() >= kRecent)];
}

size_t Lengths::Accidents(const std::vector<int64_t>& sorted) {
  const int64_t half = sorted[sorted.size() / 2] / 2;
  const size_t count =
      std::lower_bound(sorted.begin(), sorted.end(), half) - sorted.begin();
  return count <= std::max<size_t>(sorted.size() / kRare, 1) ? count : 0;
}

uint64_t Deadline::Capacity() const {
  if (link_->known() && lengths_.short_ns() > 0) {
    const double bytes =
        link_->BytesWithin(static_cast<double>(lengths_.short_ns()));
    return static_cast<uint64_t>(std::min(bytes, kMostBytes));
  }
  if (estimates_.size() == 0) return 0;
  return Ranked(estimates_.values(), estimates_.size() < kMany ? 0 : 1);
}

// Small sizes first: latency and rate take several.
uint64_t Deadline::Probe() const {
  uint64_t bytes = kFirstProbe;
  for (uint64_t i = 0; i < std::min(link_->observed(), Link::kNeeded - 1);
       ++i) {
    bytes *= kProbeGrowth;
  }
  bytes = std::min(bytes, config_.chunk_bytes);
  if (lengths_.short_ns() > 0 || !config_.initial_grant_bytes) return bytes;
  const uint64_t most = *config_.initial_grant_bytes;
  return std::min(bytes, most - std::min(most, probed_));
}

uint64_t Deadline::Chunk(int64_t left_ns) const {
  const double left = static_cast<double>(left_ns);
  const double capacity = link_->bytes_per_second() * 1e-9 *
                          static_cast<double>(lengths_.short_ns());
  const double whole =
      std::min(static_cast<double>(config_.chunk_bytes),
               std::max(1.0, std::floor(capacity / kChunksPerWindow)));
  const double fits = link_->BytesWithin(left * config_.margin);
  if (fits >= whole) return static_cast<uint64_t>(whole);
  return fits * kSmallestPart >= whole ? static_cast<uint64_t>(fits) : 0;
}

std::optional<Grant> Deadline::Choose(uint64_t occurrence, const Offer& offer) {
  if (offer.first_record_bytes == 0) return std::nullopt;
  const int64_t length = lengths_.short_ns();
  uint64_t limit;
  if (!offer.elapsed_ns) {  // outside a controller: a window as a whole
    limit = Capacity();
    if (limit == 0) limit = Probe();
  } else if (length == 0) {
    limit = link_->known() ? 0 : Probe();  // nothing is left to be probed
  } else if (!link_->known()) {
    limit = *offer.elapsed_ns <= length / 2 ? Probe() : 0;
  } else {
    limit = Chunk(length - *offer.elapsed_ns);
    // A link that seems too slow for any chunk is tried again now and then:
    // nothing else would tell that it has become faster.
    if (limit == 0 && *offer.elapsed_ns <= length / 8 &&
        occurrence >=
            granted_in_ + config_.timing_revalidation_retry_interval) {
      limit = kFirstProbe;
    }
  }
  limit = std::min(limit, offer.most);
  if (limit == 0) return std::nullopt;
  granted_in_ = occurrence;
  return Grant{limit, GrantKind::kDeadline};
}

bool Deadline::Observe(uint64_t occurrence, uint64_t bytes, bool overran,
                       const Grant&) {
  if (lengths_.short_ns() == 0) probed_ += bytes;
  if (carrying_ != occurrence) {
    carrying_ = occurrence;
    carried_ = 0;
  }
  carried_ += bytes;
  if (overran) {
    min_unsafe_ = std::min(min_unsafe_.value_or(kUnbounded), carried_);
    if (max_safe_ >= min_unsafe_) max_safe_.reset();
  } else {
    max_safe_ = std::max(max_safe_.value_or(0), carried_);
    if (min_unsafe_ <= max_safe_) min_unsafe_.reset();
  }
  return false;
}

void Deadline::ObserveTimingEstimate(uint64_t, uint64_t estimate) {
  estimates_.Add(estimate);
}

Learned Deadline::learned() const {
  const uint64_t capacity = Capacity();
  return {max_safe_, min_unsafe_,
          capacity ? std::optional(capacity) : std::nullopt};
}

}  // namespace dmi::windows
