# SPDX-License-Identifier: Apache-2.0
"""Makes batches as the drain does, out of plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import hashlib
import json
import types
from typing import Any

import numpy as np

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi import sinks

_ALIGNMENT = 64
_INLINE = 12


def site(name: str, shape: Sequence[int], dtype: str = "float32", **extra: Any) -> str:
    """Returns the description of a site."""
    parts = {
        "dtype": dtype,
        "kind": "record",
        "labels": [["step", "int"], ["layer", "int"]],
        "name": name,
        "shape": list(shape),
        "source": "model.py:1",
        "vmap": [],
    }
    return json.dumps(parts | extra, sort_keys=True, separators=(",", ":"))


def id_of(description: str) -> int:
    """Returns the id that the description hashes to."""
    digest = hashlib.blake2b(description.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def lease(
    values: Sequence[np.ndarray],
    *,
    sites: Sequence[int],
    first_seq: int = 0,
    device: int = 0,
    layout: int = 0,
    times: Sequence[int] | None = None,
) -> types.SimpleNamespace:
    """Returns an object with the arrays of a native batch."""
    rows = len(values)
    raw = [np.frombuffer(np.ascontiguousarray(v).tobytes(), np.uint8) for v in values]
    views, payload = _views(raw)
    columns = {
        "seq": np.arange(first_seq, first_seq + rows, dtype=np.uint64),
        "site": np.array(sites, np.uint64),
        "layout": np.full(rows, layout, np.uint64),
        "step": np.arange(first_seq, first_seq + rows, dtype=np.int64),
        "layer": np.zeros(rows, np.int64),
        "labels": np.zeros(rows * run_format.LABELS, np.uint64),
        "boundary": np.zeros(rows, np.uint64),
        "time": np.array(times if times is not None else range(rows), np.int64),
        "flags": np.full(rows, run_format.HAS_STEP | run_format.HAS_CRC, np.uint32),
        "crc": np.array([_native.crc32c(r) for r in raw], np.uint32),
    }
    sizes = np.array([r.size for r in raw], np.uint64)
    return types.SimpleNamespace(
        **columns,
        check=_native.row_checks(*columns.values(), sizes),
        step_valid=np.full(-(-rows // 8), 255, np.uint8),
        layer_valid=np.zeros(-(-rows // 8), np.uint8),
        views=views,
        payload=payload,
        device=device,
        count=rows,
        first_seq=first_seq,
        last_seq=first_seq + rows - 1,
        bytes=int(sizes.sum()),
    )


def _views(raw: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the views of an Arrow binary_view array, and its data buffer."""
    views = np.zeros((len(raw), 16), np.uint8)
    parts: list[np.ndarray] = []
    begin = 0
    for view, value in zip(views, raw):
        view[:4] = np.array([value.size], np.int32).view(np.uint8)
        if value.size <= _INLINE:
            view[4 : 4 + value.size] = value
            continue
        view[4:8] = value[:4]
        view[12:] = np.array([begin], np.int32).view(np.uint8)
        padding = np.zeros(-value.size % _ALIGNMENT, np.uint8)
        parts += (value, padding)
        begin += value.size + padding.size
    return views.reshape(-1), np.concatenate(parts or [np.zeros(0, np.uint8)])


def batch(
    values: Sequence[np.ndarray], names: str | Sequence[str] = "x", **where: Any
) -> sinks.Batch:
    """Returns a batch of records.

    Args:
      values: One array per record.
      names: Name of the site of every record, or one for all.
      **where: ``first_seq``, ``device``, ``layout``, ``times``.
    """
    if isinstance(names, str):
        names = [names] * len(values)
    texts = [
        site(name, value.shape, value.dtype.name) for name, value in zip(names, values)
    ]
    ids = [id_of(text) for text in texts]
    return wrap(lease(values, sites=ids, **where), dict(zip(ids, texts)))


def wrap(
    native: Any, sites: dict[int, str], layouts: dict[int, str] | None = None
) -> sinks.Batch:
    """Returns what a sink gets for a native batch."""
    return sinks.Batch(
        arrow=functools.partial(run_format.record_batch, native),
        device=native.device,
        sites=sites,
        layouts=layouts or {},
        first_seq=native.first_seq,
        last_seq=native.last_seq,
        bytes=native.bytes,
    )


def run_info(**changes: Any) -> sinks.RunInfo:
    """Returns what a sink is told in a run of one process."""
    usual = dict(
        path=None,
        process=0,
        process_count=1,
        attrs={"note": "test"},
        devices=(0, 1),
        created_ns=1_700_000_000_000_000_000,
        nonce="5a" * 8,
        versions={"jax": "0"},
    )
    return sinks.RunInfo(**(usual | changes))
