# SPDX-License-Identifier: Apache-2.0
"""Records of programs on four devices: each shard once, where it lives."""

from __future__ import annotations

import re

from absl.testing import absltest
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

from jax_dmi import errors
from jax_dmi import ops
from jax_dmi import spec as capture_spec
from support import capture
from support import isolated

_COLLECTIVES = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b"
)
_BOTH = P("a", "b")
_X = np.arange(32, dtype=np.float32).reshape(8, 4) - 9


def _square(x):
    return ops.record(x * x, "r")


def _total(f):
    return lambda x: f(x).sum()


def _scan(body, n):
    def program(x):
        return lax.scan(lambda c, _: (body(c), None), x, None, length=n)[0]

    return program


class ShardedTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def mesh(self):
        devices = np.array(jax.devices()[:4]).reshape(2, 2)
        return Mesh(devices, ("a", "b"))

    def put(self, spec, x=_X):
        return jax.device_put(x, NamedSharding(self.mesh(), spec))

    def shard_map(self, f, spec=_BOTH, **kwargs):
        return jax.shard_map(
            f, mesh=self.mesh(), in_specs=spec, out_specs=spec, **kwargs
        )

    def count(self, f, x, expected, **settings):
        """Checks the number of records in both modes; returns the exact ones."""
        exact, fast = expected if isinstance(expected, tuple) else (expected, expected)
        for mode, wanted in ((False, fast), (True, exact)):
            found = capture.counted(jax.jit(f), x, exact=mode, **settings)
            self.assertLen(found.records, wanted, f"exact={mode}")
            self.assertEqual(bool(found.never_lowered), wanted == 0, f"exact={mode}")
        return found.records

    def assertTiles(self, records, whole):
        """The shards, put where their layouts say, make up ``whole`` exactly."""
        found = np.full_like(whole, np.nan)
        covered = np.zeros(whole.shape, int)
        for r in records:
            index = r.layout["shards"][str(r.device)]["index"]
            place = tuple(slice(*extent) for extent in index)
            valid = tuple(slice(0, stop - start) for start, stop in index)
            found[place] = r.payload[valid]
            covered[place] += 1
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(covered, 1)

    # --- Automatic partitioning ----------------------------------------------

    def case_each_shard_once_for_five_partition_specs(self):
        for spec, shards in (
            (P("a", "b"), 4),
            (P("a"), 2),
            (P(None, "b"), 2),
            (P(("b", "a")), 4),
            (P(), 1),
        ):
            records = self.count(_square, self.put(spec), shards)
            self.assertTiles(records, _X * _X)
            axes = [list(e) if isinstance(e, tuple) else e and [e] for e in spec]
            axes += [None] * (2 - len(axes))
            layout = records[0].layout
            self.assertEqual(layout["spec"], axes)
            self.assertEqual(layout["global_shape"], [8, 4])
            self.assertEqual(layout["devices"], [0, 1, 2, 3])
            self.assertEqual(layout["mesh_names"], ["a", "b"])

    def case_an_explicit_mesh(self):
        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
        with jax.set_mesh(mesh):
            x = jax.device_put(_X, P("a", "b"))
            self.assertTiles(self.count(_square, x, 4), _X * _X)
            self.count(jax.grad(_total(_scan(_square, 3))), x, 12)
            self.count(jax.vmap(_square), x, 4)
            found = capture.counted(jax.jit(lambda x: ops.advance_boundary(x * 2)), x)
            self.assertEqual(found.boundaries, {0: 1, 1: 1, 2: 1, 3: 1})
            self.assertEqual(jax.typeof(found.out).sharding.spec, P("a", "b"))

    def case_a_mesh_of_the_context(self):
        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
        with jax.set_mesh(mesh):
            self.count(_square, self.put(P("a", "b")), 4)
            f = jax.shard_map(_square, in_specs=P("a", "b"), out_specs=P("a", "b"))
            self.count(f, self.put(P("a", "b")), 4)

    def case_a_mesh_without_devices(self):
        with jax.sharding.use_abstract_mesh(self.mesh().abstract_mesh):
            f = jax.shard_map(_square, in_specs=P("a", "b"), out_specs=P("a", "b"))
            records = self.count(f, self.put(P("a", "b")), 4)
            self.assertIsNone(records[0].layout)
            g = jax.shard_map(
                _square, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}
            )
            with self.assertRaisesRegex(errors.DmiValueError, "mesh of devices"):
                capture.counted(jax.jit(g), self.put(P("a", "b")))

    def case_gradient_of_scan_of_checkpoint(self):
        f = jax.grad(_total(_scan(jax.checkpoint(_square), 5)))
        self.count(f, self.put(P("a", "b")), 20)

    def case_unused_results(self):
        def at_top_level(x):
            _square(x)
            return x + 1

        def in_a_function(x):
            jax.jit(_square)(x)
            return x + 1

        self.count(at_top_level, self.put(P("a", "b")), 4)
        self.count(in_a_function, self.put(P("a", "b")), (4, 0))

    def case_eager(self):
        x = self.put(P("a", "b"))
        for f in (_square, jax.vmap(_square)):
            found = capture.counted(f, x)
            self.assertTiles(found.records, _X * _X)

    def case_no_collective_is_added(self):
        for spec in (P("a", "b"), P("a"), P()):
            for exact in (True, False):
                with capture_spec.overriding(capture_spec.CaptureSpec(exact=exact)):
                    text = jax.jit(_square).lower(self.put(spec)).compile().as_text()
                self.assertIn("dmi_record", text)
                self.assertNotRegex(text, _COLLECTIVES)
                self.assertNotIn(" copy(", text)

    def case_sharding_passes_through(self):
        found = capture.counted(jax.jit(_square), self.put(P(None, "b")))
        self.assertTrue(
            found.out.sharding.is_equivalent_to(
                NamedSharding(self.mesh(), P(None, "b")), 2
            )
        )

    def case_uneven_shards(self):
        sharding = NamedSharding(self.mesh(), P(("a", "b")))
        whole = np.arange(10, dtype=np.float32) + 1

        def f(x):
            return _square(lax.with_sharding_constraint(x, sharding)).sum()

        records = self.count(f, self.put(P(), whole), 4)
        self.assertTiles(records, whole * whole)
        self.assertEqual({r.payload.shape for r in records}, {(3,)})

    def case_replicated_values(self):
        first = self.count(_square, self.put(P("a")), 2)
        self.assertEqual(sorted(r.device for r in first), [0, 2])
        every = self.count(_square, self.put(P("a")), 4, replicas="all")
        replicas = {r.device: r.layout["shards"][str(r.device)] for r in every}
        self.assertEqual([replicas[d]["replica"] for d in range(4)], [0, 1, 0, 1])
        self.assertEqual(replicas[0]["index"], replicas[1]["index"])

    def case_labels_and_conditions(self):
        def f(x):
            y = ops.record(
                x,
                "r",
                step=x[0, 0].astype(int),
                layer=7,
                labels={"mean": x.mean(), "half": 0.5},
            )
            return ops.record(y, "not", when=x.sum() > 1e9)

        for r in self.count(f, self.put(P("a", "b")), 4):
            self.assertEqual(
                r.labels, {"step": -9, "layer": 7, "mean": _X.mean(), "half": 0.5}
            )

    def case_kinds_of_values(self):
        for dtype in (jnp.bfloat16, jnp.int8, jnp.bool_, jnp.complex64, jnp.int4):
            whole = (_X % 7).astype(dtype)
            records = self.count(
                lambda x: ops.record(x, "r"), self.put(P("a", "b"), whole), 4
            )
            self.assertEqual({r.payload.dtype for r in records}, {whole.dtype})
            self.assertEqual(sum(r.payload.size for r in records), whole.size)
        self.count(lambda x: ops.record(x.sum(), "r"), self.put(P("a", "b")), 1)
        self.count(lambda x: ops.record({"p": x, "q": x}, "r"), self.put(P("a")), 4)

    def case_too_large_a_shard(self):
        record = jax.jit(lambda x: ops.record(x, "r"))
        both, one = self.put(P("a", "b")), self.put(P("a"))
        with (
            capture_spec.overriding(capture_spec.CaptureSpec(size_limit=31)),
            self.assertRaisesRegex(errors.DmiValueError, "32 bytes.* hold 31,"),
        ):
            record.lower(both)
        with capture_spec.overriding(capture_spec.CaptureSpec(size_limit=32)):
            record.lower(both).compile()
            # Only the partitioner knows that these shards are larger than could be.
            lowered = record.lower(one)
            with self.assertRaisesRegex(Exception, "64 bytes.* hold 32,"):
                lowered.compile()

    def case_the_older_partitioner(self):
        jax.config.update("jax_use_shardy_partitioner", False)
        try:
            self.assertTiles(self.count(_square, self.put(P("a", "b")), 4), _X * _X)
            f = jax.grad(_total(_scan(jax.checkpoint(_square), 5)))
            self.count(f, self.put(P("a", "b")), 20)
            self.count(self.shard_map(_square), self.put(P("a", "b")), 4)
        finally:
            jax.config.update("jax_use_shardy_partitioner", True)

    # --- shard_map -----------------------------------------------------------

    def case_shard_map(self):
        records = self.count(self.shard_map(_square), self.put(P("a", "b")), 4)
        self.assertEqual(records[0].layout["kind"], "manual")
        self.assertEqual(records[0].layout["varying"], ["a", "b"])
        blocks = {r.device: r.payload for r in records}
        for device, (i, j) in enumerate(np.ndindex(2, 2)):
            block = _X[4 * i : 4 * i + 4, 2 * j : 2 * j + 2]
            np.testing.assert_array_equal(blocks[device], block * block)

    def case_shard_map_and_loops(self):
        x = self.put(P("a", "b"))
        grad = jax.grad
        self.count(grad(_total(self.shard_map(_scan(_square, 3)))), x, 12)
        self.count(grad(_total(_scan(self.shard_map(_square), 3))), x, 12)

        def nested(x):
            return lax.cond(x.sum() > 0, _scan(_square, 3), lambda x: x, x)

        found = capture.counted(jax.jit(self.shard_map(nested)), x)
        positive = [
            d
            for d, (i, j) in enumerate(np.ndindex(2, 2))
            if _X[4 * i : 4 * i + 4, 2 * j : 2 * j + 2].sum() > 0
        ]
        self.assertEqual(sorted(r.device for r in found.records), sorted(positive * 3))

    def case_shard_map_with_replicated_values(self):
        x = self.put(P("a"))
        self.count(self.shard_map(_square, P("a")), x, 2)
        self.count(self.shard_map(_square, P("a")), x, 4, replicas="all")
        # Without the check nobody knows what is replicated.
        self.count(self.shard_map(_square, P("a"), check_vma=False), x, 4)
        # A label that differs makes the records differ.
        f = self.shard_map(
            lambda x: ops.record(x, "r", step=lax.axis_index("b")), P("a")
        )
        records = self.count(f, x, 4)
        self.assertEqual(sorted(r.labels["step"] for r in records), [0, 0, 1, 1])

    def case_partly_manual_shard_map(self):
        f = self.shard_map(_square, P("a"), axis_names={"a"})
        records = self.count(f, self.put(P("a", "b")), 4)
        for r in records:
            row, column = divmod(r.device, 2)
            (top, bottom), (left, right) = r.layout["shards"][str(r.device)]["index"]
            block = _X[4 * row :][top:bottom, left:right]
            np.testing.assert_array_equal(r.payload, block * block)
            self.assertEqual(left, 2 * column)
        replicated = self.count(f, self.put(P("a")), 2)
        self.assertEqual(sorted(r.device for r in replicated), [0, 2])
        g = self.shard_map(_scan(_square, 3), P("a"), axis_names={"a"})
        self.count(jax.grad(_total(g)), self.put(P("a", "b")), 12)

    def case_nested_shard_maps(self):
        def outer(x):
            inner = jax.shard_map(
                _square,
                in_specs=P(None, "b"),
                out_specs=P(None, "b"),
                axis_names={"b"},
            )
            return inner(x)

        f = self.shard_map(outer, P("a"), axis_names={"a"})
        self.count(f, self.put(P("a", "b")), 4)

    def case_pmap(self):
        found = capture.counted(jax.pmap(_square), _X[:4])
        self.assertEqual(sorted(r.device for r in found.records), [0, 1, 2, 3])

    def case_an_unused_shard_map(self):
        f = self.shard_map(_square)

        def once(x):
            f(x)
            return x + 1

        def in_scan(x):
            def body(c, _):
                f(c)
                return c * 2, None

            return lax.scan(body, x, None, length=3)[0].sum()

        x = self.put(P("a", "b"))
        self.count(once, x, (4, 0))
        self.count(in_scan, x, (12, 0))
        # Differentiating the scan removes it, effect or not.
        self.count(jax.grad(in_scan), x, 0)

    # --- Other operations ----------------------------------------------------

    def case_record_grad(self):
        def f(x):
            return ops.record_grad(x * x, "g")

        x = self.put(P("a", "b"))
        records = self.count(jax.grad(_total(f)), x, 4)
        self.assertTiles(records, np.ones_like(_X))
        self.count(jax.grad(_total(self.shard_map(_scan(f, 3)))), x, 12)

    def case_boundaries(self):
        def f(x):
            return ops.advance_boundary(x * 2)

        x = self.put(P("a", "b"))
        partly = self.shard_map(f, P("a"), axis_names={"a"})
        for program in (f, self.shard_map(f), partly):
            for exact in (True, False):
                found = capture.counted(jax.jit(program), x, exact=exact)
                self.assertEqual(found.boundaries, {0: 1, 1: 1, 2: 1, 3: 1})
                np.testing.assert_array_equal(found.out, _X * 2)


if __name__ == "__main__":
    absltest.main()
