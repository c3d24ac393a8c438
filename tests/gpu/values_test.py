# SPDX-License-Identifier: Apache-2.0
"""Every kind of value and label, and every size, bit by bit through the kernels.

Needs a GPU, or emulated kernels. What can be in one program is: compiling takes most
of the time on a GPU.
"""

from __future__ import annotations

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_dmi import ops
from support import capture

_DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "int4", "uint4"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
]
_WIDE = ["int64", "uint64", "float64", "complex128"]

# Around the units of a copy, of a block, and of the kernel with many blocks.
_SIZES = [
    *range(18),
    *(31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257),
    *(n + d for n in (4096, 16384, 65536) for d in (-1, 0, 1)),
]

_LABELS = {
    "int8": -7,
    "int16": -300,
    "int32": -(2**31),
    "uint8": 200,
    "uint16": 65535,
    "uint32": 2**32 - 1,
    "bool": 1,
    "float32": 0.1,
    "bfloat16": 1.5,
    "float16": 0.25,
    "int4": -8,
    "uint4": 15,
    "float8_e4m3fn": 1.5,
}
_WIDE_LABELS = {"int64": -(2**62) - 1, "uint64": 2**63 + 1, "float64": 0.1}


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def _bytes(size):
    return (np.arange(size) * 37 % 251).astype(np.uint8)


class ValuesTest(parameterized.TestCase):
    def check(self, values, **settings):
        """Records all values in one program, and compares each bit by bit."""
        found = capture.counted(
            jax.jit(lambda v: ops.record(v, "v")), values, **settings
        )
        records = {r.name: r.payload for r in found.records}
        self.assertCountEqual(records, [f"v/{name}" for name in values])
        for name, value in values.items():
            value = np.asarray(value)
            self.assertEqual(records[f"v/{name}"].dtype, value.dtype)
            self.assertEqual(records[f"v/{name}"].shape, value.shape)
            self.assertEqual(records[f"v/{name}"].tobytes(), value.tobytes(), name)
            self.assertEqual(np.asarray(found.out[name]).tobytes(), value.tobytes())

    @parameterized.parameters(7, 8, 1001)
    def test_dtypes(self, count):
        self.check({d: (np.arange(count) % 3).astype(_dtype(d)) for d in _DTYPES})

    def test_wide_dtypes(self):
        with jax.enable_x64(True):
            self.check({d: np.array([1, 2**40 + 1, 3]).astype(d) for d in _WIDE})

    def test_sizes(self):
        self.check({f"{size}": _bytes(size) for size in _SIZES})

    def test_shapes_without_elements(self):
        shapes = {"a": (0,), "b": (3, 0), "c": (0, 0, 2), "scalar": ()}
        self.check(
            {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        )

    def test_special_values_keep_their_bits(self):
        bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32)
        self.check({"x": bits.view(np.float32)})

    @parameterized.parameters((1 << 20) - 3, 1 << 20, (1 << 20) + 5)
    def test_a_mebibyte(self, size):
        self.check({"x": _bytes(size)})

    def test_64_mebibytes(self):
        self.check({"x": jnp.asarray(_bytes(64 << 20))}, ring_bytes="256MiB")


class LabelsTest(parameterized.TestCase):
    def check(self, labels):
        """Records with each label in one program, its value known at run time."""
        values = {d: jnp.asarray(v, _dtype(d)) for d, v in labels.items()}

        def program(x, values):
            for name, value in values.items():
                x = ops.record(x + 1, name, labels={"v": value})
            return x

        found = capture.counted(jax.jit(program), jnp.zeros(3), values)
        self.assertCountEqual(found.counts, labels)
        for record in found.records:
            dtype = _dtype(record.name)
            expected = np.asarray(labels[record.name]).astype(dtype).item()
            got = record.labels["v"]
            # A word says nothing of its sign.
            self.assertEqual(got % 2**64 if dtype.kind == "u" else got, expected)

    def test_every_dtype(self):
        self.check(_LABELS)

    def test_wide_dtypes(self):
        with jax.enable_x64(True):
            self.check(_WIDE_LABELS)

    def test_step_layer_and_condition(self):
        def body(x, i):
            x = ops.record(x + 1, "r", step=i, layer=2 * i, when=i % 2 == 0)
            return x, None

        f = jax.jit(lambda x: jax.lax.scan(body, x, jnp.arange(6))[0])
        found = capture.counted(f, jnp.zeros(3))
        self.assertEqual(
            [(r.labels["step"], r.labels["layer"]) for r in found.records],
            [(0, 0), (2, 4), (4, 8)],
        )
        for record in found.records:
            np.testing.assert_array_equal(
                record.payload, np.full(3, record.labels["step"] + 1)
            )


if __name__ == "__main__":
    absltest.main()
