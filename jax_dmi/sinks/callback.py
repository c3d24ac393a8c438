# SPDX-License-Identifier: Apache-2.0
"""The sink that calls a function with every record."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from jax_dmi import errors
from jax_dmi import records
from jax_dmi import selection
from jax_dmi.sinks import base


class CallbackSink:
    """Calls a function with every record, on the sink thread.

    The records own their bytes, and may be kept. With ``zero_copy`` they are valid
    until the function returns; whoever keeps one keeps memory of the ring, until
    programs wait for it or records are dropped.

    What the function raises does not keep it from getting the records behind; the
    first error is raised when it had all of a batch.

    Example:
      >>> def watch(record):
      ...     if not np.isfinite(record.numpy()).all():
      ...         print("NaN in", record)
      >>> with dmi.Monitor(sink=dmi.sinks.CallbackSink(watch, select="block/*")):
      ...     train()

    Args:
      fn: Called with a ``Record``. It must not call JAX: what it would wait for
        may wait for it.
      select: Patterns of the names it wants, as in ``Monitor``.
      zero_copy: Whether records may be views of the ring.
    """

    def __init__(
        self,
        fn: Callable[[records.Record], object],
        select: selection.Pattern | Iterable[selection.Pattern] = ("*",),
        zero_copy: bool = False,
    ) -> None:
        if not callable(fn):
            raise errors.DmiTypeError(f"fn={fn!r} cannot be called; give a function.")
        self._fn = fn
        self._select = selection.as_patterns(select)
        self._copy = not zero_copy
        self._process = 0
        self._descriptions = records.Descriptions()
        self._wanted: dict[int, bool] = {}

    def open(self, run_info: base.RunInfo) -> None:
        """Remembers which process it is."""
        self._process = run_info.process

    def write(self, batch: base.Batch) -> None:
        """Calls the function with the selected records of a batch."""
        self._descriptions.add(batch.sites, batch.layouts)
        first: Exception | None = None
        found = records.of_batch(
            batch.record_batch,
            self._descriptions,
            process=self._process,
            device=batch.device,
            copy=self._copy,
            wants=self._wants,
        )
        with records.jax_forbidden():
            for record in found:
                try:
                    self._fn(record)
                except Exception as error:  # The function is the user's.
                    first = first or error
        if first is not None:
            raise first

    def _wants(self, site: int) -> bool:
        wanted = self._wanted.get(site)
        if wanted is None:
            name = self._descriptions.sites[site].name
            wanted = self._wanted[site] = selection.matches(self._select, name)
        return wanted

    def flush(self) -> None:
        """Does nothing: the function had every record."""

    def close(self) -> None:
        """Does nothing."""
