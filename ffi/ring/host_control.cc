// SPDX-License-Identifier: Apache-2.0
// The host as a device, see control.h.
#include "program/ambient.h"
#include "program/atomics.h"
#include "program/boundary.h"
#include "program/control_table.h"
#include "program/record.h"
#include "ring/control.h"

namespace dmi::ring {
namespace {

class HostControl final : public Control {
 public:
  explicit HostControl(wire::ControlBlock& block) : block_(block) {}

  std::shared_ptr<Ring> MakeRing(const RingOptions& options) override {
    return std::make_shared<Ring>(options);
  }

  const uint64_t& ProgressOf(Ring& /*ring*/) const override {
    return block_.progress;
  }

  void Install(std::shared_ptr<Ring> ring) override {
    program::StoreRelaxed(block_.progress, uint64_t{0});
    for (uint32_t kind = 0; kind < wire::kProgramKinds; ++kind) {
      SetAmbientStep(static_cast<wire::ProgramKind>(kind), 0, 0);
    }
    program::Install(block_, ring->header());
  }

  void Uninstall(Ring& ring) override {
    if (program::LoadRelaxed(block_.ring) ==
        reinterpret_cast<uint64_t>(&ring.header())) {
      program::Uninstall(block_);
    }
  }

  void SetProgress(Ring& ring, uint64_t word) override {
    program::StoreRelease(block_.progress, word);
    ring.signals().WakeDrain();
  }

  void SetAmbientStep(wire::ProgramKind kind, int64_t step,
                      uint64_t flags) override {
    program::SetAmbientStep(block_, kind, step, flags);
  }

  void SetGate(program::GateChange change, wire::ProgramKind kind) override {
    program::SetGate(block_, change, kind);
  }

  void AdvanceBoundary() override { program::AdvanceBoundary(block_); }

  void Deselect(bool deselected) override {
    program::StoreRelaxed(block_.deselected, uint64_t{deselected});
  }

  Losses Lost() const override {
    Losses lost;
    for (uint32_t i = 0; i < wire::kLossReasons; ++i) {
      lost[i] = program::LoadRelaxed(block_.lost[i]);
    }
    return lost;
  }

 private:
  wire::ControlBlock& block_;
};

}  // namespace

std::unique_ptr<Control> MakeHostControl(int32_t ordinal, int64_t device) {
  return std::make_unique<HostControl>(
      *program::ControlTable::Host().Ensure(ordinal, device));
}

}  // namespace dmi::ring
