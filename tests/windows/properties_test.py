# SPDX-License-Identifier: Apache-2.0
"""What holds of a controller whatever progress, clock and transfers do."""

from __future__ import annotations

import collections

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

import jax_dmi as dmi
from jax_dmi import windows

_RUNS = hypothesis.settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)


@st.composite
def _patterns(draw):
    cuts = draw(st.lists(st.integers(0, 12), min_size=2, max_size=8, unique=True))
    cuts = sorted(cuts)
    pairs = list(zip(cuts[::2], cuts[1::2]))
    period = draw(st.integers(pairs[-1][1], 14))
    return dmi.WindowPattern(period, pairs)


_KINDS = 4 * ["poll", "stamp"] + 8 * ["take", "complete"] + 3 * ["commit"]
_KINDS += ["gap", "flush", "install", "install", "install", "suspend", "limit"]
# What happens next: kind, time and boundaries that pass first, bytes.
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(_KINDS),
        st.sampled_from([0, 1, 10, 1000, 10**6, 10**9]),
        st.sampled_from([0, 0, 0, 1, 1, 1, 2, 5, 40]),
        st.sampled_from([0, 1, 100, 4096, 10**5, 10**7, 2**50]),
    ),
    min_size=30,
    max_size=120,
)


class _World:
    """A controller, and what a drain and a program would know."""

    def __init__(self, pattern, policy):
        self.clock = windows.ManualClock()
        self.controller = windows.WindowController(
            dmi.WindowConfig(policy=policy), self.clock.now
        )
        self.pattern = pattern
        self.version = 1
        self.counter = 0
        self.installed = 1
        self.limit = None
        self.moved = collections.Counter()  # transfers of an occurrence
        self.one = policy == "binary_adaptive"
        self.admission = None
        self.in_flight = None
        self.controller.install_pending(1, pattern)

    @property
    def word(self):
        return windows.pack_progress(self.version, self.counter)

    def step(self, kind, nanos, boundaries, size):
        self.clock.advance(nanos)
        for _ in range(boundaries):
            self.counter += 1
            if kind == "stamp":
                self.controller.observe_boundary(self.word, self.clock.now())
        getattr(self, f"_{kind}")(size)
        for info in self.controller.state().windows:
            if info.max_safe is not None and info.min_unsafe is not None:
                assert info.max_safe < info.min_unsafe

    def _poll(self, size):
        first = min(size, 4096)
        admission = self.controller.poll(self.word, size, first)
        self.admission = admission
        if admission is None:
            return
        assert self.controller.mode == "active"
        assert size > 0
        match = self.pattern.match(self.counter)
        assert match is not None, "admitted outside a window"
        assert admission.version == self.version
        assert admission.match.begin == match.begin
        assert admission.match.end == match.end
        assert self.in_flight is None
        probe = admission.grant.kind == "minimum_record_probe"
        if self.limit is not None and not probe:
            assert admission.grant.byte_limit <= self.limit

    def _take(self, size):
        self._poll(size)
        if self.admission is not None:
            self._commit(min(size, self.admission.grant.byte_limit))

    def _commit(self, size):
        admission = self.admission
        if admission is None:
            return
        match = self.pattern.match(self.counter)
        if not self.controller.commit(admission, size, self.word):
            return
        assert self.controller.mode == "active"
        assert self.in_flight is None
        assert admission.version == self.version
        assert match is not None and match.begin == admission.match.begin
        assert size <= admission.grant.byte_limit
        self.moved[self.version, match.begin] += 1
        assert not self.one or self.moved[self.version, match.begin] == 1
        self.in_flight = (admission, size)

    def _complete(self, _):
        if self.in_flight is not None:
            self.controller.complete(*self.in_flight, self.word)
            self.in_flight = None

    def _stamp(self, _):
        pass

    def _gap(self, _):
        self.controller.note_observation_gap()

    def _flush(self, _):
        before = self.controller.mode
        entered = self.controller.record_capacity_flush(self.word)
        assert entered == (
            before == "active" and self.controller.mode == "fallback"
        )  # fmt: skip

    def _install(self, size):
        self.installed += 1
        self.controller.install_pending(self.installed, self.pattern, size % 2 == 0)
        self.version, self.counter = self.installed, 0

    def _suspend(self, _):
        self.controller.suspend()
        self.version = 0

    def _limit(self, size):
        self.limit = size or None
        self.controller.limit_grants(self.limit)


class ControllerPropertiesTest(parameterized.TestCase):
    @parameterized.parameters("binary_adaptive", "deadline")
    def test_whatever_happens_grants_keep_to_windows(self, policy):
        admitted = 0

        @_RUNS
        @hypothesis.given(_patterns(), _EVENTS)
        def run(pattern, events):
            nonlocal admitted
            world = _World(pattern, policy)
            for event in events:
                world.step(*event)
            admitted += world.moved.total()

        run()
        self.assertGreater(admitted, 200)

    @parameterized.parameters("binary_adaptive", "deadline")
    def test_a_backlog_is_moved_in_the_end(self, policy):
        @_RUNS
        @hypothesis.given(
            _patterns(),
            st.integers(1, 20_000),
            st.integers(10_000, 10**6),
            st.integers(50_000, 10**7),
        )
        def run(pattern, record, rate, between):
            """``rate`` in bytes per ms; ``between`` in ns from boundary to boundary."""
            world = _World(pattern, policy)
            # All that counts is that records go through at all.
            hypothesis.assume(record * 10**6 / rate < between)
            backlog = 20 * record
            for _ in range(4000):
                if backlog == 0:
                    return
                admission = world.controller.poll(world.word, backlog, record)
                if admission is not None:
                    size = min(backlog, admission.grant.byte_limit)
                    if world.one:
                        size -= size % record
                    if world.controller.commit(admission, size, world.word):
                        nanos = max(1, size * 10**6 // rate)
                        before = world.clock.now() // between
                        world.clock.advance(nanos)
                        world.counter += world.clock.now() // between - before
                        world.controller.complete(admission, size, world.word)
                        backlog -= size
                        continue
                world.clock.advance(between - world.clock.now() % between)
                world.counter += 1
            self.fail(f"{backlog} bytes are left")

        run()


class PolicyPropertiesTest(parameterized.TestCase):
    def test_the_search_finds_what_fits(self):
        @_RUNS
        @hypothesis.given(st.integers(2, 2**40), st.integers(1, 2**20))
        def run(capacity, record):
            hypothesis.assume(record <= capacity)
            policy = windows.GrantPolicy("binary_adaptive")
            fitted = 0
            for occurrence in range(200):
                grant = policy.choose(occurrence, 2**41, record)
                if grant is None:
                    continue
                size = min(grant.byte_limit, 2**41)
                size -= size % record
                overran = size > capacity
                policy.observe(occurrence, size, overran, grant)
                if not overran:
                    fitted = max(fitted, size)
            self.assertEqual(fitted, capacity - capacity % record)

        run()


if __name__ == "__main__":
    absltest.main()
