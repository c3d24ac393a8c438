# SPDX-License-Identifier: Apache-2.0
"""What the module holds for CUDA, read from its file: needs no GPU.

A module without CUDA holds none of it, and passes the same tests.
"""

from __future__ import annotations

import pathlib
import re

import pytest

from jax_dmi import _native
from jax_dmi.commands import info
from support import device_code

_SOURCES = pathlib.Path(__file__).resolve().parents[2] / "ffi"
_CUDA = _native.build_info()["cuda"]
_MODULE = device_code.Elf(pathlib.Path(_native.__file__).read_bytes())
_COMMAND_BUFFER_COMPATIBLE = 1


def _kernels() -> set[str]:
    """Names of the kernels in the sources."""
    source = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\(.*?\)\s*)?(\w+)\(")
    files = [*_SOURCES.rglob("*.cu"), *_SOURCES.rglob("*.cuh")]
    return {name for file in files for name in source.findall(file.read_text())}


def _plain(mangled: str) -> str:
    """The name of the function in a mangled name."""
    rest, name = mangled.removeprefix("_ZN"), mangled
    while length := re.match(r"\d+", rest):
        name = rest[length.end() :][: int(length[0])]
        rest = rest[length.end() + int(length[0]) :]
    return name


def _machine_code() -> dict[str, dict[str, device_code.Usage]]:
    """What kernels take, by architecture and name."""
    found: dict[str, dict[str, device_code.Usage]] = {}
    for kind, arch, code in device_code.images(_MODULE):
        if kind == "elf":
            usage = device_code.usage(code)
            found.setdefault(f"sm_{arch}", {}).update(
                (_plain(name), taken) for name, taken in usage.items()
            )
    return found


def _ptx() -> dict[str, set[str]]:
    """Names of kernels, by virtual architecture."""
    found: dict[str, set[str]] = {}
    for kind, arch, code in device_code.images(_MODULE):
        if kind == "ptx":
            entries = re.findall(r"\.entry (\w+)", code.decode())
            found.setdefault(f"compute_{arch}", set()).update(map(_plain, entries))
    return found


def test_there_is_cuda_or_a_reason_why_not():
    assert _CUDA["built"] == (_CUDA["why_not"] == "") == bool(_CUDA["archs"])
    assert bool(_CUDA["cudart"]) == _CUDA["built"]


def test_the_architectures_are_those_that_are_supported():
    supported = (["sm_80", "sm_90"], ["compute_90"]) if _CUDA["built"] else ([], [])
    assert (_CUDA["archs"], _CUDA["ptx"]) == supported


def test_every_kernel_is_there_for_every_architecture():
    kernels = _kernels()
    assert kernels or not _CUDA["built"]
    found = {arch: set(usage) for arch, usage in _machine_code().items()} | _ptx()
    assert found == dict.fromkeys(_CUDA["archs"] + _CUDA["ptx"], kernels)


def test_kernels_keep_to_their_registers():
    for arch, kernels in _machine_code().items():
        for name, taken in sorted(kernels.items()):
            print(f"{arch} {name:24} {taken.registers:3} registers")
            assert taken.registers <= 64
            assert taken.local_bytes == 0


def test_nothing_of_cuda_is_needed_to_import_the_module():
    needed = _MODULE.needed()
    assert any(name.startswith("libc.so") for name in needed)
    assert not [name for name in needed if "cuda" in name or name.startswith("libnv")]


def test_handlers_may_be_captured_into_command_buffers():
    registered = _native.registrations().get("CUDA", {})
    assert bool(registered) == _CUDA["built"]
    handlers = info.gather()["handlers"]
    found = {
        name.partition("@")[0]: handler["traits"]
        for name, handler in handlers.items()
        if handler["platform"] == "CUDA"
    }
    # What an upload copies differs from execution to execution.
    wanted = dict.fromkeys(registered, _COMMAND_BUFFER_COMPATIBLE)
    assert found == wanted | ({"dmi_upload": 0} if wanted else {})


@pytest.mark.parametrize(
    "mangled, plain",
    [
        ("_ZN3dmi7program12RecordKernelENS0_15RecordArgumentsE", "RecordKernel"),
        (
            "_ZN3dmi7program43_GLOBAL__N__05e43b57_10_kernels_cu_a4ecf79010CopyKernelE"
            "NS0_13CopyArgumentsE",
            "CopyKernel",
        ),
        ("plain", "plain"),
    ],
)
def test_names_are_read_out_of_mangled_names(mangled, plain):
    assert _plain(mangled) == plain
