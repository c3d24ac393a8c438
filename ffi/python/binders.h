// SPDX-License-Identifier: Apache-2.0
// What each binder adds to the native module.
#ifndef DMI_PYTHON_BINDERS_H_
#define DMI_PYTHON_BINDERS_H_

#include <nanobind/nanobind.h>

namespace dmi::python {

void BindBase(nanobind::module_& module);      // checksums
void BindHandlers(nanobind::module_& module);  // FFI targets, site table
void BindBatch(nanobind::module_& module);     // Batch, BatchQueue
void BindDrain(nanobind::module_& module);     // Drain: ring, drain, counters
void BindReplay(nanobind::module_& module);    // replay plans and staging
void BindWindows(nanobind::module_& module);   // patterns, policies, controller

}  // namespace dmi::python

#endif  // DMI_PYTHON_BINDERS_H_
