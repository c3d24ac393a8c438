# SPDX-License-Identifier: Apache-2.0
"""Reads segment files into columns, checking all but the payloads."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi.read import headers
from jax_dmi.read import mapped
from jax_dmi.read import stream

# Above so many rows per batch, a slice of each batch is faster than one gather.
_FEW_ROWS = 64

_DTYPES = {
    "seq": np.uint64,
    "site": np.uint64,
    "layout": np.uint64,
    "step": np.int64,
    "layer": np.int64,
    "labels": np.uint64,
    "boundary": np.uint64,
    "time": np.int64,
    "flags": np.uint32,
    "crc": np.uint32,
    "check": np.uint32,
    "payload": np.int32,
}
_INLINE = 12
_INLINE_BEGIN = 4

# Columns that are kept: those of the file but two, and the place of the payload.
KEPT = (
    *(name for name in headers.COLUMNS if name not in ("check", "payload")),
    *("place", "size"),
)


@dataclasses.dataclass(frozen=True, order=True)
class Owner:
    """Whose records a segment holds, and which of his segments it is."""

    process: int
    device: int
    number: int


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that is not what was written.

    Attributes:
      seq: Number of the record, if the rows around it tell.
      begin: Where the batch begins that holds it.
      end: Where that ends.
      torn: Whether it lies in the zeros at the end of the file.
    """

    seq: int | None
    begin: int
    end: int
    torn: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """One segment file, read.

    Attributes:
      owner: Whose it is.
      name: Path relative to the run.
      file: Its bytes.
      schema: Metadata of the schema; None if that is damaged.
      columns: Columns of the sound rows in the order of the file, see ``rows``.
      sites: Descriptions of sites by id; those that fit their id.
      layouts: Descriptions of layouts by id; those that fit their id.
      unfit: Ids whose descriptions are damaged.
      bad: Rows that are not sound.
      wrong_validity: Numbers of the records whose validity bits are damaged, which
        only other readers look at; [] unless asked for.
      gaps: Parts that cannot be read.
      closed: Whether the file ends as a stream has to.
      ends_in_zeros: Whether it ends in zeros instead.
      batches: Batches that were found.
      records: Rows, sound or not.
      check: crc32c of the `check` column of all rows.
    """

    owner: Owner
    name: str
    file: mapped.File
    schema: dict[bytes, bytes] | None
    columns: dict[str, np.ndarray]
    sites: dict[int, str]
    layouts: dict[int, str]
    unfit: list[int]
    bad: list[BadRow]
    wrong_validity: list[int]
    gaps: list[stream.Gap]
    closed: bool
    ends_in_zeros: bool
    batches: int
    records: int
    check: int

    def __len__(self) -> int:
        return len(self.columns["seq"])


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """A segment whose batches are found, but not read.

    Attributes:
      owner: Whose it is.
      name: Path relative to the run.
      file: Its bytes.
      schema: Metadata of the schema; None if that is damaged.
      stream: Its batches.
    """

    owner: Owner
    name: str
    file: mapped.File
    schema: dict[bytes, bytes] | None
    stream: stream.Stream

    def descriptions(self) -> tuple[dict[int, str], dict[int, str]]:
        """Returns the sound descriptions of sites and layouts, by id."""
        sites, layouts, _ = _descriptions(self.stream.metadata)
        return sites, layouts


def scan(owner: Owner, name: str, file: mapped.File) -> Scanned:
    """Finds the batches of a segment, whatever is in the file."""
    schema = stream.schema(file.data)
    return Scanned(owner, name, file, schema, stream.scan(file.data))


