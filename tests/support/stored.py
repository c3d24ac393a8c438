# SPDX-License-Identifier: Apache-2.0
"""Reads a run directory with nothing but pyarrow, as another program would."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa

from jax_dmi import format as run_format


def manifest(run: str | pathlib.Path, process: int = 0) -> dict[str, Any]:
    """Returns the manifest of a process."""
    return json.loads(
        (pathlib.Path(run) / f"process-{process}/manifest.json").read_text()
    )


def segments(run: str | pathlib.Path, device: int = 0) -> list[pathlib.Path]:
    """Returns the segments of a device of process 0, in order."""
    return sorted((pathlib.Path(run) / f"process-0/device-{device}").iterdir())


def is_sealed(path: pathlib.Path) -> bool:
    """Whether a segment ends as a stream has to."""
    return path.read_bytes().endswith(run_format.END_OF_STREAM)


def records(*paths: pathlib.Path) -> list[tuple[int, bytes]]:
    """Returns (seq, payload) of all whole batches.

    Checks that every site of a batch was described by then.
    """
    found = []
    for path in paths:
        found += _records(path.read_bytes())
    return found


def _records(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    described: set[int] = set()
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except (StopIteration, pa.ArrowInvalid, OSError):
                return found
            text = dict(metadata or {}).get(run_format.META_SITES, b"{}")
            described |= set(run_format.parse_descriptions(text))
            used = np.unique(batch.column("site").to_numpy())
            assert described.issuperset(map(int, used))
            batch.validate(full=True)
            columns = (batch.column(name).to_pylist() for name in ("seq", "payload"))
            found += zip(*columns, strict=True)
