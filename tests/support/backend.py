# SPDX-License-Identifier: Apache-2.0
"""The platform the tests run on: ``--dmi_platform`` of pytest and of absl."""

from __future__ import annotations

from absl import app
from absl import flags
import jax

_PLATFORM = flags.DEFINE_enum(
    "dmi_platform", "cpu", ["cpu", "cuda"], "Platform that programs run on."
)


def use_platform(name: str | None = None) -> None:
    """Makes ``name``, or the platform of the flag, the one of this process."""
    if name is not None:
        flags.FLAGS.dmi_platform = name
    jax.config.update("jax_platforms", platform())


def platform() -> str:
    """Returns the platform of this run."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    return _PLATFORM.value


def emulated() -> bool:
    """Whether the CUDA kernels of this build run on the threads of CPU devices."""
    try:
        from jax_dmi import _native
    except ImportError:  # Nothing is built: only the layout can be tested.
        return False
    return _native.build_info()["cuda"]["why_not"] == "kernels are emulated"


def runs_kernels() -> bool:
    """Whether records of this run go through the CUDA kernels."""
    return platform() == "cuda" or emulated()


# For test files that are run by themselves; pytest tells its own option.
app.call_after_init(use_platform)
