# SPDX-License-Identifier: Apache-2.0
"""What a sink is, and what it gets.

A sink takes the batches of a capture. ``open`` comes first, ``close`` last; the
batches come from one thread, ``flush`` may come from another one at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import Protocol

import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What a sink is told about the run when it is opened.

    Attributes:
      path: Where process 0 put the run, for the other processes; None in
        process 0, which chooses, and where nothing was agreed.
      process: Number of this process.
      process_count: Processes that capture.
      attrs: JSON data to keep with the run.
      devices: Ids of the devices of this process that are captured.
      created_ns: UTC time of the start.
      nonce: Random text that all processes of the run share and no other has.
      versions: Versions of the packages, by name.
    """

    path: str | None
    process: int
    process_count: int
    attrs: Mapping[str, Any]
    devices: tuple[int, ...]
    created_ns: int
    nonce: str
    versions: Mapping[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Some consecutive records of one device.

    Valid until the ``write`` that got it returns: the payloads lie in the ring,
    which needs the memory back. What is to stay must be copied.

    Attributes:
      arrow: Makes ``record_batch``.
      device: Id of their device.
      sites: Description of every site of the batch, by id.
      layouts: Description of every layout of the batch, by id.
      first_seq: Sequence number of the first record.
      last_seq: Sequence number of the last record.
      bytes: Payload bytes.
    """

    arrow: Callable[[], pa.RecordBatch]
    device: int
    sites: Mapping[int, str]
    layouts: Mapping[int, str]
    first_seq: int
    last_seq: int
    bytes: int

    @functools.cached_property
    def record_batch(self) -> pa.RecordBatch:
        """The records, see ``jax_dmi.format.SCHEMA``; made when first asked for."""
        return self.arrow()


class Sink(Protocol):
    """Where records go.

    What a method raises is latched by the Monitor and raised by its ``flush`` and
    ``close``; the capture goes on, and the records count as failed.

    A sink may also have:
      ``write_many(batches)``: As ``write`` of one after the other, which saves
        taking the interpreter lock once per batch. What it raises may have the
        attribute ``written``: how many batches from the front are safe.
      ``note_accounting(account)``: Gets the final account, before ``close``.
      ``note_timeline(timeline)``: Gets a table of when data moved, see
        ``jax_dmi.timeline``, before ``close``.
      ``sync()``: As ``flush``, and survives a power failure.
      ``path``: Where the run can be opened, once ``open`` returned.
    """

    def open(self, run_info: RunInfo) -> None:
        """Prepares for the batches of a run."""

    def write(self, batch: Batch) -> None:
        """Takes a batch; nothing of it may be referenced after the return."""

    def flush(self) -> None:
        """Makes what was written visible to readers."""

    def close(self) -> None:
        """Ends; called once, also after a method raised."""
