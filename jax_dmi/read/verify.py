# SPDX-License-Identifier: Apache-2.0
"""``verify``: what of a run is there, missing, cut off or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from jax_dmi import format as run_format
from jax_dmi import records
from jax_dmi.read import loading
from jax_dmi.read import segments
from jax_dmi.read import storage as run_storage
from jax_dmi.read.damage import Damage

Key = tuple[int, int]

# Damages that a printed report lists.
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What is right and wrong with a run.

    Dropped records take no number, so they are not missing.

    Attributes:
      ok: Whether nothing is missing up to ``last``, and nothing is corrupt.
      closed: Whether the run was ended properly by all its processes, and every
        file ends as it should.
      last: Number of the last whole record, by process and device.
      missing: Numbers up to ``last`` that are not there, by process and device.
      corrupt: Records and parts of files that are not as they were written.
      truncated: Ends of files, or of what a device recorded, that are not there.
      dropped: Records that were lost before they were written, by reason, as far
        as the run was closed.
    """

    ok: bool
    closed: bool
    last: Mapping[Key, int]
    missing: Mapping[Key, list[range]]
    corrupt: list[Damage]
    truncated: list[Damage]
    dropped: Mapping[str, int]

    def __str__(self) -> str:
        lines = [
            "ok" if self.ok else "not ok",
            "closed" if self.closed else "not closed: it is being written, or was cut",
        ]
        for (process, device), seq in sorted(self.last.items()):
            who = f"process {process}, device {device}"
            lines.append(f"{who}: last whole record {seq}")
            gaps = self.missing.get((process, device), [])
            lines += [f"{who}: missing {gap.start} to {gap.stop - 1}" for gap in gaps]
        lines += _listed("corrupt", self.corrupt)
        lines += _listed("truncated", self.truncated)
        lines += [f"dropped, {reason}: {n}" for reason, n in self.dropped.items()]
        return "\n".join(lines)


def _listed(what: str, damages: Sequence[Damage]) -> list[str]:
    lines = [f"{what}: {damage}" for damage in damages[:_SHOWN]]
    if len(damages) > _SHOWN:
        lines.append(f"{what}: and {len(damages) - _SHOWN} more")
    return lines


def verify(path: str) -> VerifyReport:
    """Checks the run at a path as it is now.

    Raises:
      RunError: There is no run, or one of another version.
    """
    return _Verification(path).report()


