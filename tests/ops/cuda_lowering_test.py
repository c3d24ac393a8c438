# SPDX-License-Identifier: Apache-2.0
"""What programs for CUDA hold, lowered by a process that has no GPU."""

from __future__ import annotations

import re

from absl.testing import absltest
import jax
import numpy as np

from jax_dmi import _native
from jax_dmi import ops
from jax_dmi import spec as capture_spec

_X = np.ones((8, 8), np.float32)
_CALL = re.compile(
    r"custom_call @(\w+)\(([^)]*)\) \{.*?mhlo\.backend_config = \{(.*?)\}, "
    r"operand_layouts.*\} : \(([^)]*)\) -> (.*)"
)


def _calls(f, *args, exact=True):
    """Returns (target, attributes, operand types, result type, aliased) of each."""
    with capture_spec.overriding(capture_spec.CaptureSpec(exact=exact)):
        text = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    found = []
    for line in text.splitlines():
        if "custom_call" not in line:
            continue
        target, _, attributes, operands, result = _CALL.search(line).groups()
        names = re.findall(r"(\w+) = ", re.sub(r'"[^"]*"', '""', attributes))
        assert "has_side_effect = true" in line, line
        found.append(
            (
                target,
                sorted(names),
                operands,
                result,
                re.findall(r"operand_index = (\d+)", line),
            )
        )
    return found


_RECORD_ATTRIBUTES = [
    "layout",
    "layout_descriptor",
    "multi",
    "recorders",
    "roles",
    "site",
    "site_descriptor",
]
_SCRATCH = "tensor<8xui64>"


class CudaLoweringTest(absltest.TestCase):
    def test_a_record_is_one_call_with_scratch_and_without_a_copy(self):
        for exact in (True, False):
            calls = _calls(lambda x: ops.record(x, "r") + 1, _X, exact=exact)
            self.assertEqual(
                calls,
                [("dmi_record", _RECORD_ATTRIBUTES, "tensor<8x8xf32>", _SCRATCH, [])],
            )

    def test_labels_are_operands_of_the_device(self):
        def f(x, i):
            return ops.record(x, "r", layer=i, labels={"k": i * 2}, when=i > 0)

        ((target, _, operands, _, _),) = _calls(f, _X, 3)
        self.assertEqual(target, "dmi_record")
        self.assertEqual(
            sorted(operands.split(", ")),
            ["tensor<8x8xf32>", "tensor<i1>", "tensor<i32>", "tensor<i32>"],
        )

    def test_a_boundary_goes_through_a_scalar_in_place_where_there_is_one(self):
        calls = _calls(lambda x, s: ops.advance_boundary((x, s)), _X, np.float32(1))
        scalar = "tensor<f32>"
        self.assertEqual(calls, [("dmi_advance", ["role"], scalar, scalar, ["0"])])

    def test_elsewhere_it_goes_through_a_constant_that_nothing_is_written_to(self):
        word = "tensor<ui32>"
        self.assertEqual(
            _calls(ops.advance_boundary, _X),
            [("dmi_advance", ["role"], word, word, [])],
        )

    def test_records_and_boundaries_in_scan_stand_once_in_its_body(self):
        def f(x):
            def body(c, i):
                c = ops.advance_boundary(ops.record(c, "r", layer=i))
                return c * 2, None

            return jax.lax.scan(body, x, np.arange(5))[0]

        targets = [call[0] for call in _calls(f, _X)]
        self.assertEqual(sorted(targets), ["dmi_advance", "dmi_record"])

    def test_every_call_has_a_handler_of_that_platform_where_cuda_is_built(self):
        registered = _native.registrations()
        if not _native.build_info()["cuda"]["built"]:
            self.assertEqual(list(registered), ["cpu"])
            return
        self.assertLessEqual(set(registered["cpu"]), set(registered["CUDA"]))
        self.assertIn("initialize", registered["CUDA"]["dmi_record"])
        handlers = _native.handler_metadata()
        for name in registered["cpu"]:
            self.assertEqual(handlers[f"{name}@CUDA"]["traits"], 1, name)


if __name__ == "__main__":
    absltest.main()
