// SPDX-License-Identifier: Apache-2.0
// The native module: one binder per room.
#include <nanobind/nanobind.h>

#include "python/binders.h"

NB_MODULE(_native, module) {
  module.doc() = "Native parts of jax_dmi.";
  // A sink that hangs, or a daemon thread, keeps objects until the process is
  // gone; at exit that is no news for the user.
  nanobind::set_leak_warnings(false);
  dmi::python::BindBase(module);
  dmi::python::BindHandlers(module);
  dmi::python::BindBatch(module);
  dmi::python::BindWindows(module);
  dmi::python::BindDrain(module);
  dmi::python::BindReplay(module);
}
