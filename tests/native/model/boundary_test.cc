// SPDX-License-Identifier: Apache-2.0
// Boundaries: a log of stamps that wraps, and words shown to the host.
#include "program/boundary.cc"

#include "model/device.h"

namespace dmi::model {
namespace {

// One program stamps into a log of two while another thread reads it.
struct Stamping : rl::test_suite<Stamping, 2>, Memory {
  static constexpr uint64_t kStamps = 4;
  wire::RingHeader& ring = rings[0].device.ring;

  void before() {
    Watch(Word::kBoundaryCount, ring.boundary_count);
    for (wire::BoundaryStamp& stamp : rings[0].log) {
      Watch(Word::kTag, stamp.tag);
      Watch(Word::kStampProgress, stamp.progress);
      Watch(Word::kStampTime, stamp.time_ns);
    }
  }
  void thread(unsigned index) {
    if (index == 0) {
      for (uint64_t i = 1; i <= kStamps; ++i) {
        program::StampBoundary(ring, i, static_cast<int64_t>(100 + i));
      }
      return;
    }
    for (int look = 0; look < 2; ++look) Look();
  }
  size_t Look() {
    const auto stamps = program::ReadBoundaries(ring, 0);
    for (const wire::BoundaryStamp& stamp : stamps) {
      Require(stamp.progress == stamp.tag &&
                  stamp.time_ns == static_cast<int64_t>(100 + stamp.tag),
              "a torn stamp");
    }
    return stamps.size();
  }
  void after() { Require(Look() == 2, "a whole stamp was left out"); }
};

// Programs that overlap pass boundaries and show the host how far they are.
struct Showing : rl::test_suite<Showing, 2>, Memory {
  wire::RingHeader& ring = rings[0].device.ring;
  wire::DeviceMirror& mirror = rings[0].mirror;

  void before() {
    Watch(Word::kProgress, control.progress);
    Watch(Word::kBoundaryCount, ring.boundary_count);
    Watch(Word::kMirror, mirror.progress);
    Watch(Word::kMirror, mirror.ring.boundary_count);
  }
  void thread(unsigned) { program::Boundary(control); }
  void after() {
    Require(Last(control.progress) == 2, "a boundary was not counted");
    Require(Last(mirror.progress) == 2, "the host sees an older progress");
    Require(Last(mirror.ring.boundary_count) == 2,
            "the host sees an older count");
  }
};

// The host begins another version while a program passes a boundary.
struct Versioning : rl::test_suite<Versioning, 2>, Memory {
  uint64_t& mirror = rings[0].mirror.progress;

  void before() {
    Watch(Word::kProgress, control.progress);
    Watch(Word::kMirror, mirror);
  }
  void thread(unsigned index) {
    if (index == 0) {
      program::Boundary(control);
    } else {
      Control(*this, program::ControlAction::kProgress, mirror,
              wire::PackProgress(1, 0));
    }
  }
  void after() {
    Require(wire::VersionOf(Last(control.progress)) == 1, "not begun");
    Require(Last(mirror) == Last(control.progress),
            "the host sees an older progress");
  }
};

TEST(Boundary, NoStampIsTorn) {
  Holds<Stamping>(Search::Bound(2), Mapping::kCpp);
  Holds<Stamping>(Search::Random(100000), Mapping::kCpp);
}

TEST(Boundary, StampsNeedTheirOrders) {
  FindsAll<Stamping>(
      Search::Random(500000), Mapping::kCpp,
      {{"tag loaded relaxed", Word::kTag, Access::kLoadAcquire, rl::mo_relaxed},
       {"progress loaded relaxed", Word::kStampProgress, Access::kLoadAcquire,
        rl::mo_relaxed},
       {"time loaded relaxed", Word::kStampTime, Access::kLoadAcquire,
        rl::mo_relaxed},
       {"tag stored relaxed", Word::kTag, Access::kStoreRelease,
        rl::mo_relaxed},
       {"progress stored relaxed", Word::kStampProgress, Access::kStoreRelease,
        rl::mo_relaxed},
       {"time stored relaxed", Word::kStampTime, Access::kStoreRelease,
        rl::mo_relaxed}});
}

TEST(Boundary, TheHostSeesTheLatestInTheEnd) {
  Holds<Showing>(Search::Bound(3), Mapping::kPtx);
  Holds<Showing>(Search::Random(200000), Mapping::kPtx);
}

TEST(Boundary, TheHostSeesTheVersionItBegan) {
  Holds<Versioning>(Search::Bound(4), Mapping::kPtx);
  Holds<Versioning>(Search::Random(50000), Mapping::kPtx);
}

TEST(Boundary, TheLatestNeedsFences) {
  FindsAll<Showing>(Search::Bound(4), Mapping::kPtx,
                    {{"progress looked at by acquire", Word::kProgress,
                      Access::kLoadSeqCst, rl::mo_acquire},
                     {"count looked at by acquire", Word::kBoundaryCount,
                      Access::kLoadSeqCst, rl::mo_acquire}});
}

}  // namespace
}  // namespace dmi::model
