// SPDX-License-Identifier: Apache-2.0
// Binds replay: definitions, the plan of one upload, staging.
//
// A submission is one native call: it walks the containers, checks every
// argument against the definition, and packs. Whatever is not plainly right is
// turned down without a word and left to Python, which finds out whether it can
// be converted and what to complain about.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "python/binders.h"
#include "python/replay_arguments.h"
#include "replay/pack.h"
#include "replay/plan.h"
#include "replay/staging.h"
#include "replay/upload.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

using replay::Staging;

constexpr int64_t kTurnedDown = -1;
constexpr int64_t kDoesNotFit = -2;

// Other threads should not wait for a copy this large.
constexpr uint64_t kReleaseGilFrom = uint64_t{1} << 20;

using Words = nb::ndarray<nb::numpy, const uint32_t, nb::ndim<1>>;

Words LeaseOf(const Staging& staging, uint64_t bytes) {
  auto* held = new std::shared_ptr<const void>(staging.Lease());
  nb::capsule owner(held, [](void* p) noexcept {
    delete static_cast<std::shared_ptr<const void>*>(p);
  });
  return Words(staging.image(), {bytes / wire::kArenaWord}, owner);
}

// The parts are (ordinal, offset, bytes).
std::shared_ptr<replay::Upload> BeginUpload(
    [[maybe_unused]] Staging& staging, [[maybe_unused]] uint64_t used,
    [[maybe_unused]] const std::vector<std::tuple<int32_t, uint64_t, uint64_t>>&
        parts) {
#if defined(DMI_CUDA)
  std::vector<replay::UploadPart> wanted;
  for (const auto& [ordinal, offset, bytes] : parts) {
    wanted.push_back({ordinal, offset, bytes});
  }
  // Pinning takes a while.
  const nb::gil_scoped_release release;
  return replay::BeginCudaUpload(staging, used, wanted);
#else
  throw std::logic_error("jax_dmi was built without CUDA");
#endif
}

// Keeps the arguments alive while the GIL is released.
class Borrowed {
 public:
  explicit Borrowed(const std::vector<PyObject*>& objects) : objects_(objects) {
    for (PyObject* object : objects_) Py_INCREF(object);
  }
  ~Borrowed() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  std::vector<PyObject*> objects_;
};

class Plan {
 public:
  Plan(std::shared_ptr<Staging> staging, std::vector<nb::object> definitions,
       uint64_t limit)
      : staging_(std::move(staging)),
        held_(std::move(definitions)),
        image_(held_.size(), limit) {
    for (const nb::object& object : held_) {
      definitions_.push_back(nb::cast<const ReplayDefinition*>(object));
    }
  }

  // The submission's index, or why it was not taken; then nothing has changed.
  int64_t Submit(size_t definition, nb::handle arguments) {
    const auto lock = Lock();
    const ReplayDefinition& wanted = *definitions_.at(definition);
    leaves_.clear();
    if (!wanted.tree().Flatten(arguments.ptr(), &leaves_)) return kTurnedDown;
    return Pack(definition, wanted, /*same_dtypes=*/false);
  }

  // The same for arguments in a flat list, of dtypes that are known to be
  // right.
  int64_t SubmitLeaves(size_t definition, const nb::list& leaves) {
    const auto lock = Lock();
    const ReplayDefinition& wanted = *definitions_.at(definition);
    leaves_.clear();
    for (nb::handle leaf : leaves) leaves_.push_back(leaf.ptr());
    return Pack(definition, wanted, /*same_dtypes=*/true);
  }

  // Completes the image, zeroed up to `capacity` bytes, and leases it out.
  Words Finish(uint64_t capacity) {
    const auto lock = Lock();
    const uint64_t bytes = image_.bytes();
    if (capacity < bytes) throw nb::value_error("capacity is below bytes");
    staging_->Grow(capacity, image_.end());
    staging_->Touch(bytes);
    image_.WriteTable(staging_->image());
    staging_->Clear(bytes, capacity);
    return LeaseOf(*staging_, capacity);
  }

  uint64_t bytes() const { return image_.bytes(); }
  std::vector<uint32_t> counts() const {
    std::vector<uint32_t> counts(definitions_.size());
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = image_.count(i);
    return counts;
  }

