"""Clocks that time a sample, caches that are overwritten before it, and inputs that take turns within it.

A GPU's work is timed by two events on its stream: the host returns long before the kernel is done. Where a kernel is
shorter than launching it, the events tell the launch; a graph that holds all calls of a sample leaves the host out.
Everything here takes torch's device module as an argument. It was driven by a pretended one; what has not been seen on
hardware: the resolution of events on ROCm, and that overwriting the Infinity Cache's size twice empties it.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from waveproof.fixtures.products import product_of
from waveproof.kernels.operators.contract import Call

if TYPE_CHECKING:
    import torch

HOST_CLOCK = "time.perf_counter"
"""The clock's name on samples that the host took."""

EVENT_RESOLUTION = 0.5e-6
"""Seconds. CUDA runtime documentation, ``cudaEventElapsedTime``: around 0.5 microseconds; HIP states none."""

IDLE_SECONDS = 200e-6
"""Waiting for a device that is done takes less, unless the host is preempted."""

OVERWRITTEN = 2.0
"""Bytes that are written to empty caches, over the bytes that they hold: no replacement policy is documented."""

UNKNOWN_CACHE_BYTES = 256 << 20
"""Assumed of a CPU that does not tell its caches."""

Run = Callable[[], None]
"""Runs the calls of one sample."""


class NotCapturable(RuntimeError):
    """A call cannot be replayed as a graph; the message says why."""


class Clock(Protocol):
    """Times what a :data:`Run` does. The host's time of the run is measured around it by who calls it."""

    @property
    def name(self) -> str:
        """As it stands on samples."""

    def resolution(self) -> float:
        """The smallest difference that it tells, seconds."""

    def run_of(self, calls: Sequence[Callable[[], object]], number: int) -> Run:
        """What makes that many calls, taking turns among ``calls``; it is warm when this returns."""

    def seconds(self, host_seconds: float) -> float:
        """Of the last run, of which the host's time is given; waits until it is done."""

    def notes(self) -> tuple[str, ...]:
        """What a reader of all samples must know."""


@dataclass
class HostClock:
    """Wall seconds. Calls that return before their work is done are not for this clock."""

    name: str = HOST_CLOCK

    def resolution(self) -> float:
        """As pytest-benchmark computes it: the smallest step between two readings."""
        return _host_resolution()

    def run_of(self, calls: Sequence[Callable[[], object]], number: int) -> Run:
        """A loop; the next run goes on with the inputs after the last."""
        turns = itertools.cycle(calls)

        def run() -> None:
            for call in itertools.islice(turns, number):
                call()

        return run

    def seconds(self, host_seconds: float) -> float:
        """The host's."""
        return host_seconds

    def notes(self) -> tuple[str, ...]:
        """Nothing is to be told."""
        return ()


@functools.cache
def _host_resolution() -> float:
    from pytest_benchmark.timers import compute_timer_precision

    return float(compute_timer_precision(time.perf_counter))


@dataclass
class DeviceClock:
    """Seconds between two events on the current stream of a GPU.

    Raises:
        NotCapturable: by :meth:`run_of`, with ``graph``: capturing failed, or nothing was captured.
    """

    device: Any
    """``torch.cuda``, which is HIP's too, or what has ``Event``, ``CUDAGraph``, ``graph``, ``Stream``, ``stream``,
    ``current_stream`` and ``synchronize`` as it has."""
    graph: bool = False
    samples: int = 0
    launch_bound: int = 0
    """Samples in which the host took as long to launch as the device from first to last."""
    elsewhere: int = 0
    """Samples after whose second event the device worked on, for a quarter of their time or more."""
    _events: tuple[Any, Any] | None = None
    _graphs: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Tells graphs apart: their times hold no launches."""
        return "device events, graph replay" if self.graph else "device events"

    def resolution(self) -> float:
        """Of events, as documented."""
        return EVENT_RESOLUTION

    def run_of(self, calls: Sequence[Callable[[], object]], number: int) -> Run:
        """A loop of launches between two events, or the replay of a graph that holds them all."""
        if self.graph:
            replay = self._captured(calls, number)
            replay()  # the first replay uploads the graph
            self.device.synchronize()
        else:
            turns = itertools.cycle(calls)

            def replay() -> None:
                for call in itertools.islice(turns, number):
                    call()

        def run() -> None:
            start, end = (self.device.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            self._events = start, end

        return run

    def _captured(self, calls: Sequence[Callable[[], object]], number: int) -> Run:
        """One graph of all calls of a sample; torch documentation, "CUDA semantics", "CUDA Graphs"."""
        device = self.device
        aside = device.Stream()
        aside.wait_stream(device.current_stream())
        with device.stream(aside):  # what allocates or initialises on first use must have done so before the capture
            for call in calls:
                call()
        device.current_stream().wait_stream(aside)
        graph = device.CUDAGraph()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*[Gg]raph is empty")
                with device.graph(graph):
                    for call in itertools.islice(itertools.cycle(calls), number):
                        call()
        except (RuntimeError, UserWarning) as error:
            raise NotCapturable(f"no graph of {number} calls: {type(error).__name__}: {error}") from error
        self._graphs.append(graph)  # a graph's memory is freed with it
        replay: Run = graph.replay
        return replay

    def seconds(self, host_seconds: float) -> float:
        """Waits for the second event, then for the device: what a side leaves on other streams would slow the next."""
        if self._events is None:
            raise RuntimeError("no run was timed: seconds() follows a run")
        start, end = self._events
        end.synchronize()
        self._events = None
        taken = float(start.elapsed_time(end)) / 1e3
        waited = time.perf_counter()
        self.device.synchronize()
        self.elsewhere += time.perf_counter() - waited > max(taken / 4, IDLE_SECONDS)
        self.samples += 1
        self.launch_bound += host_seconds >= taken
        return taken

    def notes(self) -> tuple[str, ...]:
        """What happened in a quarter of the samples: half of one side's. A preempted host now and then is no news."""
        notes = []
        if 0 < self.samples <= 4 * self.launch_bound and not self.graph:
            notes.append(
                f"in {self.launch_bound} of {self.samples} samples launching took as long as the device: these are "
                "times of launches; replay a graph to time kernels"
            )
        if 0 < self.samples <= 4 * self.elsewhere:
            notes.append(
                f"in {self.elsewhere} of {self.samples} samples the device worked on after the second event: what a "
                "side runs on another stream is not timed"
            )
        return tuple(notes)


