# SPDX-License-Identifier: Apache-2.0
"""Several sinks get the same, whatever one of them does."""

from __future__ import annotations

import numpy as np
import pytest

from jax_dmi import errors
from jax_dmi import sinks
from support import batches
from support import stored


class _Sink:
    """Writes down what it is asked to do, and fails at some of it."""

    def __init__(self, *failing: str):
        self.calls: list[str] = []
        self._failing = failing

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self._failing:
            raise ValueError(call)

    def open(self, run_info):
        self._note("open")

    def write(self, batch):
        self._note(f"write {batch.first_seq}")

    def flush(self):
        self._note("flush")

    def close(self):
        self._note("close")


_USUAL = ["open", "write 0", "write 1", "write 2", "flush", "close"]


def _numbered(*numbers: int) -> list[sinks.Batch]:
    return [batches.batch([np.zeros(20)], first_seq=i) for i in numbers]


def _use(tee: sinks.TeeSink) -> None:
    tee.open(batches.run_info())
    try:
        tee.write_many(_numbered(0, 1, 2))
    finally:
        try:
            tee.flush()
        finally:
            tee.close()


def test_every_sink_gets_everything(tmp_path):
    plain, arrow = _Sink(), sinks.ArrowSink(tmp_path / "run")
    tee = sinks.TeeSink(plain, arrow, sinks.NullSink())
    _use(tee)
    assert plain.calls == _USUAL
    assert tee.path == arrow.path == str(tmp_path / "run")
    found = stored.records(*stored.segments(tmp_path / "run"))
    assert [seq for seq, _ in found] == [0, 1, 2]


@pytest.mark.parametrize("call", ["write 1", "flush", "close"])
def test_one_that_fails_does_not_stop_the_others(call):
    before, failing, after = _Sink(), _Sink(call), _Sink()
    with pytest.raises(ValueError, match=call):
        _use(sinks.TeeSink(before, failing, after))
    assert before.calls == failing.calls == after.calls == _USUAL


def test_the_first_error_is_raised():
    with pytest.raises(ValueError, match="write 2"):
        _use(sinks.TeeSink(_Sink("write 2"), _Sink("write 1")))


def test_written_is_what_every_sink_took():
    tee = sinks.TeeSink(_Sink("write 2"), _Sink(), _Sink("write 1"))
    tee.open(batches.run_info())
    with pytest.raises(ValueError) as caught:
        tee.write_many(_numbered(0, 1, 2))
    assert caught.value.written == 1


def test_a_sink_that_does_not_open_closes_those_before():
    first, last = _Sink(), _Sink()
    tee = sinks.TeeSink(first, _Sink("open"), last)
    with pytest.raises(ValueError, match="open"):
        tee.open(batches.run_info())
    tee.close()
    assert first.calls == ["open", "close"]
    assert last.calls == []


def test_accounts_and_syncs_reach_the_sinks_that_know_them(tmp_path):
    plain = _Sink()
    tee = sinks.TeeSink(plain, sinks.ArrowSink(tmp_path / "run"))
    tee.open(batches.run_info())
    tee.note_accounting({"recorded": {"0": 3}})
    tee.sync()
    tee.close()
    assert plain.calls == ["open", "flush", "close"]
    assert stored.manifest(tmp_path / "run")["recorded"] == {"0": 3}


def test_what_is_no_sink_is_refused():
    with pytest.raises(errors.DmiTypeError, match="TeeSink"):
        sinks.TeeSink(print)


def test_the_null_sink_takes_everything():
    tee = sinks.TeeSink(sinks.NullSink())
    _use(tee)
    assert tee.path is None
