# SPDX-License-Identifier: Apache-2.0
"""A jaxlib that would refuse the handlers is named at import, with a remedy."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from jax_dmi import _ffi_version
from jax_dmi import _native


def _header(folder: pathlib.Path, major: int, minor: int) -> pathlib.Path:
    header = folder / "c_api.h"
    header.write_text(
        "// Major version of the API.\n"
        f"#define XLA_FFI_API_MAJOR {major}\n"
        "#define XLA_FFI_API_MAJOR_IS_STABLE 0\n"
        f"#define XLA_FFI_API_MINOR {minor}\n"
    )
    return header


def _fake_installed(monkeypatch, header: pathlib.Path | None) -> None:
    monkeypatch.setattr(_ffi_version, "_installed_header", lambda: header)


def test_the_installed_jaxlib_is_accepted():
    _ffi_version.check()


def test_the_module_is_built_against_the_oldest_supported_headers():
    assert tuple(_native.ffi_api_version()) == (0, 3)


@pytest.mark.parametrize("newer", [0, 1, 20])
def test_an_equal_or_newer_minor_version_is_accepted(monkeypatch, tmp_path, newer):
    major, minor = _native.ffi_api_version()
    _fake_installed(monkeypatch, _header(tmp_path, major, minor + newer))
    _ffi_version.check()


def test_an_older_jaxlib_is_refused_with_both_versions_and_a_remedy(
    monkeypatch, tmp_path
):
    major, minor = _native.ffi_api_version()
    _fake_installed(monkeypatch, _header(tmp_path, major, minor - 1))
    with pytest.raises(ImportError) as caught:
        _ffi_version.check()
    message = str(caught.value)
    assert f"XLA FFI {major}.{minor}," in message
    assert f"XLA FFI {major}.{minor - 1}:" in message
    assert "upgrade jaxlib" in message and "rebuild jax_dmi" in message


def test_another_major_version_is_refused(monkeypatch, tmp_path):
    major, _ = _native.ffi_api_version()
    _fake_installed(monkeypatch, _header(tmp_path, major + 1, 0))
    with pytest.raises(ImportError, match="Install a newer jax_dmi"):
        _ffi_version.check()


def test_a_jaxlib_without_headers_is_not_refused(monkeypatch):
    _fake_installed(monkeypatch, None)
    _ffi_version.check()


def test_a_header_that_declares_no_version_is_not_refused(monkeypatch, tmp_path):
    header = tmp_path / "c_api.h"
    header.write_text("#pragma once\n")
    _fake_installed(monkeypatch, header)
    _ffi_version.check()


_REFUSED_IMPORT = """
import importlib.machinery, importlib.util, sys
find = importlib.util.find_spec
def faked(name, package=None):
    if name != "jaxlib":
        return find(name, package)
    spec = importlib.machinery.ModuleSpec("jaxlib", None, is_package=True)
    spec.submodule_search_locations = [sys.argv[1]]
    return spec
importlib.util.find_spec = faked
try:
    import jax_dmi
except ImportError as error:
    assert "no JAX backend would start" in str(error), error
else:
    raise SystemExit("the import was not refused")
import jax
print(jax.numpy.arange(3).sum())
"""


def test_jax_still_works_after_a_refused_import(tmp_path):
    folder = tmp_path / "include/xla/ffi/api"
    folder.mkdir(parents=True)
    _header(folder, 0, 0)
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED_IMPORT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"


def _environment() -> dict[str, str]:
    import os

    package = pathlib.Path(_native.__file__).parent.parent
    return os.environ | {"PYTHONPATH": str(package), "JAX_PLATFORMS": "cpu"}
