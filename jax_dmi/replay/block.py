# SPDX-License-Identifier: Apache-2.0
"""``ReplayBlock``: one upload, as a program sees it."""

from __future__ import annotations

from collections.abc import Callable
import functools
import operator
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi.replay import elements
from jax_dmi.replay.definition import Definition

_MOST_INDEX = np.iinfo(np.int32).max


class ReplayBlock:
    """The submissions of one upload; a pytree, to be passed to jitted functions.

    What a block holds is read on the device, at run time: a function that takes
    one is compiled once, whatever the number of submissions, until the arena
    grows. A block stays valid as long as it, or its array, is referenced.

    Attributes:
      words: uint32[n], the image.
      definitions: The definitions it knows, the ones without submissions too.
    """

    def __init__(
        self,
        words: jax.Array,
        definitions: tuple[Definition, ...],
        counts: tuple[int, ...] | None = None,
    ) -> None:
        self.words = words
        self.definitions = definitions
        self._counts = counts

    def __repr__(self) -> str:
        names = [definition.name for definition in self.definitions]
        if self._counts is None:
            return f"<ReplayBlock of {names}>"
        return f"<ReplayBlock of {dict(zip(names, self._counts))}>"

    def count(self, definition: Definition) -> int | jax.Array:
        """Returns the number of submissions; inside jit an int32 scalar."""
        number = self._number(definition)
        if self._counts is not None:
            return self._counts[number]
        self._check_words()
        count = _entry(self.words, number)[0].astype(jnp.int32)
        return count if isinstance(count, Tracer) else int(count)

    def unpack(self, definition: Definition, index: int | jax.Array) -> Any:
        """Returns the arguments of one submission as arrays.

        Args:
          definition: Which kind.
          index: Which of them, counted in the order of submission. A value known
            only at run time is clamped to those there are; where there are none,
            every argument is 0.

        Raises:
          DmiIndexError: There is no such submission.
          DmiTypeError: The index is not an integer.
          DmiValueError: The block does not know the definition.
          StateError: A jitted function closes over the block.
        """
        number = self._number(definition)
        self._check_words()
        _check_width(definition)
        index = self._checked_index(definition, index)
        return _unpack(self.words, index, definition, number)

    def scan(
        self,
        definition: Definition,
        fn: Callable[[Any, Any], tuple[Any, Any]],
        carry: Any,
        length: int | None = None,
    ) -> tuple[Any, Any]:
        """Runs ``lax.scan`` of ``fn(carry, arguments)`` over the submissions.

        Compiled once per function, number of submissions and capacity; pass the
        same function every time. Where the number of submissions changes often,
        loop to ``count(definition)`` inside jit, which is compiled once.

        Args:
          definition: Whose submissions, in their order.
          fn: As for ``lax.scan``.
          carry: As for ``lax.scan``.
          length: How many of them, from the first; None for all. Inside jit, where
            their number is not known, it must be given.

        Raises:
          DmiValueError: There are fewer submissions than ``length``, or it is
            missing.
          StateError: A jitted function closes over the block.
        """
        number = self._number(definition)
        self._check_words()
        _check_width(definition)
        count = self.count(definition)
        if isinstance(count, int):
            if length is not None and not 0 <= length <= count:
                raise errors.DmiValueError(
                    f"length={length} is not within the {count} submissions of"
                    f" {definition.name!r}; leave it out for all."
                )
            length = count if length is None else length
        elif length is None:
            raise errors.DmiValueError(
                "length=None: inside jit the number of submissions is not known; pass"
                " it, or loop to count(definition) with lax.fori_loop."
            )
        return _scan(self.words, carry, definition, number, fn, length)

    def _number(self, definition: Definition) -> int:
        try:
            return self.definitions.index(definition)
        except ValueError:
            raise errors.DmiValueError(
                f"definition={definition!r} is not in this block, which has"
                f" {[d.name for d in self.definitions]}; define before plan()."
            ) from None

    def _check_words(self) -> None:
        if self.words.ndim != 1:
            raise errors.DmiValueError(
                f"block has words of shape {self.words.shape}: several blocks were"
                " stacked; use it inside vmap."
            )
        if isinstance(self.words, Tracer):
            if axes := _compat.varying_axes(jax.typeof(self.words)):
                raise errors.DmiValueError(
                    f"block is split over the mesh axes {sorted(axes)} here; pass it to"
                    " shard_map with in_specs PartitionSpec()."
                )
        elif _compat.tracing() and _is_traced(lax.slice(self.words, (0,), (1,))):
            raise errors.StateError(
                "A jitted function closes over the block, which would make this upload"
                " a constant of the program; pass the block as an argument."
            )

    def _checked_index(self, definition: Definition, index: Any) -> Any:
        if isinstance(index, Tracer):
            if index.shape or not jnp.issubdtype(index.dtype, jnp.integer):
                raise errors.DmiTypeError(
                    f"index={index!r} must be an integer scalar; for several"
                    " submissions use vmap or scan."
                )
            return index
        try:
            place = operator.index(index)
        except TypeError:
            raise errors.DmiTypeError(f"index={index!r} must be an integer.") from None
        count = _MOST_INDEX
        if not _is_traced(self.words):
            count = self.count(definition)
        if not 0 <= place < count:
            raise errors.DmiIndexError(
                f"index={place} of {definition.name!r} is not within its {count}"
                " submissions; use one that submit returned."
            )
        if _is_traced(self.words):
            return np.int32(place)
        return _beside(self.words, np.int32(place))


