# SPDX-License-Identifier: Apache-2.0
"""Runs that real programs recorded on four devices."""

from __future__ import annotations

import tempfile

from absl.testing import absltest
import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import ml_dtypes
import numpy as np

import jax_dmi as dmi
from support import isolated

_WHOLE = np.arange(48, dtype=np.float32).reshape(8, 6)


def _mesh(axes: str = "Auto") -> jax.sharding.Mesh:
    kind = getattr(jax.sharding.AxisType, axes)
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2)


def _capture(fn, *args, **options) -> dmi.Run:
    folder = tempfile.mkdtemp()
    with dmi.Monitor(f"{folder}/run", **options) as monitor, monitor.step(7):
        jax.block_until_ready(fn(*args))
    return dmi.open_run(monitor.path)


class CapturedTest(isolated.IsolatedTestCase):
    environment = isolated.FOUR_DEVICES

    def case_blocks_lie_where_jax_says(self):
        for spec in (P("a", "b"), P("b"), P(None, "a"), P(("b", "a")), P()):
            x = jax.device_put(_WHOLE, NamedSharding(_mesh(), spec))
            run = _capture(jax.jit(lambda x: dmi.record(x, "x")), x, replicas="all")
            found = {record.device: record for record in run.select()}
            self.assertLen(found, 4)
            for shard in x.addressable_shards:
                record = found[shard.device.id]
                self.assertEqual(record.index, shard.index)
                self.assertEqual(record.global_shape, x.shape)
                np.testing.assert_array_equal(record.numpy(), np.asarray(shard.data))
            np.testing.assert_array_equal(run["x"].global_array(step=7), _WHOLE)

    def case_uneven_blocks_come_without_padding(self):
        @jax.jit
        def fn(x):
            x = jax.lax.with_sharding_constraint(
                x[:7] * 1, NamedSharding(_mesh(), P(("a", "b")))
            )
            return dmi.record(x, "x")

        run = _capture(fn, _WHOLE)
        self.assertEqual({r.shape for r in run.select()}, {(2, 6), (1, 6)})
        np.testing.assert_array_equal(run["x"].global_array(), _WHOLE[:7])

    def case_blocks_of_shard_map_need_a_spec(self):
        for spec in (P("a", "b"), P("b", "a"), P(("a", "b"))):
            local = jax.jit(
                jax.shard_map(
                    lambda x: dmi.record(x, "x"),
                    mesh=_mesh(),
                    in_specs=spec,
                    out_specs=spec,
                )
            )
            run = _capture(local, _WHOLE)
            with self.assertRaisesRegex(ValueError, "spec="):
                run["x"].global_array()
            found = run["x"].global_array(spec=spec)
            np.testing.assert_array_equal(found, _WHOLE)

    def case_a_partly_manual_region_comes_together(self):
        local = jax.jit(
            jax.shard_map(
                lambda x: dmi.record(x * 1, "x"),
                mesh=_mesh(),
                in_specs=P("a"),
                out_specs=P("a"),
                axis_names={"a"},
            )
        )
        x = jax.device_put(_WHOLE, NamedSharding(_mesh(), P("a", "b")))
        run = _capture(local, x)
        found = run["x"].global_array(spec=P("a"))
        np.testing.assert_array_equal(found, _WHOLE)

    def case_replicas_stack_once(self):
        x = jax.device_put(_WHOLE, NamedSharding(_mesh(), P()))
        run = _capture(jax.jit(lambda x: dmi.record(x, "x")), x, replicas="all")
        self.assertLen(run["x"], 4)
        self.assertEqual(run["x"].stack().shape, (1, 8, 6))
        self.assertEqual(run["x"].stack(device=[0, 1, 2, 3]).shape, (4, 8, 6))

    def case_types_and_labels_come_back(self):
        values = {
            "bf16": np.arange(6).astype(ml_dtypes.bfloat16),
            "fp8": np.arange(6).astype(ml_dtypes.float8_e4m3fn),
            "int4": np.arange(-3, 2).astype(ml_dtypes.int4),
            "bool": np.array([True, False]),
            "none": np.zeros((0, 3), np.float32),
        }

        @jax.jit
        def fn(values):
            return {
                name: dmi.record(x, name, layer=3, labels={"t": 0.25, "n": -2})
                for name, x in values.items()
            }

        run = _capture(fn, {k: jax.numpy.asarray(v) for k, v in values.items()})
        self.assertEqual(run.names(), sorted(values))
        for name, value in values.items():
            (record,) = run.select(name)
            self.assertEqual(record.dtype, value.dtype)
            self.assertEqual(record.numpy().tobytes(), value.tobytes())
            self.assertEqual(record.labels, {"t": 0.25, "n": -2})
            self.assertEqual((record.step, record.layer), (7, 3))
            np.testing.assert_array_equal(np.asarray(record.jax()), value)
        self.assertTrue(run.verify().ok and run.verify().closed)


if __name__ == "__main__":
    absltest.main()
