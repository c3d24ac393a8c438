// SPDX-License-Identifier: Apache-2.0
// The newest few values of a measurement, and their quantiles.
#ifndef DMI_WINDOWS_HISTORY_H_
#define DMI_WINDOWS_HISTORY_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dmi::windows {

template <typename T>
class History {
 public:
  explicit History(size_t most) : most_(most) {}

  void Add(T value) {
    if (values_.size() < most_) {
      values_.push_back(std::move(value));
    } else {
      values_[next_] = std::move(value);
      next_ = (next_ + 1) % most_;
    }
  }

  // Forgets all but the newest `count`.
  void KeepNewest(size_t count) {
    std::rotate(values_.begin(), values_.begin() + next_, values_.end());
    next_ = 0;
    if (count < values_.size()) {
      values_.erase(values_.begin(), values_.end() - count);
    }
  }

  size_t size() const { return values_.size(); }
  // 0 is the oldest.
  const T& operator[](size_t i) const {
    return values_[(next_ + i) % values_.size()];
  }
  // In no order.
  const std::vector<T>& values() const { return values_; }

 private:
  size_t most_;
  size_t next_ = 0;  // the oldest, once full
  std::vector<T> values_;
};

// The value with `rank` smaller ones; counted from the largest where negative:
// -1 is the largest. `values` is not empty; ranks outside are moved to its end.
template <typename T>
T Ranked(std::vector<T> values, ptrdiff_t rank) {
  const ptrdiff_t size = static_cast<ptrdiff_t>(values.size());
  const auto at =
      values.begin() +
      std::clamp<ptrdiff_t>(rank < 0 ? size + rank : rank, 0, size - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_HISTORY_H_
