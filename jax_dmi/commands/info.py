# SPDX-License-Identifier: Apache-2.0
"""``jax-dmi info``: what is installed, and what the native module holds."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from typing import Any

import jax_dmi
from jax_dmi import _native
from jax_dmi.commands import _text

HELP = "show versions, platforms, FFI handlers and limits of this installation"
EXAMPLES = ("jax-dmi info",)

_PACKAGES = ("jax", "jaxlib", "numpy", "pyarrow")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Prints what :func:`gather` finds. Starts no JAX backend."""
    found = gather()
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    _text.print_table(("", ""), found["versions"].items(), title="versions")
    print()
    _text.print_table(("", ""), _platform_rows(found), title="platforms")
    print()
    _text.print_table(
        ("handler", "platform", "traits", "api"),
        [
            (name, handler["platform"], handler["traits"], _dotted(handler["api"]))
            for name, handler in found["handlers"].items()
        ],
        right=("traits", "api"),
    )
    print()
    limits = ((name, f"{value:,}") for name, value in found["limits"].items())
    _text.print_table(("limit", "value"), limits, right=("value",))
    return 0


def gather() -> dict[str, Any]:
    """Everything ``--json`` prints, asked of the built module."""
    build = _native.build_info()
    handlers = {
        name: dict(handler, api=list(handler["api"]))
        for name, handler in sorted(_native.handler_metadata().items())
    }
    versions = {"jax_dmi": jax_dmi.__version__, "python": platform.python_version()}
    versions |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    versions["compiler"] = build["compiler"]
    versions["xla_ffi"] = _dotted(_native.ffi_api_version())
    return {
        "versions": versions,
        "platforms": sorted(_native.registrations()),
        "cuda": build["cuda"],
        "handlers": handlers,
        "limits": _native.limits(),
    }


def _platform_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    cuda = found["cuda"]
    if not cuda["built"]:
        return [("built", ", ".join(found["platforms"])), ("no CUDA", cuda["why_not"])]
    return [
        ("built", ", ".join(found["platforms"])),
        ("archs", ", ".join(cuda["archs"])),
        ("ptx", ", ".join(cuda["ptx"])),
        ("cudart", str(cuda["cudart"])),
    ]


def _dotted(version: Any) -> str:
    return ".".join(map(str, version))
