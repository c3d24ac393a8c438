// SPDX-License-Identifier: Apache-2.0
// Binds batches and their queue.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <vector>

#include "batch/queue.h"
#include "python/binders.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

// An array brings its own owner.
constexpr auto kOwned = nb::rv_policy::automatic;

template <typename T>
using Array = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

// A batch as Python holds it: arrays made from it keep it, and with it the
// span of the ring, alive.
struct Lease {
  std::shared_ptr<batch::Batch> batch;

  const batch::Batch& get() const {
    if (!batch) throw nb::value_error("the batch was released");
    return *batch;
  }
};

template <typename T>
Array<T> View(const Lease& lease, const T* data, size_t size) {
  auto* held = new std::shared_ptr<batch::Batch>(lease.batch);
  nb::capsule owner(held, [](void* p) noexcept {
    delete static_cast<std::shared_ptr<batch::Batch>*>(p);
  });
  return Array<T>(data, {size}, owner);
}

template <auto Member>
auto ColumnOf(const Lease& lease) {
  const auto& column = lease.get().columns().*Member;
  return View(lease, column.data(), column.size());
}

Array<uint8_t> Views(const Lease& lease) {
  const auto& views = lease.get().columns().views;
  return View(lease, reinterpret_cast<const uint8_t*>(views.data()),
              views.size() * sizeof(batch::View));
}

Array<uint8_t> Payload(const Lease& lease) {
  const auto payload = lease.get().payload();
  return View(lease, payload.data, payload.size);
}

std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> Sites(
    const Lease& lease) {
  std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> sites;
  for (const batch::SiteTally& tally : lease.get().columns().sites) {
    sites.emplace_back(tally.site, tally.records, tally.bytes);
  }
  return sites;
}

std::vector<Lease> Pop(batch::BatchQueue& queue, size_t most, double seconds) {
  // What waits already is taken without giving up the interpreter lock, which a
  // busy thread would not give back for milliseconds. No drain needs that lock.
  std::vector<std::shared_ptr<batch::Batch>> taken = queue.Pop(most, 0);
  if (taken.empty()) {
    nb::gil_scoped_release release;
    taken = queue.Pop(most, static_cast<int64_t>(seconds * 1e9));
  }
  std::vector<Lease> leases;
  for (auto& batch : taken) leases.push_back({std::move(batch)});
  return leases;
}

}  // namespace

void BindBatch(nb::module_& module) {
  using batch::Columns;
  nb::class_<Lease>(
      module, "Batch",
      "Consecutive records of one device. Its arrays are read-only "
      "and keep the records' memory leased.")
      .def_prop_ro("device", [](const Lease& l) { return l.get().device(); })
      .def_prop_ro("count",
                   [](const Lease& l) { return l.get().columns().rows(); })
      .def_prop_ro("bytes", [](const Lease& l) { return l.get().bytes(); })
      .def_prop_ro("first_seq",
                   [](const Lease& l) { return l.get().first_sequence(); })
      .def_prop_ro("last_seq",
                   [](const Lease& l) { return l.get().last_sequence(); })
      .def_prop_ro("sites", &Sites, "(id, records, bytes) of each site.")
      .def_prop_ro("layouts",
                   [](const Lease& l) { return l.get().columns().layouts; })
      .def_prop_ro("seq", &ColumnOf<&Columns::seq>, kOwned)
      .def_prop_ro("site", &ColumnOf<&Columns::site>, kOwned)
      .def_prop_ro("layout", &ColumnOf<&Columns::layout>, kOwned)
      .def_prop_ro("step", &ColumnOf<&Columns::step>, kOwned)
      .def_prop_ro("step_valid", &ColumnOf<&Columns::step_valid>, kOwned)
      .def_prop_ro("layer", &ColumnOf<&Columns::layer>, kOwned)
      .def_prop_ro("layer_valid", &ColumnOf<&Columns::layer_valid>, kOwned)
      .def_prop_ro("labels", &ColumnOf<&Columns::labels>, kOwned)
      .def_prop_ro("boundary", &ColumnOf<&Columns::boundary>, kOwned)
      .def_prop_ro("time", &ColumnOf<&Columns::time>, kOwned)
      .def_prop_ro("flags", &ColumnOf<&Columns::flags>, kOwned)
      .def_prop_ro("crc", &ColumnOf<&Columns::crc>, kOwned)
      .def_prop_ro("check", &ColumnOf<&Columns::check>, kOwned)
      .def_prop_ro("views", &Views, kOwned)
      .def_prop_ro("payload", &Payload, kOwned)
      .def(
          "release", [](Lease& l) { l.batch.reset(); },
          "Gives up this reference; the memory is free once every array made "
          "from the batch is gone too.");

  nb::class_<batch::BatchQueue>(module, "BatchQueue",
                                "Batches of all drains, for one consumer.")
      .def(nb::init<>())
      .def("pop", &Pop, nb::arg("most"), nb::arg("seconds"),
           "Waits for batches and takes up to `most`; [] after `seconds`.")
      .def("close", &batch::BatchQueue::Close)
      .def_prop_ro("finished", &batch::BatchQueue::finished)
      .def("__len__", &batch::BatchQueue::size);
}

}  // namespace dmi::python
