# SPDX-License-Identifier: Apache-2.0
"""Exports records to files of other formats, without holding them in memory.

In every format the bytes of a record are those of ``Record.numpy()``: no padding,
and one element per byte where the run has several.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
from typing import BinaryIO

import numpy as np

from jax_dmi import arguments
from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import frames
from jax_dmi.read import mapped
from jax_dmi.read import rows as run_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Records to export: rows, and what they refer to."""

    rows: run_rows.Rows
    descriptions: records.Descriptions
    files: Sequence[mapped.File]

    def take(self, rows: np.ndarray | slice) -> Source:
        """Returns some of the records, by number or mask."""
        return dataclasses.replace(self, rows=self.rows.take(rows))

    def dense(self) -> Source:
        """Returns the records with payloads as ``Record.numpy()`` has them.

        Those that differ are in memory, so this is for few records at a time.
        """
        kinds, which = frames.shards(self.rows, self.descriptions)
        differ = [
            shard.stored_shape != shard.shape or site.dtype in run_format.PACKED
            for site, shard in kinds
        ]
        chosen = np.flatnonzero(np.array(differ, bool)[which])
        if not len(chosen):
            return self
        rows = self.rows
        parts = []
        for i in chosen.tolist():
            site, shard = kinds[which[i]]
            begin, size = int(rows.place[i]), int(rows.size[i])
            payload = self.files[rows.file[i]].data[begin : begin + size]
            whole = records.decode(payload, site.dtype, shard.stored_shape)
            value = np.ascontiguousarray(records.trim(whole, shard.shape))
            parts.append(value.reshape(-1).view(np.uint8))
        sizes = np.array([part.size for part in parts], np.int64)
        file, place, size = rows.file.copy(), rows.place.copy(), rows.size.copy()
        file[chosen] = len(self.files)
        place[chosen] = np.cumsum(sizes) - sizes
        size[chosen] = sizes
        changed = dataclasses.replace(rows, file=file, place=place, size=size)
        extra = mapped.in_memory(np.concatenate(parts))
        return Source(changed, self.descriptions, [*self.files, extra])

    def sizes(self) -> np.ndarray:
        """int64[n], bytes of each payload as ``Record.numpy()`` has it."""
        kinds, which = frames.shards(self.rows, self.descriptions)
        sizes = [
            int(np.prod(shard.shape, dtype=np.int64))
            * run_format.dtype_of(site.dtype).itemsize
            for site, shard in kinds
        ]
        return np.array(sizes, np.int64)[which]


def export(
    source: Source,
    path: str | os.PathLike[str],
    format: str,
    shard_bytes: int | str,
) -> list[pathlib.Path]:
    """Writes records to files, see ``Run.export``."""
    # Not at import: who exports to one format needs no library of another.
    from jax_dmi.read import export_npy
    from jax_dmi.read import export_parquet
    from jax_dmi.read import export_safetensors

    writers = {
        "parquet": export_parquet.write,
        "safetensors": export_safetensors.write,
        "npy": export_npy.write,
    }
    if format not in writers:
        raise errors.DmiValueError(
            f"format={format!r} is not known; use one of {', '.join(writers)}."
        )
    limit = arguments.size("shard_bytes", shard_bytes)
    folder = pathlib.Path(arguments.path("path", path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise errors.RunExistsError(
                f"path={os.fspath(path)!r} holds files, and nothing is overwritten;"
                " name an empty directory or a new one."
            )
        return writers[format](source, folder, limit)
    except NotADirectoryError as error:
        raise errors.RunError(f"{os.fspath(path)!r} is no directory.") from error
    except errors.DmiError:
        raise
    except OSError as error:
        raise errors.RunError(
            f"cannot export to {os.fspath(path)!r}: {error}"
        ) from error


def shards_of(sizes: np.ndarray, limit: int, most: int) -> Iterator[slice]:
    """Cuts records into shards of at most ``limit`` bytes and ``most`` records.

    A record that is larger has a shard of its own.
    """
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        done = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, done + limit, "right"))
        end = max(begin + 1, min(end, begin + most))
        yield slice(begin, end)
        begin = end


@contextlib.contextmanager
def new_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a file that has its name only once it is complete."""
    draft = path.with_name(f".{path.name}.part")
    try:
        # Without a buffer: what is written comes in large pieces.
        with open(draft, "xb", buffering=0) as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_all(file: BinaryIO, data: bytes | np.ndarray) -> None:
    """Writes all bytes to an unbuffered file."""
    rest = memoryview(data) if isinstance(data, bytes) else data.data
    while len(rest):
        rest = rest[file.write(rest) :]
