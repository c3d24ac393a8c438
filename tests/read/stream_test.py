# SPDX-License-Identifier: Apache-2.0
"""The scan of a segment: what it finds in damaged files."""

from __future__ import annotations

import numpy as np
import pytest

from jax_dmi import format as run_format
from jax_dmi.read import headers
from jax_dmi.read import mapped
from jax_dmi.read import segments
from jax_dmi.read import stream
from support import runs
from support.runs import Rec

_OWNER = segments.Owner(0, 0, 0)
_END = len(run_format.END_OF_STREAM)


@pytest.fixture(scope="module")
def segment(tmp_path_factory) -> np.ndarray:
    """uint8[n]: nine batches of three records, of two sites that come one by one."""
    path = tmp_path_factory.mktemp("runs") / "run"
    writer = runs.Writer(path)
    for i in range(9):
        names = ["a", "a", "b"] if i > 3 else ["a"] * 3
        writer.write(
            *(
                Rec(np.arange(1, 20 * k + 3, dtype=np.float32), name, step=i, layer=k)
                for k, name in enumerate(names)
            )
        )
    writer.close()
    return np.fromfile(next(path.rglob("*.arrow")), np.uint8)


def _begins(data: np.ndarray) -> list[int]:
    """Returns where the messages of an undamaged segment begin, and the end."""
    found, at = [], 0
    while data[at : at + _END].tobytes() != run_format.END_OF_STREAM:
        found.append(at)
        size = int(data[at + 4 : at + 8].view(np.uint32)[0])
        body = int(data[at + 40 : at + 48].view(np.int64)[0]) if at else 0
        at += 8 + size + body
    return [*found, at]


def _read(data: np.ndarray) -> segments.Segment:
    file = mapped.in_memory(data.copy())
    return segments.read(segments.scan(_OWNER, "segment", file))


def test_descriptions_of_every_length_are_read(tmp_path):
    count = 2 * headers.ALIGNMENT
    writer = runs.Writer(tmp_path / "run")
    for i in range(1, count + 1):
        writer.write(Rec(np.zeros(1, np.float32), "n" * i))
    writer.close()
    data = np.fromfile(next(tmp_path.rglob("*.arrow")), np.uint8)
    found = _read(data)
    assert not found.gaps
    assert found.records == len(found.sites) == count


def test_a_whole_segment_has_everything(segment):
    found = _read(segment)
    assert found.closed and not found.gaps and not found.bad
    assert found.columns["seq"].tolist() == list(range(27))
    assert len(found.sites) == 4
    assert found.records == 27


def test_every_cut_is_told(segment):
    begins = _begins(segment)
    for size in range(0, segment.size, 7):
        found = stream.scan(segment[:size].copy())
        whole = max(0, sum(begin <= size for begin in begins[1:]) - 1)
        assert len(found.rows) == whole, size
        assert not found.closed
        if size in begins[1:]:
            assert not found.gaps
        else:
            (gap,) = found.gaps
            assert gap.torn and gap.end == size
            assert gap.begin == max(b for b in [0, *begins] if b <= max(size - 1, 0))


def test_every_zero_tail_is_told(segment):
    begins = _begins(segment)
    payloads = stream.scan(segment.copy()).data
    for zeros in range(_END, segment.size, 61):
        data = segment.copy()
        data[-zeros:] = 0
        found = _read(data)
        assert not found.closed
        assert found.gaps and all(gap.torn for gap in found.gaps[-1:])
        kept = found.columns["seq"].tolist()
        whole = sum(int(end) <= data.size - zeros for _, end in payloads)
        assert kept[: 3 * whole] == list(range(3 * whole)), zeros
        assert not segments.wrong_payloads(data, found.columns), zeros
    assert begins


def test_behind_damage_the_next_message_is_found(segment):
    begins = _begins(segment)
    for number in range(1, len(begins) - 2):
        for what in (slice(0, 4), slice(4, 8), slice(40, 48)):
            data = segment.copy()
            data[begins[number] :][what] = 0x5A
            found = _read(data)
            assert found.closed
            lost = set(range(3 * number - 3, 3 * number))
            assert set(found.columns["seq"].tolist()) == set(range(27)) - lost
            (gap,) = found.gaps
            assert not gap.torn
            assert (gap.begin, gap.end) == (begins[number], begins[number + 1])


def test_no_bit_of_a_header_changes_what_is_read_unnoticed(segment):
    begins = _begins(segment)
    right = stream.scan(segment.copy())
    at = begins[4]
    for bit in range(8 * headers.HEADER):
        data = segment.copy()
        data[at + bit // 8] ^= 1 << bit % 8
        found = stream.scan(data)
        if found.gaps:
            assert found.gaps[0].begin == at and not found.gaps[0].torn
            assert len(found.rows) == 8
        else:
            # A bit that means nothing.
            np.testing.assert_array_equal(found.places, right.places)
            np.testing.assert_array_equal(found.data, right.data)
            np.testing.assert_array_equal(found.rows, right.rows)


def test_no_bit_of_a_description_renames_a_site(segment):
    begins = _begins(segment)
    right = _read(segment)
    text = bytes(segment[begins[1] : begins[2]])
    first = text.index(b'"{\\"dtype') if b'"{\\"dtype' in text else text.index(b"dtype")
    for offset in range(first, first + 300):
        data = segment.copy()
        data[begins[1] + offset] ^= 4
        found = _read(data)
        assert set(found.sites.items()) <= set(right.sites.items())
        assert found.unfit or found.gaps or found.sites == right.sites


def test_a_row_is_checked_whatever_is_changed_in_it(segment):
    right = stream.scan(segment.copy())
    number = 5
    for column, (_, width) in headers.COLUMNS.items():
        begin = int(headers.places_of(right.places, column)[number])
        for byte in range(width):
            data = segment.copy()
            data[begin + width + byte] ^= 0x10
            found = _read(data)
            if column == "payload" and byte >= 4:
                # Parts of the payload, and its place: no part of the row's check.
                continue
            (bad,) = found.bad
            assert bad.seq == 3 * number + 1 and not bad.torn
            assert len(found) == 26


def test_a_payload_outside_its_batch_is_not_touched(segment):
    right = stream.scan(segment.copy())
    view = int(headers.places_of(right.places, "payload")[5]) + 16
    for field, value in ((2, 1), (2, -1), (3, -64), (3, 2**31 - 1), (3, 1 << 12)):
        data = segment.copy()
        data[view : view + 16].view(np.int32)[field] = value
        (bad,) = _read(data).bad
        assert bad.seq == 16


def test_bytes_behind_the_end_are_damage(segment):
    found = stream.scan(np.concatenate([segment, np.full(100, 7, np.uint8)]))
    assert not found.closed and len(found.rows) == 9
    (gap,) = found.gaps
    assert not gap.torn and gap.begin == segment.size - _END


def test_a_file_with_its_end_was_not_cut(segment):
    # Whatever happened, it was no cut: the end is there.
    data = np.delete(segment, slice(segment.size - 700, segment.size - 600))
    found = stream.scan(data)
    assert found.gaps and not any(gap.torn for gap in found.gaps)


def test_a_payload_that_looks_like_a_segment_is_none(segment, tmp_path):
    runs.write(tmp_path / "run", [Rec(segment)], [Rec(segment), Rec(segment)])
    data = np.fromfile(next((tmp_path / "run").rglob("*.arrow")), np.uint8)
    found = _read(data)
    assert found.columns["seq"].tolist() == [0, 1, 2]
    assert not found.gaps
