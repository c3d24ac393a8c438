// SPDX-License-Identifier: Apache-2.0
// What a submission's arguments must be, and reading them out of Python
// objects.
#ifndef DMI_PYTHON_REPLAY_ARGUMENTS_H_
#define DMI_PYTHON_REPLAY_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <vector>

#include "replay/plan.h"

namespace dmi::python {

// Room for the value of a scalar that is no array.
using ScalarBytes = std::array<uint8_t, 16>;

// The containers of a definition: nested tuples, lists and dicts with leaves.
class ArgumentTree {
 public:
  // `description` is None if leaves can only be found by JAX, else one of
  //   "leaf" | "none" | ("tuple", type, children) | ("list", children) |
  //   ("dict", keys, children)
  explicit ArgumentTree(nanobind::handle description);

  // Adds the leaves of `object`, borrowed, to `leaves`; false if its containers
  // are not exactly these. Runs no code of the caller's.
  bool Flatten(PyObject* object, std::vector<PyObject*>* leaves) const;

 private:
  enum class Kind { kUnknown, kLeaf, kNone, kTuple, kList, kDict };

  Kind kind_ = Kind::kUnknown;
  nanobind::object type_;               // of a tuple
  std::vector<nanobind::object> keys_;  // of a dict
  std::vector<ArgumentTree> children_;
};

// One argument as the definition wants it.
struct ArgumentSpec {
  nanobind::object dtype;
  nanobind::object scalar_type;  // NumPy's own, or None
  char kind = 0;                 // NumPy's letter
  uint32_t bits = 0;
  std::vector<int64_t> shape;
};

class ReplayDefinition {
 public:
  // `specs` holds (dtype, scalar type or None, kind, bits, shape) per argument.
  // Throws ValueError if they cannot be laid out.
  ReplayDefinition(nanobind::handle specs, nanobind::handle tree);

  const replay::SubmissionLayout& layout() const { return layout_; }
  const ArgumentTree& tree() const { return tree_; }

  // Whether every leaf can be packed as it is; if so, `sources` are the bytes
  // of each, some of them in `scalars`. `same_dtypes`: do not compare them.
  bool Accepts(const std::vector<PyObject*>& leaves, bool same_dtypes,
               std::vector<const void*>* sources,
               std::vector<ScalarBytes>* scalars) const;

 private:
  const void* Source(const ArgumentSpec& spec, PyObject* leaf, bool same_dtype,
                     ScalarBytes* scalar) const;

  ArgumentTree tree_;
  std::vector<ArgumentSpec> specs_;
  replay::SubmissionLayout layout_;
  nanobind::object ndarray_;  // the type
};

void BindReplayDefinition(nanobind::module_& module);

}  // namespace dmi::python

#endif  // DMI_PYTHON_REPLAY_ARGUMENTS_H_
