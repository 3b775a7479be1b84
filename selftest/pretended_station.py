"""A device for :mod:`waveproof.perf.gpu_day` that is made up: what it answers, how long that takes, what fails.

Judging is the real station's: results go to float64, traces are read and judged. No GPU takes part.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from waveproof.fixtures.launched import judging, names
from waveproof.fixtures.launched.names import plain_name
from waveproof.fixtures.products import Product, product_of
from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers import pytorch_mla
from waveproof.perf.gpu_day_plan import contender
from waveproof.perf.gpu_day_station import judge_trace
from waveproof.perf.gpu_day_terms import COLD, REPLAYED, WARM, Contender, OutOfTime, SideMissing, Trial, TrialEnded, Way
from waveproof.perf.judged_results import judge_results
from waveproof.perf.measure import PairedSamples
from waveproof.perf.records import Place
from waveproof.selftest.recorded_traces import DECODE, FILL, GENERIC, PREFILL, REDUCE, Recording

DEVICE = "AMD Instinct MI355X"
FAST, SLOW = "waveproof", "sglang"
STAGE_2 = "_fwd_kernel_stage2"
KERNELS: Mapping[str, Sequence[str]] = {
    FAST: (FILL, DECODE, REDUCE),
    SLOW: (GENERIC, STAGE_2),
}
"""What the sides launch where nothing is wrong."""
SECONDS = {FAST: 20e-6, SLOW: 50e-6}
"""Of a call."""


@contextmanager
def known_names() -> Iterator[None]:
    """Within, the installation has the kernels of these traces, whatever is really installed; that takes no search."""
    shipped = {plain_name(DECODE): ("gfx942", "gfx950"), plain_name(PREFILL): ("gfx942", "gfx950")}
    triton = frozenset({GENERIC, REDUCE, STAGE_2})
    with (
        patch.object(names, "shipped_kernels", lambda: shipped),
        patch.object(names, "triton_functions", lambda: triton),
        patch.object(judging, "shipped_kernels", lambda: shipped),
    ):
        yield


@functools.cache
def decode_call() -> Call:
    """12 heads on 300 keys: 346 kB, which take 45 ns with what is beside them through an MI355X's HBM."""
    return AttentionCase(12, ((1, 300),), "offset").call("mla_decode")


@functools.cache
def right() -> tuple[torch.Tensor, ...]:
    """What float64 accepts."""
    decode: Callable[..., Any] = pytorch_mla.mla_decode
    given = decode(*decode_call().arguments.values())
    return (given,) if isinstance(given, torch.Tensor) else tuple(given)


def trial(name: str = "decode", **how: object) -> Trial:
    """Padded assembly against the generic kernel, on :func:`decode_call`."""
    fast, slow = (contender("mla_decode", provider, "hip", decode_call) for provider in (FAST, SLOW))
    given = {"least_seconds": 10.0, "at_least": 1.0, "keys": 300, "ways": (COLD, WARM, REPLAYED), **how}
    return Trial(name, fast, slow, **given)  # type: ignore[arg-type]


@functools.cache
def _judged_right(who: str) -> list[Judgement]:
    """What is right is judged once: it is the same each time."""
    implementation = contender("mla_decode", who, "hip", decode_call).subject.implementation
    given = right()[: len(implementation.contract.returns) - len(implementation.omits)]
    return judge_results(given, decode_call(), implementation)


@dataclass
class PretendedStation:
    """Answers as it was told; each step moves its clock."""

    device: str = DEVICE
    step_seconds: float = 1.0
    """That each step takes."""
    kernels_of: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(KERNELS))
    seconds_of: Mapping[str, float] = field(default_factory=lambda: dict(SECONDS))
    spoil: Callable[[str, int, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] = lambda who, turn, given: given
    """Changes what a provider gives at its so-manieth turn, from 0."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a provider is unavailable."""
    fails: Mapping[str, Exception] = field(default_factory=dict)
    """By step, ``open``, ``results``, ``kernels``, ``pairs`` or the name of a way: what it raises."""
    trace_micros: float = 20.0
    """Of each kernel in a trace."""
    now: float = 0.0
    steps: list[str] = field(default_factory=list)
    granted: list[float] = field(default_factory=list)
    """Seconds that each step was given."""
    _sides: list[tuple[Contender, Call]] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Of a device that does not exist."""
        return Place("hip", "gfx950", self.device, {"torch": "pretended"})

    @property
    def product(self) -> Product | None:
        """By the device's name; None where it has none."""
        return product_of(self.device) if self.device else None

    def clock(self) -> float:
        """For ``run_day``."""
        return self.now

    def unavailable(self, contender: Contender) -> str:
        """As it was told."""
        return self.missing.get(contender.subject.implementation.provider, "")

    def open(self, sides: Sequence[tuple[Contender, Call]], seconds: float) -> None:
        """Takes them."""
        self._turns = {}
        self._sides = list(sides)
        self._step("open", seconds)

    def results(self, side: int, seconds: float) -> list[Judgement]:
        """Right, unless spoiled."""
        self._step("results", seconds)
        contender, call = self._sides[side]
        implementation = contender.subject.implementation
        who = implementation.provider
        turn = self._turns.get(who, 0)
        self._turns[who] = turn + 1
        given = right()[: len(implementation.contract.returns) - len(implementation.omits)]
        spoiled = self.spoil(who, turn, given)
        return _judged_right(who) if spoiled is given else judge_results(spoiled, call, implementation)

    def kernels(self, side: int, seconds: float) -> list[Judgement]:
        """By a trace that is put together."""
        self._step("kernels", seconds)
        contender, call = self._sides[side]
        names = self.kernels_of[contender.subject.implementation.provider]
        recording = Recording(self.device)
        for _ in range(2):
            recording.span(call.operator, names, self.trace_micros)
        return judge_trace(recording.trace(), contender, call, self.product)

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """20 pairs, within 2 % of what was told."""
        self._step(way.name if way.name in self.fails else "pairs", seconds)
        coin = random.Random(7)
        fast, slow = (
            tuple(self.seconds_of[one.subject.implementation.provider] * coin.uniform(0.98, 1.02) for _ in range(20))
            for one, _ in self._sides
        )
        coins = tuple(coin.random() < 0.5 for _ in range(20))
        return PairedSamples(fast, slow, coins, 7, ("pretended",), "pretended events")

    def _step(self, name: str, seconds: float) -> None:
        self.steps.append(name)
        self.granted.append(seconds)
        self.now += min(self.step_seconds, seconds)
        if name in self.fails:
            raise self.fails[name]
        if self.step_seconds > seconds:
            raise OutOfTime(f"{name}: no answer after {seconds:g} s")


CRASH = TrialEnded("results: its process ended with signal SIGSEGV")
NO_GRAPH = SideMissing("NotCapturable: the host waits for the device")
