// SPDX-License-Identifier: Apache-2.0
// Staging: the host memory an image is packed in.
//
// Grows and never shrinks. What was handed to a runtime is on lease until the
// runtime lets go of it: while `leases()` is not 0 the memory must not change.
#ifndef DMI_REPLAY_STAGING_H_
#define DMI_REPLAY_STAGING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace dmi::replay {

// Where staging gets its memory; replaced in tests. `allocate` returns memory
// aligned to kStagingAlign, or null.
struct StagingMemory {
  void* (*allocate)(size_t bytes);
  void (*release)(void* memory, size_t bytes);
};
const StagingMemory& HostMemory();

inline constexpr size_t kStagingAlign = 4096;

// Images begin this far behind a page. XLA:CPU takes memory on 64 bytes for its
// own instead of copying it, and an image must outlive the next use of its
// staging.
inline constexpr size_t kImageOffset = 32;

class Staging {
 public:
  explicit Staging(const StagingMemory& memory = HostMemory());
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  uint8_t* image() const { return image_; }  // null while capacity is 0
  uint64_t capacity() const { return capacity_; }
  uint64_t allocations() const { return allocations_; }

  // Makes room for `bytes`, of which the first `used` are kept. Throws
  // std::bad_alloc and is then as before. Requires no lease.
  void Grow(uint64_t bytes, uint64_t used);

  // Says that bytes up to `end` are about to be written.
  void Touch(uint64_t end) { touched_ = touched_ > end ? touched_ : end; }

  // Zeros [from, to); knows what is zero already. Requires to <= capacity().
  void Clear(uint64_t from, uint64_t to);

  // Sets every byte, as an earlier use might have left them.
  void Fill(uint8_t value);

  void Lease() { leases_.fetch_add(1, std::memory_order_relaxed); }
  void Return() { leases_.fetch_sub(1, std::memory_order_release); }
  uint64_t leases() const { return leases_.load(std::memory_order_acquire); }

 private:
  const StagingMemory& memory_;
  uint8_t* image_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t touched_ = 0;  // bytes from here on are zero
  uint64_t allocations_ = 0;
  std::atomic<uint64_t> leases_{0};
};

}  // namespace dmi::replay

#endif  // DMI_REPLAY_STAGING_H_
