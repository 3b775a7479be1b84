"""Time two ways of doing one thing so that the gate can tell them apart: in pairs, in one process, in a fair order.

Load, temperature and clocks of a machine drift over seconds. So the two sides take turns, and within each pair a coin
decides which is first: where the sides do not differ, either sign of a pair's log ratio is equally likely whatever the
drift, and inference needs no law of the times (R. A. Fisher, *The Design of Experiments*, chapter III).

Several forms side by side (:func:`interleaved_seconds`) are for figures that are shown and not gated.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from waveproof.perf.benchmark_rows import BenchmarkRows, not_timed
from waveproof.perf.clocks import throttled
from waveproof.perf.device_timing import HOST_CLOCK, HostClock, Run
from waveproof.perf.instruments import Instruments, calls_per_sample, host_seconds, instruments_for, refuse_clock
from waveproof.perf.records import SECONDS, Measurement, Place
from waveproof.perf.timing_refusals import CompileWatch, refuse_degenerate, watch_compilation

if TYPE_CHECKING:
    import torch
    from pytest_benchmark.fixture import BenchmarkFixture

Side = Callable[[], object] | Sequence[Callable[[], object]]
"""What is timed: a call without arguments, or one call for each of several sets of inputs, which take turns."""

CLEARLY_FASTER = 4
"""Times as many calls in a sample: so far apart equal sides do not come by the noise of two timings each."""


class BadPlan(ValueError):
    """A plan asks for what cannot be measured; the message holds the value and the rule."""


class BadSamples(ValueError):
    """Figures cannot be paired samples; the message holds the value and the rule."""


@dataclass(frozen=True)
class PairPlan:
    """How a pair is measured.

    Raises:
        BadPlan: a number is out of range, looks do not ascend to at most ``pairs``, or a graph is asked of the host.
    """

    pairs: int = 80
    """Pairs that are taken, if no look decides earlier."""
    looks: tuple[int, ...] = ()
    """Numbers of pairs, ascending, after which ``measure_pair`` asks its caller whether they are enough: (20, 40)."""
    seed: int = 0
    """Of the coins that say which side of a pair is first."""
    clock: Literal["host", "device"] = "host"
    """``host``: wall seconds of a call on the CPU. ``device``: seconds between two events on a GPU's stream."""
    graph: bool = False
    """On a device: the calls of a sample are captured once and replayed, so that launching them costs nothing."""
    caches: Literal["warm", "cold"] = "warm"
    """``cold``: caches are overwritten before each sample, and a sample has no more calls than sets of inputs."""
    warmup: int = 3
    """Calls of each set of inputs before anything is timed; these may compile."""
    resolutions: int = 1000
    """A sample lasts at least so many times the clock's resolution."""
    sample_seconds: float = 0.0
    """A sample lasts at least so long; calls are repeated within it."""
    most_calls: int = 100_000
    """In one sample."""

    def __post_init__(self) -> None:
        for name, least in (("pairs", 1), ("warmup", 1), ("resolutions", 1), ("most_calls", 1)):
            if getattr(self, name) < least:
                raise BadPlan(f"{name} = {getattr(self, name)}: {least} at least")
        if not (math.isfinite(self.sample_seconds) and self.sample_seconds >= 0):
            raise BadPlan(f"sample_seconds = {self.sample_seconds}: finite and not negative")
        if list(self.looks) != sorted(set(self.looks)) or any(not 0 < look <= self.pairs for look in self.looks):
            raise BadPlan(f"looks = {self.looks}: they ascend, from 1 to the {self.pairs} pairs")
        if self.clock not in ("host", "device") or self.caches not in ("warm", "cold"):
            raise BadPlan(f"clock = {self.clock!r}, caches = {self.caches!r}: host or device, warm or cold")
        if self.graph and self.clock == "host":
            raise BadPlan("graph = True with clock = 'host': only a device replays graphs")


