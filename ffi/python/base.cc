// SPDX-License-Identifier: Apache-2.0
// Binds checksums.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <stdexcept>

#include "base/crc32c.h"
#include "batch/columns.h"
#include "python/binders.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Releases the GIL: a checksum of a large payload takes a while.
uint32_t Crc32cOf(Column<uint8_t> data, uint32_t seed) {
  const void* bytes = data.data();
  const size_t size = data.size();
  nb::gil_scoped_release release;
  return base::Crc32c(bytes, size, seed);
}

nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>> RowChecks(
    Column<uint64_t> seq, Column<uint64_t> site, Column<uint64_t> layout,
    Column<int64_t> step, Column<int64_t> layer, Column<uint64_t> labels,
    Column<uint64_t> boundary, Column<int64_t> time, Column<uint32_t> flags,
    Column<uint32_t> crc, Column<uint64_t> sizes) {
  const size_t rows = seq.size();
  for (const size_t other :
       {site.size(), layout.size(), step.size(), layer.size(), boundary.size(),
        time.size(), flags.size(), crc.size(), sizes.size(),
        labels.size() / wire::kMaxLabels}) {
    if (other != rows) {
      throw std::invalid_argument("row_checks: columns differ in length");
    }
  }
  auto* checks = new uint32_t[rows];
  nb::capsule owner(
      checks, [](void* p) noexcept { delete[] static_cast<uint32_t*>(p); });
  for (size_t i = 0; i < rows; ++i) {
    checks[i] = batch::RowCheck(
        seq.data()[i], site.data()[i], layout.data()[i], step.data()[i],
        layer.data()[i], labels.data() + i * wire::kMaxLabels,
        boundary.data()[i], time.data()[i], flags.data()[i], crc.data()[i],
        sizes.data()[i]);
  }
  return {checks, {rows}, owner};
}

// One source copied into consecutive places: what a record is compared with.
void CopyRepeatedly(nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig> to,
                    Column<uint8_t> from, size_t times) {
  if (from.size() > to.size()) {
    throw std::invalid_argument("copy_repeatedly: `from` is larger than `to`");
  }
  uint8_t* out = to.data();
  const uint8_t* in = from.data();
  const size_t size = from.size();
  const size_t places = size == 0 ? 1 : to.size() / size;
  nb::gil_scoped_release release;
  for (size_t i = 0; i < times; ++i) {
    std::memcpy(out + i % places * size, in, size);
  }
}

}  // namespace

void BindBase(nb::module_& module) {
  module.def("crc32c", &Crc32cOf, nb::arg("data"), nb::arg("seed") = 0,
             "crc32c of a contiguous uint8 array, continuing from `seed`.");
  module.def("crc32c_implementation", &base::Crc32cImplementation,
             "The instruction set crc32c uses here.");
  module.def(
      "copy_repeatedly", &CopyRepeatedly, nb::arg("to"), nb::arg("from_"),
      nb::arg("times"),
      "memcpy of `from_` into consecutive places of `to`, `times` times.");
  module.def("row_checks", &RowChecks, nb::arg("seq"), nb::arg("site"),
             nb::arg("layout"), nb::arg("step"), nb::arg("layer"),
             nb::arg("labels"), nb::arg("boundary"), nb::arg("time"),
             nb::arg("flags"), nb::arg("crc"), nb::arg("sizes"),
             "The `check` column of rows; absent steps and layers are 0.");
}

}  // namespace dmi::python
