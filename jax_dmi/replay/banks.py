# SPDX-License-Identifier: Apache-2.0
"""Banks: what packs the next upload while the last one is in use."""

from __future__ import annotations

import dataclasses
from typing import Any
import weakref

import jax

from jax_dmi import _native


@dataclasses.dataclass(eq=False)
class Bank:
    """Staging memory and what was last uploaded from it.

    Attributes:
      staging: Where images are packed.
      words: The array of the block that was uploaded from it.
      owner: The plan that is packing into it.
    """

    staging: _native.ReplayStaging = dataclasses.field(
        default_factory=_native.ReplayStaging
    )
    words: weakref.ref[jax.Array] | None = None
    owner: weakref.ref[Any] | None = None

    @property
    def live(self) -> bool:
        """Whether the block of it, or a transfer from it, is still there."""
        # The lease outlives the block where the runtime kept the memory itself.
        alive = self.words is not None and self.words() is not None
        return alive or self.staging.leases > 0

    @property
    def free(self) -> bool:
        """Whether a plan may pack into it."""
        owner = self.owner and self.owner()
        return owner is None and not self.live


class Banks:
    """The banks of an arena, taken in turn."""

    def __init__(self, count: int) -> None:
        self._banks = [Bank() for _ in range(count)]
        self._next = 0

    def __len__(self) -> int:
        return len(self._banks)

    def __getitem__(self, number: int) -> Bank:
        return self._banks[number]

    @property
    def allocations(self) -> int:
        """How often any of them took memory."""
        return sum(bank.staging.allocations for bank in self._banks)

    def claim(self, owner: Any) -> tuple[int, bool]:
        """Gives a free bank to ``owner``; returns its number and if it is new."""
        count = len(self._banks)
        for step in range(count):
            number = (self._next + step) % count
            if self._banks[number].free:
                break
        else:
            number = count
            self._banks.append(Bank())
        self._banks[number].owner = weakref.ref(owner)
        self._next = (number + 1) % len(self._banks)
        return number, number == count

    def exchange(self, one: int, other: int) -> None:
        """Swaps the staging of two banks, and with it who packs into them."""
        a, b = self._banks[one], self._banks[other]
        a.staging, b.staging = b.staging, a.staging
        a.owner, b.owner = b.owner, a.owner
