# SPDX-License-Identifier: Apache-2.0
"""Time limits that need no plugin: a device that hangs is not waited for."""

from __future__ import annotations

import faulthandler
import os

import pytest

_SECONDS = 120.0


@pytest.fixture(scope="session")
def terminal(request):
    """Where the stacks go; what a test prints is lost when the process ends."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        file = os.fdopen(os.dup(2), "w")
    with file:
        yield file


@pytest.fixture(autouse=True)
def time_limit(terminal):
    """Ends the process, with the stacks of all threads, if a test hangs."""
    faulthandler.dump_traceback_later(_SECONDS, exit=True, file=terminal)
    yield
    faulthandler.cancel_dump_traceback_later()
