// SPDX-License-Identifier: Apache-2.0
// The functions of ffi/program/atomics.h over a model of weak memory.
//
// It stands first on the include path of the model tests, so the bodies under
// test are those of the product.
#ifndef DMI_PROGRAM_ATOMICS_H_
#define DMI_PROGRAM_ATOMICS_H_

#include "model/memory.h"

namespace dmi::program {

using model::Access;
using model::Memory;

template <typename T>
T LoadRelaxed(const T& word) {
  return Memory::Load(word, Access::kLoadRelaxed);
}
template <typename T>
T LoadAcquire(const T& word) {
  return Memory::Load(word, Access::kLoadAcquire);
}
template <typename T>
T LoadSeqCst(const T& word) {
  return Memory::Load(word, Access::kLoadSeqCst);
}
template <typename T>
void StoreRelaxed(T& word, T value) {
  Memory::Store(word, value, Access::kStoreRelaxed);
}
template <typename T>
void StoreRelease(T& word, T value) {
  Memory::Store(word, value, Access::kStoreRelease);
}
template <typename T>
void StoreSeqCst(T& word, T value) {
  Memory::Store(word, value, Access::kStoreSeqCst);
}
template <typename T>
T AddRelaxed(T& word, T value) {
  return Memory::Add(word, value, Access::kAddRelaxed);
}
template <typename T>
T AddAcqRel(T& word, T value) {
  return Memory::Add(word, value, Access::kAddAcqRel);
}
template <typename T>
T AddSeqCst(T& word, T value) {
  return Memory::Add(word, value, Access::kAddSeqCst);
}
// Of bits there is nothing to order: they are not modelled.
template <typename T>
T OrRelaxed(T& word, T value) {
  const T old = word;
  word = old | value;
  return old;
}
template <typename T>
T AndRelaxed(T& word, T value) {
  const T old = word;
  word = old & value;
  return old;
}
template <typename T>
bool CompareExchangeAcquire(T& word, T& expected, T desired) {
  return Memory::Exchange(word, expected, desired, Access::kExchangeAcquire);
}
template <typename T>
bool CompareExchangeAcqRel(T& word, T& expected, T desired) {
  return Memory::Exchange(word, expected, desired, Access::kExchangeAcqRel);
}
template <typename T>
void ReplaceRelease(T& word, T expected, T desired) {
  Memory::Exchange(word, expected, desired, Access::kReplaceRelease);
}

}  // namespace dmi::program

#endif  // DMI_PROGRAM_ATOMICS_H_
