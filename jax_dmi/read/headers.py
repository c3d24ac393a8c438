# SPDX-License-Identifier: Apache-2.0
"""The one form that the header of a batch has, checked for many at a time.

The schema is fixed, so of a header only the number of rows, of nulls, and the size
of the payloads are free: everything else follows from them or never changes. What
passes lies inside its message, so that NumPy can read it, and a changed bit that
matters does not pass.

    ff ff ff ff | size | flatbuffer Message, padded | buffers, each padded
"""

from __future__ import annotations

import struct

import numpy as np

from jax_dmi import format as run_format

ALIGNMENT = 64
MARKER = 0xFFFFFFFF
# Marker, size of the rest of the header; of the flatbuffer behind them the start
# of its table, where its metadata is, the rest of the table, and the body's size.
HEAD = struct.Struct("<II16sH2x12sq")
HEAD_FIXED = (
    struct.pack("<I6H", 20, 14, 24, 4, 6, 8, 12),
    struct.pack("<ihBxI", 16, 4, 3, 32),
)

# (buffer, bytes per row) of the values of each column; `labels` of its child.
COLUMNS = {
    "seq": (1, 8),
    "site": (3, 8),
    "layout": (5, 8),
    "step": (7, 8),
    "layer": (9, 8),
    "labels": (12, 8 * run_format.LABELS),
    "boundary": (14, 8),
    "time": (16, 8),
    "flags": (18, 4),
    "crc": (20, 4),
    "check": (22, 4),
    "payload": (24, 16),
}
_BUFFERS = 25
# Columns that may hold nulls: (node, buffer of the validity bits).
_NULLABLE = ((3, 6), (4, 8))
_NODES = 13
_CHILD_NODE = 6
_MOST_METADATA = 16

# Places in a header, as words of 8 bytes from the start of the flatbuffer.
METADATA_WORD = 2
BODY_WORD = 4
METADATA_PLACE = 5
_ROWS_WORD = 8
_NODE_WORD = 11
_PLACE_WORD = _NODE_WORD + 2 * _NODES + 1


