// SPDX-License-Identifier: Apache-2.0
// The x86-64 forms of crc32c and of the copy. Only crc32c.cc includes this.
#ifndef DMI_BASE_CRC32C_X86_H_
#define DMI_BASE_CRC32C_X86_H_

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#define DMI_X86 1

namespace dmi::base::x86 {

bool HasSse42();
bool HasAvx512();  // F, BW, VL and VPCLMULQDQ

uint32_t Sse42Crc(const void* data, size_t size, uint32_t seed);
uint32_t Avx512Crc(const void* data, size_t size, uint32_t seed);

void Copy(void* to, const void* from, size_t size, bool streaming);
void Avx512Copy(void* to, const void* from, size_t size, bool streaming);
uint32_t Avx512CopyCrc(void* to, const void* from, size_t size, bool streaming);

}  // namespace dmi::base::x86

#endif  // __x86_64__

#endif  // DMI_BASE_CRC32C_X86_H_
