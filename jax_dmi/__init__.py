# SPDX-License-Identifier: Apache-2.0
"""Deep model inspection for JAX: see inside a jitted program while it runs.

Inside the program, around it, and afterwards::

    x = dmi.record(x, "block/resid", layer=i)
    with dmi.Monitor("runs/demo") as monitor: ...
    dmi.open_run("runs/demo")["block/resid"].stack()
"""

from __future__ import annotations

from jax_dmi import _ffi_version

# Before anything is registered: a handler that jaxlib refuses would keep every
# backend of JAX from starting.
_ffi_version.check()

from jax_dmi import sinks as sinks  # noqa: E402
from jax_dmi import windows as windows  # noqa: E402
from jax_dmi.errors import CaptureError as CaptureError  # noqa: E402
from jax_dmi.errors import DmiError as DmiError  # noqa: E402
from jax_dmi.errors import DmiIndexError as DmiIndexError  # noqa: E402
from jax_dmi.errors import DmiTypeError as DmiTypeError  # noqa: E402
from jax_dmi.errors import DmiValueError as DmiValueError  # noqa: E402
from jax_dmi.errors import FlushTimeoutError as FlushTimeoutError  # noqa: E402
from jax_dmi.errors import RunError as RunError  # noqa: E402
from jax_dmi.errors import RunExistsError as RunExistsError  # noqa: E402
from jax_dmi.errors import StateError as StateError  # noqa: E402
from jax_dmi.errors import UnknownNameError as UnknownNameError  # noqa: E402
from jax_dmi.errors import WindowError as WindowError  # noqa: E402
from jax_dmi.monitor import Monitor as Monitor  # noqa: E402
from jax_dmi.oneshot import capture as capture  # noqa: E402
from jax_dmi.ops import advance_boundary as advance_boundary  # noqa: E402
from jax_dmi.ops import close_window as close_window  # noqa: E402
from jax_dmi.ops import labels as labels  # noqa: E402
from jax_dmi.ops import open_window as open_window  # noqa: E402
from jax_dmi.ops import record as record  # noqa: E402
from jax_dmi.ops import record_grad as record_grad  # noqa: E402
from jax_dmi.ops import register as _register  # noqa: E402
from jax_dmi.ops import scope as scope  # noqa: E402
from jax_dmi.pauses import Token as Token  # noqa: E402
from jax_dmi.read import open_run as open_run  # noqa: E402
from jax_dmi.read import Run as Run  # noqa: E402
from jax_dmi.read import Series as Series  # noqa: E402
from jax_dmi.read import VerifyReport as VerifyReport  # noqa: E402
from jax_dmi.records import Record as Record  # noqa: E402
from jax_dmi.replay import ArenaStats as ArenaStats  # noqa: E402
from jax_dmi.replay import Definition as Definition  # noqa: E402
from jax_dmi.replay import Plan as Plan  # noqa: E402
from jax_dmi.replay import ReplayArena as ReplayArena  # noqa: E402
from jax_dmi.replay import ReplayBlock as ReplayBlock  # noqa: E402
from jax_dmi.spec import Site as Site  # noqa: E402
from jax_dmi.stats import Counts as Counts  # noqa: E402
from jax_dmi.stats import FlushResult as FlushResult  # noqa: E402
from jax_dmi.stats import MonitorStats as MonitorStats  # noqa: E402
from jax_dmi.stats import Transfer as Transfer  # noqa: E402
from jax_dmi.stats import WindowInfo as WindowInfo  # noqa: E402
from jax_dmi.stats import WindowState as WindowState  # noqa: E402
from jax_dmi.windows import infer_window_pattern as infer_window_pattern  # noqa: E402
from jax_dmi.windows import SimulatedLink as SimulatedLink  # noqa: E402
from jax_dmi.windows import WindowConfig as WindowConfig  # noqa: E402
from jax_dmi.windows import WindowMatch as WindowMatch  # noqa: E402
from jax_dmi.windows import WindowPattern as WindowPattern  # noqa: E402

__version__ = "0.1.0"

_register()
