// SPDX-License-Identifier: Apache-2.0
// crc32c: the portable form and the choice between implementations.
#include "base/crc32c.h"

#include <array>
#include <cstring>

#include "base/crc32c_x86.h"

namespace dmi::base {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    }
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t) {
      const uint32_t previous = tables[t - 1][i];
      tables[t][i] = previous >> 8 ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

uint32_t PortableCrc(const void* data, size_t size, uint32_t seed) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  while (size >= 8) {
    const uint32_t low =
        crc ^ (uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 |
               uint32_t{bytes[2]} << 16 | uint32_t{bytes[3]} << 24);
    crc = kTables[7][low & 0xFF] ^ kTables[6][low >> 8 & 0xFF] ^
          kTables[5][low >> 16 & 0xFF] ^ kTables[4][low >> 24] ^
          kTables[3][bytes[4]] ^ kTables[2][bytes[5]] ^ kTables[1][bytes[6]] ^
          kTables[0][bytes[7]];
    bytes += 8;
    size -= 8;
  }
  while (size-- > 0) crc = crc >> 8 ^ kTables[0][(crc ^ *bytes++) & 0xFF];
  return ~crc;
}

void PlainCopy(void* to, const void* from, size_t size, bool /*streaming*/) {
  std::memcpy(to, from, size);
}

struct Choice {
  const char* name = "portable";
  uint32_t (*crc)(const void*, size_t, uint32_t) = PortableCrc;
  void (*copy)(void*, const void*, size_t, bool) = PlainCopy;
  uint32_t (*copy_crc)(void*, const void*, size_t, bool) = nullptr;
};

Choice Choose() {
  Choice choice;
#if defined(DMI_X86)
  choice.copy = x86::Copy;
  if (x86::HasSse42()) {
    choice.name = "sse4.2";
    choice.crc = x86::Sse42Crc;
  }
  if (x86::HasAvx512()) {
    choice.name = "avx512";
    choice.crc = x86::Avx512Crc;
    choice.copy = x86::Avx512Copy;
    choice.copy_crc = x86::Avx512CopyCrc;
  }
#endif
  return choice;
}

const Choice kChoice = Choose();

// Small enough that the copy finds in cache what the crc has just read.
constexpr size_t kFuseChunk = 24 * 1024;

}  // namespace

uint32_t Crc32c(const void* data, size_t size, uint32_t seed) {
  return kChoice.crc(data, size, seed);
}

void Copy(void* to, const void* from, size_t size, bool streaming) {
  if (size == 0) return;  // memcpy wants addresses even then
  kChoice.copy(to, from, size, streaming);
}

uint32_t CopyWithCrc32c(void* to, const void* from, size_t size,
                        bool streaming) {
  if (size == 0) return 0;
  if (kChoice.copy_crc) return kChoice.copy_crc(to, from, size, streaming);
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  uint32_t crc = 0;
  while (size > 0) {
    const size_t chunk = size < kFuseChunk ? size : kFuseChunk;
    crc = kChoice.crc(in, chunk, crc);
    kChoice.copy(out, in, chunk, streaming);
    in += chunk;
    out += chunk;
    size -= chunk;
  }
  return crc;
}

const char* Crc32cImplementation() { return kChoice.name; }

size_t Crc32cVariants(Crc32cVariant out[3]) {
  size_t count = 0;
  out[count++] = {"portable", PortableCrc};
#if defined(DMI_X86)
  if (x86::HasSse42()) out[count++] = {"sse4.2", x86::Sse42Crc};
  if (x86::HasAvx512()) out[count++] = {"avx512", x86::Avx512Crc};
#endif
  return count;
}

}  // namespace dmi::base
