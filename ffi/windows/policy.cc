// SPDX-License-Identifier: Apache-2.0
// Makes policies.
#include "windows/policy.h"

#include <utility>

#include "windows/binary_adaptive.h"
#include "windows/deadline.h"

namespace dmi::windows {

std::unique_ptr<GrantPolicy> MakePolicy(const WindowConfig& config,
                                        std::shared_ptr<const Link> link) {
  if (config.policy == PolicyKind::kBinaryAdaptive) {
    return std::make_unique<BinaryAdaptive>(config);
  }
  return std::make_unique<Deadline>(config, std::move(link));
}

}  // namespace dmi::windows
