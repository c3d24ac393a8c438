# SPDX-License-Identifier: Apache-2.0
# Generated from the built module: cmake --build BUILD --target native_stub
"""Native parts of jax_dmi."""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def crc32c(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int = 0) -> int:
    """crc32c of a contiguous uint8 array, continuing from `seed`."""

def crc32c_implementation() -> str:
    """The instruction set crc32c uses here."""

def copy_repeatedly(to: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C')], from_: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], times: int) -> None:
    """memcpy of `from_` into consecutive places of `to`, `times` times."""

def row_checks(seq: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], site: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], layout: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], step: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], layer: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], labels: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], boundary: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], time: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], flags: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], crc: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,))]:
    """The `check` column of rows; absent steps and layers are 0."""

def registrations() -> dict:
    """{platform: {target: {stage: capsule}}} of the FFI handlers."""

def handler_metadata() -> dict:
    """{target: {platform, traits, api}}, asked of the built handlers."""

def ffi_api_version() -> tuple[int, int]:
    """Version of the XLA FFI headers this module was compiled against."""

def handler_calls() -> int:
    """Calls of dmi_record for CUDA devices; a command buffer makes none."""

def build_info() -> dict:
    """What this module was built with."""

def limits() -> dict:
    """Sizes that cannot be exceeded."""

def site_descriptor(id: int) -> str | None:
    """The descriptor of a site, None where it is unknown."""

def layout_descriptor(id: int) -> str | None:
    """The descriptor of a layout, None where it is unknown."""

def site_ids() -> list[int]:
    """Ids of the instantiated sites, by index."""

def add_site(id: int, descriptor: str) -> int:
    """Adds a site unless it is known; returns the index of its gate."""

def multi_device_site_seen() -> bool:
    """Whether a program of several devices that records was instantiated."""

def orphans() -> int:
    """Records of devices on which nobody ever captured."""

