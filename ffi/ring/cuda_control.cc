// SPDX-License-Identifier: Apache-2.0
// A CUDA device, see control.h.
#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cuda.h"
#include "program/atomics.h"
#include "program/device_table.h"
#include "program/kernels.h"
#include "ring/control.h"
#include "ring/cuda_ring.h"

namespace dmi::ring {
namespace {

using program::ControlAction;
using program::ControlArguments;

constexpr std::chrono::microseconds kPause(50);

class CudaControl final : public Control {
 public:
  CudaControl(int32_t ordinal, int64_t device, int64_t patience)
      : ordinal_(ordinal),
        patience_(patience),
        entry_(program::DeviceTable::Get().Ensure(ordinal)),
        here_(std::make_unique<base::OnDevice>(ordinal)),
        page_(sizeof(wire::ControlBlock), false),
        pinned_(page_.data(), page_.size(), "a control block") {
    entry_.id.store(device, std::memory_order_relaxed);
    here_.reset();
  }

  std::shared_ptr<Ring> MakeRing(const RingOptions& options) override {
    return std::make_shared<CudaRing>(options, ordinal_, entry_.block);
  }

  const uint64_t& ProgressOf(Ring& ring) const override {
    return AsCuda(ring).mirror().progress;
  }

  void Install(std::shared_ptr<Ring> ring) override {
    std::lock_guard lock(mutex_);
    const base::OnDevice here(ordinal_);
    // From here on the device may know of it, also where what follows throws.
    installed_ = ring;
    CudaRing& cuda = AsCuda(*ring);
    Launch({entry_.block,
            &cuda.mirror_on_device()->progress,
            ControlAction::kProgress,
            {},
            0,
            0});
    for (uint32_t kind = 0; kind < wire::kProgramKinds; ++kind) {
      Launch({entry_.block, nullptr, ControlAction::kStep,
              static_cast<wire::ProgramKind>(kind), 0, 0});
    }
    Launch({entry_.block,
            nullptr,
            ControlAction::kInstall,
            {},
            reinterpret_cast<uint64_t>(cuda.on_device()),
            0});
    stream_.Wait();
  }

  void Uninstall(Ring& ring) override {
    if (base::InForkedChild()) return;
    std::lock_guard lock(mutex_);
    if (installed_.get() != &ring) return;
    const std::shared_ptr<Ring> kept = std::move(installed_);
    CudaRing& cuda = AsCuda(ring);
    program::StoreRelease(cuda.mirror().ended, uint64_t{wire::kClosing});
    try {
      const base::OnDevice here(ordinal_);
      if (EverybodyLeft(cuda)) return;
      cuda.Latch("programs that were recording did not end");
    } catch (const base::CudaError& error) {
      cuda.Latch(error.what());
    }
    // Somebody may still write to it.
    stranded_.push_back(kept);
  }

  void SetProgress(Ring& ring, uint64_t word) override {
    Do({entry_.block,
        &AsCuda(ring).mirror_on_device()->progress,
        ControlAction::kProgress,
        {},
        word,
        0});
    ring.signals().WakeDrain();
  }

  void SetAmbientStep(wire::ProgramKind kind, int64_t step,
                      uint64_t flags) override {
    Do({entry_.block, nullptr, ControlAction::kStep, kind,
        static_cast<uint64_t>(step), flags});
  }

  void SetGate(program::GateChange change, wire::ProgramKind kind) override {
    Do({entry_.block, nullptr, ControlAction::kGate, kind, change.index,
        change.closed});
  }

  void AdvanceBoundary() override {
    Do({entry_.block, nullptr, ControlAction::kAdvance, {}, 0, 0});
  }

  void Deselect(bool deselected) override {
    Do({entry_.block, nullptr, ControlAction::kDeselect, {}, deselected, 0});
  }

  Losses Lost() const override {
    std::lock_guard lock(mutex_);
    if (base::InForkedChild()) return lost_;
    try {
      const base::OnDevice here(ordinal_);
      auto* copy = reinterpret_cast<wire::ControlBlock*>(page_.data());
      base::CheckCuda(cudaMemcpyAsync(copy, entry_.block, sizeof *copy,
                                      cudaMemcpyDeviceToHost, stream_.get()),
                      "cudaMemcpyAsync of a control block");
      stream_.Wait();
      std::copy_n(copy->lost, lost_.size(), lost_.begin());
    } catch (const base::CudaError& error) {
      if (installed_ != nullptr) AsCuda(*installed_).Latch(error.what());
    }
    return lost_;
  }

 private:
  static CudaRing& AsCuda(Ring& ring) { return static_cast<CudaRing&>(ring); }

  void Launch(const ControlArguments& call) {
    base::CheckCuda(program::LaunchControl(call, stream_.get()),
                    "cudaLaunchKernel of a control kernel");
  }

  void Do(const ControlArguments& call) {
    std::lock_guard lock(mutex_);
    const base::OnDevice here(ordinal_);
    Launch(call);
    stream_.Wait();
  }

  bool EverybodyLeft(CudaRing& ring) {
    constexpr uint64_t kNoAnswer = ~uint64_t{0};
    const int64_t begin = base::MonotonicNanos();
    while (base::MonotonicNanos() - begin < patience_) {
      program::StoreRelaxed(ring.mirror().answer, kNoAnswer);
      Launch({entry_.block,
              &ring.mirror_on_device()->answer,
              ControlAction::kUninstall,
              {},
              0,
              0});
      while (!stream_.Idle()) {
        if (base::MonotonicNanos() - begin > patience_) return false;
        std::this_thread::sleep_for(kPause);
      }
      if (program::LoadAcquire(ring.mirror().answer) == 0) return true;
      std::this_thread::sleep_for(kPause);
    }
    return false;
  }

  const int32_t ordinal_;
  const int64_t patience_;
  program::DeviceEntry& entry_;
  std::unique_ptr<base::OnDevice> here_;  // while what follows is made
  const Pages page_;
  const base::Pinned pinned_;
  const base::CudaStream stream_;
  // Guards what follows and the page.
  mutable base::Mutex mutex_;
  mutable Losses lost_{};
  std::shared_ptr<Ring> installed_;
  std::vector<std::shared_ptr<Ring>> stranded_;
};

}  // namespace

std::unique_ptr<Control> MakeCudaControl(int32_t ordinal, int64_t device,
                                         int64_t patience) {
  return std::make_unique<CudaControl>(ordinal, device, patience);
}

}  // namespace dmi::ring
