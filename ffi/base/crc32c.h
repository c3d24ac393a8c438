// SPDX-License-Identifier: Apache-2.0
// crc32c (Castagnoli), alone and fused into a copy.
//
// Three implementations give equal results: AVX-512 with carry-less multiply,
// the SSE4.2 crc32 instruction, and a portable table; the best one the
// processor has is chosen once.
#ifndef DMI_BASE_CRC32C_H_
#define DMI_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace dmi::base {

// The crc of `size` bytes at `data`, continuing from `seed` (0 to begin).
uint32_t Crc32c(const void* data, size_t size, uint32_t seed = 0);

// Copies like memcpy and returns the crc of what it copied. `streaming` writes
// around the cache, which suits large copies that nobody reads soon; it orders
// its stores before any later release store of the calling thread. Addresses
// may be null where `size` is 0.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t size,
                        bool streaming);

// The same copy without the crc.
void Copy(void* to, const void* from, size_t size, bool streaming);

// Which implementation was chosen: "avx512", "sse4.2" or "portable".
const char* Crc32cImplementation();

// Every implementation this processor can run, for tests that compare them.
struct Crc32cVariant {
  const char* name;
  uint32_t (*crc)(const void* data, size_t size, uint32_t seed);
};
size_t Crc32cVariants(Crc32cVariant out[3]);

}  // namespace dmi::base

#endif  // DMI_BASE_CRC32C_H_
