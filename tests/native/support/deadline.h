// SPDX-License-Identifier: Apache-2.0
// A hard limit on how long a test may take.
#ifndef DMI_TESTS_NATIVE_SUPPORT_DEADLINE_H_
#define DMI_TESTS_NATIVE_SUPPORT_DEADLINE_H_

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace dmi::testing {

// Ends the process when it is still alive after `limit`: a test that waits for
// something that never comes must fail, not hang.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds limit)
      : thread_([this, limit] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, limit, [this] { return finished_; })) return;
          std::fprintf(stderr, "deadline of %d s passed\n",
                       static_cast<int>(limit.count()));
          std::abort();
        }) {}
  ~Deadline() {
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    done_.notify_one();
    thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool finished_ = false;
  std::thread thread_;
};

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_SUPPORT_DEADLINE_H_
