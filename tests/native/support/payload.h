// SPDX-License-Identifier: Apache-2.0
// Payloads that a test can make again from (producer, index) and compare.
#ifndef DMI_TESTS_NATIVE_SUPPORT_PAYLOAD_H_
#define DMI_TESTS_NATIVE_SUPPORT_PAYLOAD_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace dmi::testing {

// SplitMix64: every state gives an unrelated word.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  // Uniform in [0, most].
  uint64_t UpTo(uint64_t most) { return Next() % (most + 1); }

 private:
  uint64_t state_;
};

// The payload of one record: unlike that of any other in every word.
inline void FillPayload(uint64_t producer, uint64_t index, uint64_t bytes,
                        std::vector<uint8_t>& out) {
  out.resize(bytes);
  Random random(producer << 40 ^ index);
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(out.data() + at, &word, 8);
  }
  const uint64_t word = random.Next();
  if (at < bytes) std::memcpy(out.data() + at, &word, bytes - at);
}

}  // namespace dmi::testing

#endif  // DMI_TESTS_NATIVE_SUPPORT_PAYLOAD_H_
