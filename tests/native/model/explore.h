// SPDX-License-Identifier: Apache-2.0
// Running a suite: every execution that is looked at must hold, and under each
// mutation one must fail.
#ifndef DMI_MODEL_EXPLORE_H_
#define DMI_MODEL_EXPLORE_H_

#include <initializer_list>

#include "model/memory.h"

namespace dmi::model {

// Which executions are looked at: every one; every one in which at most `bound`
// threads are interrupted; or `count` random ones, the same on every run.
struct Search {
  rl::scheduler_type_e kind;
  unsigned bound = 0;
  uint64_t count = 0;

  static Search All() { return {rl::sched_full}; }
  static Search Bound(unsigned bound) { return {rl::sched_bound, bound}; }
  static Search Random(uint64_t count) { return {rl::sched_random, 0, count}; }
};

struct Found {
  rl::test_result_e result;
  uint64_t executions;
  std::string history;  // of the execution that failed

  bool holds() const { return result == rl::test_result_success; }
  // A wait without end is no proof that an order is needed.
  bool breaks() const {
    return result == rl::test_result_data_race ||
           result == rl::test_result_user_assert_failed;
  }
};

template <typename Suite>
Found Explore(Search search, Mapping how, const Mutation& change) {
  mapping = how;
  mutation = change;
  rl::ostringstream history;  // of another heap than what fibers allocate
  rl::test_params params;
  params.output_stream = params.progress_stream = &history;
  params.search_type = search.kind;
  params.context_bound = search.bound;
  params.iteration_count = search.count;
  rl::simulate<Suite>(params);
  return {params.test_result, params.stop_iteration, history.str().c_str()};
}

template <typename Suite>
void Holds(Search search, Mapping how, const Mutation& change = {}) {
  const Found found = Explore<Suite>(search, how, change);
  EXPECT_TRUE(found.holds()) << change.name << "\n" << found.history;
  std::cout << "    " << change.name << ": " << found.executions
            << " executions\n";
}

template <typename Suite>
void FindsAll(Search search, Mapping how,
              std::initializer_list<Mutation> changes) {
  for (const Mutation& change : changes) {
    const Found found = Explore<Suite>(search, how, change);
    EXPECT_TRUE(found.breaks()) << "not found: " << change.name;
    std::cout << "    " << change.name << ": "
              << rl::test_result_str(found.result) << " in execution "
              << found.executions << "\n";
  }
}

// Orders that the product has and this suite does not need.
template <typename Suite>
void Spares(Search search, Mapping how,
            std::initializer_list<Mutation> changes) {
  for (const Mutation& change : changes) Holds<Suite>(search, how, change);
}

}  // namespace dmi::model

#endif  // DMI_MODEL_EXPLORE_H_
