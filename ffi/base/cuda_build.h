// SPDX-License-Identifier: Apache-2.0
// What the library this is linked into holds for CUDA, read from its own file.
#ifndef DMI_BASE_CUDA_BUILD_H_
#define DMI_BASE_CUDA_BUILD_H_

#include <optional>
#include <string>
#include <vector>

namespace dmi::base {

struct CudaBuild {
  std::vector<std::string> archs;     // of machine code: "sm_80", sorted
  std::vector<std::string> ptx;       // of PTX: "compute_90", sorted
  std::optional<std::string> cudart;  // version of the linked runtime: "13.0"
};

// Empty where there is no device code. Needs neither a device nor a driver.
// Throws std::runtime_error where the file cannot be read.
CudaBuild ReadCudaBuild();

}  // namespace dmi::base

#endif  // DMI_BASE_CUDA_BUILD_H_
