// SPDX-License-Identifier: Apache-2.0
// The bus between a CUDA device and the host.
#ifndef DMI_TRANSFER_CUDA_LINK_H_
#define DMI_TRANSFER_CUDA_LINK_H_

#include <cstdint>
#include <memory>

#include "base/cuda.h"
#include "transfer/link.h"

namespace dmi::transfer {

// Copies by the device's copy engine, on a stream that no program waits for.
// Nothing is allocated after Prepare.
class CudaLink final : public Link {
 public:
  // Throws base::CudaError, as everything here.
  explicit CudaLink(int ordinal);
  // Waits for what is under way.
  ~CudaLink() override;

  bool in_place() const override { return false; }
  // The next copy is in the queue when one ends.
  int depth() const override { return kDepth; }
  // A program cannot wake the host.
  Pace pace() const override {
    return {.idle = 3'000'000, .waiting = 200'000, .confining = 50'000};
  }

  void Prepare(uint8_t* staging, uint64_t bytes) override;
  void Attach() override { base::StayOnDevice(ordinal_); }
  void Begin(uint8_t* to, const uint8_t* from, uint64_t bytes) override;
  int64_t Remaining() override;
  void Retire() override;

 private:
  static constexpr int kDepth = 2;

  struct Copy {
    int64_t begin;
    uint64_t bytes;
    bool landed;
  };

  const int ordinal_;
  std::unique_ptr<base::CudaStream> stream_;
  std::unique_ptr<base::CudaEvent> landed_[kDepth];
  std::unique_ptr<base::Pinned> staging_;
  Copy copies_[kDepth] = {};
  uint64_t begun_ = 0;
  uint64_t retired_ = 0;
  int64_t last_landed_ = 0;
  double nanos_per_byte_ = 0;  // of the copies so far; 0 = not known
};

}  // namespace dmi::transfer

#endif  // DMI_TRANSFER_CUDA_LINK_H_