class Batch:
    """
    Consecutive records of one device. Its arrays are read-only and keep the records' memory leased.
    """

    @property
    def device(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def sites(self) -> list[tuple[int, int, int]]:
        """(id, records, bytes) of each site."""

    @property
    def layouts(self) -> list[int]: ...

    @property
    def seq(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]: ...

    @property
    def site(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]: ...

    @property
    def layout(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]: ...

    @property
    def step(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def step_valid(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def layer(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def layer_valid(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def labels(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]: ...

    @property
    def boundary(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), writable=False)]: ...

    @property
    def time(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), writable=False)]: ...

    @property
    def flags(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def crc(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def check(self) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]: ...

    @property
    def views(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    @property
    def payload(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]: ...

    def release(self) -> None:
        """
        Gives up this reference; the memory is free once every array made from the batch is gone too.
        """

class BatchQueue:
    """Batches of all drains, for one consumer."""

    def __init__(self) -> None: ...

    def pop(self, most: int, seconds: float) -> list[Batch]:
        """Waits for batches and takes up to `most`; [] after `seconds`."""

    def close(self) -> None: ...

    @property
    def finished(self) -> bool: ...

    def __len__(self) -> int: ...

def pack_progress(version: int, counter: int) -> int: ...

def unpack_progress(word: int) -> tuple[int, int]: ...

class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None: ...

    def advance(self, ns: int) -> None: ...

    def now(self) -> int: ...

class WindowMatch:
    @property
    def window_index(self) -> int: ...

    @property
    def occurrence(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

class WindowPattern:
    def __init__(self, period: int, windows: Sequence[tuple[int, int]], initial_counter: int = 0) -> None: ...

    @property
    def period(self) -> int: ...

    @property
    def windows(self) -> list[tuple[int, int]]: ...

    @property
    def initial_counter(self) -> int: ...

    def match(self, counter: int) -> WindowMatch | None: ...

    def next_edge(self, counter: int) -> int: ...

class WindowConfig:
    def __init__(self, *, policy: str, minimum_record_probe_retry_interval: int, timing_revalidation_retry_interval: int, capacity_flush_fallback_threshold: int, capacity_flush_count_reset_interval: int, initial_grant_bytes: int | None, chunk_bytes: int, margin: float, watchdog: float, max_age: float, max_grant: int | None, debug: bool) -> None: ...

class Grant:
    @property
    def byte_limit(self) -> int: ...

    @property
    def kind(self) -> str: ...

    @property
    def timing_revalidation(self) -> bool: ...

class GrantPolicy:
    def __init__(self, config: WindowConfig) -> None: ...

    def choose(self, occurrence: int, full_grant_bytes: int, first_record_bytes: int) -> Grant | None: ...

    def observe(self, occurrence: int, bytes: int, overran: bool, grant: Grant) -> bool: ...

    def observe_timing_estimate(self, measured_bytes: int, estimate_bytes: int) -> None: ...

class WindowInfo:
    @property
    def length_ns(self) -> int: ...

    @property
    def max_safe(self) -> int | None: ...

    @property
    def min_unsafe(self) -> int | None: ...

    @property
    def estimate(self) -> int | None: ...

    @property
    def last_grant(self) -> int: ...

    @property
    def occurrences(self) -> int: ...

    @property
    def overruns(self) -> int: ...

class WindowState:
    @property
    def mode(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def pattern(self) -> WindowPattern | None: ...

    @property
    def windows(self) -> list[WindowInfo]: ...

    @property
    def link_bytes_per_second(self) -> float: ...

class Admission:
    @property
    def version(self) -> int: ...

    @property
    def match(self) -> WindowMatch: ...

    @property
    def grant(self) -> Grant: ...

class Attempt:
    @property
    def occurrence(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def overran(self) -> bool: ...

    @property
    def kind(self) -> str: ...

class WindowController:
    """`clock` returns nanoseconds that never go back."""

    def __init__(self, config: WindowConfig, clock: Callable) -> None: ...

    def install_pending(self, version: int, pattern: WindowPattern, keep_learning: bool = False) -> None: ...

    def cancel_pending(self, version: int) -> None: ...

    def reset_for_version_reuse(self) -> None: ...

    def suspend(self) -> None: ...

    def limit_grants(self, bytes: int | None) -> None: ...

    def observe_boundary(self, progress: int, time_ns: int) -> None: ...

    def poll(self, progress: int, full_grant_bytes: int, first_record_bytes: int) -> Admission | None: ...

    def commit(self, admission: Admission, bytes: int, progress: int) -> bool: ...

    def complete(self, admission: Admission, bytes: int, progress: int) -> None: ...

    def note_observation_gap(self) -> None: ...

    def record_capacity_flush(self, progress: int) -> bool: ...

    @property
    def mode(self) -> str: ...

    def state(self) -> WindowState: ...

    def stalled(self) -> bool: ...

    def next_edge(self) -> int: ...

    def timing_estimates(self, window_index: int) -> list[int]: ...

    def attempts(self, window_index: int) -> list[Attempt]: ...

class Capture:
    """Ring and drain of one device for one run."""

    def __init__(self, *, platform: str, ordinal: int, device: int, ring_bytes: int, ring_slots: int, overflow: str, stall_seconds: float, checksum: bool, batch_bytes: int, batch_records: int, linger_seconds: float, queue: BatchQueue, staging_bytes: int = 0, link: SimulatedLink | None = None, clock: ManualClock | None = None, windows: WindowConfig | None = None) -> None: ...

    def start(self, thread: bool = True) -> None: ...

    def turn(self) -> int:
        """
        Does what is due and returns how many nanoseconds may pass until the next turn; for captures without a thread.
        """

    def advance_boundary(self) -> None: ...

    def install_pattern(self, version: int, pattern: WindowPattern, counter: int, keep_learning: bool) -> None: ...

    def suspend_windows(self) -> int: ...

    def reset_versions(self) -> None: ...

    def limit_grants(self, bytes: int | None) -> None: ...

    def window_state(self) -> WindowState: ...

    def stop(self) -> None: ...

    def set_multi_device_step(self, step: int, has_step: bool, recording: bool) -> None: ...

    def set_gates(self, indices: Sequence[int], closed: bool) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def seal(self, seconds: float) -> int:
        """
        Queues every record reserved before the call; returns the sequence after the last one that was.
        """

    @property
    def reserved(self) -> int: ...

    @property
    def queued(self) -> int: ...

    @property
    def pinned(self) -> int: ...

    @property
    def failure(self) -> str: ...

    @property
    def clock_offset(self) -> int:
        """UTC minus the clock of the ring, in ns."""

    @property
    def device(self) -> int: ...

    def lost(self) -> dict: ...

    def by_site(self) -> dict: ...

    def boundaries(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]: ...

    def transfers(self) -> list: ...

class SimulatedLink:
    def __init__(self, *, bytes_per_second: float, latency_seconds: float, jitter: float, seed: int, clock: ManualClock | None) -> None: ...

    def set_rate(self, bytes_per_second: float) -> None: ...

    def fail_after(self, transfers: int) -> None: ...

def cuda_copy_rate(bytes: int, times: int, to_host: bool = True, ordinal: int = 0) -> float:
    """
    Bytes per second of copies from a CUDA device, to pinned memory or to the device.
    """

def control_losses(device: int) -> dict:
    """Records of a device that fired while it had no ring, by reason."""

def deselect(platform: str, ordinal: int, device: int, deselected: bool) -> None:
    """Records of a deselected device are neither kept nor counted."""

REPLAY_ALIGN: int = 64

class ReplayDefinition:
    """The layout of a definition's submissions."""

    def __init__(self, specs: object, tree: object | None) -> None: ...

    @property
    def bytes(self) -> int:
        """Of one submission, padding included."""

    @property
    def live_bytes(self) -> int:
        """Of one submission, padding excluded."""

    @property
    def regions(self) -> list[tuple[int, int]]:
        """Offset and bytes of each argument within a submission."""

class ReplayStaging:
    """Host memory that an image is packed in."""

    def __init__(self) -> None: ...

    @property
    def capacity(self) -> int:
        """Bytes."""

    @property
    def allocations(self) -> int:
        """How often memory was taken."""

    @property
    def leases(self) -> int:
        """Arrays handed out that are still in use."""

    @property
    def number(self) -> int:
        """Names it in programs."""

    def grow(self, bytes: int) -> None:
        """Makes room; what was packed is lost."""

    def fill(self, value: int) -> None:
        """Sets every byte, as an earlier use might have left them."""

class ReplayPlan:
    """The submissions of one upload."""

    def __init__(self, staging: ReplayStaging, definitions: Sequence[object], limit: int = 8589934528) -> None: ...

    def submit(self, definition: int, arguments: object | None) -> int:
        """
        Packs a submission and returns its index, -1 if the arguments are not plainly right, -2 if it does not fit.
        """

    def submit_leaves(self, definition: int, leaves: list) -> int:
        """The same for a flat list of arrays whose dtypes are right."""

    def finish(self, capacity: int) -> Annotated[NDArray[numpy.uint32], dict(shape=(None,), writable=False)]:
        """Completes the image and returns its words."""

    @property
    def bytes(self) -> int:
        """Size of the complete image."""

    @property
    def counts(self) -> list[int]:
        """Submissions by definition."""

class ReplayUpload:
    """An image on its way to CUDA devices; holds its staging."""

    @property
    def passed(self) -> bool:
        """Whether every device has its part."""

def replay_upload(staging: ReplayStaging, used: int, parts: Sequence[tuple[int, int, int]]) -> ReplayUpload:
    """
    Pins staging and lets the calls of dmi_upload that name it copy: for every part, its device's ordinal, its offset and its bytes. Only `used` bytes are transferred, the rest is zero.
    """

def replay_capacity_class(bytes: int, multiple: int) -> int:
    """The size an image of `bytes` is uploaded as."""
