"""Trials on a pretended GPU that must not end in a time, some that only look as if, and times that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from waveproof.fixtures.products import product_named
from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.golden.judges import launched, memory_floor, mla
from waveproof.perf import roofline
from waveproof.perf.gpu_day import run_day, run_trial
from waveproof.perf.gpu_day_terms import Way
from waveproof.perf.measure import PairedSamples
from waveproof.selftest.planted import Planted
from waveproof.selftest.pretended_station import (
    CRASH,
    FAST,
    KERNELS,
    NO_GRAPH,
    SECONDS,
    SLOW,
    STAGE_2,
    PretendedStation,
    known_names,
    trial,
)
from waveproof.selftest.recorded_traces import DECODE, GENERIC, REDUCE, SORT

SLOWER = "fast path is the faster"
BUDGET = "within the budget"
ENDED = "it returns"

Outputs = tuple[torch.Tensor, ...]


def broken(station: PretendedStation, seconds: float = 100.0, **how: object) -> list[str]:
    """Rules that a trial breaks on this device; those without a judge by what it ends in."""
    with known_names():
        result = run_trial(trial(**how), station, seconds, station.clock)  # type: ignore[arg-type]
    rules = list(result.rules)
    if result.state == "red" and not rules:
        rules.append(ENDED)
    if result.state == "no time":
        rules.append(BUDGET)
    return [*rules, *(SLOWER for one in result.rulings if one.outcome == "regress")]


def at(who: str, kernels: Sequence[str] | None = None, seconds: float | None = None) -> Callable[[], Sequence[str]]:
    """A provider that launches other kernels or takes other times."""
    kernels_of = KERNELS if kernels is None else {**KERNELS, who: kernels}
    seconds_of = SECONDS if seconds is None else {**SECONDS, who: seconds}
    return lambda: broken(PretendedStation(kernels_of=kernels_of, seconds_of=seconds_of))


def spoiled(who: str, change: Callable[[torch.Tensor], torch.Tensor], since: int = 0) -> Callable[[], Sequence[str]]:
    """A provider whose results change from one of its turns on."""

    def spoil(name: str, turn: int, given: Outputs) -> Outputs:
        return tuple(change(one) for one in given) if name == who and turn >= since else given

    return lambda: broken(PretendedStation(spoil=spoil))


def one_head_dead(given: torch.Tensor) -> torch.Tensor:
    """The last of twelve."""
    changed = given.clone()
    changed[:, -1] = 0
    return changed


class Swapped(PretendedStation):
    """Gives the baseline's times as the candidate's."""

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """The other way round."""
        given = super().pairs(way, seconds)
        return replace(given, candidate=given.baseline, baseline=given.candidate)


class Milliseconds(PretendedStation):
    """Divides the events' milliseconds by a million to have seconds."""

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """A thousandth."""
        given = super().pairs(way, seconds)
        return replace(given, candidate=tuple(one / 1e3 for one in given.candidate))


class Impatient(PretendedStation):
    """Judges nothing, so that it is there sooner."""

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """Times of nothing."""
        given = super().pairs(way, seconds)
        return replace(given, candidate=(1e-9,) * 20, baseline=(1e-9,) * 20)


class Skips(PretendedStation):
    """Its fast side comes back at once in one sample of ten, as one that remembers its last inputs may."""

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """2 of 20 take 15 ns."""
        given = super().pairs(way, seconds)
        return replace(given, candidate=tuple(15e-9 if at % 10 == 7 else t for at, t in enumerate(given.candidate)))


def over_budget(step_seconds: float, budget: float) -> list[str]:
    """Rules that a day of three trials breaks."""
    station = PretendedStation(step_seconds=step_seconds)
    with known_names():
        day = run_day([trial(name) for name in "abc"], station, budget, lambda day: None, station.clock)
    late = station.now > budget or any(one > budget for one in station.granted)
    return [BUDGET] if late or any(one.state == "no time" for one in day.results) else []


def multiplied(share: float) -> list[str]:
    """Rules that a prefill breaks which reaches that share of the matrix cores' peak."""
    call = AttentionCase(128, ((64, 256),)).call("mla_prefill_absorbed")
    product = product_named("MI355X")
    seconds = roofline.floor(call, product).seconds / share
    return [one.rule for one in roofline.judge_share(seconds, call, product) if not one.holds]


def published(product: str, precision: str, times: float) -> list[str]:
    """Rules that a product's row breaks with one figure so many times as large."""
    row = roofline.BY_PRODUCT[product]
    figure = row.flop_per_second[precision]
    assert figure is not None
    changed = replace(row, flop_per_second={**row.flop_per_second, precision: figure * times})
    return [one.rule for one in roofline.judge_peak(changed, product_named(product)) if not one.holds]


