# SPDX-License-Identifier: Apache-2.0
"""Reads segment files, whole ones and those a crash left behind."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import fs

from jax_dmi import format as run_format

_SEGMENT = re.compile(r"process-(\d+)/device-(\d+)/segment-(\d+)\.arrow$")

# What pyarrow raises on damaged files, and what reading our metadata may raise.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


@dataclasses.dataclass(eq=False)
class Segment:
    """One segment file.

    Attributes:
      path: Path relative to the run.
      process: Number of the process.
      device: Global device id.
      number: Number of the segment on its device.
      size: Bytes of the file.
      good: Bytes up to the end of the last whole batch.
      closed: Whether it ends with the end-of-stream marker and nothing behind it.
      problem: What stopped the reader before the end, "" for nothing.
      batches: The whole batches.
      sites: Descriptions of sites by id.
      layouts: Descriptions of layouts by id.
    """

    path: str
    process: int
    device: int
    number: int
    size: int = 0
    good: int = 0
    closed: bool = False
    problem: str = ""
    batches: list[pa.RecordBatch] = dataclasses.field(default_factory=list)
    sites: dict[int, str] = dataclasses.field(default_factory=dict)
    layouts: dict[int, str] = dataclasses.field(default_factory=dict)


def find(filesystem: fs.FileSystem, root: str) -> Iterator[Segment]:
    """Yields the segments of a run, unread, by process, device and number."""
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    found = []
    for info in filesystem.get_file_info(selector):
        match = _SEGMENT.search(info.path)
        relative = info.path[len(root) :].lstrip("/")
        if match and match[0] == relative and info.type == fs.FileType.File:
            found.append(Segment(relative, *map(int, match.groups())))
    yield from sorted(found, key=lambda s: (s.process, s.device, s.number))


def read(segment: Segment, filesystem: fs.FileSystem, root: str) -> None:
    """Fills a segment from its file, as far as the file is whole."""
    path = f"{root}/{segment.path}"
    try:
        source = _open(filesystem, path)
    except DAMAGE as error:
        segment.problem = f"cannot be opened: {error}"
        return
    segment.size = source.size()
    try:
        reader = pa.ipc.open_stream(source)
        if reader.schema.names != run_format.SCHEMA.names:
            raise ValueError("not the schema of this format")
        segment.good = source.tell()
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            _describe(segment, metadata)
            _check_buffers(batch)
            segment.batches.append(batch)
            segment.good = source.tell()
    except StopIteration:
        _judge_end(segment, source)
    except DAMAGE as error:
        segment.problem = str(error).splitlines()[0] if str(error) else repr(error)


def _open(filesystem: fs.FileSystem, path: str) -> Any:
    if isinstance(filesystem, fs.LocalFileSystem):
        # An empty file cannot be mapped.
        if filesystem.get_file_info(path).size:
            return pa.memory_map(path)
    return filesystem.open_input_file(path)


def _judge_end(segment: Segment, source: Any) -> None:
    """Tells a closed stream from one that was cut between two batches."""
    marker = len(run_format.END_OF_STREAM)
    source.seek(segment.good)
    tail = bytes(source.read(segment.size - segment.good))
    if tail == run_format.END_OF_STREAM:
        segment.closed = True
        segment.good = segment.size
    elif tail[:marker] == run_format.END_OF_STREAM:
        segment.problem = f"{len(tail) - marker} bytes behind the end of the stream"
    elif tail:
        segment.problem = f"{len(tail)} bytes that are no batch"


def _describe(segment: Segment, metadata: Any) -> None:
    if metadata is None:
        return
    for key, table in (
        (run_format.META_SITES, segment.sites),
        (run_format.META_LAYOUTS, segment.layouts),
    ):
        if key in metadata:
            table.update(run_format.parse_descriptions(metadata[key]))


def _check_buffers(batch: pa.RecordBatch) -> None:
    """Raises unless every buffer holds as much as its column needs."""
    batch.validate()
    if batch.schema.types != run_format.SCHEMA.types:
        raise ValueError("not the types of this format")


@dataclasses.dataclass(frozen=True, eq=False)
class Payloads:
    """Where the payloads of a batch lie.

    Attributes:
      sizes: int64[rows], bytes.
      offsets: int64[rows], where each begins in ``data``; -1 for one that stands
        inside ``views``.
      views: uint8[rows * 16], the view structs.
      data: uint8[n], the buffer behind them.
      sound: bool[rows], whether the payload lies inside the buffer.
    """

    sizes: np.ndarray
    offsets: np.ndarray
    views: np.ndarray
    data: np.ndarray
    sound: np.ndarray

    def __getitem__(self, row: int) -> np.ndarray:
        """Returns uint8[size], the payload of a row."""
        size, offset = int(self.sizes[row]), int(self.offsets[row])
        if offset < 0:
            return self.views[16 * row + 4 : 16 * row + 4 + size]
        return self.data[offset : offset + size]


def payloads(batch: pa.RecordBatch) -> Payloads:
    """Locates the payloads of a batch, without touching them."""
    column = batch.column("payload")
    _, view_buffer, *data_buffers = column.buffers()
    rows = batch.num_rows
    views = np.frombuffer(view_buffer, np.uint8, 16 * rows)
    words = views.view(np.int32).reshape(rows, 4)
    data = np.empty(0, np.uint8)
    if data_buffers and data_buffers[0].size:
        data = np.frombuffer(data_buffers[0], np.uint8)
    sizes = words[:, 0].astype(np.int64)
    inside = (sizes >= 0) & (sizes <= 12)
    offsets = np.where(inside, -1, words[:, 3].astype(np.int64))
    sound = inside | (
        (sizes > 12)
        & (words[:, 2] == 0)
        & (offsets >= 0)
        & (offsets + sizes <= data.size)
    )
    return Payloads(sizes, offsets, views, data, sound)


def load_json(filesystem: fs.FileSystem, path: str) -> Any:
    """Returns the JSON of a file, None if it is missing or damaged."""
    try:
        with filesystem.open_input_file(path) as file:
            return json.loads(file.read())
    except (OSError, ValueError):
        return None
