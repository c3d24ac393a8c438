# SPDX-License-Identifier: Apache-2.0
"""The timelines of a run, one file per process."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi import timeline
from jax_dmi.read import loading
from jax_dmi.read import storage as run_storage


def read(path: str, name: str) -> pa.Table:
    """Returns one part of the timelines of all processes, see ``timeline``.

    Raises:
      RunError: There is no run any more, or a file of it is damaged.
    """
    return timeline.flattened(_timelines(path), name)


def _timelines(path: str) -> Iterator[tuple[int, pa.Table]]:
    storage, names = loading.find(path)
    processes = {run_storage.process(name) for name in names} - {None}
    for process in sorted(processes):  # pyright: ignore[reportArgumentType]
        file = run_format.timeline_path(process)
        content = storage.read(file) if file in names else None
        if content is None:
            continue
        try:
            table = timeline.decoded(content)
        except (pa.ArrowException, OSError, ValueError) as error:
            shown = run_storage.shown(path)
            raise errors.RunError(
                f"{file} of {shown!r} is damaged ({error}); the records can be read."
            ) from error
        yield process, table
