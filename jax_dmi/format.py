# SPDX-License-Identifier: Apache-2.0
"""The run directory, format version 1: names, schema and encodings.

    run.json                                 who, when, how many processes
    process-0/manifest.json                  sealed segments, losses, closed or not
    process-0/device-3/segment-000000.arrow  records of one device: an Arrow stream

A segment is a complete Arrow IPC stream and needs nothing else to be read: the
custom metadata of its batches describe every site and layout before the first
record that uses it. A payload is the bytes of an array in row-major order;
dtype and shape stand in the description of its site, because the most used
types of deep learning have no Arrow counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa

VERSION = 1

RUN_FILE = "run.json"
MANIFEST_FILE = "manifest.json"
PROCESS_FILE = "process.json"

# Keys of Arrow metadata.
META_FORMAT = b"dmi.format"
META_PROCESS = b"dmi.process"
META_DEVICE = b"dmi.device"
META_NONCE = b"dmi.nonce"
META_SEGMENT = b"dmi.segment"
META_SITES = b"dmi.sites"
META_LAYOUTS = b"dmi.layouts"

# Bits of the `flags` column.
HAS_STEP = 1
STEP_IS_AMBIENT = 2
HAS_LAYER = 4
HAS_CRC = 8

# Labels of a row besides step and layer.
LABELS = 4

SCHEMA = pa.schema(
    [
        # Number of the record on its device; consecutive over the run.
        pa.field("seq", pa.uint64(), nullable=False),
        # Ids of descriptions in the metadata; layout 0 is a single device.
        pa.field("site", pa.uint64(), nullable=False),
        pa.field("layout", pa.uint64(), nullable=False),
        pa.field("step", pa.int64()),
        pa.field("layer", pa.int64()),
        # Words of the other labels, in the order the site names them.
        pa.field("labels", pa.list_(pa.uint64(), LABELS), nullable=False),
        # Boundaries the program had passed on the device.
        pa.field("boundary", pa.uint64(), nullable=False),
        pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("flags", pa.uint32(), nullable=False),
        # crc32c of the payload, valid where flags say so.
        pa.field("crc", pa.uint32(), nullable=False),
        # crc32c of all other columns of the row and the payload's size.
        pa.field("check", pa.uint32(), nullable=False),
        pa.field("payload", pa.binary_view(), nullable=False),
    ]
)

# What closes an Arrow stream.
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def process_dir(process: int) -> str:
    """Directory of a process, relative to the run."""
    return f"process-{process}"


def timeline_path(process: int) -> str:
    """Path of the timeline of a process, relative to the run."""
    return f"process-{process}/timeline.arrow"


def segment_path(process: int, device: int, number: int) -> str:
    """Path of a segment, relative to the run."""
    return f"process-{process}/device-{device}/segment-{number:06d}.arrow"


def segment_schema(process: int, device: int, number: int, nonce: str) -> pa.Schema:
    """Returns the schema of one segment, which says whose it is."""
    return SCHEMA.with_metadata(
        {
            META_FORMAT: str(VERSION),
            META_PROCESS: str(process),
            META_DEVICE: str(device),
            META_NONCE: nonce,
            META_SEGMENT: str(number),
        }
    )


# --- Element types -----------------------------------------------------------

_SUB_BYTE_BITS = {
    "int1": 1,
    "uint1": 1,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}

# Types whose elements are smaller than a byte.
PACKED = frozenset(_SUB_BYTE_BITS)


@functools.cache
def dtype_of(name: str) -> np.dtype:
    """Returns the NumPy dtype of a name; ``ml_dtypes`` adds what NumPy lacks.

    Raises:
      ValueError: Neither knows the name.
    """
    extended = getattr(ml_dtypes, name, None)
    if isinstance(extended, type):
        return np.dtype(extended)
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise ValueError(f"unknown dtype {name!r}") from error
    if dtype.name != name or dtype.kind not in "biufc":
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def bits_of(name: str) -> int:
    """Bits of one stored element; types below a byte are stored packed."""
    return _SUB_BYTE_BITS.get(name) or 8 * dtype_of(name).itemsize


def payload_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Size of the payload of an array."""
    return -(-bits_of(dtype) * math.prod(shape) // 8)


def decode(payload: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Returns a payload as an array.

    Args:
      payload: uint8[n], the payload.
      dtype: Name of the element type.
      shape: Shape of the array.

    Returns:
      A view of the payload, or for types below a byte a new array with one
      element per byte.

    Raises:
      ValueError: Size and shape do not agree.
    """
    size = payload_bytes(dtype, shape)
    if payload.size != size:
        raise ValueError(
            f"{payload.size} bytes are no {dtype}{list(shape)}, which takes {size}"
        )
    if dtype not in _SUB_BYTE_BITS:
        return payload.view(dtype_of(dtype)).reshape(shape)
    return _unpack(payload, dtype, math.prod(shape)).reshape(shape)


def _unpack(payload: np.ndarray, dtype: str, count: int) -> np.ndarray:
    bits = _SUB_BYTE_BITS[dtype]
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    words = (payload[:, None] >> shifts & (2**bits - 1)).reshape(-1)[:count]
    kind = dtype_of(dtype)
    if dtype.startswith("int"):
        sign = 1 << (bits - 1)
        return ((words.astype(np.int8) ^ sign) - sign).astype(kind)
    if dtype.startswith("uint"):
        return words.astype(kind)
    return words.view(kind)


# --- Descriptions ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SiteInfo:
    """A site as its description tells it.

    Attributes:
      name: Full name.
      kind: ``"record"`` or ``"grad"``.
      dtype: Name of the element type.
      shape: Shape where the program was lowered.
      labels: ``(name, type)`` of the labels apart from step and layer; type is
        int, uint, bool or float.
      vmap: Positions of the axes that ``vmap`` added.
      source: ``file:line``.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    labels: tuple[tuple[str, str], ...]
    vmap: tuple[int, ...]
    source: str


@functools.lru_cache(maxsize=65536)
def parse_site(descriptor: str) -> SiteInfo:
    """Returns a site from its description.

    Raises:
      ValueError: The text is no site description.
    """
    try:
        found = json.loads(descriptor)
        info = SiteInfo(
            name=str(found["name"]),
            kind=str(found["kind"]),
            dtype=str(found["dtype"]),
            shape=tuple(map(int, found["shape"])),
            labels=tuple(
                (str(name), str(kind))
                for name, kind in found["labels"]
                if name not in ("step", "layer")
            ),
            vmap=tuple(map(int, found["vmap"])),
            source=str(found["source"]),
        )
        bits_of(info.dtype)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a site: {descriptor!r}") from error
    return info


@dataclasses.dataclass(frozen=True)
class LayoutInfo:
    """How the devices of a program shared the array of a site.

    Attributes:
      kind: ``"spmd"``, or ``"manual"`` for a value inside ``shard_map``.
      devices: Global device ids in mesh order.
      mesh_names: Names of the mesh axes.
      mesh_shape: Sizes of the mesh axes.
      global_shape: Shape of the whole array, None where unknown.
      shard_shape: Shape of every device's block, padding included.
      spec: Mesh axes that split each dimension, None where unknown.
      index: Per device ``((start, stop), ...)``, padding excluded; None inside
        ``shard_map``.
      replica: Per device, which copy of its block it holds.
      varying: Manual axes over which the value may differ.
    """

    kind: str
    devices: tuple[int, ...]
    mesh_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    shard_shape: tuple[int, ...]
    spec: tuple[tuple[str, ...] | None, ...] | None
    index: Mapping[int, tuple[tuple[int, int], ...] | None]
    replica: Mapping[int, int]
    varying: tuple[str, ...]


@functools.lru_cache(maxsize=65536)
def parse_layout(descriptor: str) -> LayoutInfo:
    """Returns a layout from its description.

    Raises:
      ValueError: The text is no layout description.
    """
    try:
        found = json.loads(descriptor)
        shards = {int(device): shard for device, shard in found["shards"].items()}
        return LayoutInfo(
            kind=str(found["kind"]),
            devices=tuple(map(int, found["devices"])),
            mesh_names=tuple(map(str, found["mesh_names"])),
            mesh_shape=tuple(map(int, found["mesh_shape"])),
            global_shape=_ints_or_none(found["global_shape"]),
            shard_shape=tuple(map(int, found["shard_shape"])),
            spec=None
            if found["spec"] is None
            else tuple(None if axes is None else tuple(axes) for axes in found["spec"]),
            index={
                device: None
                if shard["index"] is None
                else tuple((int(a), int(b)) for a, b in shard["index"])
                for device, shard in shards.items()
            },
            replica={device: int(shard["replica"]) for device, shard in shards.items()},
            varying=tuple(map(str, found["varying"])),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a layout: {descriptor!r}") from error


def _ints_or_none(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(map(int, value))


def descriptions(table: Mapping[int, str]) -> str:
    """Encodes descriptions by id for the metadata of a batch."""
    return json.dumps({str(number): text for number, text in table.items()})


def parse_descriptions(text: bytes | str) -> dict[int, str]:
    """Decodes what ``descriptions`` encoded."""
    return {int(number): str(d) for number, d in json.loads(text).items()}


# --- Batches -----------------------------------------------------------------


def record_batch(native: Any) -> pa.RecordBatch:
    """Returns a native batch as Arrow, without copying.

    The result keeps the ring memory under the payloads leased while it lives.
    """
    rows = native.count

    def column(kind: pa.DataType, values: np.ndarray, valid: Any = None) -> pa.Array:
        bitmap = None if valid is None else pa.py_buffer(valid)
        return pa.Array.from_buffers(kind, rows, [bitmap, pa.py_buffer(values)])

    labels = pa.Array.from_buffers(
        pa.uint64(), rows * LABELS, [None, pa.py_buffer(native.labels)]
    )
    payload = [None, pa.py_buffer(native.views), pa.py_buffer(native.payload)]
    arrays = [
        column(pa.uint64(), native.seq),
        column(pa.uint64(), native.site),
        column(pa.uint64(), native.layout),
        column(pa.int64(), native.step, native.step_valid),
        column(pa.int64(), native.layer, native.layer_valid),
        pa.Array.from_buffers(
            SCHEMA.field("labels").type, rows, [None], children=[labels]
        ),
        column(pa.uint64(), native.boundary),
        column(SCHEMA.field("time").type, native.time),
        column(pa.uint32(), native.flags),
        column(pa.uint32(), native.crc),
        column(pa.uint32(), native.check),
        pa.Array.from_buffers(pa.binary_view(), rows, payload),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def payload_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Returns uint64[rows], the payload sizes of a batch in bytes."""
    views = np.frombuffer(batch.column("payload").buffers()[1], np.int32)
    begin = batch.column("payload").offset
    return views[4 * begin : 4 * (begin + batch.num_rows) : 4].astype(np.uint64)