class _Verification:
    """One pass over a run, and what it found so far."""

    def __init__(self, path: str) -> None:
        self._storage, self._names = loading.find(path)
        self._corrupt: list[Damage] = []
        self._truncated: list[Damage] = []
        self._closed = True
        self._dropped: dict[str, int] = {}
        # Per process and device, the numbers of whole records, and of damaged ones.
        self._whole: dict[Key, list[np.ndarray]] = {}
        self._damaged: dict[Key, list[int]] = {}
        self._header = self._json(run_format.RUN_FILE)
        if self._header is None:
            self._closed = False
            if run_format.RUN_FILE not in self._names:
                self._corrupt.append(
                    Damage(run_format.RUN_FILE, "there is no such file")
                )
        loading.check_version(path, self._header or {})

    def report(self) -> VerifyReport:
        """Checks everything."""
        # Manifests first: what they list has been written by now.
        manifests = self._manifests()
        found = [
            (owner, name)
            for name in self._names
            if (owner := run_storage.owner(name)) is not None
        ]
        found.sort()
        scanned = self._scan(found)
        descriptions = self._survey(scanned)
        tails = {(owner.process, owner.device): name for owner, name in found}
        for one in scanned:
            listed = manifests.get(one.owner.process, {}).get(one.name)
            self._segment(one, listed, descriptions)
        self._absent(manifests, {name for _, name in found})
        self._never_written(tails)
        last, missing = self._numbers()
        return VerifyReport(
            ok=not missing and not self._corrupt,
            closed=self._closed,
            last=last,
            missing=missing,
            corrupt=sorted(self._corrupt, key=_place),
            truncated=sorted(self._truncated, key=_place),
            dropped=self._dropped,
        )

    # --- JSON files ----------------------------------------------------------

    def _json(self, name: str) -> dict[str, Any] | None:
        process = run_storage.process(name)
        try:
            return run_storage.read_json(self._storage, name)
        except (ValueError, OSError) as error:
            reason = f"it cannot be read: {error}"
            self._corrupt.append(Damage(name, reason, process=process))
            return None

    def _manifests(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Returns what the manifests list, by process and name of the segment."""
        self._recorded: dict[Key, int] = {}
        listed: dict[int, dict[str, dict[str, Any]]] = {}
        numbers = {run_storage.process(name) for name in self._names} - {None}
        count = (self._header or {}).get("process_count", 1)
        if isinstance(count, int) and 0 <= count <= 1 << 20:
            numbers |= set(range(count))
        for process in sorted(n for n in numbers if n is not None):
            name = f"{run_format.process_dir(process)}/{run_format.MANIFEST_FILE}"
            manifest = self._json(name) or {}
            self._closed &= manifest.get("closed") is True
            try:
                listed[process] = {
                    str(entry["file"]): _entry(entry)
                    for entry in manifest.get("segments", [])
                }
                self._account(process, manifest)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"it is not understood: {type(error).__name__} {error}"
                self._corrupt.append(Damage(name, reason, process=process))
        return listed

    def _account(self, process: int, manifest: dict[str, Any]) -> None:
        for reasons in manifest.get("dropped", {}).values():
            for reason, n in reasons.items():
                self._dropped[reason] = self._dropped.get(reason, 0) + int(n)
        if manifest.get("closed") is True:
            for device, n in manifest.get("recorded", {}).items():
                self._recorded[process, int(device)] = int(n)

    # --- Segments ------------------------------------------------------------

    def _scan(
        self, found: Sequence[tuple[segments.Owner, str]]
    ) -> list[segments.Scanned]:
        scanned = []
        for owner, name in found:
            try:
                scanned.append(segments.scan(owner, name, self._storage.open(name)))
            except OSError as error:
                where = {"process": owner.process, "device": owner.device}
                reason = f"it cannot be read: {error}"
                self._corrupt.append(Damage(name, reason, **where))
                self._closed = False
        return scanned

    def _survey(self, scanned: Sequence[segments.Scanned]) -> records.Descriptions:
        """Returns all descriptions: those of one segment explain all others, too.

        Finds out which nonce the segments have as well.
        """
        descriptions = records.Descriptions()
        for one in scanned:
            descriptions.add(*one.descriptions())
        header = self._header or {}
        self._nonce = loading.agreed_nonce(header, [one.schema for one in scanned])
        if "nonce" in header and self._nonce is None:
            reason = "its nonce is not the one of its segments"
            self._corrupt.append(Damage(run_format.RUN_FILE, reason))
        return descriptions

    def _segment(
        self,
        scanned: segments.Scanned,
        listed: dict[str, Any] | None,
        descriptions: records.Descriptions,
    ) -> None:
        name, owner = scanned.name, scanned.owner
        where = {"process": owner.process, "device": owner.device}
        segment = segments.read(scanned, thorough=True)
        self._closed &= segment.closed
        size = segment.file.data.size
        if not loading.is_of_run(segment, self._nonce):
            reason = "it belongs to another run"
            self._corrupt.append(Damage(name, reason, 0, size, **where))
            return
        torn = False
        for gap in segment.gaps:
            # A file that is as long as when it was sealed was not cut.
            cut = gap.torn and (
                listed is None or size < listed["bytes"] or segment.ends_in_zeros
            )
            torn |= cut
            part = Damage(name, gap.reason, gap.begin, gap.end, **where)
            (self._truncated if cut else self._corrupt).append(part)
        if not any(gap.begin == 0 for gap in segment.gaps):
            self._schema(segment, where)
        for number in segment.unfit:
            reason = f"the description {number:#x} is damaged"
            self._corrupt.append(Damage(name, reason, **where))
        self._rows(segment, descriptions, where)
        if listed is not None:
            self._compare(segment, listed, torn, where)

    def _schema(self, segment: segments.Segment, where: dict[str, int]) -> None:
        owner = segment.owner
        nonce = (
            (segment.schema or {})
            .get(run_format.META_NONCE, b"")
            .decode(errors="replace")
        )
        right = run_format.segment_schema(
            owner.process, owner.device, owner.number, nonce
        )
        if segment.schema != right.metadata:
            reason = "the schema is damaged"
            self._corrupt.append(Damage(segment.name, reason, **where))

    def _rows(
        self,
        segment: segments.Segment,
        descriptions: records.Descriptions,
        where: dict[str, int],
    ) -> None:
        key = (segment.owner.process, segment.owner.device)
        damaged = self._damaged.setdefault(key, [])
        for row in segment.bad:
            reason = "its row is damaged"
            if row.torn:
                reason = "it lies in zeros at the end of the file"
            part = Damage(
                segment.name, reason, row.begin, row.end, **where, seq=row.seq
            )
            (self._truncated if row.torn else self._corrupt).append(part)
            if row.seq is not None and not row.torn:
                damaged.append(row.seq)
        for seq in segment.wrong_validity:
            reason = "the validity of its step or layer is damaged"
            self._corrupt.append(Damage(segment.name, reason, **where, seq=seq))
        columns = segment.columns
        self._whole.setdefault(key, []).append(columns["seq"])
        known = loading.described(columns["site"], columns["layout"], descriptions)
        unknown = np.flatnonzero(~known).tolist()
        reasons = dict.fromkeys(unknown, "its site is not described")
        wrong = segments.wrong_payloads(segment.file.data, columns)
        reasons.update(dict.fromkeys(wrong, "its payload is damaged"))
        for i, reason in sorted(reasons.items()):
            begin = int(columns["place"][i])
            end = begin + int(columns["size"][i])
            seq = int(columns["seq"][i])
            self._corrupt.append(
                Damage(segment.name, reason, begin, end, **where, seq=seq)
            )

    def _compare(
        self,
        segment: segments.Segment,
        listed: dict[str, Any],
        torn: bool,
        where: dict[str, int],
    ) -> None:
        """Compares a segment with what the manifest tells of it."""
        size = segment.file.data.size
        if segment.records < listed["records"]:
            if not segment.gaps:
                gone = listed["records"] - segment.records
                reason = f"cut between two batches: {gone} records are gone"
                self._truncated.append(
                    Damage(segment.name, reason, size, size, **where)
                )
            return
        if segment.gaps or segment.bad:
            return
        if (segment.records, segment.check) != (listed["records"], listed["check"]):
            reason = "it is not the file that the manifest lists"
            self._corrupt.append(Damage(segment.name, reason, 0, size, **where))
        elif not segment.closed and not torn and size < listed["bytes"] + 8:
            reason = "cut before the end of the stream"
            self._truncated.append(Damage(segment.name, reason, size, size, **where))

    def _absent(
        self, manifests: Mapping[int, Mapping[str, Mapping[str, Any]]], found: set[str]
    ) -> None:
        """Reports segments that were written and are not there."""
        for process, listed in manifests.items():
            for name, entry in listed.items():
                if name in found:
                    continue
                self._closed = False
                self._corrupt.append(
                    Damage(
                        name,
                        f"the file is missing, with the records {entry['first_seq']}"
                        f" to {entry['last_seq']}",
                        process=process,
                        device=entry["device"],
                    )
                )

    def _never_written(self, tails: Mapping[Key, str]) -> None:
        """Reports records at the end that no file was meant to hold."""
        reported = {(d.process, d.device) for d in self._truncated + self._corrupt}
        for key, count in sorted(self._recorded.items()):
            have = [int(seq.max()) for seq in self._whole.get(key, []) if len(seq)]
            first = max(have, default=-1) + 1
            if first < count and key not in reported:
                process, device = key
                folder = f"{run_format.process_dir(process)}/device-{device}"
                reason = f"the records {first} to {count - 1} were never written"
                name = tails.get(key, folder)
                self._truncated.append(
                    Damage(name, reason, process=process, device=device)
                )

    # --- Numbers -------------------------------------------------------------

    def _numbers(self) -> tuple[dict[Key, int], dict[Key, list[range]]]:
        last: dict[Key, int] = {}
        missing: dict[Key, list[range]] = {}
        for key, parts in sorted(self._whole.items()):
            whole = _distinct(np.concatenate(parts))
            if not len(whole):
                continue
            last[key] = int(whole[-1])
            damaged = [seq for seq in self._damaged.get(key, []) if seq < last[key]]
            present = np.append(whole, np.array(damaged, np.uint64))
            gaps = _gaps(_distinct(present))
            if gaps:
                missing[key] = gaps
        return last, missing


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Returns the distinct numbers, sorted; they nearly are, so this is fast."""
    numbers = np.sort(numbers, kind="stable")
    return numbers[np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]]


def _gaps(numbers: np.ndarray) -> list[range]:
    """Returns the numbers from 0 on that are not in a sorted array."""
    before = np.concatenate([np.array([-1]), numbers[:-1].astype(np.int64)])
    jumps = np.flatnonzero(numbers.astype(np.int64) != before + 1)
    return [range(int(before[i]) + 1, int(numbers[i])) for i in jumps]


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an entry of a manifest with its numbers checked."""
    names = ("device", "first_seq", "last_seq", "records", "bytes", "check")
    found = {name: entry[name] for name in names}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is {value!r}")
    return found


def _place(damage: Damage) -> tuple[Any, ...]:
    return (damage.file, damage.begin, -1 if damage.seq is None else damage.seq)
