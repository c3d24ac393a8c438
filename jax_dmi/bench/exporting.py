# SPDX-License-Identifier: Apache-2.0
"""Exporting a run, against writing the same arrays with the library.

The library gets the arrays out of memory, and the export has to read the run.
"""

from __future__ import annotations

from collections.abc import Callable
import pathlib
import shutil

import pyarrow as pa
import pyarrow.parquet as pq

import jax_dmi as dmi
from jax_dmi import errors
from jax_dmi.bench import files
from jax_dmi.bench import harness
from jax_dmi.bench import reading
from jax_dmi.bench import scan

_TOTAL = 256 << 20
_SIZE = 64 << 10
_REACH = 0.7
_ROUNDS = 9


def run() -> list[harness.Row]:
    """Measures Parquet and safetensors files of 64 KiB records."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise errors.DmiError(
            "exporting is measured against safetensors; pip install safetensors"
        ) from error
    with files.folder() as folder:
        reading.capture(folder / "run", _SIZE, _TOTAL // _SIZE)
        opened = dmi.open_run(folder / "run")
        arrays = {
            f"x@seq={record.seq}": record.numpy().copy() for record in opened.select()
        }

        def to_parquet(path: pathlib.Path) -> None:
            table = pa.table(
                {
                    "name": list(arrays),
                    "payload": pa.array(
                        [value.data.cast("B") for value in arrays.values()],
                        pa.binary(),
                    ),
                }
            )
            pq.write_table(
                table,
                path,
                compression="none",
                use_dictionary=["name"],  # pyright: ignore[reportArgumentType]
                write_statistics=["name"],  # pyright: ignore[reportArgumentType]
            )

        def to_safetensors(path: pathlib.Path) -> None:
            safetensors.numpy.save_file(arrays, path)

        return [
            _row(opened, "parquet", to_parquet, folder),
            _row(opened, "safetensors", to_safetensors, folder),
        ]


def _row(
    opened: dmi.Run,
    kind: str,
    write: Callable[[pathlib.Path], None],
    folder: pathlib.Path,
) -> harness.Row:
    def exported() -> float:
        files.warm_pages(folder, _TOTAL)
        seconds = harness.timed(lambda: opened.export(folder / "out", kind))
        shutil.rmtree(folder / "out")
        return seconds

    def written() -> float:
        files.warm_pages(folder, _TOTAL)
        seconds = harness.timed(lambda: write(folder / "plain"))
        (folder / "plain").unlink()
        return seconds

    seconds = harness.rounds({"export": exported, "library": written}, count=_ROUNDS)
    return harness.row(
        f"exporting: the library alone / export, {kind}, {scan.size_name(_SIZE)}",
        harness.ratios(seconds["library"], seconds["export"]),
        _REACH,
        at_least=True,
        detail=f"{harness.rate(_TOTAL, seconds['export'])} /"
        f" {harness.rate(_TOTAL, seconds['library'])}",
    )
