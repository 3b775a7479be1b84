"""What a pair is measured with: a clock, the driver's readings, what empties the caches; and how long a sample is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from waveproof.perf.clocks import Reader, read_host, reader_of
from waveproof.perf.device_timing import CacheFlush, Clock, DeviceClock, HostClock, Run, device_flush, host_flush

if TYPE_CHECKING:
    import torch


class WrongClock(ValueError):
    """The plan's clock cannot time these sides; the message holds the clock and where the data is."""


@dataclass(frozen=True)
class Instruments:
    """What a pair is measured with; selftests give pretended ones."""

    clock: Clock
    driver: Reader
    """Asked for clocks and throttling before and after."""
    flush: CacheFlush | None = None
    """Called before each sample; None where caches stay warm."""
    build_caches: tuple[Path, ...] = ()
    """Folders of compile caches; files that change there while samples are taken are noted."""


def instruments_for(clock: Literal["host", "device"], graph: bool = False, cold: bool = False) -> Instruments:
    """A clock of this machine, its driver's readings and, for cold caches, what overwrites them.

    Raises:
        WrongClock: the clock is a device's and there is no GPU.
        UnknownProduct: cold caches on a GPU whose caches are not known.
    """
    from waveproof.fixtures.launched.builds import cache_directories

    if clock == "host":
        return Instruments(HostClock(), read_host, host_flush() if cold else None, cache_directories())
    import torch

    if not torch.cuda.is_available():
        raise WrongClock("clock = 'device': torch sees no GPU")
    flush = device_flush(torch.cuda.get_device_name(), "cuda") if cold else None
    driver = reader_of(torch.cuda.get_device_properties(torch.cuda.current_device()), torch.version.hip is not None)
    return Instruments(DeviceClock(torch.cuda, graph), driver, flush, cache_directories())


def refuse_clock(clock: Literal["host", "device"], inputs: Sequence[torch.Tensor]) -> None:
    """Host times of a GPU's work are times of launching it, and a GPU's events see nothing of a CPU's work.

    Raises:
        WrongClock: an input is not where the clock is.
    """
    wrong = sorted({one.device.type for one in inputs if (one.device.type == "cpu") != (clock == "host")})
    if wrong:
        raise WrongClock(f"clock = {clock!r} with inputs on {', '.join(wrong)}: one clock times one kind of device")


def host_seconds(run: Run) -> float:
    """Wall seconds of one run, without the tracer of a debugger or of coverage."""
    from pytest_benchmark.fixture import PauseInstrumentation

    with PauseInstrumentation():
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


def calls_per_sample(clock: Clock, calls: Sequence[Callable[[], object]], least_seconds: float, most: int) -> int:
    """How many calls, taking turns, last at least so long; of two timings the shorter counts. ``most`` if none do."""
    number = 1
    while number < most:
        run = clock.run_of(calls, number)
        taken = min(clock.seconds(host_seconds(run)) for _ in range(2))
        if taken >= least_seconds:
            break
        growth = 1.2 * least_seconds / taken if taken > 0 else math.inf
        number = min(most, math.ceil(number * min(10.0, max(1.2, growth))))
    return number
