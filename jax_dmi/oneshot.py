# SPDX-License-Identifier: Apache-2.0
"""``capture``: one call under a Monitor, and what it recorded."""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import shutil
import tempfile
from typing import Any
import weakref

import jax

from jax_dmi import errors
from jax_dmi import monitor
from jax_dmi import read


def capture(
    fn: Callable[..., Any], *args: Any, select: Any = ("*",), **kwargs: Any
) -> tuple[Any, read.Run]:
    """Calls ``fn(*args, **kwargs)`` and returns its result and its records.

    Example:
      >>> out, run = dmi.capture(jax.jit(model), params, batch, select="block/*")
      >>> run["block/resid"].stack().shape

    Args:
      fn: A function whose programs record.
      *args: Its arguments.
      select: Patterns of the names to record, as in ``Monitor``.
      **kwargs: Its keyword arguments.

    Returns:
      The result of ``fn``, ready, and the run, on a temporary directory that goes
      with it.

    Raises:
      DmiTypeError: ``fn`` is no function.
    """
    if not callable(fn):
        raise errors.DmiTypeError(
            f"fn={fn!r} is a {type(fn).__name__}; use a function and its arguments."
        )
    folder = tempfile.mkdtemp(prefix="jax_dmi-")
    try:
        path = pathlib.Path(folder) / "run"
        with monitor.Monitor(path, select=select, ring_bytes="64MiB"):
            out = jax.block_until_ready(fn(*args, **kwargs))
        run = read.open_run(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return out, run
