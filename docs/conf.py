# SPDX-License-Identifier: Apache-2.0
"""Configuration of Sphinx: ``sphinx-build -W docs docs/_build``.

Needs ``pip install '.[docs]'``: the interface is read from the docstrings.
"""

from __future__ import annotations

import jax_dmi

project = "jax_dmi"
author = "The jax_dmi authors"
version = release = jax_dmi.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"jax_dmi {version}"
# A parameter per line where a signature is long.
maximum_signature_line_length = 72
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
