# SPDX-License-Identifier: Apache-2.0
"""Banks: what packs the next upload while the last one is in use."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any
import weakref

import jax

from jax_dmi import _native
from jax_dmi.replay import uploads


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
        if self.words is not None and self.words() is not None:
            return True
        # The lease outlives the block where the runtime kept the memory itself,
        # or has not copied it yet.
        if self.staging.leases > 0:
            uploads.land()
        return self.staging.leases > 0

    @property
    def free(self) -> bool:
        """Whether a plan may pack into it."""
        owner = self.owner and self.owner()
        return owner is None and not self.live


class Banks:
    """The banks of an arena, taken in turn; plans of several threads may take them."""

    def __init__(self, count: int) -> None:
        self._banks = [Bank() for _ in range(count)]
        self._next = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._banks)

    def __getitem__(self, number: int) -> Bank:
        return self._banks[number]

    @property
    def allocations(self) -> int:
        """How often any of them took memory."""
        return sum(bank.staging.allocations for bank in self._banks)

    def claim(self, owner: Any, capacity: int) -> tuple[int, bool]:
        """Gives a free bank to ``owner``.

        Args:
          owner: Who packs into it.
          capacity: Bytes it must have room for.

        Returns:
          Its number and whether it is new.
        """
        with self._lock:
            count = len(self._banks)
            turns = (number % count for number in range(self._next, self._next + count))
            number = next((n for n in turns if self._banks[n].free), count)
            bank = self._banks[number] if number < count else Bank()
            # May fail for lack of memory, and then nothing was changed.
            bank.staging.grow(capacity)
            if number == count:
                self._banks.append(bank)
            bank.owner = weakref.ref(owner)
            self._next = (number + 1) % len(self._banks)
            return number, number == count

    def exchange(self, one: int, other: int) -> bool:
        """Swaps staging and owner of a bank with those of another.

        Returns:
          False if the other is in use; then nothing was changed.
        """
        with self._lock:
            a, b = self._banks[one], self._banks[other]
            if not b.free:
                return False
            a.staging, b.staging = b.staging, a.staging
            a.owner, b.owner = b.owner, a.owner
            return True
