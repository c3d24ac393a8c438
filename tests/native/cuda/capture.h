// SPDX-License-Identifier: Apache-2.0
// One CUDA device captured from end to end, a real one or an emulated one.
#ifndef DMI_TESTS_NATIVE_CUDA_CAPTURE_H_
#define DMI_TESTS_NATIVE_CUDA_CAPTURE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "batch/queue.h"
#include "drain/drain.h"
#include "program/device_table.h"
#include "ring/control.h"
#include "ring/cuda_ring.h"
#include "support/flow.h"
#include "transfer/cuda_link.h"

namespace dmi::testing {

// A control block on a device, and who rules it.
class CudaDevice {
 public:
  CudaDevice()
      : control_(ring::MakeCudaControl(0, 7)),
        entry_(*program::DeviceTable::Get().Find(0)) {}

  ring::Control& control() { return *control_; }
  // Emulated devices have memory of the host.
  wire::ControlBlock& block() { return *entry_.block; }
  uint32_t most_blocks() const { return entry_.most_blocks; }
  uint64_t lost(wire::LossReason reason) const {
    return control_->Lost()[reason];
  }

 private:
  const std::unique_ptr<ring::Control> control_;
  program::DeviceEntry& entry_;
};

// Ring, link, drain and queue of one run.
class CudaCapture {
 public:
  CudaCapture(CudaDevice& device, const ring::RingOptions& ring,
              drain::DrainOptions drain = {})
      : device_(device),
        ring_(device.control().MakeRing(ring)),
        link_(std::make_shared<transfer::CudaLink>(0)),
        queue_(std::make_shared<batch::BatchQueue>()) {
    drain::DrainParts parts;
    parts.link = std::move(link_);
    parts.progress = &device.control().ProgressOf(*ring_);
    drain.staging_bytes = std::min<uint64_t>(drain.staging_bytes, 16u << 20);
    drain_ = std::make_unique<drain::Drain>(ring_, 7, drain, queue_,
                                            std::move(parts));
  }
  ~CudaCapture() { Stop(); }

  void Start() {
    drain_->Start();
    device_.control().Install(ring_);
  }
  void Stop() {
    device_.control().Uninstall(*ring_);
    drain_->Stop();
    queue_->Close();
  }
  // Everything recorded so far comes out, and is checked.
  void Finish(Checker& checker) {
    Stop();
    checker.Run(*queue_);
  }

  ring::CudaRing& ring() { return static_cast<ring::CudaRing&>(*ring_); }
  drain::Drain& drain() { return *drain_; }
  batch::BatchQueue& queue() { return *queue_; }

  // Sums over the sites that tests use.
  uint64_t recorded() const {
    uint64_t sum = 0;
    for (const auto& site : ring_->Counters(0, kSites)) sum += site.recorded;
    return sum;
  }
  uint64_t lost(wire::LossReason reason) const {
    uint64_t sum = 0;
    for (const auto& site : ring_->Counters(0, kSites)) {
      sum += site.lost[reason];
    }
    return sum;
  }
  // What went wrong, "" if nothing did.
  std::string failure() const {
    return ring_->failure() + drain_->failure().text();
  }

 private:
  static constexpr size_t kSites = 40;  // more than are fetched at once

  CudaDevice& device_;
  std::shared_ptr<ring::Ring> ring_;
  std::shared_ptr<transfer::CudaLink> link_;
  std::shared_ptr<batch::BatchQueue> queue_;
  std::unique_ptr<drain::Drain> drain_;
};

// Checks what comes out of a capture until it is closed.
class Consumer {
 public:
  explicit Consumer(CudaCapture& capture, uint64_t first_sequence = 0)
      : checker_(first_sequence),
        thread_([this, &queue = capture.queue()] { checker_.Run(queue); }) {}
  // The capture was stopped.
  Checker& Join() {
    thread_.join();
    return checker_;
  }

 private:
  Checker checker_;
  std::jthread thread_;
};

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_CUDA_CAPTURE_H_