@dataclass(frozen=True)
class PairedSamples:
    """Seconds per call of two sides, pair by pair, in the order in which the pairs were taken.

    Raises:
        BadSamples: there is no pair, the sides differ in number, or a figure is not positive and finite.
    """

    candidate: tuple[float, ...]
    """Seconds per call; of pair i as is ``baseline[i]``."""
    baseline: tuple[float, ...]
    candidate_first: tuple[bool, ...]
    """The coins: whether the candidate's sample of the pair was taken before the baseline's."""
    seed: int
    """Of the coins."""
    notes: tuple[str, ...] = ()
    """What a reader must know: throttled, clocks unknown, cold caches."""
    clock: str = HOST_CLOCK
    """What told the time; both sides by the same."""
    calls: tuple[int, int] = (1, 1)
    """In one sample, of the candidate and of the baseline; a figure is the sample's time divided by its number."""
    resolution: float = 0.0
    """Seconds per call: two calls that differ by less may give the same figure; 0 where that is not known."""

    def __post_init__(self) -> None:
        sizes = len(self.candidate), len(self.baseline), len(self.candidate_first)
        if not sizes[0] or len(set(sizes)) != 1:
            raise BadSamples(f"{sizes[0]} of the candidate, {sizes[1]} of the baseline, {sizes[2]} coins: as many each")
        for name, values in (("candidate", self.candidate), ("baseline", self.baseline)):
            bad = [value for value in values if not (math.isfinite(value) and value > 0)]
            if bad:
                raise BadSamples(f"{name}: {bad[0]} s: times are positive and finite")

    def __len__(self) -> int:
        """Pairs."""
        return len(self.candidate)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Candidate over baseline, by pair: above 1 the candidate is slower."""
        return tuple(paired_ratios(self.candidate, self.baseline))

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Natural logarithms of :attr:`ratios`."""
        return tuple(math.log(ratio) for ratio in self.ratios)

    def first(self, pairs: int) -> PairedSamples:
        """The first pairs only, as a look saw them."""
        return replace(
            self,
            candidate=self.candidate[:pairs],
            baseline=self.baseline[:pairs],
            candidate_first=self.candidate_first[:pairs],
        )

    def told(self) -> dict[str, Any]:
        """As JSON has it, in pytest-benchmark's ``extra_info`` and in recorded traces; :meth:`read` reads it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> PairedSamples:
        """The samples of which :meth:`told` told.

        Raises:
            BadSamples: a field is missing or unknown, or the figures cannot be paired samples.
        """
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
        }
        try:
            return cls(**fields)
        except TypeError as error:
            raise BadSamples(f"no paired samples: {error}") from None

    def measurements(self, case_of_candidate: str, case_of_baseline: str, place: Place) -> tuple[Measurement, ...]:
        """Both sides as measurements of seconds per call, the candidate first; notes name clock and coins."""
        notes = (*self.notes, f"clock: {self.clock}", f"coins: seed {self.seed}")
        return (
            Measurement(case_of_candidate, SECONDS, self.candidate, place, notes),
            Measurement(case_of_baseline, SECONDS, self.baseline, place, notes),
        )


def measure_pair(
    candidate: Side,
    baseline: Side,
    plan: PairPlan,
    inputs: Sequence[torch.Tensor] = (),
    benchmark: BenchmarkFixture | None = None,
    enough: Callable[[PairedSamples], bool] | None = None,
    instruments: Instruments | None = None,
) -> PairedSamples:
    """Take pairs of samples of two sides in this process, in a random order within each pair.

    Args:
        candidate: the side that is judged. Sides have to differ in nothing but what is compared.
        baseline: the side that it is held against.
        plan: how; both sides are timed by the same clock.
        inputs: tensors that the sides read, to be refused where they are constant, or on another device than the
            clock times. Without any a note says that nobody looked.
        benchmark: pytest-benchmark's fixture. Its loop and its timer take the samples then, and both sides are rows of
            its table and JSON. Where it is disabled the test is skipped as not timed: inconclusive.
        enough: asked after each of the plan's looks whether the pairs so far decide.
        instruments: what to measure with, if not what :func:`instruments_for` finds.

    Raises:
        Compiled: something was compiled within a timed sample.
        DegenerateInputs: data is one value nearly everywhere.
        WrongClock: the inputs are not where the plan's clock is, or there is no GPU.
        NotCapturable: a side cannot be replayed as a graph.
        UnknownProduct: cold caches on a GPU whose caches are not known.
    """
    sides = {True: _calls_of(candidate), False: _calls_of(baseline)}
    if benchmark is not None and not benchmark.enabled:
        not_timed(benchmark, sides[True][0], sides[False][0])
    refuse_clock(plan.clock, inputs)
    looked = refuse_degenerate(inputs)
    tools = instruments or instruments_for(plan.clock, plan.graph, plan.caches == "cold")
    for calls in sides.values():
        for _ in range(plan.warmup):
            for call in calls:
                call()
    if tools.flush is not None:
        tools.flush()  # touches its pages
    numbers = _alike({side: _number(tools, calls, plan) for side, calls in sides.items()}, sides)
    runs = {side: tools.clock.run_of(calls, numbers[side]) for side, calls in sides.items()}
    for run in runs.values():  # what a graph or a longer loop does for the first time, it does now
        tools.clock.seconds(host_seconds(run))
    coin = random.Random(plan.seed)
    rows = BenchmarkRows(benchmark) if benchmark is not None else None
    before = tools.driver()
    with watch_compilation(tools.build_caches) as watch, _without_collections():
        turns = _Turns(runs, tools, watch, numbers, coin)
        for upto in dict.fromkeys((*plan.looks, plan.pairs)):
            _take(turns, 2 * (upto - len(turns.first)), rows)
            if enough is not None and upto < plan.pairs and enough(turns.samples(plan.seed)):
                break
    notes = (*_notes(plan, tools, turns, looked), *watch.written(), *throttled(before, tools.driver()))
    samples = replace(turns.samples(plan.seed), notes=tuple(dict.fromkeys(notes)))
    if rows is not None:
        if isinstance(tools.clock, HostClock):
            samples = replace(samples, clock=rows.timer)
        rows.show(samples.candidate, samples.baseline, samples.calls, samples.clock, samples.told())
    return samples


@dataclass
class _Turns:
    """Whose turn it is, and what each side took. Sides are told by whether they are the candidate."""

    runs: Mapping[bool, Run]
    tools: Instruments
    watch: CompileWatch
    numbers: Mapping[bool, int]
    coin: random.Random
    first: list[bool] = field(default_factory=list)
    taken: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    _side: bool = False
    _second: bool = False

    def start(self) -> Run:
        """The run of the side whose turn it is, after caches were overwritten if they are to be cold."""
        if self._second:
            self._side = not self._side
        else:
            self._side = self.coin.random() < 0.5
            self.first.append(self._side)
        self._second = not self._second
        if self.tools.flush is not None:
            self.tools.flush()
        self.watch.news()  # what was built between samples is none of theirs
        return self.runs[self._side]

    def finish(self, host_seconds: float) -> None:
        """Take the sample down, unless something was compiled in it."""
        seconds = self.tools.clock.seconds(host_seconds)
        self.watch.refuse_news(f"{'candidate' if self._side else 'baseline'}, pair {len(self.first)}")
        self.taken[self._side].append(seconds / self.numbers[self._side])

    def samples(self, seed: int) -> PairedSamples:
        """All pairs so far."""
        return PairedSamples(
            tuple(self.taken[True]),
            tuple(self.taken[False]),
            tuple(self.first),
            seed,
            clock=self.tools.clock.name,
            calls=(self.numbers[True], self.numbers[False]),
            resolution=self.tools.clock.resolution() / min(self.numbers.values()),
        )


def _take(turns: _Turns, rounds: int, rows: BenchmarkRows | None) -> None:
    """So many samples, in pytest-benchmark's loop where there is one."""
    if rows is not None:
        rows.block(turns.start, turns.finish, rounds)
        return
    for _ in range(rounds):
        turns.finish(host_seconds(turns.start()))


