# SPDX-License-Identifier: Apache-2.0
"""The ``jax-dmi`` command: every module of ``jax_dmi.commands`` is a subcommand.

Such a module has a one-line ``HELP``, ``EXAMPLES``, ``add_arguments(parser)`` and
``run(args) -> int``, the exit status. Only the one that is asked for is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import importlib
import os
import pkgutil
import sys
from types import ModuleType

import jax_dmi
from jax_dmi import commands
from jax_dmi import errors


def names() -> list[str]:
    """The subcommands there are."""
    found = (module.name for module in pkgutil.iter_modules(commands.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    known = names()
    asked = argv[:1] if argv and argv[0] in known else known
    args = _parser({name: _load(name) for name in asked}).parse_args(argv)
    try:
        status = args._command(args)
        sys.stdout.flush()
        return status
    except errors.DmiError as error:
        print(f"jax-dmi: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe has seen enough; keep the flush at exit quiet too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"{commands.__name__}.{name}")


def _parser(modules: dict[str, ModuleType]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax-dmi",
        description="See inside jitted JAX programs while they run.",
        epilog="Start with jax-dmi demo; jax-dmi COMMAND --help tells more.",
    )
    parser.add_argument(
        "--version", action="version", version=f"jax_dmi {jax_dmi.__version__}"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    subparsers.required = True
    for name, module in modules.items():
        added = subparsers.add_parser(
            name,
            help=module.HELP,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog="\n  ".join(["examples:", *module.EXAMPLES]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(added)
        added.set_defaults(_command=module.run)
    return parser
