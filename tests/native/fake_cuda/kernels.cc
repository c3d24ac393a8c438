// SPDX-License-Identifier: Apache-2.0
// Runs emulated kernels: threads that are used again, barriers, shared memory.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <system_error>

#include "fake_cuda/control.h"
#include "fake_cuda/state.h"

namespace fake_cuda {
namespace {

// Thrown in the threads of a kernel whose device broke.
struct Killed {};

// Threads for all launches; as many as ever ran at once.
class Pool {
 public:
  // Calls share(0) ... share(n - 1), each on a thread of its own, all at once;
  // returns when all have. Throws std::system_error, before any call, where
  // there are not enough threads.
  void Run(uint32_t n, const std::function<void(uint32_t)>& share) {
    Job job{share, n - 1, {}};
    if (n > 1) {
      Lock lock(mutex_);
      while (idle_ < shares_.size() + n - 1) {
        threads_.emplace_back([this] { Serve(); });
        ++idle_;
      }
      for (uint32_t i = 1; i < n; ++i) {
        shares_.emplace_back(&job, i);
        more_.notify_one();
      }
    }
    share(0);
    Lock lock(mutex_);
    job.done.wait(lock, [&] { return job.left == 0; });
  }

 private:
  struct Job {
    const std::function<void(uint32_t)>& share;
    uint32_t left;
    std::condition_variable done;
  };

  void Serve() {
    Lock lock(mutex_);
    while (true) {
      more_.wait(lock, [this] { return !shares_.empty(); });
      const auto [job, i] = shares_.front();
      shares_.pop_front();
      --idle_;
      lock.unlock();
      job->share(i);
      lock.lock();
      ++idle_;
      if (--job->left == 0) job->done.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::pair<Job*, uint32_t>> shares_;
  // Threads that take a share next; at least as many as there are shares.
  size_t idle_ = 0;
  std::vector<std::thread> threads_;
};

Pool& ThePool() {
  static Pool* const pool = new Pool;  // its threads live until the end
  return *pool;
}

// What the threads of a block share.
class Block {
 public:
  explicit Block(uint32_t threads) : present_(threads) {}

  void Wait(const std::atomic<bool>& killed) {
    Lock lock(mutex_);
    const uint64_t round = round_;
    ++arrived_;
    if (!Open()) {
      opened_.wait(lock, [&] { return round_ != round || killed; });
    }
    if (killed) throw Killed{};
  }
  // Of a thread that returns: the others no longer wait for it.
  void Leave() {
    Lock lock(mutex_);
    --present_;
    if (present_ > 0) Open();
  }
  void Wake() {
    Lock lock(mutex_);
    opened_.notify_all();
  }
  void* Shared(const void* site, size_t bytes) {
    Lock lock(mutex_);
    auto& memory = shared_[site];
    if (memory.empty()) memory.assign(bytes, std::byte{kUninitialised});
    return memory.data();
  }

 private:
  bool Open() {
    if (arrived_ < present_) return false;
    arrived_ = 0;
    ++round_;
    opened_.notify_all();
    return true;
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  uint32_t present_;
  uint32_t arrived_ = 0;
  uint64_t round_ = 0;
  std::map<const void*, std::vector<std::byte>> shared_;
};

}  // namespace

// One launch.
class Run {
 public:
  explicit Run(const Kernel& kernel) : kernel_(kernel) {
    for (uint32_t i = 0; i < kernel.blocks; ++i) {
      blocks_.emplace_back(kernel.threads);
    }
  }

  void Execute() {
    ThePool().Run(kernel_.blocks * kernel_.threads,
                  [this](uint32_t i) { Thread(i); });
  }
  void Kill() {
    killed_ = true;
    for (Block& block : blocks_) block.Wake();
  }
  const std::atomic<bool>& killed() const { return killed_; }

  static thread_local constinit Run* current;
  static thread_local constinit Block* block;

 private:
  void Thread(uint32_t i) {
    current = this;
    block = &blocks_[i / kernel_.threads];
    gridDim.x = kernel_.blocks;
    blockDim.x = kernel_.threads;
    blockIdx.x = i / kernel_.threads;
    threadIdx.x = i % kernel_.threads;
    try {
      kernel_.call(kernel_.function, kernel_.argument.data());
    } catch (const Killed&) {
    }
    block->Leave();
    current = nullptr;
    block = nullptr;
  }

  const Kernel& kernel_;
  std::deque<Block> blocks_;
  std::atomic<bool> killed_{false};
};

thread_local constinit Run* Run::current = nullptr;
thread_local constinit Block* Run::block = nullptr;

namespace {

void EndWhereKilled() {
  if (Run::current != nullptr && Run::current->killed()) throw Killed{};
}

struct Timer {
  int64_t offset_ns = 0;
  double drift = 0;
  int64_t step_ns = 1;
};
std::mutex timer_mutex;
Timer timer;

}  // namespace

void Kill(Run& run) { run.Kill(); }

void Perform(Runtime& runtime, Stream& stream, const Kernel& kernel,
             Lock& lock) {
  Run run(kernel);
  runtime.runs.emplace(stream.device, &run);
  lock.unlock();
  bool started = true;
  try {
    run.Execute();
  } catch (const std::system_error&) {
    started = false;
  }
  lock.lock();
  runtime.runs.erase({stream.device, &run});
  if (started) return;
  runtime.Problem("the system has too few threads for a kernel");
  runtime.Break(stream.device, cudaErrorLaunchOutOfResources);
}

cudaError_t LaunchKernel(Kernel kernel, cudaStream_t handle) {
  return Call("Launch", kAnyDevice, [&](Runtime& runtime, Lock&) {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = runtime.Find(handle, stream);
    if (error != cudaSuccess) return error;
    if (stream->device != current_device) {
      runtime.Problem("a kernel was launched on another device's stream");
      return cudaErrorInvalidResourceHandle;
    }
    if (kernel.blocks == 0 || kernel.threads == 0 || kernel.threads > 1024 ||
        kernel.blocks > kMostThreads / kernel.threads) {
      runtime.Problem("a kernel was launched with no or too many threads");
      return cudaErrorInvalidConfiguration;
    }
    const std::pair key(current_device, kernel.function);
    if (!runtime.loaded.contains(key)) runtime.late.insert(key);
    return runtime.Enqueue(*stream, std::move(kernel));
  });
}

void SetTimer(int64_t offset_ns, double drift, int64_t step_ns) {
  Lock lock(timer_mutex);
  timer = {offset_ns, drift, std::max<int64_t>(step_ns, 1)};
}

// Far from the time of the host, so that taking one for the other shows.
void ResetTimer(double drift) { SetTimer(int64_t{1} << 50, drift, 32); }

uint64_t DeviceNanos() {
  EndWhereKilled();
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          Clock::now().time_since_epoch())
                          .count();
  Lock lock(timer_mutex);
  const int64_t nanos = now +
                        std::llround(static_cast<double>(now) * timer.drift) +
                        timer.offset_ns;
  return static_cast<uint64_t>(nanos / timer.step_ns * timer.step_ns);
}

void NanoSleep(uint32_t nanos) {
  EndWhereKilled();
  if (nanos < 1000) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::min<uint32_t>(nanos, 100'000)));
  }
  EndWhereKilled();
}

void* Shared(const void* site, size_t bytes) {
  return Run::block->Shared(site, bytes);
}

}  // namespace fake_cuda

void __syncthreads() {
  fake_cuda::Run::block->Wait(fake_cuda::Run::current->killed());
}
