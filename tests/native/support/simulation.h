// SPDX-License-Identifier: Apache-2.0
// A device, its drain and a simulated link in virtual time, driven step by
// step.
//
// The program passes boundaries when a schedule says so and always has more to
// record; the drain takes a turn when it asked for one, and some microseconds
// after every boundary it wants to see. Every record that comes out is checked.
#ifndef DMI_TESTS_NATIVE_SUPPORT_SIMULATION_H_
#define DMI_TESTS_NATIVE_SUPPORT_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/time_source.h"
#include "drain/drain.h"
#include "support/flow.h"
#include "transfer/simulated_link.h"

namespace dmi::testing {

inline constexpr int64_t kMicrosecond = 1000;

struct SimulationOptions {
  ring::RingOptions ring{.bytes = 64u << 20, .stall_nanos = kForever};
  drain::DrainOptions drain;
  transfer::SimulatedLinkOptions link{.bytes_per_second = 1e9};
  // Without windows: ordinary batching.
  std::optional<windows::WindowConfig> windows = windows::WindowConfig{};
  uint64_t record_bytes = 64u << 10;
  // How long after a boundary the drain is awake.
  int64_t wake_nanos = 20 * kMicrosecond;
  // Nanoseconds from each boundary to the next; the first at time 0.
  std::function<int64_t(uint64_t counter)> schedule;
};

class Simulation {
 public:
  explicit Simulation(SimulationOptions options);
  ~Simulation();

  // Puts a pattern in force, as between two programs.
  void Install(uint16_t version, const windows::WindowPattern& pattern);
  void Suspend();

  // Runs until the program has passed so many boundaries in all.
  void RunTo(uint64_t boundaries);
  // Runs for some time without boundaries.
  void RunFor(int64_t nanos);
  // The drain takes no turn before that much time has passed.
  void Stall(int64_t nanos) { next_turn_ = time_->Now() + nanos; }
  // Whether the program has something to record whenever there is room.
  void set_backlog(bool backlog) { backlog_ = backlog; }
  void Record(uint64_t bytes);
  // Moves all that is left, then checks that nothing is missing.
  void Finish();

  void Advance(int64_t nanos) { time_->Advance(nanos); }
  int64_t now() const { return time_->Now(); }
  windows::WindowController& controller() { return *drain_->controller(); }
  transfer::SimulatedLink& link() { return *link_; }
  drain::Drain& drain() { return *drain_; }
  ring::Ring& ring() { return *ring_; }

  // When each boundary was passed, in virtual time; the index is the counter.
  const std::vector<int64_t>& boundaries() const { return boundaries_; }
  // What was moved since `from`, in virtual time.
  std::vector<drain::Transfer> Transfers(int64_t from = 0) const;
  uint64_t recorded() const { return recorded_; }
  // Turns the drain took.
  uint64_t turns() const { return turns_; }

 private:
  void Step(int64_t most);
  void Turn();
  void Fill();

  SimulationOptions options_;
  std::shared_ptr<base::ManualTime> time_;
  Device device_;
  std::shared_ptr<ring::Ring> ring_;
  std::shared_ptr<batch::BatchQueue> queue_;
  std::shared_ptr<transfer::SimulatedLink> link_;
  std::unique_ptr<drain::Drain> drain_;
  Checker checker_;
  std::vector<int64_t> boundaries_;
  int64_t next_boundary_ = 0;
  int64_t next_turn_ = 0;
  bool backlog_ = true;
  uint64_t recorded_ = 0;
  uint64_t turns_ = 0;
};

// Nanoseconds of transfers inside and outside the windows of a pattern, and of
// the windows, over the boundaries that were passed.
struct Overlap {
  int64_t critical = 0;
  int64_t friendly = 0;
  int64_t windows = 0;
  uint64_t bytes = 0;
};
Overlap Measure(const Simulation& simulation,
                const windows::WindowPattern& pattern, int64_t from = 0);

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_SUPPORT_SIMULATION_H_
