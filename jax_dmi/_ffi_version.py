# SPDX-License-Identifier: Apache-2.0
"""Compares the FFI version of the native module with the one jaxlib speaks.

XLA refuses handlers compiled against newer headers than its own, and it does so
while it starts a backend: one refused handler keeps *every* use of JAX from
working. So the versions are compared before anything is registered.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re

_HEADER = pathlib.PurePath("include/xla/ffi/api/c_api.h")
_DEFINE = re.compile(r"^#define XLA_FFI_API_(MAJOR|MINOR)\s+(\d+)", re.MULTILINE)


def check() -> None:
    """Raises where the installed jaxlib would refuse the native module.

    Raises:
      ImportError: The native module is missing, or was compiled against XLA FFI
        headers that the installed jaxlib does not support.
    """
    try:
        from jax_dmi import _native
    except ImportError as error:
        raise ImportError(
            f"jax_dmi's native module cannot be loaded: {error}. Install the package "
            "(`pip install .` in a checkout) and start Python outside of the checkout, "
            "whose own folder has no compiled module in it."
        ) from error
    header = _installed_header()
    supported = _version_in(header.read_text()) if header else None
    # A jaxlib packaged without headers cannot be asked; it is taken at its word.
    if supported is not None:
        _compare(_native.ffi_api_version(), supported)


def _installed_header() -> pathlib.Path | None:
    """The FFI header of the installed jaxlib, found without importing it."""
    spec = importlib.util.find_spec("jaxlib")
    for folder in (spec and spec.submodule_search_locations) or ():
        header = pathlib.Path(folder) / _HEADER
        if header.is_file():
            return header
    return None


def _version_in(header: str) -> tuple[int, int] | None:
    """The API version a ``c_api.h`` declares, None where it declares none."""
    found = {name: int(number) for name, number in _DEFINE.findall(header)}
    if found.keys() != {"MAJOR", "MINOR"}:
        return None
    return found["MAJOR"], found["MINOR"]


def _compare(built: tuple[int, int], supported: tuple[int, int]) -> None:
    if built[0] == supported[0] and built[1] <= supported[1]:
        return
    jaxlib = importlib.metadata.version("jaxlib")
    raise ImportError(
        f"jax_dmi was compiled against XLA FFI {built[0]}.{built[1]}, but the "
        f"installed jaxlib {jaxlib} supports XLA FFI {supported[0]}.{supported[1]}: "
        "it would refuse jax_dmi's handlers, and no JAX backend would start. "
        + _remedy(built, supported)
    )


def _remedy(built: tuple[int, int], supported: tuple[int, int]) -> str:
    if built > supported:
        return (
            "Either upgrade jaxlib (`pip install -U jax jaxlib`), or rebuild jax_dmi "
            "with its pinned build requirements (`pip install --force-reinstall "
            "--no-deps .` in a checkout, without --no-build-isolation)."
        )
    return (
        "Install a newer jax_dmi, or a jaxlib whose FFI has major version "
        f"{built[0]} (`pip install 'jax>=0.10.2' 'jaxlib<0.13'`)."
    )
