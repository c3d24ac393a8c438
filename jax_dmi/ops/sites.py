# SPDX-License-Identifier: Apache-2.0
"""Sites and layouts: what the ids inside a record stand for.

A *site* is one ``record`` call as traced; a *layout* says how the devices of one
program share the array of a site. Both are described by canonical JSON and named
by a hash of it, so the same program gets the same ids in every process and the
compiled program, which carries the descriptions, explains its own records.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import types
from typing import Any

import numpy as np

from jax_dmi import errors
from jax_dmi import spec as capture_spec

_ROOM = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NAME = re.compile(r"[A-Za-z0-9_.:/\-\[\]]{1,200}")

# Bits of one element as stored; the widths below a byte are packed.
_BITS = {
    **dict.fromkeys(("bool", "int8", "uint8"), 8),
    **dict.fromkeys(("int1", "uint1"), 1),
    **dict.fromkeys(("int2", "uint2"), 2),
    **dict.fromkeys(("int4", "uint4", "float4_e2m1fn"), 4),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), 6),
    **dict.fromkeys(
        (
            "float8_e3m4",
            "float8_e4m3",
            "float8_e4m3b11fnuz",
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
        8,
    ),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("int32", "uint32", "float32"), 32),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 64),
    "complex128": 128,
}


def canonical(value: Any) -> str:
    """Returns the one JSON text of ``value`` that ids are computed from."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def identifier(descriptor: str) -> int:
    """Returns the 64-bit id of a descriptor, as the signed bits of an i64."""
    digest = hashlib.blake2b(descriptor.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


def payload_bytes(dtype: Any, shape: Sequence[int]) -> int:
    """Returns the size of a record's payload; elements below a byte are packed."""
    return -(-_BITS[np.dtype(dtype).name] * math.prod(shape) // 8)


def is_recordable(dtype: Any) -> bool:
    """Whether arrays of this element type can be recorded."""
    return isinstance(dtype, np.dtype) and dtype.name in _BITS


def check_name(name: Any, parameter: str = "name") -> str:
    """Returns ``name`` if it can name a site, a scope or a label, else raises."""
    if not isinstance(name, str):
        raise errors.DmiTypeError(
            f"{parameter}={name!r} is a {type(name).__name__}; use a string."
        )
    if not _NAME.fullmatch(name):
        raise errors.DmiValueError(
            f"{parameter}={name!r} cannot be used; use 1 to 200 characters of"
            " A-Z a-z 0-9 _ . : / - [ ]"
        )
    return name


def source() -> str:
    """Returns ``file:line`` of the nearest caller outside the operations."""
    return nearest_source(_callers(sys._getframe(1)))


def _callers(frame: types.FrameType | None) -> Iterator[tuple[str, int]]:
    while frame:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def nearest_source(frames: Iterable[tuple[str, int]]) -> str:
    """Returns ``file:line`` of the first frame outside the operations.

    Args:
      frames: File and line of each caller, the innermost first.
    """
    for file, line in frames:
        if not file.startswith(_ROOM):
            return f"{os.path.basename(file)}:{line}"
    return "an unknown place"


@dataclasses.dataclass(frozen=True)
class SiteKey:
    """The part of a site that is known when a record is traced.

    Attributes:
      name: Full name.
      kind: ``"record"`` or ``"grad"``.
      labels: ``(name, type)`` of each label operand, in operand order.
      roles: One character per extra operand: s, l, 0 to 3, w.
      source: ``file:line`` of the call.
      vmap: Positions of the axes that ``vmap`` added, ascending.
    """

    name: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    roles: str
    source: str
    vmap: tuple[int, ...] = ()

    def batched(self, axis: int) -> SiteKey:
        """Returns the key of the same site with one more axis at ``axis``."""
        moved = tuple(a + (a >= axis) for a in self.vmap)
        return dataclasses.replace(self, vmap=tuple(sorted((*moved, axis))))

    def descriptor(self, dtype: Any, shape: Sequence[int]) -> str:
        """Returns the canonical description of the site for an array type."""
        return canonical(
            {
                "dtype": np.dtype(dtype).name,
                "kind": self.kind,
                "labels": self.labels,
                "name": self.name,
                "shape": tuple(shape),
                "source": self.source,
                "vmap": self.vmap,
            }
        )

    def site(self, dtype: Any, shape: Sequence[int]) -> capture_spec.Site:
        """Returns the public face of the site."""
        return capture_spec.Site(
            self.name, np.dtype(dtype).name, tuple(shape), self.source
        )


@dataclasses.dataclass(frozen=True)
class Shard:
    """What one device holds: extents (None where unknown) and replica number."""

    index: tuple[tuple[int, int], ...] | None
    replica: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the devices of one program share an array.

    Attributes:
      kind: ``"spmd"``, or ``"manual"`` anywhere inside ``shard_map``.
      devices: Global device ids in mesh order.
      mesh_names: Axis names.
      mesh_shape: Axis sizes.
      global_shape: Shape of the whole array; None inside ``shard_map``.
      shard_shape: Shape of every payload, padding included.
      spec: Axis names per array dimension; None where unknown.
      shards: One entry per device, in the order of ``devices``. Inside a partly
        manual ``shard_map`` the extents count within the block of that region.
      varying: Manual axes over which the value may vary.
    """

    kind: str
    devices: tuple[int, ...]
    mesh_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    shard_shape: tuple[int, ...]
    spec: tuple[tuple[str, ...] | None, ...] | None
    shards: tuple[Shard, ...]
    varying: tuple[str, ...]

    def descriptor(self) -> str:
        """Returns the canonical description of the layout."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["shards"] = {
            str(device): {"index": shard.index, "replica": shard.replica}
            for device, shard in zip(self.devices, self.shards)
        }
        return canonical(fields)

    def recorders(self, replicas: str) -> tuple[int, ...]:
        """Returns the devices that record; empty for every device."""
        first = [d for d, s in zip(self.devices, self.shards) if s.replica == 0]
        if replicas == "all" or len(first) == len(self.devices):
            return ()
        return tuple(first)
