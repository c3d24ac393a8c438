# SPDX-License-Identifier: Apache-2.0
"""Images of a replay arena, read independently; random arguments to put in."""

from __future__ import annotations

from collections.abc import Sequence
import math

import jax
import ml_dtypes
import numpy as np

from jax_dmi.replay import uploads

ALIGN = 64

SUB_BYTE = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
NARROW = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *SUB_BYTE,
)
WIDE = ("int64", "uint64", "float64", "complex128")


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def bits(kind: np.dtype) -> int:
    return SUB_BYTE.get(kind.name, 8 * kind.itemsize)


def spec(name: str, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype(name))


def value(rng: np.random.Generator, wanted: jax.ShapeDtypeStruct, nan: bool = True):
    """Returns random bits as an array; without NaN those that a program may alter."""
    kind, shape = np.dtype(wanted.dtype), tuple(wanted.shape)
    count = math.prod(shape)
    if kind == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.name in SUB_BYTE:
        raw = rng.integers(0, 2 ** SUB_BYTE[kind.name], count).astype(np.int8)
        if kind.name.startswith("int"):
            sign = 2 ** (SUB_BYTE[kind.name] - 1)
            return ((raw ^ sign) - sign).astype(kind).reshape(shape)
        return raw.view(np.uint8).view(kind).reshape(shape)
    # From bytes: `integers` of NumPy draws no full range of every type.
    array = np.frombuffer(rng.bytes(count * kind.itemsize), kind).copy()
    if not nan and kind.kind not in "iub":
        parts = array.view(array.real.dtype) if kind.kind == "c" else array
        with np.errstate(invalid="ignore"):
            parts[parts != parts] = 1
    return array.reshape(shape)


def raw(array) -> bytes:
    """Returns the bytes of an array, elements below a byte masked."""
    array = np.asarray(array)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if array.dtype.name in SUB_BYTE:
        data = data & (2 ** SUB_BYTE[array.dtype.name] - 1)
    return data.tobytes()


def _packed(array: np.ndarray) -> bytes:
    width = SUB_BYTE.get(array.dtype.name)
    if width is None:
        return raw(array)
    elements = np.frombuffer(raw(array), np.uint8)
    digits = (elements[:, None] >> np.arange(width)) & 1
    return np.packbits(digits.reshape(-1), bitorder="little").tobytes()


def submission(arrays: Sequence[np.ndarray]) -> bytes:
    """Returns the bytes a submission of these arguments must have."""
    place = bytearray()
    for array in sorted(arrays, key=lambda a: -bits(a.dtype)):
        width = max(bits(array.dtype) // 8, 1)
        place += bytes(-len(place) % width) + _packed(array)
    return bytes(place + bytes(-len(place) % ALIGN))


def image(definitions: int, submissions: Sequence[tuple[int, bytes]]) -> bytes:
    """Returns the bytes an image must begin with; all behind them are 0.

    Args:
      definitions: Number of definitions.
      submissions: Number of the definition and bytes, in submit order.
    """
    header = max(-(-8 * definitions // ALIGN), 1) * ALIGN
    starts = {number: [] for number in range(definitions)}
    end = header
    for number, body in submissions:
        starts[number].append(end // 4)
        end += len(body)
    entries, listed = [], []
    for number in range(definitions):
        entries += [len(starts[number]), end // 4 + len(listed)]
        listed += starts[number]
    head = np.array(entries, np.uint32).tobytes()
    bodies = b"".join(body for _, body in submissions)
    tail = np.array(listed, np.uint32).tobytes()
    return head + bytes(header - len(head)) + bodies + tail


def leaves(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def fill_staging(arena, value: int = 0xAA) -> None:
    """Overwrites all staging of an arena, as soon as that can do no harm."""
    # Copies that are calls of ours read it until they have run; others are over.
    jax.block_until_ready([ended for _, ended in uploads._under_way])
    uploads.land()
    assert not uploads._under_way
    for bank in arena._banks:
        bank.staging.fill(value)
