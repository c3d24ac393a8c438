# SPDX-License-Identifier: Apache-2.0
"""Every private JAX name and every version branch of this package.

Nothing outside this folder imports from ``jax._src``. The supported range starts
at jax 0.10.2; where a release changed the shape of a rule, the rule is written
once here in our terms and adapted to the installed version.
"""

from __future__ import annotations

from jax_dmi._compat.arrays import is_ready as is_ready
from jax_dmi._compat.arrays import put_copy as put_copy
from jax_dmi._compat.context import enclosing_operations as enclosing_operations
from jax_dmi._compat.context import handler_ordinal as handler_ordinal
from jax_dmi._compat.context import handler_platform as handler_platform
from jax_dmi._compat.context import in_default_context as in_default_context
from jax_dmi._compat.context import lowering_platforms as lowering_platforms
from jax_dmi._compat.context import Placement as Placement
from jax_dmi._compat.context import placement as placement
from jax_dmi._compat.context import publish as publish
from jax_dmi._compat.context import receive as receive
from jax_dmi._compat.context import tracing as tracing
from jax_dmi._compat.context import varying_axes as varying_axes
from jax_dmi._compat.context import varying_axes_are_known as varying_axes_are_known
from jax_dmi._compat.jaxprs import frames as frames
from jax_dmi._compat.modules import build_module as build_module
from jax_dmi._compat.modules import calls_before as calls_before
from jax_dmi._compat.modules import constant as constant
from jax_dmi._compat.modules import ffi_call as ffi_call
from jax_dmi._compat.modules import partitioned_call as partitioned_call
from jax_dmi._compat.modules import rank as rank
from jax_dmi._compat.modules import register_partitioner as register_partitioner
from jax_dmi._compat.modules import scratch_type as scratch_type
from jax_dmi._compat.modules import tie as tie
from jax_dmi._compat.modules import with_sharding_of_type as with_sharding_of_type
from jax_dmi._compat.rules import apply_primitive as apply_primitive
from jax_dmi._compat.rules import def_batching as def_batching
from jax_dmi._compat.rules import def_jvp as def_jvp
from jax_dmi._compat.rules import def_kept as def_kept
from jax_dmi._compat.rules import def_lowering as def_lowering
from jax_dmi._compat.rules import def_once_under_remat as def_once_under_remat
from jax_dmi._compat.rules import def_passed_back as def_passed_back
from jax_dmi._compat.rules import def_transpose as def_transpose
from jax_dmi._compat.rules import Effect as Effect
from jax_dmi._compat.rules import Primitive as Primitive
from jax_dmi._compat.rules import primitive as primitive
from jax_dmi._compat.rules import register_effect as register_effect
from jax_dmi._compat.rules import Zero as Zero
