# SPDX-License-Identifier: Apache-2.0
"""``ReplayArena`` and ``Plan``: many submissions, one upload."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import NoReturn
import weakref

import jax

from jax_dmi import _native
from jax_dmi import errors
from jax_dmi.replay import banks as arena_banks
from jax_dmi.replay import checks
from jax_dmi.replay.block import ReplayBlock
from jax_dmi.replay.definition import Definition
from jax_dmi.replay.transfer import Target
from jax_dmi.replay.transfer import Transfer


@dataclasses.dataclass(frozen=True)
class ArenaStats:
    """What an arena has done so far.

    Attributes:
      uploads: Images uploaded.
      copies: Host-to-device transfers: one per upload and device.
      allocations: How often staging memory was taken; none after warm-up.
      grows: How often the capacity or the number of banks grew.
      bytes_uploaded: Bytes transferred to one device, over all uploads: of whole
        images, or on CUDA of what was packed.
      capacity: Bytes of an image as it is uploaded now.
    """

    uploads: int
    copies: int
    allocations: int
    grows: int
    bytes_uploaded: int
    capacity: int


class ReplayArena:
    """Packs the arguments of many submissions into one upload.

    Example:
      >>> arena = dmi.ReplayArena()
      >>> step = arena.define("step", {"ids": jax.ShapeDtypeStruct((8,), jnp.int32)})
      >>> plan = arena.plan()
      >>> for ids in batches:
      ...     plan.submit(step, {"ids": ids})
      >>> block = plan.upload()
      >>> jax.jit(lambda block, i: block.unpack(step, i)["ids"].sum())(block, 3)

    Uploads go through banks in turn, so one can be packed while the last one is
    in use; a bank is used again once its block is gone. All uploads of an arena
    have one size, which grows with the largest of them: programs that take a
    block are compiled once for it, however many submissions it holds.

    Args:
      device: Where uploads go: a device, a sharding over the words of an image,
        as ``NamedSharding(mesh, PartitionSpec())`` for a copy on every device of
        a mesh, or None for the default device.
      banks: How many uploads are held before the arena adds more.

    Raises:
      DmiTypeError: An argument is of the wrong kind.
      DmiValueError: The sharding cannot hold an array of one dimension, or there
        would be no bank.
    """

    def __init__(self, device: Target = None, banks: int = 2) -> None:
        if not isinstance(banks, int) or banks < 1:
            raise errors.DmiValueError(f"banks={banks!r} must be an int of at least 1.")
        self._transfer = Transfer(device)
        self._banks = arena_banks.Banks(banks)
        self._definitions: dict[str, Definition] = {}
        self._uploads = 0
        self._grows = 0
        self._capacity = 0

    def define(self, name: str, arguments: Any) -> Definition:
        """Says what a kind of submission holds.

        Args:
          name: Name; defining it again is fine if the arguments are the same.
          arguments: Pytree of ``jax.ShapeDtypeStruct`` or arrays, of which only
            shape and type matter.

        Raises:
          DmiTypeError: A leaf has no shape or a type no program can hold.
          DmiValueError: The name means something else already, or the arguments
            do not fit an upload.
        """
        definition = Definition(name, arguments)
        shapes = [
            jax.ShapeDtypeStruct(shape, dtype) for _, dtype, shape in definition.leaves
        ]
        definition = Definition(name, jax.tree.unflatten(definition.treedef, shapes))
        known = self._definitions.setdefault(name, definition)
        if known != definition:
            raise errors.DmiValueError(
                f"name={name!r} is defined with other arguments already:"
                f" {known.arguments}; choose another name."
            )
        return known

    def plan(self) -> Plan:
        """Begins an upload of the definitions made so far."""
        return Plan(self, tuple(self._definitions.values()))

    def upload(self, definition: Definition, submissions: Iterable[Any]) -> ReplayBlock:
        """Uploads submissions of one definition: a plan in one call."""
        plan = self.plan()
        for args in submissions:
            plan.submit(definition, args)
        return plan.upload()

    def stats(self) -> ArenaStats:
        """Returns the counters of this arena."""
        return ArenaStats(
            uploads=self._uploads,
            copies=self._transfer.copies,
            allocations=self._banks.allocations,
            grows=self._grows,
            bytes_uploaded=self._transfer.bytes,
            capacity=self._capacity,
        )

    @staticmethod
    def from_run(
        run: Any, arguments: Mapping[str, str], steps: Any = None
    ) -> tuple[Definition, ReplayBlock]:
        """Uploads what a run recorded, as arguments to compute with again.

        Every submission holds the values of one step, and of one layer where they
        are labelled so, in the order of the run.

        Args:
          run: A run, as ``open_run`` returns it.
          arguments: For every argument the name of the site it was recorded at.
          steps: Only these: an int, a range or a collection; None for all.

        Returns:
          The definition, of a dict with the keys of ``arguments``, and the block.

        Raises:
          UnknownNameError: The run has no such site.
          DmiValueError: The sites were not recorded at the same steps.
        """
        from jax_dmi.replay import recorded

        definition, submissions = recorded.collect(run, arguments, steps)
        arena = ReplayArena(banks=1)
        arena._definitions[definition.name] = definition
        return definition, arena.upload(definition, submissions)

    def _claim(self, plan: Plan) -> int:
        """Returns the number of a bank that ``plan`` may pack into."""
        # With room for all of it at once, so that the steady state takes no memory.
        number, added = self._banks.claim(plan, self._capacity)
        self._grows += added
        return number

    def _put(self, plan: _native.ReplayPlan, number: int) -> jax.Array:
        """Uploads the image of a bank and notes what now lives there."""
        size = _native.replay_capacity_class(plan.bytes, self._transfer.multiple)
        capacity = max(size, self._capacity)
        bank = self._banks[number]
        words = self._transfer.put(plan.finish(capacity), plan.bytes, bank.staging)
        self._grows += capacity > self._capacity > 0
        self._capacity = capacity
        self._uploads += 1
        bank.words = weakref.ref(words)
        bank.owner = None
        return words


class Plan:
    """The submissions of one upload, made by ``ReplayArena.plan``.

    A submission is copied when it is made; its arrays can be reused at once. What
    is refused changes nothing.
    """

    def __init__(self, arena: ReplayArena, definitions: tuple[Definition, ...]) -> None:
        self._arena = arena
        self._definitions = definitions
        self._numbers = {d: i for i, d in enumerate(definitions)}
        self._native: _native.ReplayPlan | None = None
        self._bank = -1
        self._uploaded = False

    def submit(self, definition: Definition, args: Any) -> int:
        """Packs the arguments of one submission.

        Args:
          definition: One that the arena had when the plan was begun.
          args: Pytree of the structure that was defined. Leaves are numpy arrays
            of exactly the shapes and types that were defined, contiguous; or for
            scalars also Python numbers that the type holds exactly.

        Returns:
          How many submissions of the definition came before.

        Raises:
          DmiTypeError: An argument is of a kind or type that is not taken.
          DmiValueError: An argument does not fit the definition, or the upload
            has no room for it.
          StateError: The plan was uploaded.
        """
        native = self._native or self._begin()
        try:
            number = self._numbers[definition]
        except (KeyError, TypeError):
            self._complain_of(definition)
        index = native.submit(number, args)
        if index < 0:
            index = self._submit_checked(native, number, index, args)
        return index

    def _submit_checked(
        self, native: _native.ReplayPlan, number: int, index: int, args: Any
    ) -> int:
        definition = self._definitions[number]
        if index == _TURNED_DOWN:
            index = native.submit_leaves(number, checks.leaves_of(definition, args))
        if index < 0:
            raise errors.DmiValueError(
                f"args of {definition.name!r} do not fit: {native.bytes} bytes are"
                f" packed and these are {definition.layout.bytes}; upload in parts of"
                " up to 8 GiB."
            )
        return index

    def upload(self, bank: int | None = None) -> ReplayBlock:
        """Uploads the submissions, with one transfer per device.

        Args:
          bank: Number of the bank to use, which must be free; None for the next
            one that is, or a new one.

        Raises:
          DmiValueError: There is no such bank, or it is in use.
          StateError: The plan was uploaded already.
        """
        native = self._native or self._begin()
        if bank is not None and bank != self._bank:
            self._move(bank)
        words = self._arena._put(native, self._bank)
        counts = tuple(native.counts)
        self._native, self._uploaded = None, True
        return ReplayBlock(words, self._definitions, counts)

    def _begin(self) -> _native.ReplayPlan:
        if self._uploaded:
            raise errors.StateError(
                "The plan was uploaded; begin another one with plan()."
            )
        self._bank = self._arena._claim(self)
        staging = self._arena._banks[self._bank].staging
        layouts = [definition.layout for definition in self._definitions]
        self._native = _native.ReplayPlan(staging, layouts)
        return self._native

    def _move(self, bank: int) -> None:
        banks = self._arena._banks
        if not isinstance(bank, int) or not 0 <= bank < len(banks):
            raise errors.DmiValueError(
                f"bank={bank!r} is none of the {len(banks)} banks; leave it out to take"
                " the next free one."
            )
        if not banks.exchange(self._bank, bank):
            raise errors.DmiValueError(
                f"bank={bank} is in use: its block is still referenced, or another plan"
                " packs into it; drop the block, or leave bank out."
            )
        self._bank = bank

    def _complain_of(self, definition: Any) -> NoReturn:
        if not isinstance(definition, Definition):
            raise errors.DmiTypeError(
                f"definition={definition!r} must be what define() returned."
            )
        raise errors.DmiValueError(
            f"definition={definition.name!r} is not of this plan, which has"
            f" {[d.name for d in self._definitions]}; define before plan()."
        )


_TURNED_DOWN = -1
