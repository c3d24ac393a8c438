// SPDX-License-Identifier: Apache-2.0
// A search for the largest size that fits a window: doubt halves, success
// grows, timing estimates take short cuts.
//
//   max_safe    A  largest size that fitted
//   min_unsafe  B  smallest size that did not, above A
//   estimate    E  what the timing of a transfer promises
//   stalled     S  no whole number of records lies between A and what was tried
#ifndef DMI_WINDOWS_BINARY_ADAPTIVE_H_
#define DMI_WINDOWS_BINARY_ADAPTIVE_H_

#include <cstdint>
#include <optional>

#include "windows/policy.h"

namespace dmi::windows {

class BinaryAdaptive final : public GrantPolicy {
 public:
  explicit BinaryAdaptive(const WindowConfig& config) : config_(config) {}

  bool in_chunks() const override { return false; }
  std::optional<Grant> Choose(uint64_t occurrence, const Offer& offer) override;
  bool Observe(uint64_t occurrence, uint64_t bytes, bool overran,
               const Grant& grant) override;
  void ObserveTimingEstimate(uint64_t measured, uint64_t estimate) override;
  void ObserveLength(int64_t) override {}
  void Restart() override;
  Learned learned() const override { return {safe_, unsafe_, estimate_}; }

 private:
  // Something that failed waits longer each time before it is tried again.
  struct Retry {
    uint64_t fails = 0;
    uint64_t next = 0;  // occurrence
    void Fail(uint64_t occurrence, uint64_t interval);
  };

  Grant Limit(uint64_t occurrence) const;
  bool RevalidationDue(uint64_t occurrence) const;
  void Overran(uint64_t occurrence, uint64_t bytes, const Grant& grant);
  bool Fitted(uint64_t bytes, const Grant& grant);
  void ClearStall();

  const WindowConfig config_;
  std::optional<uint64_t> safe_;
  std::optional<uint64_t> unsafe_;
  std::optional<uint64_t> estimate_;
  bool stalled_ = false;
  std::optional<uint64_t> stalled_estimate_;  // the one tried when it stalled
  Retry probe_;
  Retry revalidation_;
  std::optional<uint64_t> revalidated_unsafe_;  // B that it failed against

  // Of the last choice.
  uint64_t available_ = 0;
  bool capped_ = false;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_BINARY_ADAPTIVE_H_
