// SPDX-License-Identifier: Apache-2.0
// Relacy, without the keywords and functions it redefines.
#ifndef DMI_MODEL_RELACY_H_
#define DMI_MODEL_RELACY_H_

// Before it, because it redefines names that they use.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <thread>
#include <vector>

// clang-format off: behind all others
#include <relacy/relacy.hpp>
// clang-format on

#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef VAR
#undef VAR_T
#undef TLS_T
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef $

#include <cassert>

#endif  // DMI_MODEL_RELACY_H_