def _template(variadic: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int64[w] a header, and which of its bits are the same in all."""
    buffers = _BUFFERS + variadic
    places = 300
    at_variadic = places + 8 + 16 * buffers
    fixed = bytearray(at_variadic + 12)
    mask = bytearray(b"\xff" * len(fixed))
    parts = (
        (0, HEAD_FIXED[0]),
        (20, HEAD_FIXED[1]),
        (44, struct.pack("<7H2xi", 14, 24, 4, 12, 16, 0, 20, 16)),
        (72, struct.pack("<4I", 12, places - 76, at_variadic - 80, _NODES)),
        (places - 4, struct.pack("<4xI", buffers)),
        (at_variadic - 4, struct.pack("<4xIq", 1, variadic)),
    )
    for at, data in parts:
        fixed[at : at + len(data)] = data
    free = (
        (8 * METADATA_WORD, 2),
        (8 * BODY_WORD, 12),
        (8 * _ROWS_WORD, 8),
        (8 * _NODE_WORD, 16 * _NODES),
        (8 * _PLACE_WORD, 16 * buffers),
    )
    for at, size in free:
        mask[at : at + size] = bytes(size)
    return np.frombuffer(fixed, np.int64), np.frombuffer(mask, np.int64)


# By the number of buffers behind the views of the payloads.
TEMPLATES = (_template(0), _template(1))
WORDS = len(TEMPLATES[1][0])
# Header of a batch without metadata, with the eight bytes before the flatbuffer.
HEADER = -(-(8 + 8 * WORDS) // ALIGNMENT) * ALIGNMENT


def parse(headers: np.ndarray, bodies: np.ndarray) -> tuple[np.ndarray, tuple]:
    """Checks headers and takes out what is free in them.

    Args:
      headers: int64[n, w], the flatbuffers.
      bodies: int64[n], where the bodies begin in the file.

    Returns:
      bool[n], which have the right form, and of all what ``stream.Stream`` calls
      rows, places, validity and data.
    """
    variadic = headers[:, _PLACE_WORD - 1] >> 32 == _BUFFERS + 1
    right = np.zeros(len(headers), bool)
    for kind, (fixed, mask) in enumerate(TEMPLATES):
        mine = variadic == bool(kind)
        wrong = (headers[:, : len(fixed)] ^ fixed) & mask
        right |= mine & ~wrong.any(axis=1)
    rows = headers[:, _ROWS_WORD]
    body = headers[:, BODY_WORD]
    # With that, no product below can overflow.
    right &= (rows > 0) & (body > 0) & (body < 1 << 40) & (rows <= body // 16)
    rows = np.where(right, rows, 0)
    right &= _right_nodes(headers, rows)
    places, lengths = _layout(headers, rows)
    count = _BUFFERS + 1
    found = headers[:, _PLACE_WORD : _PLACE_WORD + 2 * count].reshape(-1, count, 2)
    compared = np.arange(count) < _BUFFERS + variadic[:, None]
    same = (found[..., 0] == places[:, :-1]) & (found[..., 1] == lengths)
    right &= (same | ~compared).all(axis=1) & (body == places[:, -1])
    columns = places[:, [buffer for buffer, _ in COLUMNS.values()]] + bodies[:, None]
    bits = [buffer for _, buffer in _NULLABLE]
    validity = np.where(lengths[:, bits] > 0, places[:, bits] + bodies[:, None], -1)
    begin = places[:, _BUFFERS] + bodies
    data = np.stack([begin, begin + lengths[:, _BUFFERS]], axis=1)
    return right, (rows, columns, validity, data)


def _right_nodes(headers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    nodes = headers[:, _NODE_WORD : _NODE_WORD + 2 * _NODES].reshape(-1, _NODES, 2)
    expected = np.repeat(rows[:, None], _NODES, axis=1)
    expected[:, _CHILD_NODE] *= run_format.LABELS
    right = (nodes[..., 0] == expected).all(axis=1)
    nulls = nodes[..., 1].copy()
    for node, _ in _NULLABLE:
        right &= (nulls[:, node] >= 0) & (nulls[:, node] <= rows)
        nulls[:, node] = 0
    return right & ~nulls.any(axis=1)


def _layout(headers: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns where buffers have to begin in the body, and how long they must be.

    The end of the body stands behind the begins. The length of the payloads is
    taken as it is, if it can be.
    """
    lengths = np.zeros((len(headers), _BUFFERS + 1), np.int64)
    for buffer, width in COLUMNS.values():
        lengths[:, buffer] = rows * width
    for node, buffer in _NULLABLE:
        nulls = headers[:, _NODE_WORD + 2 * node + 1]
        lengths[:, buffer] = np.where(nulls != 0, -(-rows // 8), 0)
    has_data = headers[:, _PLACE_WORD - 1] >> 32 == _BUFFERS + 1
    data = headers[:, _PLACE_WORD + 2 * _BUFFERS + 1]
    usable = has_data & (data >= 0) & (data < 1 << 40)
    lengths[:, _BUFFERS] = np.where(usable, data, 0)
    padded = -(-lengths // ALIGNMENT) * ALIGNMENT
    places = np.zeros((len(headers), _BUFFERS + 2), np.int64)
    np.cumsum(padded, axis=1, out=places[:, 1:])
    return places, lengths


def metadata(flat: memoryview) -> tuple[dict[bytes, bytes], int]:
    """Returns the custom metadata of a flatbuffer, and where it ends there.

    Raises:
      ValueError: It does not have the right form.
    """

    def word(place: int) -> int:
        if not 0 <= place <= len(flat) - 4:
            raise ValueError("outside the header")
        return struct.unpack_from("<I", flat, place)[0]

    def text(place: int) -> bytes:
        nonlocal end
        begin = place + word(place)
        size = word(begin)
        if begin + 4 + size > len(flat):
            raise ValueError("outside the header")
        # A zero ends a text, and more of them fill its last four bytes.
        end = max(end, begin + 8 + size - size % 4)
        return flat[begin + 4 : begin + 4 + size].tobytes()

    end = at = 8 * METADATA_PLACE + word(8 * METADATA_PLACE)
    count = word(at)
    if count > _MOST_METADATA:
        raise ValueError("too much metadata")
    found = {}
    for place in range(at + 4, at + 4 + 4 * count, 4):
        table = place + word(place)
        found[text(table + 4)] = text(table + 8)
    return found, end


def places_of(places: np.ndarray, column: str) -> np.ndarray:
    """Returns int64[n], where a column begins, out of what ``parse`` returned."""
    return places[:, list(COLUMNS).index(column)]
