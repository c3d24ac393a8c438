# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` at a hundred random moments: nothing that was flushed is missing.

One process imports everything, starts no thread of JAX, and forks the processes that
are killed; so a hundred of them start in the time of thirty. Each of them
records on two devices at once, flushes and tells what it flushed; it is killed at a
random moment after it began to open its run.
"""

from __future__ import annotations

import contextlib
import json
import pathlib

from absl.testing import absltest
import numpy as np
import pyarrow as pa

import jax_dmi as dmi
from support import isolated

_KILLS = 100
_SHORT, _LONG = 5, 20_000

_PROGRAM = """
import json, os, random, select, signal, struct, sys, time
import jax
import jax.numpy as jnp
import jax_dmi as dmi

FOLDER, KILLS, SHORT, LONG = sys.argv[1], *map(int, sys.argv[2:])
OPTIONS = dict(
    ring_bytes="1MiB", batch_bytes="128KiB", segment_bytes="1MiB", linger=0.001
)

@jax.jit
def program(x):
    def body(x, _):
        return dmi.record(x + 1, "x"), None
    return jax.lax.scan(body, x, None, length=20)[0]

def record(number, tell):
    import jax_dmi.sinks
    carry = [
        jax.device_put(jnp.zeros(SHORT if d.id else LONG, jnp.float32), d)
        for d in jax.devices()
    ]
    # Compiled before the run begins.
    with dmi.Monitor(sink=dmi.sinks.NullSink(), **OPTIONS):
        jax.block_until_ready([program(x) for x in carry])
    tell(b"begun")
    monitor = dmi.Monitor(f"{FOLDER}/{number}", **OPTIONS).start()
    while True:
        for _ in range(1 + number % 5):
            carry = [program(x) for x in carry]
        monitor.flush()
        tell(b"flush" + struct.pack("qq", *(int(x[0]) for x in carry)))

def child(number, end):
    try:
        signal.alarm(60)
        record(number, lambda message: os.write(end, message))
    except BaseException as error:
        os.write(end, b"error" + repr(error).encode())
    os._exit(1)

def one(number):
    source, end = os.pipe()
    pid = os.fork()
    if not pid:
        child(number, end)
    os.close(end)
    told = os.read(source, 5)
    assert told == b"begun", told + os.read(source, 1000)
    if number % 2:  # Half of them once something was flushed.
        told += os.read(source, 21)
    time.sleep(random.uniform(0, 0.15))
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while piece := os.read(source, 1 << 16):
        told += piece
    os.close(source)
    assert status == -signal.SIGKILL, (status, told[-1000:])
    flushed = told[5:]
    assert b"error" not in flushed, flushed[-1000:]
    return struct.unpack("qq", flushed[-16:]) if flushed else None

random.seed(9)
print(json.dumps([one(number) for number in range(KILLS)]))
"""


def _whole(segment: pathlib.Path) -> tuple[list[int], bool]:
    """Returns the numbers in whole batches, and whether the file is cut behind them.

    Reads with pyarrow alone, as another program would.
    """
    found: list[int] = []
    source = pa.BufferReader(segment.read_bytes())
    end = 0
    with contextlib.suppress(pa.ArrowInvalid, OSError):
        with pa.ipc.open_stream(source) as reader:
            end = source.tell()
            for batch in reader:
                found += batch.column("seq").to_pylist()
                end = source.tell()
            # Now behind the end-of-stream marker, if there is one.
            end = source.tell()
    return found, end == 0 or end < source.size()


class KillTest(absltest.TestCase):
    def test_what_was_flushed_survives_and_the_rest_is_told(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        output = isolated.run_python(
            ["-W", "ignore", "-c", _PROGRAM, str(folder)]
            + [str(n) for n in (_KILLS, _SHORT, _LONG)],
            {
                "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
                "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            },
            240.0,
        )
        moments = json.loads(output)
        self.assertLen(moments, _KILLS)
        for number, flushed in enumerate(moments):
            with self.subTest(number=number, flushed=flushed):
                self.check(folder / str(number), flushed)
        # Before the first flush, and after it.
        self.assertIn(None, moments)
        self.assertGreaterEqual(_KILLS - moments.count(None), _KILLS // 2)

    def check(self, path: pathlib.Path, flushed: list[int] | None) -> None:
        """Holds a run against what its process had flushed, by device."""
        try:
            run = dmi.open_run(path)
        except dmi.RunError:
            # Killed before there was a run.
            self.assertIsNone(flushed)
            return
        report = run.verify()
        self.assertTrue(report.ok, report)
        self.assertFalse(report.closed)
        self.assertEqual((report.missing, report.corrupt), ({}, []))
        cut = {}
        for device in (0, 1):
            count = report.last.get((0, device), -1) + 1
            self.assertGreaterEqual(count, (flushed or (0, 0))[device])
            records = list(run.select(device=device))
            self.assertEqual([r.seq for r in records], list(range(count)))
            size = _SHORT if device else _LONG
            for r in records:
                np.testing.assert_array_equal(r.numpy(), np.full(size, r.seq + 1.0))
            whole = []
            for segment in sorted(path.glob(f"process-0/device-{device}/*.arrow")):
                numbers, torn = _whole(segment)
                whole += numbers
                cut[str(segment.relative_to(path))] = torn
            # The last number is that of the last batch that is whole.
            self.assertEqual(whole, list(range(count)))
        told = {damage.file for damage in report.truncated}
        self.assertEqual(told, {name for name, torn in cut.items() if torn})


if __name__ == "__main__":
    absltest.main()
