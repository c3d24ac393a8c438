# SPDX-License-Identifier: Apache-2.0
"""Sinks: where the records of a capture go."""

from __future__ import annotations

from jax_dmi.sinks.arrow import ArrowSink as ArrowSink
from jax_dmi.sinks.base import Batch as Batch
from jax_dmi.sinks.base import RunInfo as RunInfo
from jax_dmi.sinks.base import Sink as Sink
from jax_dmi.sinks.callback import CallbackSink as CallbackSink
from jax_dmi.sinks.null import NullSink as NullSink
from jax_dmi.sinks.tee import TeeSink as TeeSink
