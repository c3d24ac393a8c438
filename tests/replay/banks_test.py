# SPDX-License-Identifier: Apache-2.0
"""Banks: what is live is never rewritten, and nothing is taken twice."""

from __future__ import annotations

import gc
import resource
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

import jax_dmi as dmi
from jax_dmi import _compat
from jax_dmi import _native
from jax_dmi.replay import uploads
from support import images
from support import isolated


def _arena(size=8, **arguments):
    arena = dmi.ReplayArena(**arguments)
    return arena, arena.define("d", images.spec("int32", size))


def _upload(arena, d, value, count=3, **arguments):
    plan = arena.plan()
    for i in range(count):
        plan.submit(d, np.full(d.arguments.shape, value + i, np.int32))
    return plan.upload(**arguments)


def _upload_to_new(value):
    arena, d = _arena(banks=1)
    return _upload(arena, d, value), d


def _first(block, d):
    return int(np.asarray(block.unpack(d, 0)).ravel()[0])


class BanksTest(parameterized.TestCase):
    def test_arguments_may_change_after_submit_and_after_upload(self):
        arena, d = _arena()
        plan = arena.plan()
        x = np.zeros(8, np.int32)
        for i in range(4):
            x[:] = i
            plan.submit(d, x)
        block = plan.upload()
        x[:] = 99
        self.assertEqual(
            block.scan(d, lambda c, x: (c, x[0]), 0)[1].tolist(), [*range(4)]
        )

    @parameterized.parameters(8, 1 << 12, 1 << 22)
    def test_staging_may_change_as_soon_as_the_copy_is_over(self, size):
        arena, d = _arena(size)
        block = _upload(arena, d, 5, count=1)
        images.fill_staging(arena)
        self.assertEqual(np.unique(block.unpack(d, 0)).tolist(), [5])

    def test_blocks_keep_their_bytes_while_others_are_made(self):
        arena, d = _arena()
        blocks = {}
        for value in range(0, 60, 10):
            blocks[value] = _upload(arena, d, value)
            _fill_free(arena)
        for value, block in blocks.items():
            self.assertEqual(_first(block, d), value)
        self.assertEqual(arena.stats().grows, 4)

    def test_a_bank_is_used_again_once_its_block_is_gone(self):
        arena, d = _arena()
        for value in range(20):
            block = _upload(arena, d, value)
            self.assertEqual(_first(block, d), value)
        stats = arena.stats()
        self.assertEqual((stats.uploads, stats.copies, stats.grows), (20, 20, 0))
        self.assertEqual(stats.allocations, 2)

    def test_whoever_holds_the_words_holds_the_bank(self):
        arena, d = _arena(banks=1)
        held = jax.tree.map(lambda words: words, _upload(arena, d, 1))
        gc.collect()
        _upload(arena, d, 2)
        self.assertEqual(arena.stats().grows, 1)
        self.assertEqual(_first(held, d), 1)
        del held
        _upload(arena, d, 3)
        _upload(arena, d, 4)
        self.assertEqual(arena.stats().grows, 1)

    def test_plans_are_packed_side_by_side(self):
        arena, d = _arena()
        plans = [arena.plan() for _ in range(3)]
        for i in range(9):
            plans[i % 3].submit(d, np.full(8, i, np.int32))
        blocks = [plan.upload() for plan in plans]
        for number, block in enumerate(blocks):
            values = block.scan(d, lambda c, x: (c, x[0]), 0)[1]
            self.assertEqual(values.tolist(), [number, number + 3, number + 6])
        self.assertEqual(arena.stats().grows, 1)

    def test_a_plan_that_is_dropped_gives_its_bank_back(self):
        arena, d = _arena(banks=1)
        for _ in range(5):
            arena.plan().submit(d, np.zeros(8, np.int32))
        self.assertEqual(_first(_upload(arena, d, 7), d), 7)
        self.assertEqual(arena.stats().grows, 0)

    def test_a_bank_can_be_chosen(self):
        arena, d = _arena()
        first = _upload(arena, d, 1, bank=1)
        second = _upload(arena, d, 2, bank=0)
        self.assertEqual((_first(first, d), _first(second, d)), (1, 2))
        self.assertEqual(arena.stats().grows, 0)
        plan = arena.plan()
        for number, message in [
            (0, "in use"),
            (1, "in use"),
            (9, "none of"),
            (-1, "none"),
        ]:
            with self.assertRaisesRegex(
                dmi.DmiValueError, f"bank={number} .*{message}"
            ):
                plan.upload(bank=number)
        del first
        self.assertEqual(plan.upload(bank=1).count(d), 0)

    def test_a_plan_is_uploaded_once(self):
        arena, d = _arena()
        plan = arena.plan()
        plan.upload()
        with self.assertRaises(dmi.StateError):
            plan.upload()
        with self.assertRaises(dmi.StateError):
            plan.submit(d, np.zeros(8, np.int32))
        self.assertEqual(arena.stats().copies, 1)

    def test_an_upload_that_fails_changes_nothing(self):
        arena, d = _arena()
        _upload(arena, d, 1)
        plan = arena.plan()
        plan.submit(d, np.full(8, 5, np.int32))
        before = arena.stats()
        full = RuntimeError("full")
        with (
            mock.patch.object(_compat, "put_copy", side_effect=full),
            mock.patch.object(_native, "replay_upload", side_effect=full),
            self.assertRaisesRegex((RuntimeError, dmi.DmiError), "full"),
        ):
            plan.upload()
        self.assertEqual(arena.stats(), before)
        for i in range(400):
            plan.submit(d, np.full(8, 6 + i, np.int32))
        block = plan.upload()
        self.assertEqual((block.count(d), _first(block, d)), (401, 5))
        self.assertEqual(arena.stats().uploads, 2)

    def test_capacity_grows_for_all_banks_and_never_shrinks(self):
        arena, d = _arena()
        small = _upload(arena, d, 1, count=1)
        large = _upload(arena, d, 2, count=100)
        again = _upload(arena, d, 3, count=1)
        self.assertLess(small.words.size, large.words.size)
        self.assertEqual(again.words.size, large.words.size)
        self.assertEqual(arena.stats().capacity, 4 * large.words.size)
        self.assertEqual([_first(b, d) for b in (small, large, again)], [1, 2, 3])
        self.assertFalse(np.asarray(again.words)[64:].any())

    def test_nothing_is_taken_after_warm_up(self):
        arena, d = _arena()
        for count in (100, 100):
            _upload(arena, d, 1, count=count)
        before, programs = arena.stats(), uploads._program.cache_info().misses
        for count in (1, 100, 0, 7, 99, 50) * 5:
            _upload(arena, d, 1, count=count)
        after = arena.stats()
        self.assertEqual(uploads._program.cache_info().misses, programs)
        self.assertEqual(after.allocations, before.allocations)
        self.assertEqual(after.grows, before.grows)
        self.assertEqual(after.copies - before.copies, 30)

    def test_bytes_are_counted_as_they_are_transferred(self):
        arena, d = _arena()
        _upload(arena, d, 1, count=100)
        own = uploads.possible(jax.devices()[0])
        for count in (1, 100, 0):
            before = arena.stats().bytes_uploaded
            plan = arena.plan()
            for _ in range(count):
                plan.submit(d, np.ones(8, np.int32))
            used = (plan._native or plan._begin()).bytes
            plan.upload()
            stats = arena.stats()
            self.assertEqual(
                stats.bytes_uploaded - before, used if own else stats.capacity
            )

    def test_another_arena_needs_no_other_programs(self):
        _first(*_upload_to_new(1))
        uploads.land()
        gc.collect()
        programs = uploads._program.cache_info().misses
        for value in range(5):
            self.assertEqual(_first(*_upload_to_new(value)), value)
            uploads.land()
        self.assertEqual(uploads._program.cache_info().misses, programs)

    def test_a_block_outlives_its_arena(self):
        blocks = [_upload_to_new(value) for value in range(10)]
        gc.collect()
        for value, (block, d) in enumerate(blocks):
            self.assertEqual(_first(block, d), value)

    def test_settings_of_the_caller_do_not_matter(self):
        def upload():
            arena, d = _arena(1 << 10)
            return _upload(arena, d, 5), d

        mesh = jax.make_mesh((1,), ("x",))
        found = []
        with jax.set_mesh(mesh):
            found.append(upload())
        with jax.disable_jit():
            found.append(upload())
        with jax.transfer_guard("disallow"):
            found.append(upload())
        jax.jit(lambda x: (found.append(upload()), x)[1])(1)
        for block, d in found:
            self.assertEqual(_first(block, d), 5)
            self.assertFalse(block.words.committed)

    def test_the_same_inputs_give_the_same_bytes(self):
        arena, d = _arena()
        other, _ = _arena()
        for value in (0, 0xAA, 0xFF):
            images.fill_staging(arena, value)
            _upload(arena, d, value, count=90)
            want = images.raw(_upload(arena, d, 4, count=5).words)
            _upload(other, d, value, count=90)
            self.assertEqual(images.raw(_upload(other, d, 4, count=5).words), want)

    def test_threads_may_have_plans_of_their_own(self):
        arena, d = _arena()
        wrong = []

        def work(base):
            for value in range(base, base + 200):
                if _first(_upload(arena, d, value), d) != value:
                    wrong.append(value)

        threads = [threading.Thread(target=work, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(arena.stats().uploads, 800)

    @parameterized.parameters(0, -1, 1.5, None)
    def test_there_is_a_bank(self, banks):
        with self.assertRaisesRegex(dmi.DmiValueError, "banks="):
            dmi.ReplayArena(banks=banks)

    def test_devices_are_devices(self):
        with self.assertRaises(dmi.DmiTypeError):
            dmi.ReplayArena(device="cpu")
        device = jax.devices()[-1]
        arena, d = _arena(device=device)
        block = _upload(arena, d, 3)
        self.assertEqual(block.words.devices(), {device})
        self.assertTrue(block.words.committed)
        self.assertFalse(_upload(*_arena(), 3).words.committed)
        sharding = jax.sharding.SingleDeviceSharding(device)
        self.assertEqual(_first(_upload(*_arena(device=sharding), 3), d), 3)

    def test_threads_may_submit_to_one_plan(self):
        # Large enough to be packed without the GIL.
        arena, d = _arena(1 << 18)
        plan = arena.plan()
        found = []

        def work(base):
            for i in range(4):
                x = np.full(1 << 18, 10 * base + i, np.int32)
                found.append((plan.submit(d, x), 10 * base + i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        block = plan.upload()
        self.assertEqual(sorted(index for index, _ in found), [*range(16)])
        for index, value in found:
            self.assertEqual(np.unique(block.unpack(d, index)).tolist(), [value])


class MemoryTest(isolated.IsolatedTestCase):
    def case_growth_that_fails_changes_nothing(self):
        arena, d = _arena()
        large = arena.define("large", images.spec("int8", 1 << 29))
        source = np.zeros(1 << 29, np.int8)
        _upload(arena, d, 1)
        plan = arena.plan()
        plan.submit(d, np.full(8, 7, np.int32))
        before = arena.stats()
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 29), limits[1]))
        with self.assertRaises(MemoryError):
            plan.submit(large, source)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        self.assertEqual(arena.stats(), before)
        self.assertEqual(plan.submit(d, np.full(8, 8, np.int32)), 1)
        block = plan.upload()
        self.assertEqual((block.count(d), block.count(large)), (2, 0))
        self.assertEqual(_first(block, d), 7)


def _fill_free(arena):
    for bank in arena._banks:
        if bank.free:
            bank.staging.fill(0xAA)


if __name__ == "__main__":
    absltest.main()
