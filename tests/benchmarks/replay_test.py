# SPDX-License-Identifier: Apache-2.0
"""What can be counted of the replay arena: exact, however busy the machine is."""

from __future__ import annotations

from absl.testing import absltest

from jax_dmi.bench import replay


class CountsTest(absltest.TestCase):
    def test_every_count_is_what_it_should_be(self):
        rows = replay.counts()
        self.assertLen(rows, 16)
        for row in rows:
            self.assertTrue(row.reached, row)
            if "transfers" in row.name:
                self.assertEqual(row.value, 1)


if __name__ == "__main__":
    absltest.main()
