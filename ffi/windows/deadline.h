// SPDX-License-Identifier: Apache-2.0
// Fills a window with chunks, each of which is expected to end in time.
//
// A chunk is granted when the link, slow as it sometimes is, moves it before
// the shortest of the usual lengths of the window has passed. What is left of
// the window after the last whole chunk carries a smaller one. So the worst
// case is one chunk behind CLOSE.
#ifndef DMI_WINDOWS_DEADLINE_H_
#define DMI_WINDOWS_DEADLINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "windows/history.h"
#include "windows/link.h"
#include "windows/policy.h"

namespace dmi::windows {

// Lengths of the occurrences of a window, and which of them to rely on.
class Lengths {
 public:
  Lengths() : lengths_(kHistory) {}

  void Observe(int64_t length_ns);
  // All but the shortest few occurrences last at least that long; 0 = unknown.
  int64_t short_ns() const { return short_ns_; }

 private:
  static constexpr size_t kHistory = 256;
  // Lengths below half of the median are accidents where at most one of so many
  // is: windows are not made smaller for them. It takes a few to tell.
  static constexpr size_t kRare = 32;
  static constexpr size_t kMany = 8;
  // So many in a row that are all this much longer, or shorter, than what was
  // usual mean that the window has changed: older ones are forgotten.
  static constexpr size_t kChanged = 3;
  static constexpr double kMuch = 1.3;
  // A smaller growth takes more of them to tell it from chance.
  static constexpr size_t kRecent = 64;
  static constexpr double kMore = 1.2;
  // Windows that shrink do so by less than the rest from one to the next.
  static constexpr double kLess = 0.99;

  // The newest so many, the shortest first.
  std::vector<int64_t> Sorted(size_t newest) const;
  // Of many lengths the shortest but one, accidents left out.
  static int64_t Shortest(const std::vector<int64_t>& sorted);
  static size_t Accidents(const std::vector<int64_t>& sorted);

  History<int64_t> lengths_;
  size_t longer_ = 0;  // newest lengths in a row that were much longer
  size_t shorter_ = 0;
  int64_t short_ns_ = 0;
};

class Deadline final : public GrantPolicy {
 public:
  Deadline(const WindowConfig& config, std::shared_ptr<const Link> link)
      : config_(config), link_(std::move(link)), estimates_(kHistory) {}

  bool in_chunks() const override { return true; }
  std::optional<Grant> Choose(uint64_t occurrence, const Offer& offer) override;
  bool Observe(uint64_t occurrence, uint64_t bytes, bool overran,
               const Grant& grant) override;
  void ObserveTimingEstimate(uint64_t measured, uint64_t estimate) override;
  void ObserveLength(int64_t length_ns) override {
    lengths_.Observe(length_ns);
  }
  void Restart() override { carrying_.reset(); }
  Learned learned() const override;

 private:
  static constexpr size_t kHistory = 256;

  // Bytes that a whole window carries; 0 = not known.
  uint64_t Capacity() const;
  uint64_t Probe() const;
  uint64_t Chunk(int64_t left_ns) const;

  const WindowConfig config_;
  const std::shared_ptr<const Link> link_;
  Lengths lengths_;
  History<uint64_t> estimates_;
  uint64_t probed_ = 0;      // bytes moved while the length was unknown
  uint64_t granted_in_ = 0;  // the newest occurrence with a grant
  // To be told, not to decide by.
  std::optional<uint64_t> carrying_;  // the newest occurrence that carried any,
  uint64_t carried_ = 0;              // and how much
  std::optional<uint64_t> max_safe_;
  std::optional<uint64_t> min_unsafe_;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_DEADLINE_H_
