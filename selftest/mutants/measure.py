"""Sides, data, devices and ways of measuring that must be found out, on a GPU that only counts time."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from unittest import mock

import torch

from waveproof.perf import measure
from waveproof.perf.clocks import ClockRecord
from waveproof.perf.device_timing import DeviceClock, NotCapturable
from waveproof.perf.instruments import WrongClock
from waveproof.perf.measure import PairedSamples, PairPlan, measure_pair
from waveproof.perf.timing_refusals import Compiled, DegenerateInputs, refuse_degenerate
from waveproof.selftest.planted import Planted
from waveproof.selftest.pretended_events import COLD, PretendedGPU, instruments, quiet

PLAN = PairPlan(pairs=40, clock="device", most_calls=1)
WARM_UPS = PLAN.warmup + 1
"""Calls of a side before its first pair."""

COIN_ODDS = (8, 32)
"""Of 40 fair coins so few or so many are heads once in 8,000 seeds; this one's are 18."""

Side = Callable[[], object]


def broken(
    gpu: PretendedGPU,
    candidate: Side | Sequence[Side],
    plan: PairPlan = PLAN,
    driver: Callable[[], ClockRecord] = quiet,
    inputs: Sequence[torch.Tensor] = (),
) -> list[str]:
    """Rules that a pair breaks against a baseline of one millisecond."""
    tools = instruments(gpu, plan.graph, plan.caches == "cold", driver)
    refusals = {Compiled: "compiled", DegenerateInputs: "degenerate", WrongClock: "clock", NotCapturable: "captured"}
    try:
        samples = measure_pair(candidate, gpu.kernel("baseline", 1e-3), plan, inputs, instruments=tools)
    except tuple(refusals) as error:
        return [refusals[type(error)]]
    rules = []
    if not 0.99 < median(samples.ratios) < 1.01:
        rules.append("speed")
    if any("throttled" in note or "fell" in note for note in samples.notes):
        rules.append("throttled")
    if any("of launches" in note for note in samples.notes):
        rules.append("launches")
    if any("another stream" in note for note in samples.notes):
        rules.append("elsewhere")
    return rules + held(gpu, samples, plan)


def held(gpu: PretendedGPU, samples: PairedSamples, plan: PairPlan) -> list[str]:
    """Rules of measuring itself: what the samples say of themselves against what the device ran."""
    rules = []
    if not COIN_ODDS[0] < sum(samples.candidate_first) < COIN_ODDS[1]:
        rules.append("fair order")
    if not plan.graph and samples.calls == (1, 1):
        kernels = [name for name in gpu.log if name != "flush"][-2 * len(samples) :]
        if [first != "baseline" for first in kernels[::2]] != list(samples.candidate_first):
            rules.append("order as recorded")
    if abs(median(samples.baseline) / 1e-3 - (COLD if plan.caches == "cold" else 1.0)) > 0.2:
        rules.append("caches")
    return rules


def same(gpu: PretendedGPU) -> Side:
    """A candidate that is as fast as the baseline."""
    return gpu.kernel("candidate", 1e-3)


def at_call(number: int, what: Callable[[], object], gpu: PretendedGPU) -> Side:
    """Does something besides at its n-th call, as fast as the baseline."""
    kernel, calls = same(gpu), iter(range(1, 1_000_000))

    def side() -> None:
        if next(calls) == number:
            what()
        kernel()

    return side


def triton() -> None:
    """What Triton does when it has compiled."""
    from triton import knobs

    if knobs.compilation.listener is not None:
        knobs.compilation.listener(src=types.SimpleNamespace(name="mla_decode"), cache_hit=False)


def why_no_triton() -> str:
    """Empty where Triton can be imported."""
    from waveproof.kernels.runtimes.catalogue import installed

    return "" if installed("triton") else "Triton is not installed"


def starts(*words: str) -> Callable[[], object]:
    """What Python tells of a program that is started."""
    return lambda: sys.audit("subprocess.Popen", words[0], list(words), None, None)


def compiles(number: int, what: Callable[[], object]) -> Callable[[], Sequence[str]]:
    """Measures a side that compiles at its n-th call."""

    def plant() -> Sequence[str]:
        gpu = PretendedGPU()
        return broken(gpu, at_call(number, what, gpu))

    return plant


