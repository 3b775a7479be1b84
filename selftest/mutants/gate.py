"""Gates that are wrong, each in one way in which gates have been wrong, and some things that only look wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu, t

from waveproof.perf.gate import NotComparable, judge_exact, judge_pairs, judge_ratio, judge_unpaired
from waveproof.perf.measure import PairedSamples
from waveproof.perf.night import TOLERANCE, Night
from waveproof.perf.records import COUNTS, SECONDS, Measurement, Outcome, Place, Quantity, Ruling
from waveproof.perf.sign_flips import Array, Rule, decide
from waveproof.perf.thresholds import BadCalibration, Threshold, calibrate, key_of
from waveproof.perf.traces import BASE, in_pairs, trace_of
from waveproof.selftest.gate_trials import (
    TROUBLED,
    Decider,
    Judge,
    Trial,
    broken_rules,
    leaves_behind,
    let_through,
    like_pairs,
    ours,
)
from waveproof.selftest.planted import Planted

REFUSED = "bad samples are refused"
FLOOR = "faster than memory allows is red"
TICK = "a coarse clock passes nothing"
BEHIND = "what a call leaves behind is found"
EXACT = "any change of a count is red"
STALE = "other versions are stale"
PLACES = "one place is compared with itself"
RATIO_HELD = "a fast path that is not fast is found"
CALIBRATED = "A/A runs stay within the tolerance"


def tried(gate: Decider, coins: bool = True) -> Callable[[], Sequence[str]]:
    return lambda: broken_rules(gate, coins)


def renamed(names: dict[str, str]) -> Decider:
    """The right gate, some of whose outcomes are called something else."""

    def gate(candidate: Array, baseline: Array, rule: Rule) -> Any:
        outcome = ours(candidate, baseline, rule)
        return np.select([outcome == name for name in names], list(names.values()), outcome)

    return gate


def by_means(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """A ratio of means beyond half of what is to be found."""
    ratio = candidate.mean(axis=1) / baseline.mean(axis=1)
    bound = 1 + (rule.tolerance + rule.detectable) / 2
    return np.select([ratio > bound, ratio < 1 / bound], ["regress", "improve"], "pass")


def by_t_of_means(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """A t interval of the mean difference, relative to the baseline's mean."""
    difference = candidate - baseline
    half = t.isf(rule.alpha / 2, difference.shape[1] - 1) * difference.std(axis=1, ddof=1) / difference.shape[1] ** 0.5
    scale = baseline.mean(axis=1)
    low, high = (difference.mean(axis=1) - half) / scale, (difference.mean(axis=1) + half) / scale
    regress, improve = low > rule.tolerance, high < -rule.tolerance
    within = (low > -rule.detectable) & (high < rule.detectable)
    return np.select([regress, improve, within], ["regress", "improve", "pass"], "inconclusive")


