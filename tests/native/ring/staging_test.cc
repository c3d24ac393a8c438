// SPDX-License-Identifier: Apache-2.0
// Where payloads find a place in staging.
#include "ring/staging.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace dmi::ring {
namespace {

class StagingTest : public ::testing::Test {
 protected:
  // Takes a place for so many bytes, as one lease. Returns its id.
  uint64_t Take(uint64_t bytes) {
    const uint64_t end = staging_.PlaceFor(bytes).value() + bytes;
    staging_.TakeTo(end);
    return staging_.Lease(end, bytes);
  }

  Staging staging_{1024};
};

TEST_F(StagingTest, ARecordThatDoesNotFitBeforeTheWrapGoesBehindIt) {
  const uint64_t first = Take(512);
  const uint64_t second = Take(256);
  EXPECT_EQ(staging_.PlaceFor(256), 768u);
  EXPECT_EQ(staging_.PlaceFor(512), std::nullopt);
  staging_.Release(first);
  EXPECT_EQ(staging_.PlaceFor(512), 1024u);
  EXPECT_EQ(staging_.PlaceFor(513), std::nullopt);
  staging_.Release(second);
  EXPECT_EQ(staging_.PlaceFor(1024), 1024u);
}

// The largest record finds nothing out but an empty one, and goes behind the
// wrap; the empty one is let go after that.
TEST_F(StagingTest, AnEmptyRecordTakesNothingBack) {
  staging_.Release(Take(512));
  const uint64_t empty = Take(0);
  EXPECT_EQ(staging_.PlaceFor(1024), 1024u);
  staging_.Release(empty);
  EXPECT_EQ(staging_.PlaceFor(1024), 1024u);
}

}  // namespace
}  // namespace dmi::ring
