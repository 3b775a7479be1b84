"""The terms of a day on a GPU: what is timed against what, in which ways, and what a device has to offer for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from waveproof.fixtures.products import Product
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Subject
from waveproof.perf.measure import PairedSamples
from waveproof.perf.records import Place


class SideMissing(RuntimeError):
    """A side cannot run on this machine; the message says why."""


class TrialEnded(RuntimeError):
    """A side raised, crashed or lost the device; the message says which and how."""


class OutOfTime(RuntimeError):
    """A trial's share of the budget is spent, by a hang or by much work: which of them cannot be told."""


@dataclass(frozen=True)
class Contender:
    """One side of a trial."""

    subject: Subject
    build: Callable[[], Call]
    """Makes the call that is judged and timed, when its turn comes: long contexts are large."""
    runs_as: tuple[str, ...] = ()
    """Kernels that must run, in the notation of ``golden/judges/launched.py``; what the implementation states if empty.
    A side that states nothing (torch's own operations) must run some kernel."""

    @property
    def expected(self) -> tuple[str, ...]:
        """Kernels that must run."""
        return self.runs_as or self.subject.implementation.runs_as


@dataclass(frozen=True)
class Way:
    """How a pair is timed."""

    name: str
    cold: bool = False
    """Caches are overwritten before each sample."""
    graph: bool = False
    """The launches are captured once and replayed: no host in between."""


WARM, COLD, REPLAYED = Way("warm"), Way("cold", cold=True), Way("graph", graph=True)
WAYS = (COLD, WARM, REPLAYED)
"""The most telling first: a layer of a model finds its cache lines taken by the layers before."""


@dataclass(frozen=True)
class Trial:
    """A fast way against a slow one on the same work."""

    name: str
    """What distinguishes the work: ``decode/heads=12/queries=1/keys=16384``."""
    fast: Contender
    slow: Contender
    share: float = 1.0
    """Of the time that is left, relative to the trials after it."""
    least_seconds: float = 20.0
    """An estimate of what it needs; with less left it is not begun."""
    at_least: float = 0.0
    """How many times as fast the fast side must be; 0 where nothing is promised."""
    keys: int = 0
    """Context length, for the picture of speed over it; 0 where there is none."""
    ways: tuple[Way, ...] = WAYS

    def case(self, contender: Contender, way: Way) -> str:
        """A measurement's name: operator, provider, work, whom against, way."""
        implementation, fast = contender.subject.implementation, contender is self.fast
        against = (self.slow if fast else self.fast).subject.implementation.provider
        name = f"{implementation.operator}/{implementation.provider}/{self.name}/against={against}"
        if self.fast.subject == self.slow.subject:  # an argument tells the sides apart
            name += "/fast" if fast else "/slow"
        return f"{name}/{way.name}"


class Station(Protocol):
    """A device that trials are run on. ``seconds`` is what a step may take before it is ended."""

    @property
    def place(self) -> Place:
        """For records."""

    @property
    def product(self) -> Product | None:
        """The device's, None where it is not known: then no floor is asked for."""

    def unavailable(self, contender: Contender) -> str:
        """Why a side cannot run here, empty where it can; nothing is started for it."""

    def open(self, sides: Sequence[tuple[Contender, Call]], seconds: float) -> None:
        """Bring calls and implementations to the device.

        Raises:
            SideMissing, TrialEnded, OutOfTime: see there.
        """

    def results(self, side: int, seconds: float) -> list[Judgement]:
        """Call a side once and hold what it gives to float64.

        Raises:
            TrialEnded, OutOfTime: see there.
        """

    def kernels(self, side: int, seconds: float) -> list[Judgement]:
        """Call a side under a profiler, and judge the kernels on record against :attr:`Contender.expected`.

        Raises:
            TrialEnded, OutOfTime: see there.
        """

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """Time the first side as candidate, the second as baseline.

        Raises:
            SideMissing: this way cannot be had here (a side that cannot be captured into a graph, say).
            TrialEnded, OutOfTime: see there.
        """