def dynamo() -> Sequence[str]:
    """A shape that ``torch.compile`` has not seen, in the third pair."""
    gpu, state = PretendedGPU(), types.SimpleNamespace(counters={"stats": {"unique_graphs": 3}})
    with mock.patch.dict(sys.modules, {"torch._dynamo.utils": state}):
        return broken(gpu, at_call(WARM_UPS + 3, lambda: state.counters["stats"].update(unique_graphs=4), gpu))


def data(*tensors: torch.Tensor) -> Callable[[], Sequence[str]]:
    """Looks at inputs."""

    def plant() -> Sequence[str]:
        try:
            refuse_degenerate(tensors)
        except DegenerateInputs:
            return ["degenerate"]
        return []

    return plant


def random_data(*shape: int) -> torch.Tensor:
    """Of a normal law, the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mostly_padding() -> torch.Tensor:
    """A cache of which one page in twenty was ever written."""
    cache = torch.zeros(200, 16, 8)
    cache[::20] = random_data(10, 16, 8)
    return cache


def on(plan: PairPlan, seconds: float = 1e-3, drift: float = 1.0) -> Callable[[], Sequence[str]]:
    """Measures one kernel against the baseline."""

    def plant() -> Sequence[str]:
        gpu = PretendedGPU(drift=drift)
        return broken(gpu, gpu.kernel("candidate", seconds), plan)

    return plant


def given(plan: PairPlan, place: str) -> Callable[[], Sequence[str]]:
    """Measures with inputs that are elsewhere than the clock."""

    def plant() -> Sequence[str]:
        gpu = PretendedGPU()
        return broken(gpu, same(gpu), plan, inputs=[torch.empty(8, device=place)])

    return plant


def synchronises() -> Sequence[str]:
    """A side that waits for the device, in a graph."""
    gpu = PretendedGPU()
    return broken(gpu, gpu.synchronize, replace(PLAN, graph=True))


def works_elsewhere() -> Sequence[str]:
    """A side that launches nothing on the stream."""
    return broken(PretendedGPU(), int, replace(PLAN, graph=True))


def told(after: ClockRecord) -> Callable[[], Sequence[str]]:
    """Measures while the driver tells this afterwards."""

    def plant() -> Sequence[str]:
        gpu, answers = PretendedGPU(), iter((quiet(), after))
        return broken(gpu, same(gpu), driver=lambda: next(answers))

    return plant


class OneSided:
    """A coin with two heads."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def random(self) -> float:
        """Below a half."""
        return 0.0


def always_first() -> Sequence[str]:
    """Measures with the candidate first in each pair, while the device slows down."""
    with mock.patch.object(measure.random, "Random", OneSided):
        return on(PLAN, drift=1.02)()


@contextmanager
def turns(start: Callable[[measure._Turns, Callable[[], Callable[[], None]]], Callable[[], None]]) -> Iterator[None]:
    """Another way of choosing whose turn it is."""
    right = measure._Turns.start
    with mock.patch.object(measure._Turns, "start", lambda self: start(self, lambda: right(self))):
        yield