def _number(tools: Instruments, calls: Sequence[Callable[[], object]], plan: PairPlan) -> int:
    """Calls of a side in one sample: as long as the plan asks, and with cold caches no inputs twice.

    A graph begins with the same inputs at each replay, so that it holds whole rounds of them.
    """
    least = max(plan.resolutions * tools.clock.resolution(), plan.sample_seconds)
    number = calls_per_sample(tools.clock, calls, least, len(calls) if plan.caches == "cold" else plan.most_calls)
    return math.ceil(number / len(calls)) * len(calls) if plan.graph else number


def _alike(numbers: dict[bool, int], sides: Mapping[bool, Sequence[object]]) -> dict[bool, int]:
    """The larger number for both, unless one side is :data:`CLEARLY_FASTER`: of calls that stray upwards the mean of
    two has another median than one has, so that equal sides with unequal numbers would differ.
    """
    most = max(numbers.values())
    apart = most >= CLEARLY_FASTER * min(numbers.values()) or len(sides[True]) != len(sides[False])
    return numbers if apart else dict.fromkeys(numbers, most)


def _notes(plan: PairPlan, tools: Instruments, turns: _Turns, looked: int) -> list[str]:
    notes = [tools.flush.note] if tools.flush is not None else []
    if not looked:
        notes.append("inputs: no data was looked at: none was given, or only indices and small parameters")
    notes += tools.clock.notes()
    shortest = min(statistics.median(turns.taken[side]) * turns.numbers[side] for side in (True, False))
    reached = shortest / tools.clock.resolution()
    if reached < plan.resolutions / 2:
        notes.append(
            f"a sample lasts {shortest:.3g} s: {reached:.0f} times the clock's resolution, not {plan.resolutions}"
        )
    return notes


def _calls_of(side: Side) -> tuple[Callable[[], object], ...]:
    calls = (side,) if callable(side) else tuple(side)
    if not calls:
        raise BadPlan("a side has no call: one for each set of inputs")
    return calls


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python's cycle collector would fall into some samples."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleaved_seconds(forms: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Wall seconds of each form in each repeat, after one call of each that does not count."""
    for form in forms.values():
        form()
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            forms[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """How many times as long as the baseline of the same repeat."""
    return [one / other for one, other in zip(seconds, baseline, strict=True)]
