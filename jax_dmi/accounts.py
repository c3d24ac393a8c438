# SPDX-License-Identifier: Apache-2.0
"""The books of a capture: every record that fired is in exactly one column."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from jax_dmi import _native
from jax_dmi import format as run_format
from jax_dmi import pump
from jax_dmi import spec as capture_spec
from jax_dmi import stats
from jax_dmi import timeline
from jax_dmi import windows


@dataclasses.dataclass(frozen=True)
class _Device:
    """The native counters of one device at one moment."""

    reserved: int
    lost: Mapping[str, int]
    by_site: Mapping[int, tuple[int, Mapping[str, int]]]
    pinned: int
    failure: str


class Accounts:
    """Adds up native counters and the pump's; readable during and after capture."""

    def __init__(
        self, captures: Mapping[int, _native.Capture], sink_pump: pump.SinkPump
    ) -> None:
        self._captures = captures
        self._pump = sink_pump
        self._final: dict[int, _Device] | None = None
        self._lost_at_close: dict[int, dict[str, int]] = {}
        self._final_transfers: list[stats.Transfer] = []
        self._final_boundaries: dict[int, np.ndarray] = {}

    def freeze(self) -> None:
        """Keeps the last numbers, so that the captures can be freed."""
        self._final_transfers = self.transfers()
        self._final_boundaries = {d: self._log(d) for d in self._captures}
        self._lost_at_close = {d: _native.control_losses(d) for d in self._captures}
        self._final = self._devices()
        self._captures = {}

    def _devices(self) -> dict[int, _Device]:
        captures = self._captures
        if self._final is None:
            return {d: _read(capture) for d, capture in captures.items()}
        # Records that fire after close are still counted, on the control block.
        return {
            d: dataclasses.replace(last, lost=stats.merge(last.lost, self._late(d)))
            for d, last in self._final.items()
        }

    def _late(self, device: int) -> dict[str, int]:
        before = self._lost_at_close[device]
        now = _native.control_losses(device)
        return {reason: n - before.get(reason, 0) for reason, n in now.items()}

    def failures(self) -> list[str]:
        """Returns the first failure of each drain, "" for none."""
        return [device.failure for device in self._devices().values()]

    def stats(self, spec: capture_spec.CaptureSpec) -> stats.MonitorStats:
        """Returns the account of everything, by site and by device."""
        # First what was written: it can only be less than what was recorded.
        taken = self._pump.snapshot()
        devices = self._devices()
        by_device = {
            number: self._count(
                device.reserved,
                device.lost,
                [t for (d, _), t in taken.written.items() if d == number],
                [t for (d, _), t in taken.failed.items() if d == number],
            )
            for number, device in devices.items()
        }
        total = self._sum(list(by_device.values()))
        return stats.MonitorStats(
            **{f.name: getattr(total, f.name) for f in dataclasses.fields(total)},
            pinned=sum(device.pinned for device in devices.values()),
            by_site=self._by_site(devices, taken),
            by_device=by_device,
            never_lowered=capture_spec.never_lowered(spec),
        )

    def _by_site(
        self, devices: Mapping[int, _Device], taken: pump.Snapshot
    ) -> dict[str, stats.Counts]:
        found: dict[str, list[stats.Counts]] = {}
        for number, device in devices.items():
            for site, (reserved, lost) in device.by_site.items():
                key = (number, site)
                counts = self._count(
                    reserved,
                    lost,
                    [taken.written[key]] if key in taken.written else [],
                    [taken.failed[key]] if key in taken.failed else [],
                )
                found.setdefault(_site_name(site), []).append(counts)
        return {name: self._sum(parts) for name, parts in sorted(found.items())}

    @staticmethod
    def _count(
        reserved: int,
        lost: Mapping[str, int],
        written: list[tuple[int, int]],
        failed: list[tuple[int, int]],
    ) -> stats.Counts:
        done = sum(records for records, _ in written)
        refused = sum(records for records, _ in failed)
        return stats.Counts(
            recorded=reserved + sum(lost.values()),
            written=done,
            dropped=stats.merge(lost, {"sink": refused}),
            pending=reserved - done - refused,
            bytes=sum(size for _, size in written),
        )

    @staticmethod
    def _sum(parts: list[stats.Counts]) -> stats.Counts:
        return stats.Counts(
            recorded=sum(p.recorded for p in parts),
            written=sum(p.written for p in parts),
            dropped=stats.merge(*(p.dropped for p in parts)),
            pending=sum(p.pending for p in parts),
            bytes=sum(p.bytes for p in parts),
        )

    def for_manifest(self) -> dict[str, Any]:
        """Returns recorded and dropped per device, as JSON data."""
        devices = self._devices()
        return {
            "recorded": {str(d): device.reserved for d, device in devices.items()},
            "dropped": {
                str(d): dict(device.lost)
                for d, device in devices.items()
                if device.lost
            },
        }

    def transfers(self) -> list[stats.Transfer]:
        """Returns the newest transfers, oldest first per device."""
        captures = self._captures
        if self._final is not None:
            return list(self._final_transfers)
        return [
            stats.Transfer(device, *transfer)
            for device, capture in captures.items()
            for transfer in capture.transfers()
        ]

    def boundaries(self, device: int) -> np.ndarray:
        """Returns int64[n, 2], counter and time of the newest boundaries."""
        return self._log(device)[:, 1:].copy()

    def _log(self, device: int) -> np.ndarray:
        """Returns int64[n, 3], version, counter and time of the boundaries."""
        captures = self._captures
        if self._final is not None:
            return self._final_boundaries[device]
        return captures[device].boundaries()

    def timeline(
        self,
        patterns: Mapping[int, Mapping[int, windows.WindowPattern]],
        states: Mapping[int, stats.WindowState],
    ) -> pa.Table:
        """Returns when data moved, of every device, after ``freeze``.

        Args:
          patterns: By device and version.
          states: By device.
        """
        return pa.concat_tables(
            timeline.row(
                device,
                [t for t in self._final_transfers if t.device == device],
                self._final_boundaries[device],
                patterns.get(device, {}),
                states.get(device),
            )
            for device in self._final_boundaries
        )


def _read(capture: _native.Capture) -> _Device:
    # Losses are read before sequences: a record between the two reads counts as
    # pending rather than not at all.
    return _Device(
        lost=capture.lost(),
        by_site=capture.by_site(),
        reserved=capture.reserved,
        pinned=capture.pinned,
        failure=capture.failure,
    )


def _site_name(site: int) -> str:
    descriptor = _native.site_descriptor(site)
    return "?" if descriptor is None else run_format.parse_site(descriptor).name