def no_flush() -> Sequence[str]:
    """Cold caches by name alone."""

    def start(self: measure._Turns, right: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        self.tools = replace(self.tools, flush=None)
        return right()

    with turns(start):
        return on(replace(PLAN, caches="cold"))()


def swapped() -> Sequence[str]:
    """What ran is not what is taken down."""

    def start(self: measure._Turns, right: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        right()
        return self.runs[not self._side]

    with turns(start):
        return on(PLAN)()


def launches_timed() -> Sequence[str]:
    """Kernels so short that the host is what is timed."""
    gpu = PretendedGPU()
    return broken(gpu, gpu.kernel("candidate", 1e-10), PLAN)


def other_stream() -> Sequence[str]:
    """Sides whose kernels run on a stream of their own, for another half of a millisecond."""
    gpu = PretendedGPU(elsewhere=5e-4)
    return broken(gpu, same(gpu))


def one_event() -> Sequence[str]:
    """A clock that does not wait for its second event: the device's own check refuses that."""

    def hasty(self: DeviceClock, host_seconds: float) -> float:
        assert self._events is not None
        start, end = self._events
        return float(start.elapsed_time(end)) / 1e3

    gpu = PretendedGPU()
    with mock.patch.object(DeviceClock, "seconds", hasty):
        try:
            return broken(gpu, same(gpu))
        except RuntimeError:
            return ["waits"]


def rotates() -> Sequence[str]:
    """Four sets of inputs, each cold once in a sample."""
    gpu = PretendedGPU()
    side = [gpu.kernel(f"candidate {number}", 1e-3) for number in range(4)]
    return broken(gpu, side, replace(PLAN, caches="cold", most_calls=100))


PLANTED: tuple[Planted, ...] = (
    Planted(
        "triton-compiles-late", "the fifth pair meets a shape that Triton has not compiled", "compiled",
        compiles(WARM_UPS + 5, triton), why_no_triton,
    ),
    Planted(
        "jit-build-late", "AITER builds a module with ninja in the first timed call", "compiled",
        compiles(WARM_UPS + 1, starts("ninja", "-v")),
    ),
    Planted("last-sample-compiles", "hipcc runs in the very last sample", "compiled",
            compiles(WARM_UPS + PLAN.pairs, starts("hipcc", "-c", "module.hip"))),
    Planted("torch-compile-late", "torch.compile builds a graph in the third pair", "compiled", dynamo),
    Planted("zeros", "the inputs are zeros", "degenerate", data(random_data(64, 64), torch.zeros(64, 64))),
    Planted("ones-in-fp8", "a cache of ones in fp8", "degenerate", data(torch.ones(8192).to(torch.float8_e4m3fn))),
    Planted("zero-bytes", "packed weights are zero bytes", "degenerate", data(torch.zeros(8192, dtype=torch.uint8))),
    Planted("unwritten-cache", "95 % of the cache was never written", "degenerate", data(mostly_padding())),
    Planted("nan", "the inputs are NaN", "degenerate", data(torch.full((64, 64), float("nan")))),
    Planted("one-row-expanded", "one zero, expanded to a terabyte", "degenerate", data(torch.zeros(1).expand(1 << 38))),
    Planted("cpu-by-events", "a call on the CPU is timed by a device's events", "clock", given(PLAN, "cpu")),
    Planted("gpu-by-host", "a call on a device is timed by the host", "clock",
            given(PairPlan(pairs=40, most_calls=1), "meta")),
    Planted("synchronises-in-graph", "a side waits for the device while it is captured", "captured", synchronises),
    Planted("empty-graph", "a side launches nothing on the captured stream", "captured", works_elsewhere),
    Planted("launch-bound", "kernels are shorter than their launches", "launches", launches_timed),
    Planted("other-stream", "half of the work runs on a stream without events", "elsewhere", other_stream),
    Planted("slower", "the candidate is 5 % slower", "speed", on(PLAN, 1.05e-3)),
    Planted("slower-while-drifting", "5 % slower on a device that drifts by 0.1 % a kernel", "speed",
            on(PLAN, 1.05e-3, drift=1.001)),
    Planted("slower-in-graph", "the candidate is 5 % slower, replayed", "speed",
            on(replace(PLAN, graph=True), 1.05e-3)),
    Planted("power-cap", "the driver tells of a power cap afterwards", "throttled",
            told(replace(quiet(), throttling=("power cap (software)",)))),
    Planted("clock-fell", "the clock is a third lower afterwards", "throttled", told(replace(quiet(), hertz=1.4e9))),
    Planted("candidate-always-first", "the coin has two heads", "fair order", always_first),
    Planted("no-flush", "a way of measuring that calls caches cold and overwrites nothing", "caches", no_flush),
    Planted("sides-swapped", "a way of measuring that takes a sample down for the other side", "order as recorded",
            swapped),
    Planted("no-wait", "a clock that reads its events before the device is done", "waits", one_event),
    Planted("warm-up-compiles", "only calls that warm up compile", "", compiles(1, starts("hipcc", "-c"))),
    Planted("asks-a-compiler", "a timed call asks a compiler for its version", "",
            compiles(WARM_UPS + 2, starts("hipcc", "--version"))),
    Planted("half-zeros", "half of the values are zero, as after a renorm", "", data(random_data(64, 64).relu())),
    Planted("equal-lengths", "all requests are equally long, and have one temperature", "",
            data(torch.full((4096,), 64, dtype=torch.int32), torch.full((64,), 0.7))),
    Planted("as-fast", "both sides are as fast", "", on(PLAN)),
    Planted("drifts", "a device that drifts by 0.1 % a kernel, sides as fast", "", on(PLAN, drift=1.001)),
    Planted("replayed", "both sides are as fast, replayed", "", on(replace(PLAN, graph=True))),
    Planted("cold", "both sides are as fast with cold caches", "", on(replace(PLAN, caches="cold"))),
    Planted("cold-inputs-in-turn", "four sets of inputs take turns with cold caches", "", rotates),
)  # fmt: skip
