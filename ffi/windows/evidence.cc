// SPDX-License-Identifier: Apache-2.0
// The rules of evidence.
#include "windows/evidence.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace dmi::windows {
namespace {

uint64_t WholeWindow(uint64_t bytes, int64_t length_ns, int64_t transfer_ns) {
  const auto estimate = static_cast<unsigned __int128>(bytes) *
                        static_cast<uint64_t>(length_ns) /
                        static_cast<uint64_t>(transfer_ns);
  constexpr auto kMost = std::numeric_limits<uint64_t>::max();
  return estimate > kMost ? kMost : static_cast<uint64_t>(estimate);
}

}  // namespace

Evidence::Evidence(const WindowPattern& pattern)
    : pattern_(pattern), newest_(pattern.windows().size()) {}

const Evidence::Occurrence* Evidence::Find(const WindowMatch& match) const {
  const Occurrence& newest = newest_[match.window_index];
  return newest.known && newest.match == match ? &newest : nullptr;
}

Evidence::Occurrence* Evidence::Find(const WindowMatch& match) {
  return const_cast<Occurrence*>(std::as_const(*this).Find(match));
}

Evidence::Occurrence* Evidence::Open(const WindowMatch& match) {
  Occurrence& newest = newest_[match.window_index];
  if (newest.known && newest.match.begin >= match.begin) return Find(match);
  newest = {};
  newest.match = match;
  newest.known = true;
  return &newest;
}

std::optional<Evidence::Closed> Evidence::Sight(uint64_t counter,
                                                int64_t now_ns, bool late) {
  const bool away = late || gap_;
  gap_ = false;
  if (away) away_until_ = std::max(away_until_.value_or(0), counter);
  std::optional<Closed> closed;
  if (counter_ && counter < *counter_) return closed;
  if (!counter_ || counter > *counter_) {
    if (!away && !stamped_) closed = Close(counter, now_ns, false);
    const auto match = pattern_.Match(counter);
    if (match && !Find(*match)) {
      if (Occurrence* open = Open(*match)) {
        open->seen_to_open = counter == match->begin && !away;
        open->exact = open->seen_to_open && !stamped_;
        if (open->exact) {
          open->opened_ns = now_ns;
        } else if (counter_ && *counter_ < match->begin) {
          open->opened_ns = sighted_ns_;
        }
      }
    }
    counter_ = counter;
    boundary_ns_ = now_ns;
  }
  sighted_ns_ = now_ns;
  return closed;
}

std::optional<Evidence::Closed> Evidence::Stamp(uint64_t counter,
                                                int64_t time_ns) {
  stamped_ = true;
  const auto closed = Close(counter, time_ns, true);
  const auto match = pattern_.Match(counter);
  if (match && match->begin == counter) {
    if (Occurrence* open = Open(*match)) {
      open->seen_to_open = open->exact = open->stamped = true;
      open->opened_ns = time_ns;
    }
  }
  if (!counter_ || counter > *counter_) {
    counter_ = counter;
    boundary_ns_ = sighted_ns_ = time_ns;
  }
  return closed;
}

std::optional<Evidence::Closed> Evidence::Close(uint64_t counter,
                                                int64_t time_ns, bool stamped) {
  const auto match = counter > 0 ? pattern_.Match(counter - 1) : std::nullopt;
  if (!match || match->end != counter) return std::nullopt;
  Occurrence* open = Find(*match);
  if (!open || open->closed) return std::nullopt;
  open->closed = true;
  // The first window of a version may have no stamp of its opening: when that
  // was seen says too little beside the stamp of its end.
  if (!open->exact || open->stamped != stamped || time_ns <= *open->opened_ns) {
    return std::nullopt;
  }
  Closed closed{match->window_index, time_ns - *open->opened_ns, open->bytes,
                std::nullopt};
  if (Clean(*match) && open->usable && open->transfer_ns > 0 &&
      open->last_end_ns < time_ns) {
    closed.estimate =
        WholeWindow(open->bytes, closed.length_ns, open->transfer_ns);
  }
  return closed;
}

std::optional<Evidence::Closed> Evidence::Transferred(const WindowMatch& match,
                                                      uint64_t bytes,
                                                      int64_t issue_ns,
                                                      int64_t end_ns,
                                                      bool overran) {
  Occurrence* open = Find(match);
  if (!open) return std::nullopt;
  open->bytes += bytes;
  open->transfer_ns += end_ns - issue_ns;
  open->last_end_ns = end_ns;
  open->usable &= !overran && !gap_ && end_ns > issue_ns && open->opened_ns &&
                  *open->opened_ns <= issue_ns;
  if (!overran || stamped_ || !open->exact || issue_ns <= *open->opened_ns) {
    return std::nullopt;
  }
  open->closed = true;
  return Closed{match.window_index, issue_ns - *open->opened_ns, open->bytes,
                std::nullopt};
}

bool Evidence::Clean(const WindowMatch& match) const {
  const Occurrence* open = Find(match);
  return open && open->seen_to_open && !gap_ &&
         (!away_until_ || match.begin > *away_until_);
}

std::optional<int64_t> Evidence::OpenedAt(const WindowMatch& match) const {
  const Occurrence* open = Find(match);
  return open ? open->opened_ns : std::nullopt;
}

}  // namespace dmi::windows
