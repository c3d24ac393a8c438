// SPDX-License-Identifier: Apache-2.0
// The controller of one device: says what the drain may move now.
//
//   boundaries -> Poll -> Admission -> Commit -> (transfer) -> Complete
//
// Threads: InstallPending, CancelPending, ResetForVersionReuse, Suspend,
// LimitGrants, mode and State may be called by any thread and never block
// beyond a short lock. Everything else belongs to the drain thread.
#ifndef DMI_WINDOWS_CONTROLLER_H_
#define DMI_WINDOWS_CONTROLLER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/time_source.h"
#include "windows/grant.h"
#include "windows/pattern.h"

namespace dmi::windows {

enum class Mode : uint32_t { kNoPattern, kActive, kSuspended, kFallback };

// The right to one transfer.
struct Admission {
  uint16_t version;
  WindowMatch match;
  Grant grant;
};

// What is known of one window.
struct WindowInfo {
  int64_t length_ns;  // 0 = not known
  std::optional<uint64_t> max_safe;
  std::optional<uint64_t> min_unsafe;
  std::optional<uint64_t> estimate;  // bytes a whole window carries
  uint64_t last_grant;               // bytes granted in the last occurrence
  uint64_t occurrences;              // in which something was moved
  uint64_t overruns;
};

struct WindowState {
  Mode mode;
  uint16_t version;
  std::optional<WindowPattern> pattern;
  std::vector<WindowInfo> windows;
  double link_bytes_per_second;  // 0 = not known
};

class WindowController {
 public:
  // `time` outlives the controller.
  WindowController(const WindowConfig& config, const base::TimeSource& time);
  ~WindowController();
  WindowController(const WindowController&) = delete;
  WindowController& operator=(const WindowController&) = delete;

  // ---- Any thread ----

  // The pattern is current from the first poll on that sees `version`.
  // `keep_learning`: it takes over what the pattern current by then has
  // learned, if it has the same windows. Throws std::logic_error unless
  // `version` is above the current and every pending one.
  void InstallPending(uint16_t version, WindowPattern pattern,
                      bool keep_learning = false);
  // Forgets this version if it is still pending.
  void CancelPending(uint16_t version);
  // Forgets every version, pattern and count; the caller made sure that nothing
  // moves.
  void ResetForVersionReuse();
  // From the next poll that sees version 0 on, until a pattern becomes current:
  // ordinary batching, nothing charged, nothing learned.
  void Suspend();
  void LimitGrants(std::optional<uint64_t> bytes);
  Mode mode() const;
  WindowState State() const;

  // ---- Drain thread ----

  // A boundary as the device stamped it, in order, on the clock of `time`.
  // Where boundaries come this way, polls need not see them.
  void ObserveBoundary(uint64_t progress, int64_t time_ns);

  // What may move now. `full_grant_bytes`: what is ready and has room,
  // `first_record_bytes`: its first record, or what is left of it; 0 = none.
  std::optional<Admission> Poll(uint64_t progress, uint64_t full_grant_bytes,
                                uint64_t first_record_bytes);
  // False where the window has passed meanwhile: then nothing may move.
  bool Commit(const Admission& admission, uint64_t bytes, uint64_t progress);
  void Complete(const Admission& admission, uint64_t bytes, uint64_t progress);
  // The drain was away: what began before and ends after is no evidence.
  void NoteObservationGap();
  // A producer found the ring full and data had to move at once; true when this
  // was once too often, and fallback begins.
  bool RecordCapacityFlush(uint64_t progress);

  // Whether the boundaries have stopped for longer than the watchdog allows.
  bool Stalled() const;
  // Where the last poll saw a window open: how long no boundary has passed.
  std::optional<int64_t> OpenNanos() const;
  // The next counter at which polling again can change anything: the drain
  // wants to be woken there. In the version that is current; kUnbounded for
  // none.
  uint64_t NextEdge() const;

  // ---- Evidence, for tests: of the current version, oldest first ----
  struct Attempt {
    uint64_t occurrence;
    uint64_t bytes;
    bool overran;
    GrantKind kind;
  };
  std::vector<uint64_t> timing_estimates(uint32_t window_index) const;
  std::vector<Attempt> attempts(uint32_t window_index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmi::windows

#endif  // DMI_WINDOWS_CONTROLLER_H_
