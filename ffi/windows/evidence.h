// SPDX-License-Identifier: Apache-2.0
// Judges what was seen of the windows: the one place that decides which
// openings, lengths and transfers may teach anything.
//
// Boundaries are seen in two ways. A *stamp* comes from the device and is exact
// however late it is read. A *sighting* is a counter that the drain happened to
// read: a window was seen to open or close only where the counter stood exactly
// at that boundary and the drain had not been away. Once stamps come, they
// alone time the windows.
#ifndef DMI_WINDOWS_EVIDENCE_H_
#define DMI_WINDOWS_EVIDENCE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "windows/pattern.h"

namespace dmi::windows {

// Of one version. Calls come from one thread at a time.
class Evidence {
 public:
  // An occurrence that ended and was seen to open and to close.
  struct Closed {
    uint32_t window_index;
    int64_t length_ns;
    uint64_t bytes;  // moved in it
    // Bytes a whole window carries; only where every transfer is usable.
    std::optional<uint64_t> estimate;
  };

  explicit Evidence(const WindowPattern& pattern);

  // The drain reads this counter now. `late`: it could not look for a while.
  std::optional<Closed> Sight(uint64_t counter, int64_t now_ns, bool late);
  std::optional<Closed> Stamp(uint64_t counter, int64_t time_ns);
  // The drain was away until the sighting that follows.
  void NoteGap() { gap_ = true; }
  // A transfer moved bytes from issue to end, over the end of its window if it
  // `overran`. Where no stamp says when that closed, it is taken to have closed
  // when the transfer began: were such occurrences left out, only long ones
  // would be known.
  std::optional<Closed> Transferred(const WindowMatch& match, uint64_t bytes,
                                    int64_t issue_ns, int64_t end_ns,
                                    bool overran);

  // Whether transfers of this occurrence start as early as they can: it was
  // seen to open, and nothing kept the drain away since.
  bool Clean(const WindowMatch& match) const;
  // When the occurrence opened, or a time before that; unknown without.
  std::optional<int64_t> OpenedAt(const WindowMatch& match) const;

  bool gap() const { return gap_; }
  // Largest counter seen, nothing before the first sighting.
  std::optional<uint64_t> counter() const { return counter_; }
  // When it was seen first; of no meaning before.
  int64_t boundary_ns() const { return boundary_ns_; }

 private:
  // The newest occurrence of a window.
  struct Occurrence {
    WindowMatch match{};
    bool known = false;  // false: none yet
    bool seen_to_open = false;
    std::optional<int64_t> opened_ns;  // not later than it opened
    bool exact = false;                // and not earlier either
    bool stamped = false;              // because a stamp says so
    bool closed = false;
    bool usable = true;  // every transfer in it
    uint64_t bytes = 0;
    int64_t transfer_ns = 0;
    int64_t last_end_ns = 0;
  };

  const Occurrence* Find(const WindowMatch& match) const;
  Occurrence* Find(const WindowMatch& match);
  // Its record, made where this occurrence is new; null where it is old.
  Occurrence* Open(const WindowMatch& match);
  std::optional<Closed> Close(uint64_t counter, int64_t time_ns, bool stamped);

  WindowPattern pattern_;
  std::vector<Occurrence> newest_;  // per window
  std::optional<uint64_t> counter_;
  int64_t boundary_ns_ = 0;
  int64_t sighted_ns_ = 0;  // when `counter_` was seen last
  bool stamped_ = false;
  bool gap_ = false;
  // Occurrences that began up to here are not clean.
  std::optional<uint64_t> away_until_;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_EVIDENCE_H_
