# SPDX-License-Identifier: Apache-2.0
"""Configuration of Sphinx: ``sphinx-build docs docs/_build``."""

from __future__ import annotations

project = "jax_dmi"
author = "The jax_dmi authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_title = "jax_dmi"
