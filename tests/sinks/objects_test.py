# SPDX-License-Identifier: Apache-2.0
"""Runs in an object store: whole objects, and no append, rename or exclusion."""

from __future__ import annotations

import pathlib

import moto.server
import numpy as np
import pyarrow as pa
from pyarrow import fs
import pytest

from jax_dmi import errors
from jax_dmi import sinks
from jax_dmi.sinks import storage
from support import batches
from support import stored


@pytest.fixture(scope="module")
def endpoint():
    server = moto.server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


class _Bucket:
    """A bucket of the server, named after the test."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.name = name
        self.fs = fs.S3FileSystem(
            access_key="key",
            secret_key="hidden",
            endpoint_override=endpoint,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )
        self._options = f"scheme=http&endpoint_override={endpoint}&region=us-east-1"
        self.fs.create_dir(name)

    def uri(self, path: str) -> str:
        return f"s3://key:hidden@{self.name}/{path}?{self._options}"

    def fetch(self, path: str, to: pathlib.Path) -> pathlib.Path:
        """Copies a run to the local disk."""
        source = f"{self.name}/{path}"
        to.mkdir(exist_ok=True)
        fs.copy_files(source, str(to), self.fs, fs.LocalFileSystem())
        return to

    def delete(self) -> None:
        self.fs.delete_dir(self.name)


@pytest.fixture
def bucket(endpoint, request):
    name = request.node.name.replace("_", "-")[-60:].strip("-")
    return _Bucket(endpoint, name)


def _opened(uri: str, exist: str = "error", /, **info) -> sinks.ArrowSink:
    sink = sinks.ArrowSink(uri, exist=exist)
    sink.open(batches.run_info(**info))
    return sink


def _numbered(first: int, device: int = 0, size: int = 40) -> sinks.Batch:
    values = [np.full(size, i, np.int64) for i in range(first, first + 4)]
    return batches.batch(values, first_seq=first, device=device)


def _numbers(run: pathlib.Path, device: int = 0) -> list[int]:
    found = stored.records(*stored.segments(run, device))
    assert all(set(np.frombuffer(p, np.int64).tolist()) == {i} for i, p in found)
    return [i for i, _ in found]


def test_a_run_in_a_bucket(bucket, tmp_path):
    sink = _opened(bucket.uri("runs/a"))
    sink.write_many([_numbered(0), _numbered(4), _numbered(0, device=1)])
    sink.write(_numbered(8))
    sink.note_accounting({"recorded": {"0": 12, "1": 4}})
    sink.sync()
    sink.close()
    run = bucket.fetch("runs/a", tmp_path / "run")
    assert _numbers(run) == list(range(12))
    assert _numbers(run, 1) == list(range(4))
    manifest = stored.manifest(run)
    assert manifest["closed"]
    assert manifest["recorded"] == {"0": 12, "1": 4}
    assert [(run / s["file"]).stat().st_size for s in manifest["segments"]] == [
        s["bytes"] for s in manifest["segments"]
    ]


def test_flush_makes_what_was_written_visible(bucket, tmp_path):
    sink = _opened(bucket.uri("run"))
    for number in range(3):
        sink.write(_numbered(4 * number))
        sink.flush()
        run = bucket.fetch("run", tmp_path / f"{number}")
        assert _numbers(run) == list(range(4 * number + 4))
        assert len(stored.manifest(run)["segments"]) == number + 1
        assert all(map(stored.is_sealed, stored.segments(run)))
    sink.close()


def test_batches_larger_than_a_part_of_an_upload(bucket, tmp_path):
    sink = _opened(bucket.uri("run"))
    sink.write_many([_numbered(4 * i, size=1 << 19) for i in range(3)])
    sink.close()
    assert _numbers(bucket.fetch("run", tmp_path / "run")) == list(range(12))


def test_a_run_that_exists_is_refused(bucket):
    _opened(bucket.uri("run")).close()
    with pytest.raises(errors.RunExistsError, match="run'") as caught:
        _opened(bucket.uri("run"))
    assert "hidden" not in str(caught.value)
    second = _opened(bucket.uri("run"), "new", nonce="b")
    assert second.path == bucket.uri("run-2")
    second.close()


def test_another_process_joins(bucket, tmp_path):
    uri = bucket.uri("run")
    first = _opened(uri, process_count=2)
    second = _opened(uri, process=1, process_count=2, path=first.path)
    second.write(_numbered(0))
    second.close()
    first.close()
    with pytest.raises(errors.RunExistsError):
        _opened(uri, process=1, process_count=2, path=first.path)
    run = bucket.fetch("run", tmp_path / "run")
    assert stored.manifest(run, 1)["segments"][0]["records"] == 4


def test_a_bucket_that_is_not_there_is_named(bucket):
    bucket.delete()
    with pytest.raises(errors.RunError, match=f"{bucket.name}/run'") as caught:
        _opened(bucket.uri("run"))
    assert "hidden" not in str(caught.value)


def test_a_bucket_that_goes_away_is_reported_and_what_is_lost_with_it(bucket):
    sink = _opened(bucket.uri("run"))
    sink.write(_numbered(0))
    sink.write(_numbered(4))
    bucket.delete()
    with pytest.raises(errors.RunError, match="8 records of device 0.*are lost"):
        sink.flush()
    with pytest.raises(errors.RunError, match="manifest"):
        sink.close()


# --- Any other file system of pyarrow ----------------------------------------


class _Stream:
    """A stream that fails when told to."""

    def __init__(self, stream: pa.NativeFile, failing: set[str]) -> None:
        self._stream = stream
        self._failing = failing

    def _fail(self, call: str) -> None:
        if call in self._failing:
            self._failing.remove(call)
            raise OSError(f"{call} failed")

    def write(self, data) -> None:
        # Small writes are headers and metadata.
        if len(data) > 1000:
            self._fail("write")
        self._stream.write(data)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()
        self._fail("close")


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Calls that fail once; runs at memory:// are in the temporary directory."""
    calls: set[str] = set()
    place = storage.ObjectStorage(
        fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "run"
    )
    create = place.segment

    def segment(name):
        file = create(name)
        file._stream = _Stream(file._stream, calls)
        return file

    monkeypatch.setattr(place, "segment", segment)
    monkeypatch.setattr(storage, "connect", lambda uri: place)
    return calls


def test_a_failed_write_is_tried_again_in_a_new_object(failing, tmp_path):
    sink = _opened("memory://run")
    sink.write(_numbered(0))
    failing.add("write")
    sink.write_many([_numbered(4, size=400), _numbered(8)])
    sink.close()
    assert _numbers(tmp_path / "run") == list(range(12))
    assert len(stored.segments(tmp_path / "run")) == 2


def test_an_object_that_is_not_taken_is_reported_with_its_records(failing, tmp_path):
    sink = _opened("memory://run")
    sink.write(_numbered(0))
    failing.add("close")
    with pytest.raises(errors.RunError, match="4 records of device 0, from number 0"):
        sink.flush()
    sink.write(_numbered(4))
    sink.close()
    manifest = stored.manifest(tmp_path / "run")
    assert manifest["lost"] == [
        {"device": 0, "first_seq": 0, "last_seq": 3, "records": 4}
    ]
    assert [s["first_seq"] for s in manifest["segments"]] == [4]
