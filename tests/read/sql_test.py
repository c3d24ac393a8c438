# SPDX-License-Identifier: Apache-2.0
"""SQL over a run."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest

from jax_dmi import errors
from jax_dmi import read
from support import runs
from support.runs import Rec


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> read.Run:
    path = tmp_path_factory.mktemp("runs") / "run"
    records = [
        Rec(np.full(4, i, np.float32), "ab"[i % 2], step=i // 2, labels={"t": i / 2})
        for i in range(10)
    ]
    runs.write(path, records[:7], records[7:])
    return read.open_run(path)


def test_records_and_sites_are_tables(run):
    found = run.sql(
        "select name, count(*) as n, max(step) as last, avg(labels.t) as t"
        " from records group by name order by name"
    )
    assert isinstance(found, pa.Table)
    assert found.to_pylist() == [
        {"name": "a", "n": 5, "last": 4, "t": 2.0},
        {"name": "b", "n": 5, "last": 4, "t": 2.5},
    ]
    joined = run.sql(
        "select r.seq from records r join sites s using (name)"
        " where s.dtype = 'float32' and step = 3 order by seq"
    )
    assert joined.column("seq").to_pylist() == [6, 7]


def test_payloads_are_there_when_they_are_named(run):
    found = run.sql("select payload, shape from records where seq = 3").to_pylist()
    assert found == [{"payload": np.full(4, 3, np.float32).tobytes(), "shape": [4]}]
    assert "payload" not in run.sql("select * from records").column_names


@pytest.mark.parametrize("query", ["selec", "select x from records", "select * from r"])
def test_a_wrong_query_is_explained(run, query):
    with pytest.raises(errors.DmiValueError, match="records and sites"):
        run.sql(query)


def test_variables_of_the_caller_are_no_tables(run):
    recordz = run.table()
    assert len(recordz)
    with pytest.raises(errors.DmiValueError, match="recordz"):
        run.sql("select * from recordz")


def test_a_missing_duckdb_is_explained(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(errors.DmiError, match="pip install duckdb"):
        run.sql("select 1")
