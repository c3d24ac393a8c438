# SPDX-License-Identifier: Apache-2.0
"""The subcommands of ``jax-dmi``, one module each."""
