"""A GPU that only counts time: streams, events and graphs as ``torch.cuda`` has them, for the tests of timing.

Kernels take the seconds that they say. The host's time is real and short, so that what a sample takes on this device is
known exactly. There is one cache: a kernel is slower when its data was overwritten there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from waveproof.perf.clocks import ClockRecord
from waveproof.perf.device_timing import CacheFlush, DeviceClock
from waveproof.perf.instruments import Instruments

COLD = 3.0
"""A kernel takes so many times as long when its data is not in the cache."""


class CaptureFailed(RuntimeError):
    """As HIP and CUDA refuse to synchronise while a stream is captured."""


@dataclass
class PretendedGPU:
    """Stands in for the module ``torch.cuda``."""

    drift: float = 1.0
    """Each kernel takes so many times as long as the one before."""
    seconds: float = 0.0
    """Of work queued since the beginning."""
    launches: int = 0
    replays: int = 0
    waits: int = 0
    flushes: int = 0
    elsewhere: float = 0.0
    """Real seconds for which another stream is busy after the events of a sample."""
    cached: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    """Kernels and flushes in the order in which they ran."""
    _slower: float = 1.0
    _captured: list[Callable[[], None]] | None = None

    def kernel(self, name: str, seconds: float) -> Callable[[], None]:
        """A call that launches one kernel."""

        def work() -> None:
            self._slower *= self.drift
            self.seconds += seconds * self._slower * (1.0 if name in self.cached else COLD)
            self.cached.add(name)
            self.log.append(name)

        def call() -> None:
            self.launches += 1
            if self._captured is None:
                work()
            else:
                self._captured.append(work)

        return call

    def flush(self) -> None:
        """Empties the cache, which takes time on the stream."""
        self.cached.clear()
        self.flushes += 1
        self.seconds += 1.0
        self.log.append("flush")

    def synchronize(self) -> None:
        """Waits for all streams, which a capture does not allow."""
        self.wait()
        time.sleep(self.elsewhere)

    def wait(self) -> None:
        """For the stream on which there are events."""
        if self._captured is not None:
            raise CaptureFailed("operation not permitted when stream is capturing")
        self.waits += 1

    def Event(self, enable_timing: bool = False) -> _Event:
        """Of ``torch.cuda``."""
        return _Event(self, enable_timing)

    def Stream(self) -> _Stream:
        """Of ``torch.cuda``."""
        return _Stream()

    def current_stream(self) -> _Stream:
        """Of ``torch.cuda``."""
        return _Stream()

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """Of ``torch.cuda``."""
        yield

    def CUDAGraph(self) -> _Graph:
        """Of ``torch.cuda``."""
        return _Graph(self)

    @contextmanager
    def graph(self, graph: _Graph) -> Iterator[None]:
        """Of ``torch.cuda``: launches within are held, not run; torch warns where there was none."""
        self._captured = graph.work
        try:
            yield
        finally:
            self._captured = None
        if not graph.work:
            warnings.warn("The CUDA Graph is empty. This usually means that the graph was attempted to be captured on "
                          "wrong device or stream.", stacklevel=2)  # fmt: skip


@dataclass
class _Event:
    gpu: PretendedGPU
    timing: bool
    at: float | None = None
    waited: bool = False

    def record(self) -> None:
        self.at = self.gpu.seconds

    def synchronize(self) -> None:
        self.gpu.wait()
        self.waited = True

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds; like the real ones it refuses events that do not time or have not happened."""
        if not (self.timing and end.timing and end.waited) or self.at is None or end.at is None:
            raise RuntimeError("Both events must be recorded, timed and completed before calculating elapsed time.")
        return (end.at - self.at) * 1e3


@dataclass
class _Stream:
    def wait_stream(self, stream: _Stream) -> None:
        """Nothing runs at once here."""


@dataclass
class _Graph:
    gpu: PretendedGPU
    work: list[Callable[[], None]] = field(default_factory=list)

    def replay(self) -> None:
        self.gpu.replays += 1
        for work in self.work:
            work()


class PretendedFlush(CacheFlush):
    """Empties the pretended GPU's cache."""

    def __init__(self, gpu: PretendedGPU) -> None:
        buffer: Any = None
        super().__init__(buffer, 0, "cold: pretended")
        self._gpu = gpu

    def __call__(self) -> None:
        self._gpu.flush()
        self.runs += 1


def quiet() -> ClockRecord:
    """A driver that knows everything, and that nothing happened."""
    return ClockRecord("pretended", 2.1e9, 2.1e9, 300.0, 1400.0, 50.0, (), {})


def instruments(
    gpu: PretendedGPU, graph: bool = False, cold: bool = False, driver: Callable[[], ClockRecord] = quiet
) -> Instruments:
    """What measures on the pretended GPU."""
    return Instruments(DeviceClock(gpu, graph), driver, PretendedFlush(gpu) if cold else None)