@dataclass
class CacheFlush:
    """Overwrites more than the caches hold, so that the next call finds nothing of its inputs in them.

    It reads and writes: stores alone may pass the caches by.
    """

    buffer: torch.Tensor
    caches_bytes: int
    note: str
    runs: int = 0

    def __call__(self) -> None:
        """Queued on the current stream on a GPU: the next sample's first event comes after it."""
        self.buffer.add_(1)
        self.runs += 1


def device_flush(name: str, device: torch.device | str) -> CacheFlush:
    """For a GPU by its driver's name: twice what all caches hold of its product (``fixtures/products.py``).

    Raises:
        UnknownProduct: the caches of this device are not known, so that no size is sure to empty them.
    """
    caches = sum(cache.memory_bytes for cache in product_of(name).caches)
    return CacheFlush(_buffer(caches, device), caches, f"cold: {caches >> 20} MiB of caches overwritten before samples")


def host_flush(root: Path = Path("/sys/devices/system/cpu")) -> CacheFlush:
    """For the CPUs that this process may use."""
    caches = cpu_caches_bytes(root)
    if caches:
        note = f"cold: {caches >> 20} MiB of caches overwritten before samples"
    else:
        caches = UNKNOWN_CACHE_BYTES
        note = f"cold, perhaps: the CPU does not tell its caches, {caches >> 20} MiB were assumed"
    return CacheFlush(_buffer(caches, "cpu"), caches, note)


def _buffer(caches: int, device: torch.device | str) -> torch.Tensor:
    import torch

    return torch.zeros(math.ceil(caches * OVERWRITTEN / 4), dtype=torch.int32, device=device)


def cpu_caches_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """All data caches of the CPUs that this process may use, each shared one once; 0 where the kernel tells none.

    Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu, ``cache/index*/{type,size,shared_cpu_list}``.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    sizes: dict[tuple[str, str, str], int] = {}
    for cpu in usable:
        for index in root.glob(f"cpu{cpu}/cache/index*"):
            try:
                kind, level, shared, size = (
                    (index / name).read_text().strip() for name in ("type", "level", "shared_cpu_list", "size")
                )
            except OSError:
                continue
            if kind != "Instruction":
                sizes[kind, level, shared] = _bytes(size)
    return sum(sizes.values())


def _bytes(size: str) -> int:
    """``32768K`` as bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(size.rstrip("KMG")) * units.get(size[-1:], 1)


def footprint(call: Call) -> int:
    """Bytes of the storages behind a call's tensors, each once: what its inputs can take up of a cache."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in (one.untyped_storage() for one in tensors_of(call))}
    return sum(storages.values())


def tensors_of(call: Call) -> tuple[torch.Tensor, ...]:
    """A call's arguments that are tensors, in calling order."""
    import torch

    return tuple(value for value in call.arguments.values() if isinstance(value, torch.Tensor))


def copies_beyond(caches_bytes: int, call: Call) -> int:
    """So many copies of a call's inputs that, when their turn comes again, the caches hold other copies' data.

    Raises:
        ValueError: the call has no data.
    """
    if not (size := footprint(call)):
        raise ValueError(f"{call.operator}: no data, so that no number of copies exceeds {caches_bytes} bytes of cache")
    return math.ceil(caches_bytes / size) + 1


def copies_of(call: Call, number: int) -> tuple[Call, ...]:
    """The call and copies of it in memory of their own, with the same strides and offsets.

    Storages are copied whole, so that views of one pool go on sharing one.
    """
    return (call, *(_copied(call) for _ in range(number - 1)))


def _copied(call: Call) -> Call:
    import torch

    storages: dict[int, torch.UntypedStorage] = {}
    copied = {}
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if storage.data_ptr() not in storages:
                storages[storage.data_ptr()] = storage.clone()
            copied[name] = torch.empty(0, dtype=value.dtype, device=value.device).set_(
                storages[storage.data_ptr()], value.storage_offset(), value.size(), value.stride()
            )
    return call.with_arguments(**copied)


def rotating(function: Callable[..., object], calls: Iterable[Call]) -> tuple[Callable[[], object], ...]:
    """A side of a pair: the function on each call's arguments, which take turns."""
    return tuple(functools.partial(function, *call.arguments.values()) for call in calls)
