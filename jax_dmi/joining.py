# SPDX-License-Identifier: Apache-2.0
"""Runs of several processes: the first chooses the place, the others join it.

The processes find each other through ``jax.distributed``. They must start their
Monitors in the same order; the n-th of each belong to one run.
"""

from __future__ import annotations

import dataclasses
import itertools
import json

from jax_dmi import _compat
from jax_dmi import errors
from jax_dmi import sinks

_SECONDS = 120.0

_runs = itertools.count()


def open_sink(sink: sinks.Sink, info: sinks.RunInfo) -> None:
    """Opens the sink of this process, after that of the first.

    Raises:
      RunError: The first process failed, or never came.
    """
    if info.process_count == 1:
        sink.open(info)
        return
    key = f"jax_dmi/run/{next(_runs)}"
    if info.process == 0:
        _open_first(sink, info, key)
    else:
        _join(sink, info, key)


def _open_first(sink: sinks.Sink, info: sinks.RunInfo, key: str) -> None:
    try:
        sink.open(info)
    except Exception as error:
        _compat.publish(key, json.dumps({"error": str(error)}))
        raise
    path = getattr(sink, "path", None)
    place = {"path": None if path is None else str(path), "nonce": info.nonce}
    _compat.publish(key, json.dumps(place))


def _join(sink: sinks.Sink, info: sinks.RunInfo, key: str) -> None:
    try:
        place = json.loads(_compat.receive(key, _SECONDS))
    except TimeoutError as error:
        raise errors.RunError(
            f"process 0 opened no run within {_SECONDS:.0f} s; start a Monitor in"
            " every process, in the same order."
        ) from error
    if "error" in place:
        raise errors.RunError(f"process 0 could not open the run: {place['error']}")
    sink.open(dataclasses.replace(info, path=place["path"], nonce=place["nonce"]))
