# SPDX-License-Identifier: Apache-2.0
"""Runs in an object store are read as those on the disk."""

from __future__ import annotations

import moto.server
import numpy as np
from pyarrow import fs
import pytest

from jax_dmi import errors
from jax_dmi import read
from support import runs
from support.runs import Rec


@pytest.fixture(scope="module")
def store():
    """A function from a path to a URI in a bucket."""
    server = moto.server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = "{}:{}".format(*server.get_host_and_port())
    bucket = fs.S3FileSystem(
        access_key="key",
        secret_key="hidden",
        endpoint_override=endpoint,
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    bucket.create_dir("bucket")
    options = f"scheme=http&endpoint_override={endpoint}&region=us-east-1"
    yield lambda path: f"s3://key:hidden@bucket/{path}?{options}"
    server.stop()


def test_a_run_in_an_object_store_is_read(store):
    uri = store("runs/one")
    writer = runs.Writer(uri)
    values = [np.arange(i, i + 5000, dtype=np.float64) for i in range(6)]
    writer.write(*(Rec(value, step=i) for i, value in enumerate(values[:4])))
    writer.flush()
    writer.write(*(Rec(value, step=4 + i) for i, value in enumerate(values[4:])))
    assert len(read.open_run(uri)) == 4
    writer.close()
    run = read.open_run(uri)
    np.testing.assert_array_equal(run["x"].stack(), np.stack(values))
    assert run.attrs == {"note": "test"}
    report = run.verify()
    assert report.ok and report.closed


def test_no_run_in_an_object_store_is_a_clear_error(store):
    with pytest.raises(errors.RunError, match="runs/none") as caught:
        read.open_run(store("runs/none"))
    assert "hidden" not in str(caught.value)
