# SPDX-License-Identifier: Apache-2.0
"""Places on which files cannot grow as they should."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import subprocess


@contextlib.contextmanager
def file_size_limit(size: int):
    """A disk on which no file can get larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def small_disk(path: pathlib.Path):
    """A disk of one MiB; yields False where none may be mounted.

    Then no file gets larger than that, but there may be many.
    """
    path.mkdir()
    options = ("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path))
    try:
        mounted = not subprocess.run(
            ("mount", *options), capture_output=True
        ).returncode
    except FileNotFoundError:
        mounted = False
    with contextlib.ExitStack() as stack:
        if mounted:
            stack.callback(subprocess.run, ("umount", "-l", str(path)), check=True)
        else:
            stack.enter_context(file_size_limit(1 << 20))
        yield mounted
