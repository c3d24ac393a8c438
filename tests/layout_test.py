# SPDX-License-Identifier: Apache-2.0
"""The layout of the sources: who may import whom, and what every file has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Rooms of the Python package: a top-level module, or a folder. "facade" is
# `import jax_dmi`; what a room may import besides itself.
PYTHON_ARROWS = {
    "errors": "",
    "_native": "",
    "_compat": "",
    "_ffi_version": "_native",
    "format": "_native",
    "records": "format errors _native",
    "selection": "errors",
    "spec": "selection _compat errors",
    "stats": "spec windows",
    "arguments": "errors",
    "settings": "spec windows errors",
    "ops": "spec _compat errors _native",
    "windows": "ops spec arguments _compat errors _native",
    "timeline": "",
    "sinks": "timeline format records selection arguments errors _native",
    "read": "timeline format records selection arguments errors _native",
    "pump": "format sinks errors _native",
    "accounts": "timeline windows format pump spec stats errors _native",
    "joining": "sinks errors _compat",
    "switches": "format selection spec _native",
    "pauses": "errors",
    "run_control": "pauses selection session",
    "session": "joining pauses switches window_versions accounts ops spec sinks stats"
    " arguments settings pump errors _native _compat",
    "window_versions": "windows stats errors _native",
    "window_control": "session arguments stats window_versions windows errors",
    "monitor": "arguments run_control window_control session ops spec read windows"
    " sinks stats settings pump errors _native _compat",
    "oneshot": "monitor read errors",
    "replay": "read _compat errors _native",
    "view": "facade errors",
    "demo": "facade errors",
    "bench": "facade demo spec errors _native _compat",
    "commands": "facade bench demo view errors _native",
    "cli": "facade commands errors",
    "__main__": "cli",
    "facade": "_ffi_version sinks oneshot errors monitor ops pauses read records"
    " replay spec stats windows",
}

# Rooms that read runs without JAX: no import of it, not even in a function.
NO_JAX = {
    "errors",
    "format",
    "timeline",
    "records",
    "sinks",
    "arguments",
    "stats",
    "pump",
    "cli",
    "_ffi_version",
}
# It may be imported in functions there.
NO_JAX_AT_IMPORT = {"records", "read", "commands", "view"}

NATIVE_ARROWS = {
    "wire": "",
    "base": "wire",
    "program": "wire base",
    "ring": "wire base program",
    "transfer": "wire base",
    "windows": "wire base",
    "batch": "wire base",
    "replay": "wire base",
    "drain": "wire base program ring transfer windows batch",
    "handlers": "wire base program replay",
    "python": "wire base program ring transfer windows batch replay drain handlers",
}

# Who may include whose headers, by the start of the name.
OUTSIDE_HEADERS = {
    "xla/": {"handlers"},
    "nanobind/": {"python"},
    "Python.h": {"python"},
    "numpy/": {"python"},
    "cuda": {"base", "program", "transfer", "handlers", "replay"},
    "fake_cuda/": {"base"},  # in place of the CUDA runtime, for tests
}

SOURCE_SUFFIXES = {".py", ".pyi", ".h", ".cc", ".cu", ".cuh", ".cmake", ".toml", ".sh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".md", ".txt", ".yml", ".yaml"}
MOST_LINES = 400


def _files() -> list[pathlib.Path]:
    folders = ("jax_dmi", "ffi", "tests", "examples", "docs", ".ci")
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(
        path
        for path in found
        if not any(part in ("__pycache__", "_build") for part in path.parts)
        and (path.suffix in TEXT_SUFFIXES or path.parent.name == ".ci")
    )


def _sources() -> list[pathlib.Path]:
    return [
        path
        for path in _files()
        if path.suffix in SOURCE_SUFFIXES
        or path.name == "CMakeLists.txt"
        or path.parent.name == ".ci"
    ]


def _name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _python_room(path: pathlib.Path) -> str:
    first = path.relative_to(ROOT / "jax_dmi").parts[0]
    room = first.removesuffix(".pyi").removesuffix(".py")
    return "facade" if room == "__init__" else room


def _imports(tree: ast.AST) -> Iterator[str]:
    """Full names of what a tree imports, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _attributes(tree: ast.AST) -> Iterator[str]:
    """Full names of the attributes a tree takes, local names of modules resolved."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, rest = ast.unparse(node).split(".", 1)
            yield f"{known.get(first, first)}.{rest}"


def _own_rooms(tree: ast.AST) -> set[str]:
    """The rooms of jax_dmi that a tree imports."""
    rooms = set()
    for name in _imports(tree):
        parts = name.split(".")
        if parts[0] == "jax_dmi":
            inner = parts[1] if len(parts) > 1 else "facade"
            # `from jax_dmi import record` takes a name of the facade.
            rooms.add(inner if inner in PYTHON_ARROWS else "facade")
    return rooms


def _outside_functions(tree: ast.Module) -> ast.Module:
    """What runs when a module is imported, type checking excluded."""

    class Strip(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return None

        visit_AsyncFunctionDef = visit_FunctionDef

        def visit_If(self, node):
            return None if "TYPE_CHECKING" in ast.unparse(node.test) else node

    return Strip().visit(ast.parse(ast.unparse(tree)))


def _package() -> list[pathlib.Path]:
    return [
        path
        for path in _files()
        if path.suffix == ".py" and _name(path).startswith("jax_dmi/")
    ]


@pytest.mark.parametrize("path", _package(), ids=_name)
def test_python_rooms_import_only_what_the_table_allows(path):
    room = _python_room(path)
    assert room in PYTHON_ARROWS, f"add {room} to the table, with what it may import"
    imported = _own_rooms(ast.parse(path.read_text())) - {room}
    assert imported <= set(PYTHON_ARROWS[room].split())


def test_rooms_import_in_one_direction():
    order = {}

    def depth(room: str, above: tuple[str, ...] = ()) -> int:
        assert room not in above, f"a circle: {' -> '.join((*above, room))}"
        if room not in order:
            inner = (depth(r, (*above, room)) for r in PYTHON_ARROWS[room].split())
            order[room] = 1 + max(inner, default=0)
        return order[room]

    assert max(depth(room) for room in PYTHON_ARROWS) > 1


@pytest.mark.parametrize("path", _package(), ids=_name)
def test_runs_are_written_and_read_without_jax(path):
    room = _python_room(path)
    tree = ast.parse(path.read_text())
    if room in NO_JAX_AT_IMPORT:
        tree = _outside_functions(tree)
    elif room not in NO_JAX:
        return
    assert not [name for name in _imports(tree) if name.split(".")[0] == "jax"]


@pytest.mark.parametrize("path", _package(), ids=_name)
def test_private_names_of_jax_are_used_in_one_place(path):
    if _python_room(path) == "_compat":
        return
    tree = ast.parse(path.read_text())
    private = re.compile(r"^(jax|jaxlib)\.(\w+\.)*_(?!_)|^jaxlib\.(?!__)\w+")
    used = {*_imports(tree), *_attributes(tree)}
    assert not [name for name in used if private.match(name)]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=_name)
def test_examples_use_the_facade_only(path):
    assert _own_rooms(ast.parse(path.read_text())) <= {"facade"}


def _native_files() -> list[pathlib.Path]:
    suffixes = {".h", ".cc", ".cu", ".cuh"}
    return [
        path
        for path in _files()
        if path.suffix in suffixes and _name(path).startswith("ffi/")
    ]


@pytest.mark.parametrize("path", _native_files(), ids=_name)
def test_native_rooms_include_only_what_the_table_allows(path):
    room = path.relative_to(ROOT / "ffi").parts[0]
    assert room in NATIVE_ARROWS, f"add {room} to the table, with what it may include"
    allowed = {room, *NATIVE_ARROWS[room].split()}
    text = path.read_text()
    for header in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
        if not header.startswith("xla/"):
            assert header.split("/")[0] in allowed, header
            assert (ROOT / "ffi" / header).is_file(), f"{header} is not a path in ffi"
    for header in re.findall(r'^\s*#\s*include\s*["<]([^">]+)', text, re.MULTILINE):
        for start, rooms in OUTSIDE_HEADERS.items():
            assert not header.startswith(start) or room in rooms, header
        own = header.startswith("wire/")
        assert room != "wire" or own or header.isidentifier(), f"{header} is not std"


@pytest.mark.parametrize("path", _native_files(), ids=_name)
def test_native_files_open_with_their_purpose(path):
    assert path.read_text().splitlines()[1].startswith("// ")


def test_every_source_names_its_license():
    spdx = "SPDX-License-Identifier: Apache-2.0"
    without = [
        _name(path)
        for path in _sources()
        if not any(spdx in line for line in path.read_text().splitlines()[:2])
    ]
    assert not without


def test_no_file_is_long():
    generated = {"jax_dmi/_native.pyi"}
    lines = {_name(path): path.read_text().count("\n") for path in _sources()}
    assert not {
        name: n for name, n in lines.items() if n > MOST_LINES and name not in generated
    }


# Marks of unfinished work, and paths of the machine a file was written on.
_LEFTOVERS = re.compile(
    r"\b(TODO|FIXME|XXX|xfail)\b|mark\.skip(?:if)?\b|\bimportorskip\b|\bskipTest\b|(?<![\w.:/])/(root|home|Users|work\w*)/"
)


@pytest.mark.parametrize("path", _files(), ids=_name)
def test_nothing_unfinished_or_local_is_left(path):
    if path != pathlib.Path(__file__).resolve():
        found = _LEFTOVERS.finditer(path.read_text())
        assert not [match.group() for match in found]


@pytest.mark.parametrize("path", _files(), ids=_name)
def test_documents_that_are_mentioned_exist(path):
    documents = {file.name for file in _files() if file.suffix == ".md"}
    mentioned = re.findall(r"([\w-]+\.md)\b", path.read_text())
    assert set(mentioned) <= documents
