# SPDX-License-Identifier: Apache-2.0
"""Programs that record under every transformation, and what has to come out.

All arithmetic is on small whole numbers, exact in float32 however XLA fuses it, so
payloads are compared bit by bit. ``r`` records the value of every execution; a
program that loses records in a mode says so in ``exact`` or ``fast``.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from jax_dmi.ops import record

X = np.array([1.0, 2.0, -1.0, 0.0], np.float32)
SINCE_0_12 = jax.__version_info__ >= (0, 12)

Values = list[tuple[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A program of ``X`` and the records it ought to make.

    Attributes:
      program: The function.
      values: ``(name, payload)`` of every record, in any order.
      exact: How many of them come out in exact mode; None for all.
      fast: How many come out in fast mode; None for as many as in exact mode.
      jit: Whether the whole program is jitted.
      reported: Whether a record is listed as never lowered, in exact and in fast
        mode; None where that is so exactly if nothing comes out.
    """

    program: Callable[[Any], Any]
    values: Values
    exact: int | None = None
    fast: int | None = None
    jit: bool = True
    reported: tuple[bool, bool] | None = None

    def count(self, exact: bool) -> int:
        """How many records come out in one of the modes."""
        found = len(self.values) if self.exact is None else self.exact
        return found if exact or self.fast is None else self.fast

    def is_reported(self, exact: bool) -> bool:
        """Whether a record is listed as never lowered in one of the modes."""
        if self.reported is not None:
            return self.reported[not exact]
        return self.count(exact) == 0


# --- Building blocks ---------------------------------------------------------


def square(x: Any) -> Any:
    return record(x * x, "r")


def double(x: Any) -> Any:
    return record(x * 2, "r")


def scan(body: Callable) -> Callable:
    def program(x):
        return lax.scan(lambda c, _: (body(c), None), x, None, length=5)[0]

    return program


def fori(body: Callable) -> Callable:
    return lambda x: lax.fori_loop(0, 5, lambda i, c: body(c), x)


def while_(body: Callable) -> Callable:
    def program(x):
        def step(state):
            return state[0] + 1, body(state[1])

        return lax.while_loop(lambda s: s[0] < 5, step, (jnp.int32(0), x))[1]

    return program


def cond(body: Callable) -> Callable:
    return lambda x: lax.cond(x[0] > 0, body, lambda x: record(x, "not_taken"), x)


def total(f: Callable) -> Callable:
    return lambda x: f(x).sum()


def unused(f: Callable) -> Callable:
    def program(x):
        f(x)
        return x + 1

    return program


def named(name: str, values: Any) -> Values:
    return [(name, np.asarray(v, np.float32)) for v in values]


def chain(step: Callable, n: int) -> Values:
    """The values of ``x = step(x)``, n times from ``X``."""
    values, x = [], X
    for _ in range(n):
        x = step(x)
        values.append(x)
    return named("r", values)


SQUARES = chain(lambda x: x * x, 5)
DOUBLES = chain(lambda x: x * 2, 5)
ONE = SQUARES[:1]


# --- Plain control flow ------------------------------------------------------

CASES: dict[str, Case] = {
    "jit": Case(square, ONE),
    "eager": Case(square, ONE, jit=False),
    "unused_at_top_level": Case(unused(square), ONE),
    "identical_twice": Case(lambda x: square(x) + square(x), ONE * 2),
    "scan": Case(scan(square), SQUARES),
    "fori": Case(fori(square), SQUARES),
    "while": Case(while_(square), SQUARES),
    "eager_scan": Case(scan(square), SQUARES, jit=False),
    "loop_invariant_in_scan": Case(lambda x: scan(lambda c: c + square(x))(x), ONE * 5),
    "cond_taken": Case(cond(square), ONE),
    "cond_not_taken": Case(lambda x: cond(square)(-x), named("not_taken", [-X])),
    "map": Case(lambda x: lax.map(square, x), named("r", X * X)),
    "vmap": Case(jax.vmap(square), ONE),
    "eager_vmap": Case(jax.vmap(square), ONE, jit=False),
    "vmap_of_cond_with_batched_predicate": Case(
        jax.vmap(
            lambda x: lax.cond(
                x > 0, lambda x: record(x * 2, "a"), lambda x: record(x * 3, "b"), x
            )
        ),
        named("a", [X * 2]) + named("b", [X * 3]),
    ),
    "vmap_of_scan": Case(jax.vmap(scan(square)), SQUARES),
}


