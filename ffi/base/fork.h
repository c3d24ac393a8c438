// SPDX-License-Identifier: Apache-2.0
// Locks that do not outlive a fork.
//
// A forked child has only the thread that forked: what the others held at that
// moment stays locked in the child for ever, and whoever waited is waited for
// when the condition is destroyed. A capture cannot go on in a child, but the
// child may still close it and drop its batches on the way out; it must not
// hang there. So these locks are no locks in a child, where nobody is left to
// be kept out.
#ifndef DMI_BASE_FORK_H_
#define DMI_BASE_FORK_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace dmi::base {

namespace internal {
inline std::atomic<bool> in_forked_child{false};
}  // namespace internal

// Forks are noticed from the first call on; any thread, any number of times.
void NoticeForks();

// True in a child forked since, and in its children.
inline bool InForkedChild() {
  return internal::in_forked_child.load(std::memory_order_relaxed);
}

// A member that other threads may have been changing when the child was forked:
// not even to be destroyed there.
template <typename T>
class ParentOnly {
 public:
  ParentOnly() : value_() {}
  ~ParentOnly() {
    if (!InForkedChild()) value_.~T();
  }
  ParentOnly(const ParentOnly&) = delete;
  ParentOnly& operator=(const ParentOnly&) = delete;

  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }

 private:
  union {
    T value_;
  };
};

// std::mutex; free to everybody in a forked child.
class Mutex {
 public:
  void lock() {
    if (!InForkedChild()) mutex_.lock();
  }
  void unlock() {
    if (!InForkedChild()) mutex_.unlock();
  }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// std::condition_variable for Mutex; in a forked child nobody waits.
class Condition {
 public:
  void notify_one() {
    if (!InForkedChild()) condition_->notify_one();
  }
  void notify_all() {
    if (!InForkedChild()) condition_->notify_all();
  }

  // Waits until `done()`.
  template <typename Done>
  void wait(std::unique_lock<Mutex>& lock, Done done) {
    if (InForkedChild()) return;
    std::unique_lock inner(lock.mutex()->mutex_, std::adopt_lock);
    condition_->wait(inner, done);
    inner.release();
  }
  // Waits until `done()`, at most that long; returns what it was last.
  template <typename Done>
  bool wait_for(std::unique_lock<Mutex>& lock, std::chrono::nanoseconds most,
                Done done) {
    if (InForkedChild()) return done();
    std::unique_lock inner(lock.mutex()->mutex_, std::adopt_lock);
    const bool result = condition_->wait_for(inner, most, done);
    inner.release();
    return result;
  }
  void wait_for(std::unique_lock<Mutex>& lock, std::chrono::nanoseconds most) {
    if (InForkedChild()) return;
    std::unique_lock inner(lock.mutex()->mutex_, std::adopt_lock);
    condition_->wait_for(inner, most);
    inner.release();
  }

 private:
  // Its destructor waits for those who wait.
  ParentOnly<std::condition_variable> condition_;
};

}  // namespace dmi::base

#endif  // DMI_BASE_FORK_H_
