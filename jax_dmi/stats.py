# SPDX-License-Identifier: Apache-2.0
"""What a Monitor reports: plain values, compared by value."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from jax_dmi import windows as transfer_windows
from jax_dmi.spec import Site


@dataclasses.dataclass(frozen=True)
class Counts:
    """The account of a site or a device.

    ``recorded`` records fired; each is in exactly one of the others.

    Attributes:
      recorded: Records the program made.
      written: Records the sink has taken.
      dropped: Records lost, by reason: ``overflow`` (ring full under
        ``overflow="drop"``), ``stalled`` (ring full and the stall budget spent),
        ``too_large`` (over half the ring), ``closed`` (fired after close),
        ``forked`` (in a forked child), ``sink`` (the sink raised).
      pending: Records on their way.
      bytes: Payload bytes written.
    """

    recorded: int = 0
    written: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pending: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class MonitorStats:
    """The account of a Monitor: ``Counts`` of everything, and more.

    Attributes:
      recorded: Records the program made.
      written: Records the sink has taken.
      dropped: Records lost, by reason, see ``Counts``.
      pending: Records on their way.
      pinned: Payload bytes that a sink still holds.
      bytes: Payload bytes written.
      by_site: The same account per name.
      by_device: The same account per global device id.
      never_lowered: Sites that were traced but reached no program; of all
        Monitors of this process with an equal capture spec.
    """

    recorded: int = 0
    written: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pending: int = 0
    pinned: int = 0
    bytes: int = 0
    by_site: Mapping[str, Counts] = dataclasses.field(default_factory=dict)
    by_device: Mapping[int, Counts] = dataclasses.field(default_factory=dict)
    never_lowered: list[Site] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class FlushResult:
    """What a flush moved.

    Attributes:
      records: Records written since the flush before.
      bytes: Their payload bytes.
      dropped: Records lost since the flush before.
      seconds: How long the flush took.
    """

    records: int
    bytes: int
    dropped: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One transfer from a device ring to the host.

    Attributes:
      device: Global device id.
      begin_ns: When it began, UTC.
      end_ns: When its last byte had landed, UTC.
      bytes: Payload bytes.
      kind: ``"window"``, ``"batch"`` (an ordinary flush rule) or ``"forced"`` (a
        full ring, a flush, or close).
      version: Version of the window pattern in force, 0 for none.
      window_index: The window it was granted in, for kind ``"window"``.
      occurrence: Which occurrence of that window.
      begin_counter: Boundaries the program had passed when it began.
      end_counter: Boundaries the program had passed when it ended.
    """

    device: int
    begin_ns: int
    end_ns: int
    bytes: int
    kind: str
    version: int
    window_index: int
    occurrence: int
    begin_counter: int
    end_counter: int


@dataclasses.dataclass(frozen=True)
class WindowInfo:
    """What is known of one window of a pattern.

    Attributes:
      length_ns: How long it lasts, a short one of the last; None before one was
        seen from its first to its last boundary.
      max_safe: Most bytes that one occurrence carried in time; None for none, and
        once fewer were too many.
      min_unsafe: Fewest bytes that were too many for one; None for none, and once
        more were in time.
      estimate: Bytes that a whole occurrence should carry.
      last_grant: Bytes granted in the last occurrence that carried any.
      occurrences: How many occurrences carried any.
      overruns: How many transfers ended after their window.
    """

    length_ns: int | None
    max_safe: int | None
    min_unsafe: int | None
    estimate: int | None
    last_grant: int
    occurrences: int
    overruns: int


@dataclasses.dataclass(frozen=True)
class WindowState:
    """What the windows of one device are and learned.

    Attributes:
      mode: ``"no_pattern"``, ``"active"`` (transfers keep to windows),
        ``"suspended"``, or ``"fallback"`` (the ring was full too often: ordinary
        batching for some periods).
      version: Of the pattern, counted up whenever one is installed; 0 for none.
      pattern: The pattern that was installed last.
      windows: One entry per window of the pattern.
      link_bytes_per_second: Measured rate of the link, None before it was.
    """

    mode: str
    version: int
    pattern: transfer_windows.WindowPattern | None
    windows: list[WindowInfo]
    link_bytes_per_second: float | None


def merge(*dropped: Mapping[str, int]) -> dict[str, int]:
    """Adds up losses by reason; reasons without losses are left out."""
    total: dict[str, int] = {}
    for losses in dropped:
        for reason, count in losses.items():
            if count:
                total[reason] = total.get(reason, 0) + count
    return total
