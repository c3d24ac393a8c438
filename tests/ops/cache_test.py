# SPDX-License-Identifier: Apache-2.0
"""Programs with records in JAX's persistent compilation cache."""

from __future__ import annotations

import json
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from support import backend
from support import isolated


def _run(folder: str, names: list[str], devices: int, exact: bool) -> dict:
    """Compiles and runs one program in a new process; returns what it saw."""
    arguments = [__file__, backend.platform(), *names, str(int(exact))]
    environment = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return json.loads(isolated.run_python(arguments, environment, 60))


def _child(names: list[str], exact: bool) -> dict:
    import jax
    from jax.sharding import Mesh
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P
    import numpy as np

    from jax_dmi import ops
    from jax_dmi.ops import partition
    from support import capture

    partitions, misses = [], []
    inner = partition._layout
    partition._layout = lambda *args: partitions.append(0) or inner(*args)
    jax.monitoring.register_event_listener(
        lambda event, **_: misses.append(event) if "cache_misses" in event else None
    )

    def program(x):
        x = ops.record(x * 2, names[0], step=7)
        return ops.advance_boundary(ops.record(x + 1, names[1], layer=1))

    x = np.arange(8, dtype=np.float32)
    if jax.device_count() > 1:
        mesh = Mesh(np.array(jax.devices()), ("a",))
        x = jax.device_put(x, NamedSharding(mesh, P("a")))
    found = capture.counted(jax.jit(program), x, same_spec=True, exact=exact)
    values = {name: [] for name in names}
    for r in sorted(found.records, key=lambda r: r.device):
        values[r.name] += r.payload.tolist()
    return {
        "values": values,
        "boundaries": sum(found.boundaries.values()),
        "partitions": len(partitions),
        "misses": len(misses),
    }


class CacheTest(parameterized.TestCase):
    @parameterized.product(devices=[1, 4], exact=[True, False])
    def test_a_second_process_finds_the_program(self, devices, exact):
        doubled = [2.0 * i for i in range(8)]
        values = {"p": doubled, "q": [v + 1 for v in doubled]}
        with tempfile.TemporaryDirectory() as folder:
            first = _run(folder, ["p", "q"], devices, exact)
            second = _run(folder, ["p", "q"], devices, exact)
            swapped = _run(folder, ["q", "p"], devices, exact)
        for found in (first, second):
            self.assertEqual(found["values"], values)
            self.assertEqual(found["boundaries"], devices)
        self.assertGreater(first["misses"], 0)
        self.assertEqual(second["misses"], 0)
        self.assertEqual(second["partitions"], 0)
        self.assertEqual(bool(first["partitions"]), devices > 1)
        # Sites of equal shape are told apart.
        self.assertEqual(swapped["values"], {"q": values["p"], "p": values["q"]})


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("cpu", "cuda"):
        platform, *names, exact = sys.argv[1:]
        backend.use_platform(platform)
        print(json.dumps(_child(names, exact == "1")))
    else:
        absltest.main()
