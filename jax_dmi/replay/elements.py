# SPDX-License-Identifier: Apache-2.0
"""How arguments are stored in the words of an arena, and read back inside jit."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

WORD = 4  # bytes

# Types whose elements are packed; what XLA can neither hold nor bitcast, such as
# one-bit integers, is left out.
_SUB_BYTE = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}

_WHOLE = {
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
    *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
}

# Types that exist only while JAX has 64 bits enabled.
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


def bits_of(dtype: np.dtype) -> int | None:
    """Returns the bits of one stored element; None if a program cannot hold it."""
    if dtype.name in _WHOLE:
        return 8 * dtype.itemsize
    return _SUB_BYTE.get(dtype.name)


def is_builtin(dtype: np.dtype) -> bool:
    """Whether the type is one of NumPy's own, and not of ``ml_dtypes``."""
    return not hasattr(ml_dtypes, dtype.name)


def read(
    words: jax.Array, skip: int, dtype: np.dtype, shape: tuple[int, ...]
) -> jax.Array:
    """Returns the array that begins ``skip`` bytes into ``words``.

    Only slices, bitcasts and reshapes; values are not converted.

    Args:
      words: uint32[n] that hold the array.
      skip: Bytes before the first element, less than a word.
      dtype: Element type, one that ``bits_of`` knows.
      shape: Shape of the array.
    """
    count = math.prod(shape)
    if count == 0:
        return jnp.zeros(shape, dtype)
    return _flat(words, skip, dtype, count).reshape(shape)


def _flat(words: jax.Array, skip: int, dtype: Any, count: int) -> jax.Array:
    if dtype == np.bool_:
        return _flat(words, skip, np.dtype(np.uint8), count) != 0
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        pairs = _flat(words, skip, part, 2 * count).reshape(count, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    bits = bits_of(dtype)
    assert bits is not None
    if bits == 64:
        words = words.reshape(count, 2)
    elements = lax.bitcast_convert_type(words, dtype).reshape(-1)
    begin = skip * 8 // bits
    return lax.slice(elements, (begin,), (begin + count,))


@functools.cache
def scalar_type(dtype: np.dtype) -> type | None:
    """NumPy's own class of single values of ``dtype``, if there is one."""
    return dtype.type if is_builtin(dtype) else None