def _combinations() -> Values:
    seen = []

    def add(a, b):
        seen.append(np.asarray(a + b))
        return a + b

    lax.associative_scan(add, jnp.asarray(X))
    return named("r", seen)


CASES["associative_scan"] = Case(
    lambda x: lax.associative_scan(lambda a, b: record(a + b, "r"), x),
    _combinations(),
)

_WRAPPERS: dict[str, Callable] = {
    "jit": jax.jit,
    "scan": scan,
    "cond": cond,
    "checkpoint": jax.checkpoint,
}


def values_of(wrapper: str, values: Values) -> Values:
    return values if wrapper == "scan" else values[:1]


for _name, _wrap in {**_WRAPPERS, "while": while_, "fori": fori}.items():
    if _name != "checkpoint":
        _loop = _name in ("scan", "while", "fori")
        CASES[f"unused_{_name}"] = Case(
            unused(_wrap(square)), SQUARES if _loop else ONE, fast=0
        )


# --- Differentiation ---------------------------------------------------------


def _loses_unused_primal(wrapper: str) -> bool:
    """Whether fast mode loses a value that only derivatives are asked for."""
    return wrapper == "jit" or (wrapper == "cond" and SINCE_0_12)


def _derivatives(wrapper: str, wrap: Callable) -> dict[str, Case]:
    f = wrap(square)
    values = values_of(wrapper, SQUARES)
    lost = 0 if _loses_unused_primal(wrapper) else None
    return {
        "value_and_grad": Case(jax.value_and_grad(total(f)), values),
        "grad": Case(jax.grad(total(f)), values, fast=lost),
        "jvp": Case(lambda x: jax.jvp(f, (x,), (x,)), values),
        "vjp": Case(lambda x: jax.vjp(f, x)[1](x), values, fast=lost),
        "linearize": Case(lambda x: jax.linearize(f, x)[1](x), values, fast=lost),
        "jacfwd": Case(jax.jacfwd(f), values),
        "jacrev": Case(jax.jacrev(f), values, fast=lost),
        "hessian": Case(jax.hessian(total(f)), values, fast=lost),
        "jacfwd_of_jacrev": Case(jax.jacfwd(jax.jacrev(f)), values, fast=lost),
        "jacrev_of_jacrev": Case(
            jax.jacrev(jax.jacrev(f)),
            values,
            fast=0 if wrapper in ("jit", "cond") else None,
        ),
        "grad_of_checkpoint": Case(jax.grad(total(jax.checkpoint(f))), values, fast=0),
    }


def _linear(wrapper: str, wrap: Callable) -> dict[str, Case]:
    """A value that no derivative needs, so that only the record asks for it."""
    f = wrap(double)
    values = values_of(wrapper, DOUBLES)
    return {
        "value_and_grad": Case(jax.value_and_grad(total(f)), values),
        "grad": Case(
            jax.grad(total(f)), values, fast=None if wrapper == "checkpoint" else 0
        ),
        "grad_of_checkpoint": Case(jax.grad(total(jax.checkpoint(f))), values, fast=0),
    }


for _name, _wrap in _WRAPPERS.items():
    for _what, _case in _derivatives(_name, _wrap).items():
        CASES[f"{_what}_of_{_name}"] = _case
    for _what, _case in _linear(_name, _wrap).items():
        CASES[f"{_what}_of_linear_{_name}"] = _case