def _unflatten(definitions: tuple[Definition, ...], children: Any) -> ReplayBlock:
    (words,) = children
    return ReplayBlock(words, definitions)


jax.tree_util.register_pytree_with_keys(
    ReplayBlock,
    lambda block: (
        ((jax.tree_util.GetAttrKey("words"), block.words),),
        block.definitions,
    ),
    _unflatten,
    lambda block: ((block.words,), block.definitions),
)


def _is_traced(value: Any) -> bool:
    return isinstance(value, Tracer)


def _check_width(definition: Definition) -> None:
    if definition.wide and not jax.config.jax_enable_x64:
        raise errors.StateError(
            f"{definition.name!r} has arguments of 64 bits, which JAX holds only with"
            " jax_enable_x64; enable it where the program is traced too."
        )


def _beside(words: Any, value: np.generic) -> jax.Array:
    """Puts a scalar where ``words`` are; explicitly, so that guards allow it."""
    if not isinstance(words, jax.Array):
        return jax.device_put(value)
    sharding = words.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = jax.sharding.PartitionSpec()
        sharding = jax.sharding.NamedSharding(sharding.mesh, spec)
    return jax.device_put(value, sharding if words.committed else None)


def _entry(words: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
    """Returns count and list of a definition, as ffi/wire/arena.h has them."""
    pair = lax.slice(words, (2 * number,), (2 * number + 2,))
    return pair[0], pair[1]


@functools.partial(jax.jit, static_argnums=(2, 3), inline=True)
def _unpack(words, index, definition: Definition, number: int):
    count, listed = _entry(words, number)
    most = jnp.maximum(count, 1) - 1
    index = jnp.minimum(_as_uint32(index), most)
    (start,) = lax.dynamic_slice(words, (listed + index,), (1,))
    arguments = [
        _argument(words, start, count > 0, *place, dtype, shape)
        for place, (_, dtype, shape) in zip(definition.places, definition.leaves)
    ]
    return jax.tree.unflatten(definition.treedef, arguments)


def _argument(words, start, exists, offset, size, dtype, shape):
    first = offset // elements.WORD
    last = -(-(offset + size) // elements.WORD)
    part = lax.dynamic_slice(words, (start + first,), (last - first,))
    part = jnp.where(exists, part, 0)
    return elements.read(part, offset % elements.WORD, dtype, shape)


def _as_uint32(index: jax.Array) -> jax.Array:
    """Clamps an integer of any width to those an index can have."""
    index = jnp.asarray(index)
    if jnp.iinfo(index.dtype).min < 0:
        index = jnp.maximum(index, 0)
    if jnp.iinfo(index.dtype).max > _MOST_INDEX:
        index = jnp.minimum(index, _MOST_INDEX)
    return index.astype(jnp.uint32)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _scan(words, carry, definition: Definition, number: int, fn, length: int):
    def body(carry, index):
        return fn(carry, _unpack(words, index, definition, number))

    return lax.scan(body, carry, jnp.arange(length, dtype=jnp.int32))
