// SPDX-License-Identifier: Apache-2.0
// The state machine of the search.
#include "windows/binary_adaptive.h"

#include <algorithm>

namespace dmi::windows {

void BinaryAdaptive::Retry::Fail(uint64_t occurrence, uint64_t interval) {
  if (fails < kUnbounded) ++fails;
  uint64_t wait;
  if (__builtin_mul_overflow(fails, interval, &wait) ||
      __builtin_add_overflow(occurrence, wait, &next)) {
    next = kUnbounded;
  }
}

bool BinaryAdaptive::RevalidationDue(uint64_t occurrence) const {
  return revalidated_unsafe_ != unsafe_ || occurrence >= revalidation_.next;
}

// Before the first record and the cap are looked at.
Grant BinaryAdaptive::Limit(uint64_t occurrence) const {
  using enum GrantKind;
  if (!safe_) {
    if (unsafe_) return {*unsafe_ / 2, kHalfUnsafe};
    return {config_.initial_grant_bytes.value_or(kUnbounded), kFullAvailable};
  }
  const uint64_t safe = *safe_;
  const uint64_t estimate = estimate_.value_or(0);
  if (!unsafe_) {
    if (estimate > safe) return {estimate, kTimingEstimate};
    return {safe, kMaxSafe};
  }
  const uint64_t unsafe = *unsafe_;
  const bool revalidate = estimate > unsafe && RevalidationDue(occurrence);
  if (!stalled_) {
    if (revalidate) return {estimate, kTimingEstimate, true};
    return {safe + (unsafe - safe) / 2, kMidpoint};
  }
  if (estimate_ && estimate_ != stalled_estimate_) {
    if (safe < estimate && estimate < unsafe) {
      return {estimate, kTimingEstimate};
    }
    if (revalidate) return {estimate, kTimingEstimate, true};
  }
  return {safe, kMaxSafe};
}

std::optional<Grant> BinaryAdaptive::Choose(uint64_t occurrence,
                                            const Offer& offer) {
  if (offer.first_record_bytes == 0) return std::nullopt;
  Grant grant = Limit(occurrence);
  available_ = offer.full_grant_bytes;
  capped_ = offer.most < grant.byte_limit;
  grant.byte_limit = std::min(grant.byte_limit, offer.most);
  if (offer.first_record_bytes <= grant.byte_limit) return grant;
  if (offer.first_record_bytes > offer.most || occurrence < probe_.next) {
    return std::nullopt;
  }
  return Grant{offer.first_record_bytes, GrantKind::kMinimumRecordProbe};
}

bool BinaryAdaptive::Observe(uint64_t occurrence, uint64_t bytes, bool overran,
                             const Grant& grant) {
  if (bytes == 0) return false;
  if (grant.kind == GrantKind::kMinimumRecordProbe) {
    if (overran) {
      probe_.Fail(occurrence, config_.minimum_record_probe_retry_interval);
    } else {
      probe_ = {};
    }
  }
  if (!overran) return Fitted(bytes, grant);
  Overran(occurrence, bytes, grant);
  return false;
}

void BinaryAdaptive::Overran(uint64_t occurrence, uint64_t bytes,
                             const Grant& grant) {
  ClearStall();
  if (safe_ && bytes <= *safe_) {  // the window carries less than before
    safe_.reset();
    estimate_.reset();
    unsafe_ = bytes;
    revalidation_ = {};
    revalidated_unsafe_.reset();
    return;
  }
  if (!unsafe_ || bytes < *unsafe_) {
    unsafe_ = bytes;
    revalidation_ = {};
    revalidated_unsafe_.reset();
  } else if (grant.timing_revalidation) {
    if (revalidated_unsafe_ != unsafe_) revalidation_ = {};
    revalidated_unsafe_ = unsafe_;
    revalidation_.Fail(occurrence, config_.timing_revalidation_retry_interval);
  }
}

bool BinaryAdaptive::Fitted(uint64_t bytes, const Grant& grant) {
  if (unsafe_ && bytes >= *unsafe_) {  // the window carries more than before
    safe_ = bytes;
    unsafe_.reset();
    revalidation_ = {};
    revalidated_unsafe_.reset();
    ClearStall();
    return false;
  }
  const bool tried_more = grant.kind == GrantKind::kMidpoint ||
                          grant.kind == GrantKind::kTimingEstimate;
  if (!safe_ || bytes > *safe_) {
    safe_ = bytes;
    ClearStall();
    return false;
  }
  // A grant that was cut by a cap says nothing about the records.
  if (!tried_more || capped_ || available_ <= bytes) return false;
  const bool entered = !stalled_;
  stalled_ = true;
  stalled_estimate_ = grant.kind == GrantKind::kTimingEstimate
                          ? std::optional(grant.byte_limit)
                          : std::nullopt;
  return entered;
}

void BinaryAdaptive::ObserveTimingEstimate(uint64_t measured,
                                           uint64_t estimate) {
  // What is known to fit is not made smaller by how long it took.
  if (safe_ && measured == *safe_ && estimate <= *safe_) return;
  estimate_ = estimate;
}

void BinaryAdaptive::Restart() {
  probe_.next = 0;
  revalidation_.next = 0;
}

void BinaryAdaptive::ClearStall() {
  stalled_ = false;
  stalled_estimate_.reset();
}

}  // namespace dmi::windows
