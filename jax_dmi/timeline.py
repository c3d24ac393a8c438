# SPDX-License-Identifier: Apache-2.0
"""The timeline of a run: when its devices passed boundaries and moved data.

A table with one row per device, whose columns are lists; the newest boundaries and
transfers are kept. A process writes it once, when it closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

# --- Schema ------------------------------------------------------------------

STATE = pa.struct(
    [
        ("mode", pa.string()),
        ("version", pa.int64()),
        ("period", pa.int64()),
        ("link_bytes_per_second", pa.float64()),
    ]
)
WINDOW = pa.struct(
    [
        ("window_index", pa.int64()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("length_ns", pa.int64()),
        ("max_safe", pa.uint64()),
        ("min_unsafe", pa.uint64()),
        ("estimate", pa.uint64()),
        ("last_grant", pa.uint64()),
        ("occurrences", pa.int64()),
        ("overruns", pa.int64()),
    ]
)
TRANSFER = pa.struct(
    [
        ("begin_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("bytes", pa.int64()),
        ("kind", pa.string()),
        ("version", pa.int64()),
        ("window_index", pa.int64()),
        ("occurrence", pa.int64()),
        ("begin_counter", pa.int64()),
        ("end_counter", pa.int64()),
    ]
)
BOUNDARY = pa.struct(
    [
        ("version", pa.int64()),
        ("counter", pa.int64()),
        ("time_ns", pa.int64()),
        # Whether a window is open from here on; null where no pattern says.
        ("open", pa.bool_()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("device", pa.int64(), nullable=False),
        pa.field("state", STATE),
        pa.field("windows", pa.list_(WINDOW), nullable=False),
        pa.field("transfers", pa.list_(TRANSFER), nullable=False),
        pa.field("boundaries", pa.list_(BOUNDARY), nullable=False),
    ]
)

# --- Writing -----------------------------------------------------------------


def row(
    device: int,
    transfers: Sequence[Any],
    boundaries: np.ndarray,
    patterns: Mapping[int, Any],
    state: Any,
) -> pa.Table:
    """Returns the timeline of one device.

    Args:
      device: Its global id.
      transfers: Its transfers, objects with the fields of ``TRANSFER``.
      boundaries: int64[n, 3], version, counter and UTC time in ns.
      patterns: The window patterns, by version.
      state: Its ``WindowState``; None without windows.
    """
    version, counter, time_ns = np.ascontiguousarray(boundaries.T)
    passed = pa.StructArray.from_arrays(
        [
            pa.array(version),
            pa.array(counter),
            pa.array(time_ns),
            _open(version, counter, patterns),
        ],
        fields=list(BOUNDARY),
    )
    moved = pa.array([_fields(TRANSFER, t) for t in transfers], TRANSFER)
    lists = [
        pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        for values in (_windows(state), moved, passed)
    ]
    head = [pa.array([device], pa.int64()), pa.array([_state(state)], STATE)]
    return pa.Table.from_arrays([*head, *lists], schema=SCHEMA)


def is_open(counters: np.ndarray, pattern: Any) -> np.ndarray:
    """Returns bool[n], whether a window is open at int64[n] counters."""
    begins, ends = np.array(pattern.windows, np.int64).reshape(-1, 2).T
    phase = counters % pattern.period
    window = np.searchsorted(begins, phase, side="right") - 1
    return (window >= 0) & (phase < ends[window])


def _open(
    versions: np.ndarray, counters: np.ndarray, patterns: Mapping[int, Any]
) -> pa.Array:
    found = np.zeros(len(counters), bool)
    unknown = np.ones(len(counters), bool)
    for version in np.unique(versions).tolist():
        if version in patterns:
            chosen = versions == version
            found[chosen] = is_open(counters[chosen], patterns[version])
            unknown[chosen] = False
    return pa.array(found, mask=unknown)


def _fields(kind: pa.StructType, value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in kind}


def _state(state: Any) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "mode": state.mode,
        "version": state.version,
        "period": None if state.pattern is None else state.pattern.period,
        "link_bytes_per_second": state.link_bytes_per_second,
    }


def _windows(state: Any) -> pa.Array:
    if state is None or state.pattern is None:
        return pa.array([], WINDOW)
    learned = pa.struct(list(WINDOW)[3:])
    return pa.array(
        [
            {
                "window_index": i,
                "begin": begin,
                "end": end,
                **_fields(learned, info),
            }
            for i, ((begin, end), info) in enumerate(
                zip(state.pattern.windows, state.windows)
            )
        ],
        WINDOW,
    )


def encoded(table: pa.Table) -> bytes:
    """Returns a timeline as the content of a file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


# --- Reading -----------------------------------------------------------------


def decoded(content: bytes) -> pa.Table:
    """Returns what ``encoded`` got.

    Raises:
      ValueError: The content is damaged.
    """
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        if reader.schema != SCHEMA:
            raise ValueError("it has another schema")
        table = reader.read_all()
    table.validate(full=True)
    return table


def flattened(timelines: Iterable[tuple[int, pa.Table]], name: str) -> pa.Table:
    """Returns one row per element of a list column.

    Args:
      timelines: Process and its timeline.
      name: ``"windows"``, which have the columns of ``STATE`` too, ``"transfers"``
        or ``"boundaries"``.

    Returns:
      A table of process, device and the fields of an element.
    """
    more = list(STATE) if name == "windows" else []
    element = list(SCHEMA.field(name).type.value_type)
    numbers = [pa.field("process", pa.int64()), pa.field("device", pa.int64())]
    schema = pa.schema([*numbers, *more, *element])
    tables = [schema.empty_table()]
    for process, timeline in timelines:
        lists = timeline.column(name).combine_chunks()
        values = lists.flatten()
        owner = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
        state = timeline.column("state").combine_chunks().take(pa.array(owner))
        columns = [
            pa.array(np.full(len(values), process)),
            timeline.column("device").take(pa.array(owner)),
            *(state.flatten() if more else ()),
            *values.flatten(),
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables)
