# SPDX-License-Identifier: Apache-2.0
"""Takes the place of a run, so that nothing is ever overwritten."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import itertools
import json
import os
import socket
from typing import Any

from jax_dmi import errors
from jax_dmi import format as run_format
from jax_dmi.sinks import base
from jax_dmi.sinks import storage


def claim(uri: str, exist: str, info: base.RunInfo) -> tuple[str, storage.Storage]:
    """Creates a run, or in another process than the first, joins it.

    Args:
      uri: Where the run is wanted.
      exist: ``"error"``, or ``"new"`` for the next free name.
      info: The run.

    Returns:
      Where the run is, and its storage, in which this process has its directory.

    Raises:
      RunExistsError: The place is taken.
      RunError: It cannot be written, or there is no run to join.
    """
    if info.process:
        path = info.path if info.path is not None and exist == "new" else uri
        return path, _guarded(path, _join, info)
    if exist == "error":
        return uri, _guarded(uri, _create, info)
    for number in itertools.count(1):
        path = uri if number == 1 else storage.numbered(uri, number)
        with contextlib.suppress(errors.RunExistsError):
            return path, _guarded(path, _create, info)
    raise AssertionError("unreachable")


def _guarded(
    path: str,
    take: Callable[[str, storage.Storage, base.RunInfo], None],
    info: base.RunInfo,
) -> storage.Storage:
    try:
        place = storage.connect(path)
        take(path, place, info)
    except errors.DmiError:
        raise
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise errors.RunError(
            f"no run can be written at {storage.shown(path)!r}:"
            f" {storage.reason(error)}; choose a directory that this user may write to."
        ) from error
    return place


def _exists(path: str) -> errors.RunExistsError:
    return errors.RunExistsError(
        f"{storage.shown(path)!r} is taken, and nothing is overwritten: choose another"
        ' path, pass exist="new" for the next free one, or remove it.'
    )


def _create(path: str, place: storage.Storage, info: base.RunInfo) -> None:
    place.prepare()
    folder = run_format.process_dir(info.process)
    if place.exists(folder):
        raise _exists(path)
    run = {
        "format": run_format.VERSION,
        "created_ns": info.created_ns,
        "nonce": info.nonce,
        "attrs": dict(info.attrs),
        "process_count": info.process_count,
        "versions": dict(info.versions),
    }
    place.create(run_format.RUN_FILE, encoded(run))
    try:
        _enter(place, info)
    except OSError:
        # Without its first process there is no run, and the name stays free.
        with contextlib.suppress(OSError):
            place.remove(run_format.RUN_FILE)
        raise


def _join(path: str, place: storage.Storage, info: base.RunInfo) -> None:
    try:
        run = json.loads(place.read(run_format.RUN_FILE))
    except FileNotFoundError:
        raise errors.RunError(
            f"process {info.process} finds no run at {storage.shown(path)!r}, where"
            " process 0 made it: all processes need to see the same storage."
        ) from None
    if run.get("nonce") != info.nonce:
        raise errors.RunExistsError(
            f"{storage.shown(path)!r} holds another run than the one process 0 made:"
            " all processes need to see the same storage."
        )
    _enter(place, info)


def _enter(place: storage.Storage, info: base.RunInfo) -> None:
    """Creates the directory of this process."""
    folder = run_format.process_dir(info.process)
    place.make_folder(folder)
    process = {
        "process": info.process,
        "devices": list(info.devices),
        "nonce": info.nonce,
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    place.create(f"{folder}/{run_format.PROCESS_FILE}", encoded(process))


def encoded(content: Any) -> bytes:
    """Returns JSON data as the content of a file."""
    return json.dumps(content, indent=1).encode() + b"\n"
