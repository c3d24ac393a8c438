// SPDX-License-Identifier: Apache-2.0
// crc32c and copies with the instructions of x86-64.
#include "base/crc32c_x86.h"

#if defined(DMI_X86)

// GCC's AVX-512 headers leave registers undefined on purpose and warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <array>
#include <cstring>

namespace dmi::base::x86 {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// x^n modulo the polynomial, reflected: bit 31 stands for x^0.
constexpr uint32_t PowerOfX(uint64_t n) {
  uint32_t value = 0x80000000;
  for (uint64_t i = 0; i < n; ++i) {
    value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
  }
  return value;
}

// The factor that moves a 64-bit lane n bits ahead in a carry-less product,
// whose reflected form comes out one bit short.
constexpr int64_t Fold(uint64_t n) {
  return static_cast<int64_t>(uint64_t{PowerOfX(n)} << 1);
}

bool Aligned64(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 63) == 0;
}

// ---- SSE4.2 ----------------------------------------------------------------

// The instruction has a latency of three and a throughput of one, so three
// streams run at once; a table then shifts a crc over the bytes of the others.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr uint32_t MultiplyModP(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

ShiftTable MakeShift(size_t bytes) {
  uint32_t power = 0x80000000;  // x^0
  uint32_t square = PowerOfX(8);
  for (size_t n = bytes; n != 0; n >>= 1) {
    if (n & 1) power = MultiplyModP(power, square);
    square = MultiplyModP(square, square);
  }
  ShiftTable table{};
  for (uint32_t byte = 0; byte < 4; ++byte) {
    for (uint32_t i = 0; i < 256; ++i) {
      table[byte][i] = MultiplyModP(power, i << (8 * byte));
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^
         table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

constexpr size_t kLongBlock = 8192;
constexpr size_t kShortBlock = 256;

uint64_t Word(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint64_t ThreeStreams(const uint8_t*& bytes,
                                                        size_t& size,
                                                        size_t block,
                                                        const ShiftTable& shift,
                                                        uint64_t crc) {
  while (size >= 3 * block) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < block; i += 8) {
      crc = _mm_crc32_u64(crc, Word(bytes + i));
      second = _mm_crc32_u64(second, Word(bytes + block + i));
      third = _mm_crc32_u64(third, Word(bytes + 2 * block + i));
    }
    crc = Shift(shift, static_cast<uint32_t>(crc)) ^ second;
    crc = Shift(shift, static_cast<uint32_t>(crc)) ^ third;
    bytes += 3 * block;
    size -= 3 * block;
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint64_t OneStream(const uint8_t* bytes,
                                                     size_t size,
                                                     uint64_t crc) {
  for (; size >= 8; size -= 8, bytes += 8) {
    crc = _mm_crc32_u64(crc, Word(bytes));
  }
  for (; size > 0; --size, ++bytes) {
    crc = _mm_crc32_u8(static_cast<uint32_t>(crc), *bytes);
  }
  return crc;
}

// ---- AVX-512 ---------------------------------------------------------------

#define DMI_AVX512                                          \
  __attribute__((                                           \
      target("avx512f,avx512bw,avx512vl,vpclmulqdq,sse4.2," \
             "pclmul")))

constexpr size_t kStride = 256;  // four vectors of 64 bytes

DMI_AVX512 inline __m512i FoldInto(__m512i value, __m512i factor,
                                   __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(value, factor, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(value, factor, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // a ^ b ^ c
}

DMI_AVX512 inline __m128i FoldInto128(__m128i value, __m128i next) {
  const __m128i factor = _mm_set_epi64x(Fold(128 - 32), Fold(128 + 32));
  const __m128i low = _mm_clmulepi64_si128(value, factor, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, factor, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Folds four vectors into the 32-bit state they are congruent to.
DMI_AVX512 inline uint64_t Reduce(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i factor =
      _mm512_broadcast_i32x4(_mm_set_epi64x(Fold(512 - 32), Fold(512 + 32)));
  b = FoldInto(a, factor, b);
  c = FoldInto(b, factor, c);
  d = FoldInto(c, factor, d);
  __m128i sum = _mm512_extracti32x4_epi32(d, 0);
  sum = FoldInto128(sum, _mm512_extracti32x4_epi32(d, 1));
  sum = FoldInto128(sum, _mm512_extracti32x4_epi32(d, 2));
  sum = FoldInto128(sum, _mm512_extracti32x4_epi32(d, 3));
  const uint64_t crc =
      _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(sum, 0)));
  return _mm_crc32_u64(crc, static_cast<uint64_t>(_mm_extract_epi64(sum, 1)));
}

enum class Store { kNone, kCached, kStreaming };

template <Store kStore>
DMI_AVX512 inline void Put(uint8_t* to, __m512i value) {
  if constexpr (kStore == Store::kCached) _mm512_storeu_si512(to, value);
  if constexpr (kStore == Store::kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
  }
}

DMI_AVX512 inline __m512i Get(const uint8_t* from) {
  return _mm512_loadu_si512(from);
}

// Reads `size` bytes once, both into the crc and, by kStore, to `to`.
template <Store kStore>
DMI_AVX512 uint32_t Pass(uint8_t* to, const uint8_t* from, size_t size,
                         uint32_t seed) {
  uint64_t crc = static_cast<uint32_t>(~seed);
  if (size >= kStride) {
    __m512i a = Get(from);
    __m512i b = Get(from + 64);
    __m512i c = Get(from + 128);
    __m512i d = Get(from + 192);
    if constexpr (kStore != Store::kNone) {
      Put<kStore>(to, a);
      Put<kStore>(to + 64, b);
      Put<kStore>(to + 128, c);
      Put<kStore>(to + 192, d);
    }
    a = _mm512_xor_si512(
        a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
    const __m512i factor = _mm512_broadcast_i32x4(
        _mm_set_epi64x(Fold(2048 - 32), Fold(2048 + 32)));
    size_t done = kStride;
    for (; size - done >= kStride; done += kStride) {
      const __m512i na = Get(from + done);
      const __m512i nb = Get(from + done + 64);
      const __m512i nc = Get(from + done + 128);
      const __m512i nd = Get(from + done + 192);
      if constexpr (kStore != Store::kNone) {
        Put<kStore>(to + done, na);
        Put<kStore>(to + done + 64, nb);
        Put<kStore>(to + done + 128, nc);
        Put<kStore>(to + done + 192, nd);
      }
      a = FoldInto(a, factor, na);
      b = FoldInto(b, factor, nb);
      c = FoldInto(c, factor, nc);
      d = FoldInto(d, factor, nd);
    }
    crc = Reduce(a, b, c, d);
    from += done;
    size -= done;
    if constexpr (kStore != Store::kNone) to += done;
  }
  if constexpr (kStore != Store::kNone) {
    if (size > 0) std::memcpy(to, from, size);
  }
  if constexpr (kStore == Store::kStreaming) _mm_sfence();
  return static_cast<uint32_t>(~OneStream(from, size, crc));
}

// Copies whole vectors with streaming stores and returns how many bytes.
DMI_AVX512 size_t StreamAvx512(uint8_t* to, const uint8_t* from, size_t size) {
  size_t done = 0;
  for (; size - done >= kStride; done += kStride) {
    const __m512i a = Get(from + done);
    const __m512i b = Get(from + done + 64);
    const __m512i c = Get(from + done + 128);
    const __m512i d = Get(from + done + 192);
    Put<Store::kStreaming>(to + done, a);
    Put<Store::kStreaming>(to + done + 64, b);
    Put<Store::kStreaming>(to + done + 128, c);
    Put<Store::kStreaming>(to + done + 192, d);
  }
  return done;
}

size_t StreamSse2(uint8_t* to, const uint8_t* from, size_t size) {
  size_t done = 0;
  for (; size - done >= 64; done += 64) {
    for (size_t i = 0; i < 64; i += 16) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(to + done + i),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done + i)));
    }
  }
  return done;
}

template <typename Stream>
void CopyBy(Stream stream, void* to, const void* from, size_t size,
            bool streaming) {
  if (!streaming || !Aligned64(to)) {
    std::memcpy(to, from, size);
    return;
  }
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  const size_t done = stream(out, in, size);
  std::memcpy(out + done, in + done, size - done);
  // Streaming stores are weakly ordered; a release store alone is not enough.
  _mm_sfence();
}

}  // namespace

bool HasSse42() { return __builtin_cpu_supports("sse4.2"); }

bool HasAvx512() {
  return HasSse42() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("vpclmulqdq");
}

uint32_t Sse42Crc(const void* data, size_t size, uint32_t seed) {
  static const ShiftTable long_shift = MakeShift(kLongBlock);
  static const ShiftTable short_shift = MakeShift(kShortBlock);
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t crc = static_cast<uint32_t>(~seed);
  crc = ThreeStreams(bytes, size, kLongBlock, long_shift, crc);
  crc = ThreeStreams(bytes, size, kShortBlock, short_shift, crc);
  return static_cast<uint32_t>(~OneStream(bytes, size, crc));
}

uint32_t Avx512Crc(const void* data, size_t size, uint32_t seed) {
  return Pass<Store::kNone>(nullptr, static_cast<const uint8_t*>(data), size,
                            seed);
}

void Copy(void* to, const void* from, size_t size, bool streaming) {
  CopyBy(StreamSse2, to, from, size, streaming);
}

void Avx512Copy(void* to, const void* from, size_t size, bool streaming) {
  CopyBy(StreamAvx512, to, from, size, streaming);
}

uint32_t Avx512CopyCrc(void* to, const void* from, size_t size,
                       bool streaming) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  return streaming && Aligned64(to) ? Pass<Store::kStreaming>(out, in, size, 0)
                                    : Pass<Store::kCached>(out, in, size, 0);
}

}  // namespace dmi::base::x86

#endif  // DMI_X86