 private:
  // Two threads may submit to one plan.
  std::unique_lock<std::mutex> Lock() {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) {
      nb::gil_scoped_release release;
      lock.lock();
    }
    return lock;
  }

  int64_t Pack(size_t definition, const ReplayDefinition& wanted,
               bool same_dtypes) {
    if (!wanted.Accepts(leaves_, same_dtypes, &sources_, &scalars_)) {
      return kTurnedDown;
    }
    const replay::SubmissionLayout& layout = wanted.layout();
    if (!image_.Fits(layout.bytes)) return kDoesNotFit;
    const uint64_t begin = image_.end();
    const uint64_t end = begin + layout.bytes;
    image_.Reserve(definition);
    if (end > staging_->capacity()) {
      staging_->Grow(end + end / 2, begin);
    }
    staging_->Touch(end);
    if (layout.bytes < kReleaseGilFrom) {
      replay::Pack(layout, sources_.data(), staging_->image() + begin);
    } else {
      const Borrowed borrowed(leaves_);
      nb::gil_scoped_release release;
      replay::Pack(layout, sources_.data(), staging_->image() + begin);
    }
    return image_.Take(definition, layout.bytes);
  }

  std::shared_ptr<Staging> staging_;
  std::vector<nb::object> held_;
  std::vector<const ReplayDefinition*> definitions_;
  replay::Image image_;
  std::mutex mutex_;
  // Of one submission; kept for their memory.
  std::vector<PyObject*> leaves_;
  std::vector<const void*> sources_;
  std::vector<ScalarBytes> scalars_;
};

void BindStaging(nb::module_& module) {
  nb::class_<Staging>(module, "ReplayStaging",
                      "Host memory that an image is packed in.")
      .def("__init__",
           [](Staging* self) { new (self) Staging(replay::HostMemory()); })
      .def_prop_ro("capacity", &Staging::capacity, "Bytes.")
      .def_prop_ro("allocations", &Staging::allocations,
                   "How often memory was taken.")
      .def_prop_ro("leases", &Staging::leases,
                   "Arrays handed out that are still in use.")
      .def_prop_ro(
          "number", [](const Staging& self) { return self.number()->value(); },
          "Names it in programs.")
      .def(
          "grow", [](Staging& self, uint64_t bytes) { self.Grow(bytes, 0); },
          nb::arg("bytes"), "Makes room; what was packed is lost.")
      .def("fill", &Staging::Fill, nb::arg("value"),
           "Sets every byte, as an earlier use might have left them.");
}

}  // namespace

void BindReplay(nb::module_& module) {
  module.attr("REPLAY_ALIGN") = wire::kSubmissionAlign;
  BindReplayDefinition(module);
  BindStaging(module);
  nb::class_<Plan>(module, "ReplayPlan", "The submissions of one upload.")
      .def(nb::init<std::shared_ptr<Staging>, std::vector<nb::object>,
                    uint64_t>(),
           nb::arg("staging"), nb::arg("definitions"),
           nb::arg("limit") = wire::kMaxArenaBytes)
      .def("submit", &Plan::Submit, nb::arg("definition"),
           nb::arg("arguments").none(),
           "Packs a submission and returns its index, -1 if the arguments are"
           " not plainly right, -2 if it does not fit.")
      .def("submit_leaves", &Plan::SubmitLeaves, nb::arg("definition"),
           nb::arg("leaves"),
           "The same for a flat list of arrays whose dtypes are right.")
      .def("finish", &Plan::Finish, nb::arg("capacity"),
           "Completes the image and returns its words.")
      .def_prop_ro("bytes", &Plan::bytes, "Size of the complete image.")
      .def_prop_ro("counts", &Plan::counts, "Submissions by definition.");
  nb::class_<replay::Upload>(
      module, "ReplayUpload",
      "An image on its way to CUDA devices; holds its staging.")
      .def_prop_ro("passed", &replay::Upload::passed,
                   "Whether every device has its part.");
  module.def("replay_upload", &BeginUpload, nb::arg("staging"), nb::arg("used"),
             nb::arg("parts"),
             "Pins staging and lets the calls of dmi_upload that name it copy:"
             " for every part, its device's ordinal, its offset and its bytes."
             " Only `used` bytes are transferred, the rest is zero.");
  module.def("replay_capacity_class", &replay::CapacityClass, nb::arg("bytes"),
             nb::arg("multiple"),
             "The size an image of `bytes` is uploaded as.");
}

}  // namespace dmi::python