def read(scanned: Scanned, thorough: bool = False) -> Segment:
    """Reads a segment; what is sound of it is found.

    Args:
      scanned: The segment.
      thorough: Whether to look at what is there for other readers only.
    """
    found, file = scanned.stream, scanned.file
    columns, check = _columns(file.data, found)
    sites, layouts, unfit = _descriptions(found.metadata)
    sound = _sound(columns, check)
    torn = _torn(file.data, found, columns, sound)
    bad = _bad(columns, found, sound, torn)
    wrong = _wrong_validity(file.data, found, columns, sound) if thorough else []
    kept = sound & ~torn
    columns.pop("batch")
    if not kept.all():
        columns = {key: values[kept] for key, values in columns.items()}
    return Segment(
        owner=scanned.owner,
        name=scanned.name,
        file=file,
        schema=scanned.schema,
        columns=columns,
        sites=sites,
        layouts=layouts,
        unfit=unfit,
        bad=bad,
        wrong_validity=wrong,
        gaps=found.gaps,
        closed=found.closed,
        ends_in_zeros=found.zeros < found.size,
        batches=len(found.rows),
        records=int(found.rows.sum()),
        check=_native.crc32c(check.view(np.uint8)),
    )


def empty_column(name: str) -> np.ndarray:
    """Returns a column without rows."""
    return np.empty(0, _DTYPES.get(name, np.int64))


# --- Columns -----------------------------------------------------------------


