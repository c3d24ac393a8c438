# SPDX-License-Identifier: Apache-2.0
"""Finds the batches of a segment without trusting a byte of it.

A segment is an Arrow stream whose messages all have one form, see ``headers``. The
scan follows them from one to the next and then checks the headers together, which
opens many small batches fast. Behind damage it looks for the next message: all
begin at multiples of 64.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import sys

import numpy as np
import pyarrow as pa

from jax_dmi import format as run_format
from jax_dmi.read import headers

# Headers checked at once, and bytes searched at once.
_CHUNK = 4096
_SEARCHED = 1 << 26
_ZEROS_SEARCHED = 1 << 16


@dataclasses.dataclass(frozen=True)
class Gap:
    """A part of a file that cannot be read.

    Attributes:
      begin: Its first byte.
      end: The byte behind it.
      reason: What is wrong.
      torn: Whether the file just ends too early, as after a crash.
    """

    begin: int
    end: int
    reason: str
    torn: bool = False


@dataclasses.dataclass(eq=False)
class Stream:
    """The batches of a segment.

    Attributes:
      rows: int64[n], records of each batch.
      places: int64[n, 12], where the values of each column begin in the file.
      validity: int64[n, 2], where the validity bits of step and layer begin; -1 where
        all are valid.
      data: int64[n, 2], begin and end of the payloads in the file.
      metadata: Custom metadata of the batches that have some.
      size: Bytes of the file.
      closed: Whether the file ends as a stream has to.
      zeros: Where the zeros begin that the file ends with instead; else ``size``.
      gaps: What cannot be read.
    """

    rows: np.ndarray
    places: np.ndarray
    validity: np.ndarray
    data: np.ndarray
    metadata: list[dict[bytes, bytes]]
    size: int
    closed: bool
    zeros: int
    gaps: list[Gap]


def schema(file: np.ndarray) -> dict[bytes, bytes] | None:
    """Returns the metadata of the schema, None if it is not the one of a segment."""
    length = int(file[4:8].view(np.uint32)[0]) if file.size >= 8 else 0
    if not 0 < length <= file.size - 8:
        return None
    try:
        found = pa.ipc.read_schema(pa.py_buffer(file[: 8 + length].tobytes()))
    except (pa.ArrowException, OSError, ValueError):
        return None
    if not found.equals(run_format.SCHEMA):
        return None
    return dict(found.metadata or {})


def scan(file: np.ndarray) -> Stream:
    """Finds the batches of a segment.

    Args:
      file: uint8[size], the bytes of the file; 8-byte aligned.

    Returns:
      Its batches, and what is wrong.
    """
    return _Scan(file).run()


class _Scan:
    """One scan, and what it found so far."""

    def __init__(self, file: np.ndarray) -> None:
        self._file = file
        self._bytes = file.data
        self._words = file[: file.size // 8 * 8].view(np.int64)
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._metadata: list[dict[bytes, bytes]] = []
        self._gaps: list[Gap] = []
        self._zeros = file.size
        self._closed = False
        # A file with its end was not cut, whatever else happened to it.
        end = run_format.END_OF_STREAM
        self._has_end = file[-len(end) :].tobytes() == end

    def run(self) -> Stream:
        at = self._schema()
        while at is not None:
            at = self._messages(at)
        parts = [np.concatenate(p) for p in zip(*self._parts)]
        if not parts:
            parts = [
                np.zeros(0, np.int64),
                np.zeros((0, len(headers.COLUMNS)), np.int64),
                np.zeros((0, 2), np.int64),
                np.zeros((0, 2), np.int64),
            ]
        return Stream(
            *parts,
            metadata=self._metadata,
            size=self._file.size,
            closed=self._closed,
            zeros=self._zeros,
            gaps=self._gaps,
        )

    def _schema(self) -> int | None:
        """Steps over the first message; the columns are known without it."""
        size = self._file.size
        if size >= 8:
            marker, length = struct.unpack_from("<II", self._bytes, 0)
            end = 8 + length
            if marker == headers.MARKER and length and end % headers.ALIGNMENT == 0:
                if end <= size and (self._starts_message(end) or schema(self._file)):
                    return end
                if end > size and length < 1 << 16 and not self._has_end:
                    self._gap(0, size, "cut inside the schema", torn=True)
                    return None
            if not self._file.any():
                return self._zero_tail(0)
        elif not size or self._bytes[:4].tobytes() == b"\xff" * min(size, 4):
            self._gap(0, size, "cut inside the schema", torn=True)
            return None
        return self._behind_damage(0, "the schema is damaged")

    def _starts_message(self, at: int) -> bool:
        """Whether a message may start there: its marker, or the end of the file."""
        head = self._bytes[at : at + 4].tobytes()
        return head == b"\xff" * len(head) or not any(head)

    def _messages(self, at: int) -> int | None:
        """Takes messages as far as they go; returns where to go on behind damage."""
        begins, sizes, stop = self._walk(at)
        good = self._check(begins, sizes)
        ends = np.append(begins[1:], stop)
        # Those without a good one behind may have led the walk astray.
        count = int(np.flatnonzero(good)[-1]) + 1 if good.any() else 0
        for i in np.flatnonzero(~good[:count]).tolist():
            after = self._behind_damage(int(begins[i]), "the header is damaged")
            if after != ends[i]:
                # This one too: it claimed to be longer than it is.
                self._take(begins, good, i)
                return after
        self._take(begins, good, count)
        return self._end(int(ends[count - 1]) if count else at)

    def _walk(
        self, at: int, most: int = sys.maxsize
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Follows messages; returns begins, header sizes, and where it stopped."""
        size = self._file.size
        unpack, data = headers.HEAD.unpack_from, self._bytes
        first, second = headers.HEAD_FIXED
        least, alignment = headers.HEADER - 8, headers.ALIGNMENT
        begins: list[int] = []
        sizes: list[int] = []
        last = size - headers.HEADER
        while at <= last and len(begins) < most:
            marker, length, one, _, two, body = unpack(data, at)
            if one != first or two != second or marker != headers.MARKER or body < 0:
                break
            end = at + 8 + length + body
            if end > size or length < least or end % alignment:
                break
            begins.append(at)
            sizes.append(8 + length)
            at = end
        return np.array(begins, np.int64), np.array(sizes, np.int64), at

    def _check(self, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns bool[n], which messages have the right form; ``_take`` keeps them."""
        good = np.zeros(len(begins), bool)
        self._checked: list[tuple[np.ndarray, ...]] = []
        self._described: dict[int, dict[bytes, bytes]] = {}
        for i in range(0, len(begins), _CHUNK):
            begin, size = begins[i : i + _CHUNK], sizes[i : i + _CHUNK]
            found = self._headers(begin)
            valid, parts = headers.parse(found, begin + size)
            described = found[:, headers.METADATA_WORD] & 0xFFFF != 0
            valid &= described | (size == headers.HEADER)
            for k in np.flatnonzero(valid & described):
                valid[k] = self._describe(int(begin[k]), int(size[k]))
            good[i : i + _CHUNK] = valid
            self._checked.append(parts)
        return good

    def _take(self, begins: np.ndarray, good: np.ndarray, count: int) -> None:
        """Keeps the good ones of the first messages that were checked."""
        if not count:
            return
        kept = good[:count]
        parts = (np.concatenate(part)[:count][kept] for part in zip(*self._checked))
        self._parts.append(tuple(parts))
        for begin in begins[:count][kept].tolist():
            if begin in self._described:
                self._metadata.append(self._described[begin])

    def _headers(self, begins: np.ndarray) -> np.ndarray:
        """Returns int64[n, w], the flatbuffers of messages."""
        return self._words[(begins[:, None] + 8) // 8 + np.arange(headers.WORDS)]

    def _describe(self, begin: int, size: int) -> bool:
        """Takes the metadata of a message; returns whether it has the right form."""
        flat = self._bytes[begin + 8 : begin + size]
        try:
            found, end = headers.metadata(flat)
        except (struct.error, ValueError):
            return False
        if not 0 <= len(flat) - end < headers.ALIGNMENT:
            return False
        self._described[begin] = found
        return True

    # --- Ends and damage -----------------------------------------------------

    def _end(self, at: int) -> int | None:
        """Judges the place where the messages end."""
        size = self._file.size
        rest = self._bytes[at : at + 8].tobytes()
        if not rest:
            return None
        if rest == run_format.END_OF_STREAM:
            if at + 8 == size:
                self._closed = True
                return None
            if self._last_zeros <= at + 8:
                return self._zero_tail(at + 8)
            return self._behind_damage(at, "the stream ends before the file")
        if len(rest) < 8 and run_format.END_OF_STREAM.startswith(rest):
            self._gap(at, size, "cut inside the end of the stream", torn=True)
            return None
        if self._is_zeroed(at):
            return self._zero_tail(at)
        if self._is_torn(at):
            self._gap(at, size, "cut inside a batch", torn=True)
            return None
        return self._behind_damage(at, "no batch can be read here")

    def _zero_tail(self, at: int) -> None:
        size = self._file.size
        self._zeros = self._last_zeros
        self._gap(at, size, f"{size - at} bytes end in zeros", torn=True)

    @functools.cached_property
    def _last_zeros(self) -> int:
        """Where the zeros begin that the file ends with."""
        end = self._file.size
        while end > 0:
            begin = max(0, end - _ZEROS_SEARCHED)
            found = np.flatnonzero(self._file[begin:end])
            if len(found):
                return begin + int(found[-1]) + 1
            end = begin
        return 0

    def _is_zeroed(self, at: int) -> bool:
        """Whether the zeros at the end of the file begin in the header there."""
        if self._has_end or self._file.size - self._last_zeros < 8:
            return False
        known = self._file[at : max(at, self._last_zeros)]
        header = 8 + 8 * headers.WORDS
        if known.size >= 8 and known[4:8].any():
            # With metadata it is longer.
            header = 8 + int(known[4:8].view(np.uint32)[0])
        return known.size < header and self._begins_as_header(known)

    def _begins_as_header(self, have: np.ndarray) -> bool:
        """Whether bytes can be the beginning of a message."""
        if have[:4].tobytes() != b"\xff" * min(4, have.size):
            return False
        fixed, mask = (t.view(np.uint8) for t in headers.TEMPLATES[1])
        rest = have[8 : 8 + fixed.size]
        return not ((rest ^ fixed[: rest.size]) & mask[: rest.size]).any()

    def _is_torn(self, at: int) -> bool:
        """Whether the file ends inside a message that was right so far."""
        have = self._file[at : at + 8 + 8 * headers.WORDS]
        if self._has_end:
            return False
        if have.size < 8 + 8 * headers.WORDS or not self._begins_as_header(have):
            return self._begins_as_header(have)
        length = int(have[4:8].view(np.uint32)[0])
        header = have[8:].copy().view(np.int64)[None]
        right, _ = headers.parse(header, np.array([at + 8 + length]))
        end = at + 8 + length + int(header[0, headers.BODY_WORD])
        aligned = (8 + length) % headers.ALIGNMENT == 0
        return bool(right[0]) and aligned and end > self._file.size

    def _behind_damage(self, at: int, reason: str) -> int | None:
        """Notes damage up to the next message; returns where that is."""
        found = self._next_message(at + 1)
        self._gap(at, self._file.size if found is None else found, reason)
        return found

    def _next_message(self, at: int) -> int | None:
        alignment = headers.ALIGNMENT
        last = self._file.size // alignment * alignment
        for low in range(-(-at // alignment) * alignment, last, _SEARCHED):
            part = self._file[low : min(low + _SEARCHED, last)]
            marks = part.view(np.uint32)[:: alignment // 4] == headers.MARKER
            for i in np.flatnonzero(marks):
                begin = low + int(i) * alignment
                if self._is_message(begin):
                    return begin
        return None

    def _is_message(self, at: int) -> bool:
        begins, sizes, _ = self._walk(at, 1)
        if not len(begins):
            return False
        return bool(headers.parse(self._headers(begins), begins + sizes)[0][0])

    def _gap(self, begin: int, end: int, reason: str, torn: bool = False) -> None:
        self._gaps.append(Gap(begin, end, reason, torn))
