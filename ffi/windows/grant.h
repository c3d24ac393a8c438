// SPDX-License-Identifier: Apache-2.0
// Grants: how many bytes may move now, and why that many.
#ifndef DMI_WINDOWS_GRANT_H_
#define DMI_WINDOWS_GRANT_H_

#include <cstdint>
#include <limits>
#include <optional>

namespace dmi::windows {

inline constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

enum class GrantKind : uint32_t {
  kFullAvailable,
  kHalfUnsafe,
  kMidpoint,
  kMaxSafe,
  kTimingEstimate,
  kMinimumRecordProbe,
  kDeadline,
};

struct Grant {
  uint64_t byte_limit;
  GrantKind kind;
  // A timing estimate above the smallest unsafe size, tried again.
  bool timing_revalidation = false;
};

enum class PolicyKind : uint32_t { kDeadline, kBinaryAdaptive };

struct WindowConfig {
  PolicyKind policy = PolicyKind::kDeadline;
  uint64_t minimum_record_probe_retry_interval = 4;  // occurrences
  uint64_t timing_revalidation_retry_interval = 4;   // occurrences
  uint64_t capacity_flush_fallback_threshold = 3;
  uint64_t capacity_flush_count_reset_interval = 32;  // periods
  std::optional<uint64_t> initial_grant_bytes;
  uint64_t chunk_bytes = 1u << 20;
  double margin = 0.9;
  std::optional<uint64_t> max_grant;
  int64_t watchdog_nanos = 5'000'000'000;
  int64_t max_age_nanos = 10'000'000'000;
  bool debug = false;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_GRANT_H_
