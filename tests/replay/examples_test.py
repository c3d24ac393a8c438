# SPDX-License-Identifier: Apache-2.0
"""The examples of replay run and find what they look for."""

from __future__ import annotations

import pathlib

from absl.testing import absltest

from support import isolated

_EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def _run(name: str) -> str:
    return isolated.run_python([str(_EXAMPLES / name)], {}, timeout=200)


class ExamplesTest(absltest.TestCase):
    def test_decoding_gives_the_same_tokens_with_one_transfer_each(self):
        # The example itself compares the tokens.
        shown = _run("decode_replay.py")
        self.assertRegex(shown, r"plain arguments +1040 +\d")
        self.assertRegex(shown, r"replay arena +1 +\d")
        self.assertRegex(shown, r"replay arena, scan +1 +\d")

    def test_bisecting_finds_the_changed_layer(self):
        shown = _run("bisect_replay.py")
        self.assertIn("the changed layer is 4", shown)


if __name__ == "__main__":
    absltest.main()
