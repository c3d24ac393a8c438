// SPDX-License-Identifier: Apache-2.0
// Notices forks, see the header.
#include "base/fork.h"

#include <pthread.h>

namespace dmi::base {

void NoticeForks() {
  static const int installed = pthread_atfork(nullptr, nullptr, [] {
    internal::in_forked_child.store(true, std::memory_order_relaxed);
  });
  static_cast<void>(installed);
}

}  // namespace dmi::base
