# SPDX-License-Identifier: Apache-2.0
"""The sink that forgets everything."""

from __future__ import annotations

from collections.abc import Sequence

from jax_dmi.sinks import base


class NullSink:
    """Drops every record after it was captured.

    Useful to measure what a capture costs without the disk.
    """

    def open(self, run_info: base.RunInfo) -> None:
        """Does nothing."""

    def write(self, batch: base.Batch) -> None:
        """Drops the batch."""

    def write_many(self, batches: Sequence[base.Batch]) -> None:
        """Drops the batches."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
