# SPDX-License-Identifier: Apache-2.0
"""Whether the boundaries of a jaxpr wait for one another.

XLA keeps the order that data dependence asks for, and no other. A loop or a branch
is one operation to it: it waits for all its operands, and so does what uses any of
its results. A call is not, so its inputs and outputs are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

from jax.extend import core


class _Behind(NamedTuple):
    """What a value waits for.

    Attributes:
      inputs: The inputs of the jaxpr, one bit each.
      passed: The latest boundary, counted from 1; 0 for none.
    """

    inputs: int = 0
    passed: int = 0


@dataclasses.dataclass(frozen=True)
class Flow:
    """How boundaries lie between the inputs and the outputs of a jaxpr.

    Attributes:
      before: The inputs that the first boundary waits for, one bit each.
      outputs: For each output the inputs it waits for, and whether it waits for the
        last boundary.
    """

    before: int
    outputs: tuple[tuple[int, bool], ...]


class Order:
    """Follows the equations of a jaxpr, in order."""

    def __init__(self, inputs: Sequence[core.Var]) -> None:
        self._behind: dict[Any, _Behind] = {
            var: _Behind(inputs=1 << i) for i, var in enumerate(inputs)
        }
        self._passed = 0
        self._before = 0

    def follow(self, eqn: core.JaxprEqn, boundaries: int, flow: Flow | None) -> bool:
        """Adds an equation; returns whether its boundaries wait for the ones before.

        Args:
          eqn: The equation.
          boundaries: How many it passes.
          flow: How they lie in it; None where it is one operation.
        """
        operands = [self._get(atom) for atom in eqn.invars]
        of_all = _latest(operands)
        if not boundaries:
            self._set(eqn, [of_all] * len(eqn.outvars))
            return True
        if flow is None:
            flow = Flow(-1, ((-1, True),) * len(eqn.outvars))
        first = _latest(_chosen(operands, flow.before))
        if not self._passed:
            self._before = first.inputs
        waits = first.passed == self._passed
        self._passed += 1
        outputs = []
        for inputs, after in flow.outputs:
            behind = _latest(_chosen(operands, inputs))
            if after:
                behind = _Behind(behind.inputs | first.inputs, self._passed)
            outputs.append(behind)
        self._set(eqn, outputs)
        return waits

    def flow(self, outputs: Sequence[Any]) -> Flow | None:
        """Returns how the boundaries lie; None where there are none."""
        if not self._passed:
            return None
        found = map(self._get, outputs)
        return Flow(
            self._before, tuple((b.inputs, b.passed == self._passed) for b in found)
        )

    def _get(self, atom: Any) -> _Behind:
        if isinstance(atom, core.Literal):
            return _Behind()
        return self._behind.get(atom, _Behind())

    def _set(self, eqn: core.JaxprEqn, outputs: list[_Behind]) -> None:
        self._behind.update(zip(eqn.outvars, outputs))


def _latest(values: Iterable[_Behind]) -> _Behind:
    inputs = passed = 0
    for value in values:
        inputs |= value.inputs
        passed = max(passed, value.passed)
    return _Behind(inputs, passed)


def _chosen(operands: list[_Behind], bits: int) -> Iterable[_Behind]:
    return (operand for i, operand in enumerate(operands) if bits >> i & 1)
