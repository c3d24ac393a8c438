# SPDX-License-Identifier: Apache-2.0
"""What to do with arguments that are not plainly right: convert or complain.

The native packer takes arrays and scalars that match exactly; everything else
comes here, before a byte is written. Exact conversions are made, anything else is
an error that names the argument.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from jax_dmi import errors
from jax_dmi.replay.definition import Definition


def leaves_of(definition: Definition, args: Any) -> list[np.ndarray]:
    """Returns the arguments as arrays of the right shapes and types.

    Raises:
      DmiTypeError: An argument is of a kind or type that is not taken.
      DmiValueError: Structure, shape, memory layout or value do not fit.
    """
    found, treedef = jax.tree_util.tree_flatten_with_path(args)
    if treedef != definition.treedef:
        _complain_of_structure(definition, found, treedef)
    return [
        _array(f"args{path} of {definition.name!r}", leaf, dtype, shape)
        for (path, dtype, shape), (_, leaf) in zip(definition.leaves, found)
    ]


def _complain_of_structure(definition: Definition, found: list, treedef: Any) -> None:
    wanted = [path for path, _, _ in definition.leaves]
    given = [jax.tree_util.keystr(path) for path, _ in found]
    name = definition.name
    for path in wanted:
        if path not in given:
            raise errors.DmiValueError(
                f"args{path} of {name!r} is missing; a submission takes exactly what"
                f" was defined, {len(wanted)} arguments, and {len(given)} came."
            )
    for path in given:
        if path not in wanted:
            raise errors.DmiValueError(
                f"args{path} is no argument of {name!r}; a submission takes exactly"
                f" what was defined, {len(wanted)} arguments, and {len(given)} came."
            )
    raise errors.DmiValueError(
        f"args={treedef} of {name!r} has other containers than the definition:"
        f" {definition.treedef}; build them of the same types."
    )


def _array(
    where: str, leaf: Any, dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    wanted = f"{dtype.name}{list(shape)}"
    if isinstance(leaf, jax.Array):
        raise errors.DmiTypeError(
            f"{where} is a jax.Array {leaf.dtype.name}{list(leaf.shape)}, whose bytes"
            " may be on a device; pass numpy.asarray of it, or hand it to the program"
            " as an argument of its own."
        )
    if isinstance(leaf, np.ma.MaskedArray):
        raise errors.DmiTypeError(
            f"{where} is a masked array, and the mask would be lost; fill it first."
        )
    if isinstance(leaf, np.ndarray | np.generic):
        return _checked(where, wanted, leaf, dtype, shape)
    if isinstance(leaf, bool | int | float | complex):
        if shape:
            raise errors.DmiValueError(
                f"{where}={leaf!r} is a single value, not {wanted}; pass numpy.full."
            )
        return _exact(where, leaf, dtype)
    raise errors.DmiTypeError(
        f"{where} is a {type(leaf).__name__}, not {wanted}; pass a numpy array"
        " or, for a scalar, a Python number."
    )


def _checked(
    where: str,
    wanted: str,
    leaf: np.ndarray | np.generic,
    dtype: np.dtype,
    shape: tuple[int, ...],
) -> np.ndarray:
    given = f"{leaf.dtype.name}{list(leaf.shape)}"
    if not leaf.dtype.isnative:
        raise errors.DmiTypeError(
            f"{where} is byte-swapped ({leaf.dtype.str!r}); pass"
            f" x.astype({dtype.name!r})."
        )
    if leaf.dtype != dtype:
        raise errors.DmiTypeError(
            f"{where} is {given}, not {wanted}; cast it to the type it was defined"
            " with."
        )
    if leaf.shape != shape:
        raise errors.DmiValueError(
            f"{where} is {given}, not {wanted}; pad it, or define another shape."
        )
    array = np.asarray(leaf)
    if not array.flags.c_contiguous:
        raise errors.DmiValueError(
            f"{where} is not contiguous: strides {array.strides} of {given}; pass"
            " numpy.ascontiguousarray of it."
        )
    return array


def _exact(where: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """Casts a Python number if that keeps its value."""
    try:
        with np.errstate(all="ignore"):
            cast = np.asarray(value, dtype=dtype)
        same = _same(cast.astype(object).item(), value)
    except (OverflowError, TypeError, ValueError):
        cast, same = None, False
    if cast is None or not same:
        raise errors.DmiValueError(
            f"{where}={value!r} is no {dtype.name}; pass"
            f" numpy.asarray({value!r}).astype({dtype.name!r}) to round it."
        )
    return cast


def _same(a: complex, b: complex) -> bool:
    """Whether two numbers are equal, where NaN equals NaN."""
    if isinstance(a, complex) or isinstance(b, complex):
        a, b = complex(a), complex(b)
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    return a == b or (math.isnan(a) and math.isnan(b))