CASES |= {
    "value_and_grad": Case(jax.value_and_grad(total(square)), ONE),
    "hessian": Case(jax.hessian(total(square)), ONE),
    "eager_value_and_grad": Case(jax.value_and_grad(total(square)), ONE, jit=False),
    "eager_grad_of_scan": Case(jax.grad(total(scan(square))), SQUARES, jit=False),
    "eager_grad_of_checkpoint": Case(
        jax.grad(total(jax.checkpoint(square))), ONE, jit=False
    ),
    "value_and_grad_of_map": Case(
        jax.value_and_grad(total(lambda x: lax.map(square, x))), named("r", X * X)
    ),
    "value_and_grad_of_scan_of_checkpoint": Case(
        jax.value_and_grad(total(scan(jax.checkpoint(square)))), SQUARES
    ),
    "value_and_grad_of_nested_checkpoint": Case(
        jax.value_and_grad(
            total(jax.checkpoint(lambda x: jax.checkpoint(square)(square(x))))
        ),
        SQUARES[:2],
    ),
    # The inner checkpoint is the last of the outer: nobody uses its value.
    "grad_of_nested_checkpoint": Case(
        jax.grad(total(jax.checkpoint(lambda x: jax.checkpoint(square)(square(x))))),
        SQUARES[:2],
        fast=1,
        reported=(False, True),
    ),
    "jvp_of_while": Case(lambda x: jax.jvp(while_(square), (x,), (x,)), SQUARES),
    "jacfwd_of_while": Case(jax.jacfwd(while_(square)), SQUARES),
    # A loop without a known length is run again for its linear part.
    "linearize_of_while": Case(
        lambda x: jax.linearize(while_(square), x)[1](x), SQUARES * 2, fast=5
    ),
    # JAX moves what does not change out of the loop before it differentiates.
    "grad_of_loop_invariant_in_scan": Case(
        jax.grad(total(lambda x: scan(lambda c: c * square(x))(x))), ONE * 5, exact=1
    ),
}


# --- Custom derivatives ------------------------------------------------------


@jax.custom_vjp
def with_custom_vjp(x):
    return square(x)


with_custom_vjp.defvjp(
    lambda x: (record(x * x, "fwd"), x),
    lambda x, g: (record(2 * x * g, "bwd"),),
)


@jax.custom_jvp
def _custom_jvp(x):
    return square(x)


@_custom_jvp.defjvp
def _custom_jvp_rule(primals, tangents):
    return _custom_jvp(primals[0]), 2 * primals[0] * tangents[0]


@jax.custom_jvp
def _with_recorded_tangent(x):
    return x * x


@_with_recorded_tangent.defjvp
def _with_recorded_tangent_rule(primals, tangents):
    return primals[0] * primals[0], record(2 * primals[0] * tangents[0], "r")


_TANGENT = named("r", [2 * X * X])


def backward(n: int) -> list[np.ndarray]:
    """The cotangents of ``n`` squarings of ``X`` that are summed up."""
    inputs = [X, *[v for _, v in SQUARES]][:n]
    values, g = [], np.ones_like(X)
    for x in reversed(inputs):
        g = 2 * x * g
        values.append(g)
    return values


def _renamed(name: str, values: Values) -> Values:
    return [(name, v) for _, v in values]


CASES |= {
    "custom_vjp": Case(with_custom_vjp, ONE),
    "value_and_grad_of_custom_vjp": Case(
        jax.value_and_grad(total(with_custom_vjp)),
        _renamed("fwd", ONE) + named("bwd", backward(1)),
    ),
    "value_and_grad_of_scan_of_custom_vjp": Case(
        jax.value_and_grad(total(scan(with_custom_vjp))),
        _renamed("fwd", SQUARES) + named("bwd", backward(5)),
        # Traced with the loop, and then superseded by the rule for gradients.
        reported=(True, True),
    ),
    "jvp_of_recorded_tangent": Case(
        lambda x: jax.jvp(_with_recorded_tangent, (x,), (x,)), _TANGENT
    ),
    # Reverse mode never computes the tangent.
    "grad_of_recorded_tangent": Case(
        jax.grad(total(_with_recorded_tangent)), _TANGENT, exact=0
    ),
    "linear_transpose": Case(
        lambda x: jax.linear_transpose(double, x)(x), _TANGENT, exact=0
    ),
    "custom_jvp": Case(_custom_jvp, ONE),
    "jvp_of_custom_jvp": Case(lambda x: jax.jvp(_custom_jvp, (x,), (x,)), ONE),
    "value_and_grad_of_custom_jvp": Case(jax.value_and_grad(total(_custom_jvp)), ONE),
    "grad_of_custom_jvp": Case(jax.grad(total(_custom_jvp)), ONE, fast=0),
    "grad_of_scan_of_custom_jvp": Case(
        jax.grad(total(scan(_custom_jvp))), SQUARES, reported=(True, True)
    ),
}