def _columns(
    data: np.ndarray, found: stream.Stream
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the columns of all rows, and the check of each."""
    rows = found.rows
    batch = np.repeat(np.arange(len(rows)), rows)
    row = np.arange(len(batch)) - np.repeat(np.cumsum(rows) - rows, rows)
    columns = {
        name: _gathered(data, found, name, batch, row)
        for name in headers.COLUMNS
        if name != "payload"
    }
    columns["labels"] = columns["labels"].reshape(-1, run_format.LABELS)
    # Validity bits are not covered by the check; the flags say the same.
    for name, flag in (("step", run_format.HAS_STEP), ("layer", run_format.HAS_LAYER)):
        present = columns["flags"] & flag != 0
        if not present.all():
            columns[name] = np.where(present, columns[name], 0)
    views = _gathered(data, found, "payload", batch, row).reshape(-1, 4)
    size = views[:, 0].astype(np.int64)
    begin, end = found.data[:, 0], found.data[:, 1]
    at_view = headers.places_of(found.places, "payload")
    inline = at_view[batch] + 16 * row + _INLINE_BEGIN
    place = begin[batch] + views[:, 3]
    outside = (views[:, 2:] < 0).any(axis=1) | (views[:, 2] != 0)
    outside |= place + size > end[batch]
    short = size <= _INLINE
    columns["place"] = np.where(short, inline, place)
    # A size of -1 marks a payload that lies outside.
    columns["size"] = np.where((size < 0) | (~short & outside), -1, size)
    columns["batch"] = batch
    columns["sizes"] = views[:, 0].astype(np.uint64)
    return columns, columns.pop("check")


def _gathered(
    data: np.ndarray,
    found: stream.Stream,
    name: str,
    batch: np.ndarray,
    row: np.ndarray,
) -> np.ndarray:
    """Returns the values of a column of all batches, one after the other."""
    dtype = np.dtype(_DTYPES[name])
    per_row = headers.COLUMNS[name][1] // dtype.itemsize
    values = data[: data.size // 16 * 16].view(dtype)
    begins = headers.places_of(found.places, name) // dtype.itemsize
    if len(batch) >= _FEW_ROWS * len(begins):
        spans = zip(begins.tolist(), (found.rows * per_row).tolist())
        parts = [values[begin : begin + count] for begin, count in spans]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([np.empty(0, dtype), *parts])
    index = begins[batch] + per_row * row
    if per_row == 1:
        return values.take(index)
    wide = values.reshape(-1, 16 // dtype.itemsize)
    step = wide.shape[1]
    index = (index // step)[:, None] + np.arange(per_row // step)
    return wide.take(index.reshape(-1), axis=0).reshape(-1)


def _sound(columns: dict[str, np.ndarray], check: np.ndarray) -> np.ndarray:
    """Returns bool[n], which rows are as they were written."""
    expected = _native.row_checks(
        columns["seq"],
        columns["site"],
        columns["layout"],
        columns["step"],
        columns["layer"],
        columns["labels"].reshape(-1),
        columns["boundary"],
        columns["time"],
        columns["flags"],
        columns["crc"],
        columns.pop("sizes"),
    )
    return (expected == check) & (columns["size"] >= 0)


def _torn(
    data: np.ndarray,
    found: stream.Stream,
    columns: dict[str, np.ndarray],
    sound: np.ndarray,
) -> np.ndarray:
    """Returns bool[n], which rows the zeros at the end of the file took."""
    torn = np.zeros(len(sound), bool)
    if found.zeros == found.size or not len(found.rows):
        return torn
    touched = found.data[:, 1][columns["batch"]] > found.zeros
    torn |= touched & ~sound
    reaches = touched & sound & (columns["place"] + columns["size"] > found.zeros)
    unchecked = columns["flags"] & run_format.HAS_CRC == 0
    torn[wrong_payloads(data, columns, reaches)] = True
    return torn | (reaches & unchecked)


def wrong_payloads(
    data: np.ndarray, columns: dict[str, np.ndarray], among: np.ndarray | None = None
) -> list[int]:
    """Returns which sound rows have a payload that is not as it was written.

    Args:
      data: The file.
      columns: Its rows; those without a checksum are taken to be right.
      among: bool[n], which rows to look at; None for all.
    """
    looked_at = columns["flags"] & run_format.HAS_CRC != 0
    if among is not None:
        looked_at &= among
    rows = np.flatnonzero(looked_at)
    begin = columns["place"][rows]
    end = begin + columns["size"][rows]
    crc32c = _native.crc32c
    extents = zip(rows.tolist(), begin.tolist(), end.tolist())
    expected = columns["crc"][rows].tolist()
    return [i for (i, a, b), crc in zip(extents, expected) if crc32c(data[a:b]) != crc]


def _wrong_validity(
    data: np.ndarray,
    found: stream.Stream,
    columns: dict[str, np.ndarray],
    sound: np.ndarray,
) -> list[int]:
    batch = columns["batch"]
    row = np.arange(len(batch)) - (np.cumsum(found.rows) - found.rows)[batch]
    wrong = np.zeros(len(batch), bool)
    for k, flag in enumerate((run_format.HAS_STEP, run_format.HAS_LAYER)):
        begin = found.validity[batch, k]
        bits = data[np.maximum(begin + row // 8, 0)] >> (row % 8).astype(np.uint8)
        valid = (begin < 0) | (bits & 1 != 0)
        wrong |= valid != (columns["flags"] & flag != 0)
    # A row that is not sound has no number to trust, and is told already.
    return columns["seq"][wrong & sound].tolist()


def _bad(
    columns: dict[str, np.ndarray],
    found: stream.Stream,
    sound: np.ndarray,
    torn: np.ndarray,
) -> list[BadRow]:
    bad = []
    for i in np.flatnonzero(~sound | torn).tolist():
        batch = int(columns["batch"][i])
        mine = np.flatnonzero(sound & (columns["batch"] == batch))
        # Numbers are consecutive, so any sound row of the batch tells.
        seq = int(columns["seq"][mine[0]]) + i - int(mine[0]) if len(mine) else None
        if seq is not None and seq < 0:
            seq = None
        begin = int(found.places[batch].min())
        end = int(found.data[batch, 1])
        bad.append(BadRow(seq, begin, end, bool(torn[i])))
    return bad


# --- Descriptions ------------------------------------------------------------


def _descriptions(
    metadata: list[dict[bytes, bytes]],
) -> tuple[dict[int, str], dict[int, str], list[int]]:
    tables: tuple[dict[int, str], dict[int, str]] = ({}, {})
    unfit: list[int] = []
    keys = (run_format.META_SITES, run_format.META_LAYOUTS)
    parse = (run_format.parse_site, run_format.parse_layout)
    for found in metadata:
        for key, table, parsed in zip(keys, tables, parse):
            try:
                texts = run_format.parse_descriptions(found.get(key, b"{}"))
            except (ValueError, AttributeError, RecursionError):
                unfit.append(0)
                continue
            for number, text in texts.items():
                if _is_description(number, text, parsed):
                    table[number] = text
                else:
                    unfit.append(number)
    return *tables, unfit


def _is_description(number: int, text: str, parse) -> bool:
    """Whether a description is the one that its id is the hash of."""
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    if (int.from_bytes(digest, "little") or 1) != number:
        return False
    try:
        parse(text)
    except ValueError:
        return False
    return True
