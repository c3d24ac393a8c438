// SPDX-License-Identifier: Apache-2.0
// Reads arguments out of Python objects.
#include "python/replay_arguments.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#define NPY_NO_DEPRECATED_API NPY_1_20_API_VERSION
#include <numpy/ndarraytypes.h>
// In this order: the second needs the first.
#include <numpy/arrayscalars.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "python/binders.h"

namespace nb = nanobind;

namespace dmi::python {
namespace {

static_assert(sizeof(npy_intp) == sizeof(int64_t));

// NumPy's scalars of fixed size keep their value right behind the header.
constexpr size_t kScalarValue = sizeof(PyObject);
static_assert(offsetof(PyBoolScalarObject, obval) == kScalarValue);
static_assert(offsetof(PyDoubleScalarObject, obval) == kScalarValue);
static_assert(offsetof(PyCDoubleScalarObject, obval) == kScalarValue);

// An int of Python's as an integer of `bits`, if it has that value.
bool StoreInt(PyObject* value, bool is_signed, uint32_t bits, ScalarBytes* to) {
  int overflow = 0;
  const long long wide = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;  // the rare uint64 goes the other way
  if (is_signed) {
    const int64_t most =
        bits == 64 ? INT64_MAX : (int64_t{1} << (bits - 1)) - 1;
    if (wide > most || wide < -most - 1) return false;
  } else {
    if (wide < 0 || (bits < 64 && wide >> bits != 0)) return false;
  }
  std::memcpy(to->data(), &wide, sizeof(wide));  // low bytes first
  return true;
}

bool StoreFloat(PyObject* value, uint32_t bits, ScalarBytes* to) {
  const double wide = PyFloat_AS_DOUBLE(value);
  if (bits == 64) {
    std::memcpy(to->data(), &wide, sizeof(wide));
    return true;
  }
  const float narrow = static_cast<float>(wide);
  if (bits != 32 || (narrow != wide && !std::isnan(wide))) return false;
  std::memcpy(to->data(), &narrow, sizeof(narrow));
  return true;
}

bool StoreScalar(const ArgumentSpec& spec, PyObject* value, ScalarBytes* to) {
  if (Py_TYPE(value) ==
      reinterpret_cast<PyTypeObject*>(spec.scalar_type.ptr())) {
    std::memcpy(to->data(), reinterpret_cast<char*>(value) + kScalarValue,
                spec.bits / 8);
    return true;
  }
  switch (spec.kind) {
    case 'b':
      (*to)[0] = value == Py_True;
      return PyBool_Check(value);
    case 'i':
    case 'u':
      return PyLong_CheckExact(value) && spec.bits >= 8 &&
             StoreInt(value, spec.kind == 'i', spec.bits, to);
    case 'f':
      return PyFloat_CheckExact(value) && StoreFloat(value, spec.bits, to);
    default:
      return false;
  }
}

nb::object Item(nb::handle tuple, size_t index) {
  return nb::borrow(tuple[nb::int_(index)]);
}

}  // namespace

ArgumentTree::ArgumentTree(nb::handle description) {
  if (description.is_none()) return;
  if (nb::isinstance<nb::str>(description)) {
    kind_ = nb::cast<std::string>(description) == "leaf" ? Kind::kLeaf
                                                         : Kind::kNone;
    return;
  }
  const auto name = nb::cast<std::string>(Item(description, 0));
  nb::object children = Item(description, nb::len(description) - 1);
  if (name == "tuple") {
    kind_ = Kind::kTuple;
    type_ = Item(description, 1);
  } else if (name == "dict") {
    kind_ = Kind::kDict;
    for (nb::handle key : Item(description, 1))
      keys_.push_back(nb::borrow(key));
  } else {
    kind_ = Kind::kList;
  }
  for (nb::handle child : children) children_.emplace_back(child);
}

bool ArgumentTree::Flatten(PyObject* object,
                           std::vector<PyObject*>* leaves) const {
  const auto size = static_cast<Py_ssize_t>(children_.size());
  switch (kind_) {
    case Kind::kUnknown:
      return false;
    case Kind::kLeaf:
      leaves->push_back(object);
      return true;
    case Kind::kNone:
      return object == Py_None;
    case Kind::kTuple:
      if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type_.ptr() ||
          PyTuple_GET_SIZE(object) != size) {
        return false;
      }
      for (Py_ssize_t i = 0; i < size; ++i) {
        if (!children_[i].Flatten(PyTuple_GET_ITEM(object, i), leaves)) {
          return false;
        }
      }
      return true;
    case Kind::kList:
      if (!PyList_CheckExact(object) || PyList_GET_SIZE(object) != size) {
        return false;
      }
      for (Py_ssize_t i = 0; i < size; ++i) {
        if (!children_[i].Flatten(PyList_GET_ITEM(object, i), leaves)) {
          return false;
        }
      }
      return true;
    case Kind::kDict:
      if (!PyDict_CheckExact(object) || PyDict_GET_SIZE(object) != size) {
        return false;
      }
      for (Py_ssize_t i = 0; i < size; ++i) {
        PyObject* item = PyDict_GetItemWithError(object, keys_[i].ptr());
        if (!item) {
          PyErr_Clear();
          return false;
        }
        if (!children_[i].Flatten(item, leaves)) return false;
      }
      return true;
  }
  return false;
}

