# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file of a run."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Damage:
    """A part of a file that cannot be read, or whose content is wrong.

    Attributes:
      file: Path of the file, relative to the run.
      reason: What is wrong, in words.
      begin: Where the part begins, in bytes.
      end: Where it ends.
      process: The process whose records are concerned, None for all.
      device: Their device, None for all.
      seq: Number of the record that is damaged, if only one is.
    """

    file: str
    reason: str
    begin: int = 0
    end: int = 0
    process: int | None = None
    device: int | None = None
    seq: int | None = None

    def __str__(self) -> str:
        record = "" if self.seq is None else f" record {self.seq}:"
        extent = f" (bytes {self.begin} to {self.end})" if self.end else ""
        return f"{self.file}:{record} {self.reason}{extent}"
