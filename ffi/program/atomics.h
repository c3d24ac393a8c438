// SPDX-License-Identifier: Apache-2.0
// Atomic access to plain words of the wire layouts.
//
// The layouts hold plain integers because host and device share them; every
// concurrent access goes through these functions, so the memory order stands
// beside the access. The device form has the same names.
#ifndef DMI_PROGRAM_ATOMICS_H_
#define DMI_PROGRAM_ATOMICS_H_

#include <cstdint>

#if defined(__CUDA_ARCH__)
#include "program/atomics_ptx.h"
#else
#include <atomic>

namespace dmi::program {

template <typename T>
T LoadRelaxed(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word))
      .load(std::memory_order_relaxed);
}
template <typename T>
T LoadAcquire(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word))
      .load(std::memory_order_acquire);
}
template <typename T>
T LoadSeqCst(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word))
      .load(std::memory_order_seq_cst);
}
template <typename T>
void StoreRelaxed(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}
template <typename T>
void StoreRelease(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}
template <typename T>
void StoreSeqCst(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_seq_cst);
}
template <typename T>
T AddRelaxed(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T AddAcqRel(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_add(value, std::memory_order_acq_rel);
}
template <typename T>
T AddSeqCst(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_add(value, std::memory_order_seq_cst);
}
template <typename T>
T OrRelaxed(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_or(value, std::memory_order_relaxed);
}
template <typename T>
T AndRelaxed(T& word, T value) {
  return std::atomic_ref<T>(word).fetch_and(value, std::memory_order_relaxed);
}
// On failure `expected` holds what was found; may fail without a reason.
template <typename T>
bool CompareExchangeAcquire(T& word, T& expected, T desired) {
  return std::atomic_ref<T>(word).compare_exchange_weak(
      expected, desired, std::memory_order_acquire);
}
template <typename T>
bool CompareExchangeAcqRel(T& word, T& expected, T desired) {
  return std::atomic_ref<T>(word).compare_exchange_weak(
      expected, desired, std::memory_order_acq_rel, std::memory_order_relaxed);
}
// Stores `desired` unless the word has changed from `expected`.
template <typename T>
void ReplaceRelease(T& word, T expected, T desired) {
  std::atomic_ref<T>(word).compare_exchange_strong(
      expected, desired, std::memory_order_release, std::memory_order_relaxed);
}

}  // namespace dmi::program

#endif  // __CUDA_ARCH__

#endif  // DMI_PROGRAM_ATOMICS_H_
