// SPDX-License-Identifier: Apache-2.0
// Staging: the host memory an image is packed in.
//
// Grows and never shrinks. What was handed to a runtime is on lease until the
// runtime lets go of it: while `leases()` is not 0 the memory must not change.
// It is freed after the last lease.
#ifndef DMI_REPLAY_STAGING_H_
#define DMI_REPLAY_STAGING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace dmi::replay {

// Where staging gets its memory; replaced in tests. `allocate` returns memory
// aligned to kStagingAlign, or null.
struct StagingMemory {
  void* (*allocate)(size_t bytes);
  void (*release)(void* memory, size_t bytes);
};
const StagingMemory& HostMemory();

inline constexpr size_t kStagingAlign = 4096;

// A small number that nobody else in the process has.
class StagingNumber {
 public:
  StagingNumber();
  ~StagingNumber();
  StagingNumber(const StagingNumber&) = delete;
  StagingNumber& operator=(const StagingNumber&) = delete;

  int64_t value() const { return value_; }

 private:
  int64_t value_;
};

class Staging {
 public:
  explicit Staging(const StagingMemory& memory = HostMemory());
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Null while capacity is 0.
  uint8_t* image() const { return block_ ? block_->data : nullptr; }
  uint64_t capacity() const { return block_ ? block_->bytes : 0; }
  uint64_t allocations() const { return allocations_; }

  // Makes room for `bytes`; the first `used` are kept, as far as they exist.
  // Throws std::bad_alloc and is then as before.
  void Grow(uint64_t bytes, uint64_t used);

  // Says that bytes up to `end` are about to be written.
  void Touch(uint64_t end) { touched_ = touched_ > end ? touched_ : end; }

  // Zeros [from, to); knows what is zero already. Requires to <= capacity().
  void Clear(uint64_t from, uint64_t to);

  // Sets every byte, as an earlier use might have left them.
  void Fill(uint8_t value);

  // Keeps the present memory until the result, and all copies of it, are gone.
  std::shared_ptr<const void> Lease() const;
  uint64_t leases() const;

  // Names it in programs, and whatever its memory is.
  const std::shared_ptr<const StagingNumber>& number() const { return number_; }

  // Keeps what `pin(data, bytes)` returns with the present memory, unless it
  // has one already. Requires capacity() > 0.
  template <typename F>
  void Pin(F&& pin) {
    if (!block_->pin) {
      block_->pin = std::forward<F>(pin)(block_->data, block_->bytes);
    }
  }

 private:
  struct Block {
    Block(const StagingMemory& memory, uint64_t bytes);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    const StagingMemory& memory;
    const uint64_t bytes;
    uint8_t* const data;
    std::atomic<uint64_t> leased{0};
    std::shared_ptr<void> pin;
  };

  const StagingMemory& memory_;
  const std::shared_ptr<const StagingNumber> number_ =
      std::make_shared<StagingNumber>();
  std::shared_ptr<Block> block_;
  uint64_t touched_ = 0;  // bytes from here on are zero
  uint64_t allocations_ = 0;
};

}  // namespace dmi::replay

#endif  // DMI_REPLAY_STAGING_H_
