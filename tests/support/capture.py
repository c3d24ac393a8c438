# SPDX-License-Identifier: Apache-2.0
"""Runs a function under capture and returns what was recorded, in plain data."""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
import itertools
import struct
from typing import Any

import jax
import numpy as np

from jax_dmi import _native
from jax_dmi import ops
from jax_dmi import spec as capture_spec

_calls = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class Recorded:
    """One record: name, kind, labels by name, payload, device id, and the raw parts."""

    name: str
    labels: dict[str, int | float]
    payload: np.ndarray
    device: int
    site: dict
    layout: dict | None
    boundary: int


@dataclasses.dataclass(frozen=True)
class Captured:
    """What one call recorded."""

    out: Any
    records: list[Recorded]
    boundaries: dict[int, int]
    never_lowered: list[capture_spec.Site]

    @property
    def counts(self) -> dict[str, int]:
        return dict(collections.Counter(r.name for r in self.records))


def counted(
    fn: Callable,
    *args: Any,
    before: Callable | None = None,
    same_spec: bool = False,
    **settings: Any,
) -> Captured:
    """Calls ``fn(*args)`` under a capture spec and waits for its records.

    Args:
      fn: Function to call; usually jitted.
      *args: Its arguments.
      before: Called first under the same capture; what it records is dropped.
      same_spec: Whether to share programs, and the account of lost records, with
        other calls of the same settings.
      **settings: Fields of the capture spec.
    """
    ops.register()
    select = settings.pop("select", ("*",))
    if not same_spec:
        # A pattern that matches nothing makes a spec that no other call has.
        select = (*select, f"never {next(_calls)}")
    spec = capture_spec.CaptureSpec(select=select, **settings)
    capture_spec.install(spec)
    try:
        if before is not None:
            jax.block_until_ready(before())
            jax.effects_barrier()
            _native.drain()
        out = jax.block_until_ready(fn(*args))
        jax.effects_barrier()
        ops.control.fences(jax.devices())
        raw = _native.drain()
    finally:
        capture_spec.install(None)
    boundaries = collections.Counter(
        r["device"] for r in raw if r["site"]["kind"] == "boundary"
    )
    passed = collections.Counter()
    records = []
    for r in raw:
        if r["site"]["kind"] == "boundary":
            passed[r["device"]] += 1
        elif r["site"]["kind"] != "step":
            records.append(_recorded(r, passed[r["device"]]))
    lost = capture_spec.never_lowered(spec)
    return Captured(out, records, dict(boundaries), lost)


def _recorded(raw: dict, boundary: int) -> Recorded:
    site = raw["site"]
    labels = {}
    for (name, kind), word in zip(site["labels"], raw["words"]):
        bits = struct.pack("<Q", word)
        labels[name] = struct.unpack("<d" if kind == "float" else "<q", bits)[0]
    shape = site["shape"] if raw["layout"] is None else raw["layout"]["shard_shape"]
    return Recorded(
        name=site["name"],
        labels=labels,
        payload=decode(raw["payload"], site["dtype"], shape),
        device=raw["device"],
        site=site,
        layout=raw["layout"],
        boundary=boundary,
    )


def decode(payload: bytes, dtype: str, shape: Any) -> np.ndarray:
    """Returns a payload as an array, one element per entry."""
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = int(np.prod(shape, dtype=np.int64))
    bits = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}.get(dtype)
    data = np.frombuffer(payload, np.uint8)
    if bits is not None:
        per_byte = 8 // bits
        shifts = np.arange(per_byte, dtype=np.uint8) * bits
        data = (data[:, None] >> shifts & (2**bits - 1)).reshape(-1)[:count]
        if dtype.startswith("int"):
            wide = data.astype(np.int8)
            data = (wide ^ (1 << (bits - 1))) - (1 << (bits - 1))
            return data.astype(np.int8).astype(kind).reshape(shape)
        if dtype.startswith("uint"):
            return data.astype(kind).reshape(shape)
    return data.view(kind).reshape(shape)