ReplayDefinition::ReplayDefinition(nb::handle specs, nb::handle tree)
    : tree_(tree), ndarray_(nb::module_::import_("numpy").attr("ndarray")) {
  std::vector<replay::Argument> arguments;
  for (nb::handle item : specs) {
    ArgumentSpec spec;
    spec.dtype = Item(item, 0);
    spec.scalar_type = Item(item, 1);
    spec.kind = nb::cast<std::string>(Item(item, 2)).at(0);
    spec.bits = nb::cast<uint32_t>(Item(item, 3));
    spec.shape = nb::cast<std::vector<int64_t>>(Item(item, 4));
    arguments.push_back({spec.bits, spec.shape});
    specs_.push_back(std::move(spec));
  }
  size_t faulty = 0;
  switch (replay::LayOut(arguments, &layout_, &faulty)) {
    case replay::Fault::kNone:
      return;
    case replay::Fault::kBits:
      throw nb::value_error(
          (std::to_string(faulty) + ": no such element").c_str());
    case replay::Fault::kNegative:
      throw nb::value_error(
          (std::to_string(faulty) + ": a dimension is negative").c_str());
    case replay::Fault::kTooLarge:
      throw nb::value_error(
          (std::to_string(faulty) + ": larger than an arena can be").c_str());
  }
}

const void* ReplayDefinition::Source(const ArgumentSpec& spec, PyObject* leaf,
                                     bool same_dtype,
                                     ScalarBytes* scalar) const {
  static constexpr uint8_t kNothing = 0;
  if (reinterpret_cast<PyObject*>(Py_TYPE(leaf)) != ndarray_.ptr()) {
    const bool stored = spec.shape.empty() && StoreScalar(spec, leaf, scalar);
    return stored ? scalar->data() : nullptr;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(leaf);
  const auto rank = static_cast<size_t>(PyArray_NDIM(array));
  const bool matches =
      (same_dtype ||
       reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == spec.dtype.ptr()) &&
      rank == spec.shape.size() &&
      std::equal(spec.shape.begin(), spec.shape.end(), PyArray_DIMS(array)) &&
      PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS);
  if (!matches) return nullptr;
  const void* data = PyArray_DATA(array);
  return data ? data : &kNothing;
}

bool ReplayDefinition::Accepts(const std::vector<PyObject*>& leaves,
                               bool same_dtypes,
                               std::vector<const void*>* sources,
                               std::vector<ScalarBytes>* scalars) const {
  if (leaves.size() != specs_.size()) return false;
  sources->resize(leaves.size());
  scalars->resize(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    (*sources)[i] = Source(specs_[i], leaves[i], same_dtypes, &(*scalars)[i]);
    if (!(*sources)[i]) return false;
  }
  return true;
}

void BindReplayDefinition(nb::module_& module) {
  nb::class_<ReplayDefinition>(module, "ReplayDefinition",
                               "The layout of a definition's submissions.")
      .def(nb::init<nb::handle, nb::handle>(), nb::arg("specs"),
           nb::arg("tree").none())
      .def_prop_ro(
          "bytes", [](const ReplayDefinition& d) { return d.layout().bytes; },
          "Of one submission, padding included.")
      .def_prop_ro(
          "live_bytes",
          [](const ReplayDefinition& d) { return d.layout().live_bytes; },
          "Of one submission, padding excluded.")
      .def_prop_ro(
          "regions",
          [](const ReplayDefinition& d) {
            std::vector<std::tuple<uint64_t, uint64_t>> regions;
            for (const replay::Region& region : d.layout().regions) {
              regions.emplace_back(region.offset, region.bytes);
            }
            return regions;
          },
          "Offset and bytes of each argument within a submission.");
}

}  // namespace dmi::python