def looks_for_free(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """Each look at the whole alpha."""
    made = np.full(len(candidate), "inconclusive", dtype="<U12")
    for look in rule.looks:
        left = made == "inconclusive"
        made[left] = ours(candidate[left, :look], baseline[left, :look], replace(rule, looks=(look,)))
    return made


def by_ends_included(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """An open interval: a shift at one of its ends counts as excluded, which ties make happen."""
    made = decide(candidate, baseline, rule)
    tolerated = np.log1p(rule.tolerance)
    return np.select([made.low >= tolerated, made.high <= -tolerated], ["regress", "improve"], made.outcome)


def by_order_of_sides(candidate: Array, baseline: Array, rule: Rule) -> Any:
    return ours(baseline, candidate, rule)


def by_unpaired_ranks(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """Mann-Whitney over all times, as if pairs were none."""
    found = mannwhitneyu(candidate, baseline, axis=1, method="asymptotic")
    above = found.statistic > candidate.shape[1] ** 2 / 2
    differs = found.pvalue < rule.alpha
    return np.select([differs & above, differs], ["regress", "improve"], "pass")


def without_tolerance(candidate: Array, baseline: Array, rule: Rule) -> Any:
    return ours(candidate, baseline, replace(rule, tolerance=0.0))


def by_shift_alone(candidate: Array, baseline: Array, rule: Rule) -> Any:
    """Without the question how often a side is slow."""
    made = decide(candidate, baseline, rule)
    tolerated, found = np.log1p(rule.tolerance), np.log1p(rule.detectable)
    within = (made.low > -found) & (made.high < found)
    chosen = [made.low > tolerated, made.high < -tolerated, within]
    return np.select(chosen, ["regress", "improve", "pass"], "inconclusive")


def right(samples: PairedSamples) -> Ruling:
    return judge_pairs(samples, "case", 0.005)


def unchecked(samples: Any) -> Ruling:
    """Compares with NaN, which is false, and so passes; uneven sides are cut."""
    pairs = min(len(samples.candidate), len(samples.baseline))
    ratio = float(np.median(samples.candidate[:pairs]) / np.median(samples.baseline[:pairs])) if pairs else math.nan
    outcome: Outcome = "regress" if ratio > 1.05 else "pass"
    return Ruling("case", "time", outcome, ratio, ratio, ratio, 0.999, 0.005, "")


def coins_unread(samples: Any) -> Ruling:
    coins = tuple(bool(one) for one in np.random.default_rng(3).random(len(samples.candidate)) < 0.5)
    return judge_pairs(PairedSamples(samples.candidate, samples.baseline, coins, 3), "case", 0.005)


def refuses(judge: Judge) -> Callable[[], Sequence[str]]:
    return lambda: [REFUSED] if let_through(judge) else []


def floor_kept(floor: float, told: bool = True) -> Callable[[], Sequence[str]]:
    """Times of 300 us under a floor; ``told``: whether the gate is told of it."""

    def broken() -> Sequence[str]:
        ruling = judge_pairs(like_pairs(), "case", 0.005, floor_seconds=floor if told else 0.0)
        red = ruling.outcome == "improve" and ruling.reason.startswith("faster than memory allows")
        return [] if red == (floor > 300e-6) else [FLOOR]

    return broken


def skips(share: float, read: Callable[[Array], float] = min) -> Callable[[], Sequence[str]]:
    """A candidate that does no work in a share of its calls, under a floor of 100 us; ``read``: what of it is held."""

    def broken() -> Sequence[str]:
        right, draw = like_pairs(), np.random.default_rng(9)
        times = np.array(right.candidate) * np.where(draw.random(40) < share, 0.02, 1.0)
        candidate = tuple(float(one) for one in times)
        floor = 100e-6 if read(times) < 100e-6 else 0.0
        ruling = judge_pairs(like_pairs(candidate=candidate), "case", 0.005, floor_seconds=floor)
        return [] if ruling.reason.startswith("faster than memory allows") == (share > 0) else [FLOOR]

    return broken


def ticking(told: bool) -> Callable[[], Sequence[str]]:
    """A change of 6 % by a clock that ticks at 15 %; ``told``: whether the gate is told of the tick."""

    def broken() -> Sequence[str]:
        pairs = in_pairs(replace(trace_of("steady"), tick=0.15 * BASE), np.random.default_rng(1), 1, 80, 1.06)
        samples = replace(pairs.samples(0), resolution=0.15 * BASE if told else 0.0)
        return [TICK] if judge_pairs(samples, "case", 0.005).outcome == "pass" else []

    return broken


def behind(slower: float, left: float, order: bool = True) -> Callable[[], Sequence[str]]:
    """A candidate that slows down what comes after it; ``order``: whether it is judged as it was measured."""

    def broken() -> Sequence[str]:
        samples = leaves_behind(slower, left)
        if not order:
            coins = tuple(bool(one) for one in np.random.default_rng(2).random(len(samples)) < 0.5)
            samples = replace(samples, candidate_first=coins)
        return [BEHIND] if (judge_pairs(samples, "case", 0.02).outcome == "pass") == (left > 0) else []

    return broken


PLACE = Place("emulate", "gfx950", "", {"torch": "2.13.0", "triton": "3.9.0"})


def counted(value: float, versions: dict[str, str] | None = None, quantity: Quantity = COUNTS[0]) -> Measurement:
    place = PLACE if versions is None else replace(PLACE, versions=versions)
    return Measurement("mla_decode/aiter/heads=12", quantity, (value,), place)


def as_a_time(measured: Measurement, baseline: Measurement) -> Ruling:
    """A count let vary by half a percent, as a time may."""
    ratio = measured.values[0] / baseline.values[0]
    outcome: Outcome = "regress" if ratio > 1.005 else "pass"
    return Ruling("case", "count", outcome, ratio, ratio, ratio, 1.0, 0.005, "")


def exact(judge: Callable[[Measurement, Measurement], Ruling], versions: dict[str, str]) -> Callable[[], Sequence[str]]:
    """One instruction more of 8,360, and one less; with these versions tonight."""

    def broken() -> Sequence[str]:
        more, less = (judge(counted(value, versions), counted(8360.0)).outcome for value in (8361.0, 8359.0))
        if versions != PLACE.versions:
            return [] if (more, less) == ("stale", "stale") else [STALE]
        return [] if (more, less) == ("regress", "improve") else [EXACT]

    return broken


def versions_unread(measured: Measurement, baseline: Measurement) -> Ruling:
    return judge_exact(replace(measured, place=baseline.place), baseline)


def other_place(judge: Callable[[Measurement, Measurement], Ruling]) -> Callable[[], Sequence[str]]:
    """MI300X against MI355X."""

    def broken() -> Sequence[str]:
        times = tuple(300e-6 * (1 + number / 1000) for number in range(40))
        here = Measurement("case", SECONDS, times, Place("hip", "gfx950", "MI355X"))
        try:
            judge(here, replace(here, place=Place("hip", "gfx942", "MI300X")))
        except NotComparable:
            return []
        return [PLACES]

    return broken


def place_unread(measured: Measurement, baseline: Measurement) -> Ruling:
    return judge_unpaired(replace(measured, place=baseline.place), baseline, 0.02)


def ratio(at_least: float, factor: float = 3.0) -> Callable[[], Sequence[str]]:
    """A slow path that takes ``factor`` times as long."""

    def broken() -> Sequence[str]:
        pairs = in_pairs(trace_of("heavy_tailed"), np.random.default_rng(2), 1, 80, 1 / factor)
        return [] if judge_ratio(pairs.samples(0), "case", at_least).outcome == "pass" else [RATIO_HELD]

    return broken


def aa_runs(count: int) -> list[PairedSamples]:
    """Runs in each of which layout makes one side some 3 % slower or faster."""
    draw = np.random.default_rng(4)
    factors = np.exp(0.03 * draw.standard_normal(count))
    return [in_pairs(trace_of("steady"), draw, 1, 40, float(factor)).samples(0) for factor in factors]


def calibrated(make: Callable[[list[PairedSamples]], float]) -> Callable[[], Sequence[str]]:
    """Calibrated on 20 runs, tried on 60 others: 99.9 of 100 such calibrations leave out fewer than 12."""

    def broken() -> Sequence[str]:
        runs = aa_runs(80)
        tolerance = make(runs[:20])
        red = [judge_pairs(run, "case", tolerance, 0.4, looks=(20, 40)).outcome != "pass" for run in runs[20:]]
        return [CALIBRATED] if sum(red) >= 12 else []

    return broken


def mean_tolerance(runs: list[PairedSamples]) -> float:
    """The mean difference of A/A runs, which half of all runs exceed."""
    effects = [abs(math.log(np.median(run.candidate) / np.median(run.baseline))) for run in runs]
    return float(np.mean(effects)) / 2


def few_runs(make: Callable[[list[PairedSamples]], object]) -> Callable[[], Sequence[str]]:
    """Three runs, of which no threshold may be made."""

    def broken() -> Sequence[str]:
        try:
            make(aa_runs(3))
        except BadCalibration:
            return []
        return [CALIBRATED]

    return broken


def by_case_alone(night: Night, case: str, place: Place) -> float:
    """Whatever machine a threshold was found on."""
    return next(one.tolerance for (name, _), one in night.thresholds.items() if name == case)


def elsewhere(tolerance: Callable[[Night, str, Place], float]) -> Callable[[], Sequence[str]]:
    """Calibrated on an MI300X, and asked for on an MI355X."""

    def broken() -> Sequence[str]:
        there = Place("hip", "gfx942", "AMD Instinct MI300X")
        night = Night(thresholds={key_of("case", there): Threshold(0.3, 0.1, None, 12)})
        used = tolerance(night, "case", Place("hip", "gfx950", "AMD Instinct MI355X"))
        return [] if used == TOLERANCE else [PLACES]

    return broken


def kinds_in_trouble() -> Sequence[str]:
    """The right gate's alarms over all kinds."""
    runs = [in_pairs(trace, np.random.default_rng(8), 60, 80) for trace in TROUBLED]
    outcomes = np.concatenate([ours(pairs.candidate, pairs.baseline, Rule(0.005)) for pairs in runs])
    seen = int(((outcomes == "regress") | (outcomes == "improve")).sum())
    return [] if Trial("no false alarm", seen, len(outcomes), 0.001).holds else ["no false alarm"]


NEWER = {"torch": "2.14.0", "triton": "3.9.0"}
SAME = dict(PLACE.versions)

PLANTED: tuple[Planted, ...] = (
    Planted("no_coins", "the candidate is always first, where second calls find caches warm", "no false alarm",
            tried(ours, coins=False)),
    Planted("means", "a ratio of means beyond a fixed bound", "no false alarm", tried(by_means)),
    Planted("t_of_means", "a t interval of the mean: one pause hides a change", "slower is found",
            tried(by_t_of_means)),
    Planted("looks_for_free", "each look is made at the whole alpha", "looks share alpha", tried(looks_for_free)),
    Planted("ends_included", "a coarse clock's zeros at the end of an interval count as excluded", "no false alarm",
            tried(by_ends_included)),
    Planted("unpaired_ranks", "a rank test over all times that forgets the pairs", "slower is found",
            tried(by_unpaired_ranks)),
    Planted("one_sided", "faster passes", "faster is found", tried(renamed({"improve": "pass"}))),
    Planted("sides_swapped", "slower is called faster", "slower is found", tried(by_order_of_sides)),
    Planted("no_tolerance", "what A/A runs differ by is called a change", "the tolerated is let be",
            tried(without_tolerance)),
    Planted("absence_passes", "what is not shown to be slower passes", "a pass rules out",
            tried(renamed({"inconclusive": "pass"}))),
    Planted("never_passes", "nothing is ever certain enough", "alike passes", tried(renamed({"pass": "inconclusive"}))),
    Planted("shift_alone", "a candidate that is slow in two calls of five has the same typical time",
            "slow more often is found", tried(by_shift_alone)),
    Planted("nan_passes", "a comparison with NaN is false, so nothing is wrong", REFUSED, refuses(unchecked)),
    Planted("coins_unread", "an order that no coin drew is judged as if one had", REFUSED, refuses(coins_unread)),
    Planted("floor_unread", "300 us where memory alone takes 400", FLOOR, floor_kept(400e-6, told=False)),
    Planted("floor_by_median", "two calls of ten are skipped, the floor is held by the median", FLOOR,
            skips(0.2, lambda times: float(np.median(times)))),
    Planted("tick_unread", "6 % slower within a tick of 15 %", TICK, ticking(told=False)),
    Planted("behind_unread", "6 % slower, and the next call by 12 %: the order is not looked at", BEHIND,
            behind(0.06, 0.12, order=False)),
    Planted("count_as_time", "an instruction more or less is within half a percent", EXACT, exact(as_a_time, SAME)),
    Planted("versions_unread", "torch was upgraded, and the count is judged as if not", STALE,
            exact(versions_unread, NEWER)),
    Planted("place_unread", "tonight on an MI355X, the baseline of an MI300X", PLACES, other_place(place_unread)),
    Planted("fallback", "three times as fast where ten are due", RATIO_HELD, ratio(10.0)),
    Planted("mean_as_tolerance", "the tolerance is half the mean difference of A/A runs", CALIBRATED,
            calibrated(mean_tolerance)),
    Planted("few_runs_taken", "the mean difference of three A/A runs", CALIBRATED, few_runs(mean_tolerance)),
    Planted("another_machine", "a threshold that was found on another machine is used", PLACES,
            elsewhere(by_case_alone)),
    Planted("right_gate", "the same rules, the right gate", "", tried(ours)),
    Planted("right_in_trouble", "drift, modes, tails and ticks without a change", "", kinds_in_trouble),
    Planted("right_refusals", "bad samples, the right gate", "", refuses(right)),
    Planted("above_the_floor", "300 us where memory takes 200", "", floor_kept(200e-6)),
    Planted("below_the_floor_told", "300 us where memory takes 400, and it is said", "", floor_kept(400e-6)),
    Planted("skips_told", "one call of ten is skipped, and it is said", "", skips(0.1)),
    Planted("skips_none", "no call is skipped", "", skips(0.0)),
    Planted("tick_told", "a tick of 15 %, and it is said", "", ticking(told=True)),
    Planted("behind_told", "6 % slower, and the next call by 12 %", "", behind(0.06, 0.12)),
    Planted("nothing_behind", "1 % slower, and nothing is left behind", "", behind(0.01, 0.0)),
    Planted("exact_right", "an instruction more is worse and one less is better", "", exact(judge_exact, SAME)),
    Planted("stale_right", "torch was upgraded", "", exact(judge_exact, NEWER)),
    Planted("place_right", "two products are refused", "",
            other_place(lambda now, then: judge_unpaired(now, then, 0.02))),
    Planted("fast_enough", "three times as fast where two and a half are due", "", ratio(2.5)),
    Planted("calibrated_right", "the tolerance limit of twenty A/A runs", "",
            calibrated(lambda runs: calibrate(runs).tolerance)),
    Planted("few_runs_refused", "three A/A runs", "", few_runs(calibrate)),
    Planted("own_machine", "calibrated on another machine, and not used", "", elsewhere(Night.tolerance)),
)  # fmt: skip
