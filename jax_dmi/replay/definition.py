# SPDX-License-Identifier: Apache-2.0
"""``Definition``: the arguments every submission under one name brings."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jax_dmi import _native
from jax_dmi import errors
from jax_dmi.replay import elements


@dataclasses.dataclass(frozen=True, eq=False)
class Definition:
    """Names, shapes and types of what a submission holds.

    Made by ``ReplayArena.define``. Definitions of one name, structure, shapes and
    types are equal, also across arenas, so a program compiled for the block of
    one serves the block of the other.

    Attributes:
      name: What it was defined as.
      arguments: Pytree of ``jax.ShapeDtypeStruct``.
    """

    name: str
    arguments: Any

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise errors.DmiTypeError(
                f"name={self.name!r} must be a string with at least one character."
            )
        # Everything is checked before the definition exists.
        _ = self.layout

    @functools.cached_property
    def _flat(self) -> tuple[list[tuple[str, np.dtype, tuple[int, ...]]], Any]:
        leaves, treedef = jax.tree_util.tree_flatten_with_path(self.arguments)
        where = f"arguments of {self.name!r}"
        return [_leaf(where, path, leaf) for path, leaf in leaves], treedef

    @property
    def treedef(self) -> Any:
        """The structure of a submission."""
        return self._flat[1]

    @functools.cached_property
    def leaves(self) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
        """Path, type and shape of each argument."""
        return self._flat[0]

    @functools.cached_property
    def layout(self) -> _native.ReplayDefinition:
        """Where the arguments lie within a submission."""
        specs = [
            (dtype, elements.scalar_type(dtype), dtype.kind, bits, list(shape))
            for _, dtype, shape in self.leaves
            if (bits := elements.bits_of(dtype)) is not None
        ]
        try:
            return _native.ReplayDefinition(specs, _describe(self.arguments))
        except ValueError as error:
            number, _, reason = str(error).partition(": ")
            path, dtype, shape = self.leaves[int(number)]
            raise errors.DmiValueError(
                f"arguments{path}={dtype.name}{list(shape)} of {self.name!r} cannot"
                f" be laid out: {reason}; an upload holds up to 8 GiB."
            ) from None

    @functools.cached_property
    def places(self) -> list[tuple[int, int]]:
        """Offset and bytes of each argument within a submission."""
        return [(begin, size) for begin, size in self.layout.regions]

    @functools.cached_property
    def wide(self) -> bool:
        """Whether it holds types that need ``jax_enable_x64``."""
        return any(dtype.name in elements.WIDE for _, dtype, _ in self.leaves)

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        return (self.name, self.treedef, tuple(self.leaves))

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Definition):
            return NotImplemented
        return self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def _leaf(where: str, path: Any, leaf: Any) -> tuple[str, np.dtype, tuple[int, ...]]:
    name = jax.tree_util.keystr(path)
    try:
        shape, dtype = tuple(map(int, leaf.shape)), leaf.dtype
    except (AttributeError, TypeError):
        raise errors.DmiTypeError(
            f"arguments{name}={leaf!r} ({where}) has no shape and dtype; pass"
            " jax.ShapeDtypeStruct, with shape () for a scalar."
        ) from None
    if not isinstance(dtype, np.dtype) or elements.bits_of(dtype) is None:
        raise errors.DmiTypeError(
            f"arguments{name} ({where}) has dtype {dtype}, which no array of a"
            " program has; pass random keys as jax.random.key_data."
        )
    if not dtype.isnative:
        raise errors.DmiTypeError(
            f"arguments{name} ({where}) has the byte-swapped dtype {dtype.str!r};"
            f" use {dtype.newbyteorder('=').str!r}."
        )
    if dtype.name in elements.WIDE and not jax.config.jax_enable_x64:
        raise errors.DmiValueError(
            f"arguments{name} ({where}) has dtype {dtype}, which JAX holds only with"
            " jax_enable_x64; enable it or use half the width."
        )
    return name, dtype, shape


def _describe(tree: Any) -> Any:
    """Describes containers for the native walk; None if only JAX knows them."""
    described, order = _node(tree)
    leaves = jax.tree.leaves(tree)
    same = len(order) == len(leaves) and all(a is b for a, b in zip(order, leaves))
    return described if same else None


def _node(tree: Any) -> tuple[Any, list[Any]]:
    if tree is None:
        return "none", []
    kind = type(tree)
    if kind is dict:
        keys = list(tree)
        if any(type(key) not in (str, int) for key in keys):
            return "leaf", [tree]
        if len({type(key) for key in keys}) > 1:
            return "leaf", [tree]
        keys.sort()
        parts, order = _children([tree[key] for key in keys])
        return ("dict", keys, parts), order
    if kind is list:
        parts, order = _children(tree)
        return ("list", parts), order
    if kind is tuple or (isinstance(tree, tuple) and hasattr(kind, "_fields")):
        parts, order = _children(tree)
        return ("tuple", kind, parts), order
    return "leaf", [tree]


def _children(trees: Any) -> tuple[list[Any], list[Any]]:
    parts, order = [], []
    for tree in trees:
        part, leaves = _node(tree)
        parts.append(part)
        order += leaves
    return parts, order