FAULTS = (
    Planted(
        "twice the values", "the fast side's output is scaled by two", mla.HEAD_NORM,
        spoiled(FAST, lambda given: 2 * given),
    ),
    Planted("slow side wrong", "what it is compared with is wrong", mla.HEAD_NORM, spoiled(SLOW, torch.zeros_like)),
    Planted("one dead head", "the last real head is zero", mla.HEAD_NORM, spoiled(FAST, one_head_dead)),
    Planted(
        "wrong once timed", "right at the first call, zeros after it: an early return that is timed as a kernel",
        mla.HEAD_NORM, spoiled(FAST, torch.zeros_like, 1),
    ),
    Planted(
        "generic kernel", "the fast side's dispatcher falls back to sglang's Triton decode", launched.RAN,
        at(FAST, kernels=(GENERIC, STAGE_2)),
    ),
    Planted("a sort beside", "a sort runs with it", launched.ALONE, at(FAST, kernels=(DECODE, SORT, REDUCE))),
    Planted("nothing seen", "the profiler has no kernel on record", launched.SEEN, at(FAST, kernels=())),
    Planted(
        "both fast", "the slow side runs the fast kernel, so that the ratio is of one kernel with itself", launched.RAN,
        at(SLOW, kernels=(DECODE, REDUCE)),
    ),
    Planted("faster than memory", "345 kB in 15 ns", memory_floor.RULE, at(FAST, seconds=15e-9)),
    Planted("slower", "the fast path takes a tenth longer than the slow one", SLOWER, at(FAST, seconds=55e-6)),
    Planted("crash", "the process dies while timed", ENDED, lambda: broken(PretendedStation(fails={"pairs": CRASH}))),
    Planted(
        "hang", "a step never ends", BUDGET,
        lambda: broken(PretendedStation(step_seconds=1e9)),
    ),
    Planted("day of hangs", "each trial hangs until its share is spent", BUDGET, partial(over_budget, 1e9, 90.0)),
    Planted("sides swapped", "the slow side's times are given as the fast one's", SLOWER, lambda: broken(Swapped())),
    Planted(
        "wrong unit", "a station divides milliseconds by a million: 20 us become 20 ns", memory_floor.RULE,
        lambda: broken(Milliseconds()),
    ),
    Planted("skips", "one sample of ten holds no work: the median does not show it", memory_floor.RULE,
            lambda: broken(Skips())),
    Planted("surprise", "a trace that cannot be read", ENDED,
            lambda: broken(PretendedStation(fails={"kernels": ValueError("no range of mla_decode")}))),
    Planted("empty samples", "a station times nothing at all", memory_floor.RULE, lambda: broken(Impatient())),
    Planted(
        "keys left out", "a prefill at 1.3 times the dense peak: a causal mask that is half too strict",
        roofline.NOT_FASTER, partial(multiplied, 1.3),
    ),
    Planted("sparse peak", "a headline figure with sparsity is taken for a dense one", roofline.TWO_WAYS,
            partial(published, "H200", "bfloat16", 2.0)),
    Planted("sparse fp8 peak", "the same of AMD's fp8", roofline.TWO_WAYS, partial(published, "MI300X", "fp8", 2.0)),
    Planted("sparse fp8 peak alone", "the same of a product whose units' rate is not known", roofline.NARROWER,
            partial(published, "B200", "fp8", 2.0)),
    Planted("sparse 4-bit peak", "B300's 4-bit figure with sparsity", roofline.NARROWER,
            partial(published, "B300", "mxfp4", 2.0)),
    Planted("halved peak", "a dense figure is halved once more", roofline.TWO_WAYS,
            partial(published, "MI355X", "mxfp4", 0.5)),
)  # fmt: skip

RIGHT = (
    Planted("as it should be", "a decode, its reduce and a fill", "", lambda: broken(PretendedStation())),
    Planted("reduce alone beside", "no fill before it", "", at(FAST, kernels=(DECODE, REDUCE))),
    Planted(
        "no graph", "the host waits for the device, so that no graph is captured", "",
        lambda: broken(PretendedStation(fails={"graph": NO_GRAPH})),
    ),
    Planted("just above the floor", "345 kB in 60 ns", "", at(FAST, seconds=60e-9)),
    Planted(
        "slower, nothing asked", "a fast path that is slower where nothing was promised", "",
        lambda: broken(PretendedStation(seconds_of={FAST: 90e-6, SLOW: 50e-6}), at_least=0.0),
    ),
    Planted("unknown product", "a device without a row: no floor is asked of it", "",
            lambda: broken(PretendedStation(device=""))),
    Planted("slow steps", "three trials that just fit", "", partial(over_budget, 1.0, 31.0)),
    Planted("at the peak", "a prefill at 0.99 of the dense peak", "", partial(multiplied, 0.99)),
    Planted("as published", "the H200's row as it stands", "", partial(published, "H200", "bfloat16", 1.0)),
    Planted("wide 4-bit units", "B300's row as it stands", "", partial(published, "B300", "mxfp4", 1.0)),
)  # fmt: skip

PLANTED = (*FAULTS, *RIGHT)
