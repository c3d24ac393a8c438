// SPDX-License-Identifier: Apache-2.0
// What decides how much one window may carry, from what it carried before.
#ifndef DMI_WINDOWS_POLICY_H_
#define DMI_WINDOWS_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "windows/grant.h"

namespace dmi::windows {

class Link;

// What waits to be moved, and since when the window is open.
struct Offer {
  uint64_t full_grant_bytes;
  uint64_t first_record_bytes;
  uint64_t most = kUnbounded;         // no grant may be larger, a probe neither
  std::optional<int64_t> elapsed_ns;  // since OPEN, at least; unknown without
};

// What a policy believes of its window.
struct Learned {
  std::optional<uint64_t> max_safe;
  std::optional<uint64_t> min_unsafe;
  std::optional<uint64_t> estimate;
};

// One per window. The controller judges evidence and hands on only what may
// count; calls come from one thread at a time.
class GrantPolicy {
 public:
  virtual ~GrantPolicy() = default;

  // Whether an occurrence may carry several transfers, each admitted on the
  // clock; otherwise it carries one.
  virtual bool in_chunks() const = 0;
  virtual std::optional<Grant> Choose(uint64_t occurrence,
                                      const Offer& offer) = 0;
  // A transfer of that grant ended; true where records turn out to be too
  // coarse for the size that was tried.
  virtual bool Observe(uint64_t occurrence, uint64_t bytes, bool overran,
                       const Grant& grant) = 0;
  // `measured` bytes took a part of a window; a whole one carries `estimate`.
  virtual void ObserveTimingEstimate(uint64_t measured, uint64_t estimate) = 0;
  // An occurrence lasted that long.
  virtual void ObserveLength(int64_t length_ns) = 0;
  // Occurrences are counted from 0 again.
  virtual void Restart() = 0;
  virtual Learned learned() const = 0;
};

// `link` is what the windows of one device share; `config` may go away.
std::unique_ptr<GrantPolicy> MakePolicy(const WindowConfig& config,
                                        std::shared_ptr<const Link> link);

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_POLICY_H_
