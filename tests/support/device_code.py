# SPDX-License-Identifier: Apache-2.0
"""Reads ELF files, and the CUDA device code in them, without CUDA's tools."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import struct

_FATBIN_MAGIC = 0xBA55ED50
_KINDS = {1: "ptx", 2: "elf"}
_STT_FUNC, _STO_CUDA_ENTRY, _DT_NEEDED = 2, 0x10, 1
# Attributes in .nv.info, and how one with a value of any size is marked.
_FRAME_SIZE, _REGCOUNT, _SIZED = 0x11, 0x2F, 4


class Elf:
    """Sections, symbols and needed libraries of a 64-bit ELF file."""

    def __init__(self, data: bytes):
        assert data[:5] == b"\x7fELF\x02", "not a 64-bit ELF file"
        (start,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<3H", data, 0x3A)
        headers = [
            struct.unpack_from("<2I4Q2I2Q", data, start + i * size)
            for i in range(count)
        ]
        strings = headers[names]
        self.sections = {
            _string(data, strings[4] + header[0]): data[header[4] :][: header[5]]
            for header in headers
            if header[1] != 8  # takes no space in the file
        }

    def needed(self) -> list[str]:
        """Libraries that the loader loads with this one."""
        entries = struct.iter_unpack("<2Q", self.sections[".dynamic"])
        names = self.sections[".dynstr"]
        return [_string(names, value) for tag, value in entries if tag == _DT_NEEDED]

    def kernels(self) -> dict[int, str]:
        """Names of the kernels of a CUDA ELF file, by symbol index."""
        symbols = struct.iter_unpack("<IBBHQQ", self.sections[".symtab"])
        return {
            i: _string(self.sections[".strtab"], name)
            for i, (name, info, other, *_) in enumerate(symbols)
            if info & 15 == _STT_FUNC and other & _STO_CUDA_ENTRY
        }

    def attributes(self) -> Iterator[tuple[int, bytes]]:
        """Pairs of an attribute and its value out of ``.nv.info``."""
        data, at = self.sections[".nv.info"], 0
        while at < len(data):
            form, attribute, value = struct.unpack_from("<BBH", data, at)
            at += 4
            if form == _SIZED:
                yield attribute, data[at : at + value]
                at += value


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a thread of a kernel takes, spilled registers among ``local_bytes``."""

    registers: int
    local_bytes: int


def usage(cubin: bytes) -> dict[str, Usage]:
    """Returns what every kernel of a CUDA ELF file takes, by mangled name."""
    elf = Elf(cubin)
    found: dict[int, dict[int, int]] = {_REGCOUNT: {}, _FRAME_SIZE: {}}
    for attribute, value in elf.attributes():
        if attribute in found:
            symbol, number = struct.unpack("<2I", value)
            found[attribute][symbol] = number
    return {
        name: Usage(found[_REGCOUNT][symbol], found[_FRAME_SIZE][symbol])
        for symbol, name in elf.kernels().items()
    }


def images(library: Elf) -> Iterator[tuple[str, int, bytes]]:
    """Yields kind (``ptx``, ``elf``), architecture and code that a library holds."""
    data, at = library.sections.get(".nv_fatbin", b""), 0
    while at < len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != _FATBIN_MAGIC:
            at += 8  # padding
            continue
        at += header
        end = at + size
        while at < end:
            kind, _, header, size, packed = struct.unpack_from("<2HIQI", data, at)
            (arch,) = struct.unpack_from("<I", data, at + 28)
            assert not packed, "compressed"
            yield _KINDS[kind], arch, data[at + header :][:size]
            at += header + size


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
