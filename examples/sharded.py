# SPDX-License-Identifier: Apache-2.0
"""Record a matrix product that is sharded over four devices, without moving it.

Every device records its own block; the reader puts the whole array together.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

import jax_dmi as dmi

mesh = jax.make_mesh(
    (2, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2
)
a = jax.device_put(
    np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32),
    NamedSharding(mesh, P("rows", None)),
)
b = jax.device_put(
    np.random.default_rng(1).normal(size=(128, 512)).astype(np.float32),
    NamedSharding(mesh, P(None, "columns")),
)


@jax.jit
def product(a, b):
    return dmi.record(a @ b, "product")


with dmi.Monitor("runs/sharded", exist="new") as monitor:
    c = product(a, b)

run = dmi.open_run(monitor.path)
for record in run.select("product"):
    print(f"device {record.device} recorded {record.shape} at {record.index}")
whole = run["product"].global_array()
print("equal to the result of the program:", np.array_equal(whole, np.asarray(c)))
