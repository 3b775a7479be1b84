"""The gate's arithmetic: exact laws by enumeration, against scipy, and at the edges."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm, wilcoxon

from waveproof.perf import thresholds
from waveproof.perf.gate import (
    NotComparable,
    NotRandomised,
    judge_exact,
    judge_pairs,
    judge_ratio,
    judge_unpaired,
    pairs_needed,
)
from waveproof.perf.intervals import highest_rate
from waveproof.perf.measure import BadSamples, PairedSamples
from waveproof.perf.records import COUNTS, SECONDS, TOKEN_RATE, Measurement, Place
from waveproof.perf.sign_flips import BadRule, Rule, carried_over, critical_rank, decide, shift_intervals
from waveproof.perf.thresholds import (
    LEAST_TOLERANCE,
    BadCalibration,
    Threshold,
    calibrate,
    load_thresholds,
    pairs_to_find,
    save_thresholds,
    tolerance_limit,
)
from waveproof.perf.traces import TRACES, Trace, in_pairs, steady, trace_of
from waveproof.selftest.gate_trials import (
    COARSE,
    TROUBLED,
    leaves_behind,
    let_through,
    like_pairs,
    not_to_be_judged,
    ours,
    trials,
)

PLACE = Place("hip", "gfx950", "MI355X", {"torch": "2.13.0"})


def all_coins(trace: Trace, pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Candidate and baseline of one run's times under every order that coins can draw: [2**pairs, pairs] each."""
    drawn = in_pairs(trace, np.random.default_rng(seed), 1, pairs)
    coins = np.array(list(itertools.product([False, True], repeat=pairs)))
    return np.where(coins, drawn.candidate, drawn.baseline), np.where(coins, drawn.baseline, drawn.candidate)


@pytest.mark.parametrize("trace", [*TROUBLED, *TRACES[-3:]], ids=lambda trace: trace.name)
def test_alarms_of_all_orders_together_are_at_most_alpha(trace: Trace) -> None:
    candidate, baseline = all_coins(trace, 10)
    for alpha, tolerance in ((0.2, 0.0), (0.05, 0.0), (0.2, 0.02)):
        outcome = decide(candidate, baseline, Rule(tolerance, 0.03, alpha, (8, 10))).outcome
        alarms = ((outcome == "regress") | (outcome == "improve")).sum()
        assert alarms <= alpha * len(outcome), f"{trace.name}: {alarms} of {len(outcome)} orders alarm at {alpha}"


def test_without_ties_the_interval_leaves_out_exactly_what_its_law_says() -> None:
    candidate, baseline = all_coins(trace_of("heavy_tailed"), 10)
    low, _, high = shift_intervals(np.log(candidate / baseline), 0.05)
    rank = critical_rank(10, 0.05)
    sums = [sum(ranks) for count in range(11) for ranks in itertools.combinations(range(1, 11), count)]
    assert rank == 9  # Hollander, Wolfe and Chicken, table A.4: P(T <= 8) = 0.0244 for n = 10
    assert ((low > 0) | (high < 0)).sum() == 2 * sum(one <= rank - 1 for one in sums)


def test_a_coarse_clock_hides_changes_and_invents_none() -> None:
    candidate, baseline = all_coins(COARSE, 10, seed=1)
    assert (candidate == baseline).mean() > 0.4
    low, _, high = shift_intervals(np.log(candidate) - np.log(baseline), 0.2)
    assert ((low > 0) | (high < 0)).mean() <= 0.2


@pytest.mark.parametrize("pairs", [9, 20, 40])
def test_the_ends_are_where_the_exact_signed_rank_test_turns(pairs: int) -> None:
    logs = np.random.default_rng(pairs).standard_t(3, (1, pairs))
    low, estimate, high = (float(one[0]) for one in shift_intervals(logs, 0.01))
    assert low < estimate < high
    for end, inside in ((low, 1), (high, -1)):
        inner, outer = (wilcoxon(logs[0] - end - step * inside * 1e-9, method="exact").pvalue for step in (1, -1))
        assert outer <= 0.01 < inner


def test_every_rule_holds() -> None:
    broken = [trial for trial in trials(ours, seed=2) if not trial.holds]
    assert not broken


def test_what_cannot_be_judged_is_refused_with_the_value() -> None:
    assert let_through(lambda samples: judge_pairs(samples, "case", 0.005)) == []
    assert let_through(lambda samples: judge_ratio(samples, "case", 2.0)) == []
    with pytest.raises(BadSamples, match=r"candidate, pair 39: nan s"):
        judge_pairs(not_to_be_judged()["candidate nan"], "case", 0.005)


def test_one_is_judged_as_many_are() -> None:
    pairs = in_pairs(trace_of("sticky"), np.random.default_rng(3), 12, 80, 1.02)
    made = decide(pairs.candidate, pairs.baseline, Rule(0.005))
    for number in range(12):
        ruling = judge_pairs(pairs.samples(number), "case", 0.005)
        assert ruling.outcome == made.outcome[number]
        assert (ruling.low, ruling.effect, ruling.high) == pytest.approx(
            tuple(math.exp(one[number]) for one in (made.low, made.effect, made.high)), rel=1e-12
        )


def test_measuring_on_does_not_change_what_was_decided() -> None:
    pairs = in_pairs(trace_of("heavy_tailed"), np.random.default_rng(4), 30, 80, 1.05)
    seen = set()
    for number in range(30):
        samples = pairs.samples(number)
        whole = judge_pairs(samples, "case", 0.005)
        looks = [judge_pairs(samples.first(look), "case", 0.005) for look in (20, 40, 80)]
        stopped = next((one for one in looks if one.outcome != "inconclusive"), looks[-1])
        assert (stopped.outcome, stopped.effect) == (whole.outcome, whole.effect)
        seen.add(whole.outcome)
    assert "regress" in seen


def test_the_mirrored_comparison_gets_the_mirrored_ruling() -> None:
    pairs = in_pairs(trace_of("bimodal"), np.random.default_rng(5), 20, 80, 1.1)
    mirror = {"regress": "improve", "improve": "regress"}
    there = ours(pairs.candidate, pairs.baseline, Rule(0.005))
    back = ours(pairs.baseline, pairs.candidate, Rule(0.005))
    assert [mirror.get(one, one) for one in there] == list(back)
    assert "regress" in there


def test_an_open_question_says_how_many_pairs_would_close_it() -> None:
    samples = in_pairs(trace_of("bimodal"), np.random.default_rng(6), 1, 40, 1.02).samples(0)
    ruling = judge_pairs(samples, "case", 0.005)
    assert ruling.outcome == "inconclusive"
    needed = int(ruling.reason.split("about ")[1].split(" pairs")[0])
    assert 41 <= needed <= 2000
    few = judge_pairs(samples.first(5), "case", 0.005)
    assert few.outcome == "inconclusive"
    assert few.reason.startswith("5 pairs cannot exclude anything")
    assert (few.low, few.high) == (0, math.inf)


def test_a_candidate_that_is_slow_more_often_is_found_by_that_and_told_so() -> None:
    draw = np.random.default_rng(7)
    plain = in_pairs(trace_of("steady"), draw, 1, 80)
    slow = replace(plain, candidate=plain.candidate * np.where(draw.random((1, 80)) < 0.35, 1.6, 1.0))
    ruling = judge_pairs(slow.samples(0), "case", 0.02)
    assert ruling.outcome == "regress"
    assert ruling.reason.startswith("slow more often")


def test_faster_than_the_floor_is_red_even_where_both_sides_are() -> None:
    ruling = judge_pairs(like_pairs(), "case", 0.005, floor_seconds=1e-3)
    assert ruling.outcome == "improve"
    assert re.match(r"faster than memory allows: 0.000\d+ s, the floor is 0.001 s; ", ruling.reason)
    assert judge_pairs(like_pairs(), "case", 0.005, floor_seconds=1e-4).outcome == "pass"


def test_a_change_of_exactly_the_tolerance_is_let_pass_and_of_what_is_to_be_found_is_not() -> None:
    base = np.full((1, 20), 3e-6)
    for factor in (1.02, 1.05):
        for candidate, baseline in ((factor * base, base), (base, factor * base)):
            (outcome,) = ours(candidate, baseline, Rule(0.02, looks=(20,)))
            assert outcome == "pass" if factor == 1.02 else outcome in ("regress", "improve")
    (outcome,) = ours(1.05 * base, base, Rule(0.0499999, looks=(20,)))
    assert outcome != "pass"


def test_a_pass_says_how_many_slow_calls_it_cannot_see() -> None:
    """None slow of 20: at most 0.05 ** (1 / 20) = 0.861 of the calls are quick for sure."""
    assert highest_rate(0, 20) == pytest.approx(1 - 0.05 ** (1 / 20))
    assert highest_rate(20, 20) == 1
    assert "so that up to 14 % of its calls may be" in judge_pairs(like_pairs(), "case", 0.005).reason


def test_more_pairs_than_can_be_held_are_refused_at_once() -> None:
    coins = tuple(bool(one) for one in np.random.default_rng(1).random(5000) < 0.5)
    with pytest.raises(BadRule, match="5000 pairs: at most 1000"):
        judge_ratio(PairedSamples((1.0,) * 5000, (2.0,) * 5000, coins, 1), "case", 2.0)


def test_what_a_call_leaves_behind_is_found_whatever_drifts_and_not_invented() -> None:
    """At 1 in 20: 400 runs without find at most 37 with probability 0.9999, those with 10 % behind each are found."""
    found = 0
    for name in ("ramp", "bimodal", "warmed", "heavy_tailed"):
        pairs = in_pairs(trace_of(name), np.random.default_rng(17), 100, 40, 1.05)
        rows = zip(pairs.candidate, pairs.baseline, pairs.candidate_first, strict=True)
        found += sum(carried_over(*row) < 0.05 for row in rows)
    assert found <= int(binom.isf(1e-4, 400, 0.05))
    samples = leaves_behind(0.06, 0.12)
    sides = np.array(samples.candidate), np.array(samples.baseline)
    assert carried_over(*sides, np.array(samples.candidate_first)) < 1e-3
    ruling = judge_pairs(samples, "case", 0.005)
    assert ruling.outcome == "inconclusive"
    assert ruling.reason.startswith("calls change what the next one takes")


def test_blocks_with_one_coin_each_are_judged_as_blocks() -> None:
    pairs = in_pairs(trace_of("walk"), np.random.default_rng(8), 1, 160, 1.05).samples(0)
    coins = np.repeat(np.random.default_rng(9).random(40) < 0.5, 4)
    blocked = replace(pairs, candidate_first=tuple(bool(one) for one in coins))
    with pytest.raises(NotRandomised, match="the order changed from 1 before in"):
        judge_pairs(blocked, "case", 0.005)
    ruling = judge_pairs(blocked, "case", 0.005, block=4)
    assert ruling.outcome == "regress"
    assert "after 20 blocks" in ruling.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": 0.05}, "tolerance < detectable"),
        ({"alpha": 0.0}, "alpha = 0.0"),
        ({"looks": (40, 20)}, "numbers of pairs that rise"),
        ({"looks": (20, 4000)}, "at most 1000"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(BadRule, match=message):
        Rule(**{"tolerance": 0.005, **changes})


def test_counts() -> None:
    def count(value: float, **versions: str) -> Measurement:
        return Measurement("case", COUNTS[0], (value,), replace(PLACE, versions=versions or PLACE.versions))

    assert judge_exact(count(10), count(10)).outcome == "pass"
    worse = judge_exact(count(4), count(0))
    assert (worse.outcome, worse.effect) == ("regress", math.inf)
    assert judge_exact(count(9), count(10), "anchor").against == "anchor"
    stale = judge_exact(count(11, torch="2.14.0"), count(10, torch="2.13.0", triton="3.9.0"))
    assert stale.outcome == "stale"
    assert "torch 2.13.0 -> 2.14.0, triton 3.9.0 -> absent): wave_instructions 10 -> 11" in stale.reason
    with pytest.raises(NotComparable):
        judge_exact(count(1), replace(count(1), case="another"))
    with pytest.raises(NotComparable, match="judge_unpaired"):
        judge_exact(Measurement("case", SECONDS, (1.0,), PLACE), Measurement("case", SECONDS, (1.0,), PLACE))


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.0, "pass"), (1.1, "regress"), (0.9, "improve"), (1.043, "inconclusive")]
)
def test_against_a_stored_baseline(factor: float, outcome: str) -> None:
    times = [tuple(float(one) for one in row) for row in steady(np.random.default_rng(10), 2, 60)]
    then = Measurement("case", SECONDS, times[0], PLACE)
    now = Measurement("case", SECONDS, tuple(factor * one for one in times[1]), PLACE)
    assert judge_unpaired(now, then, 0.04, detectable=0.0501).outcome == outcome
    rates = [replace(one, quantity=TOKEN_RATE, values=tuple(1 / value for value in one.values)) for one in (now, then)]
    turned = judge_unpaired(rates[0], rates[1], 0.04, detectable=0.0501)
    assert turned.outcome == outcome
    assert (turned.effect > 1) == (judge_unpaired(now, then, 0.04).effect > 1)
    few = judge_unpaired(replace(now, values=now.values[:5]), then, 0.04)
    assert (few.outcome, few.confidence < 0.95) == ("inconclusive", True)
    newer = replace(now, place=replace(PLACE, versions={"torch": "2.14.0"}))
    assert judge_unpaired(newer, then, 0.04).outcome == "stale"


def test_ratio_of_fast_and_slow() -> None:
    samples = in_pairs(trace_of("recorded_busy"), np.random.default_rng(11), 1, 80, 1 / 4).samples(0)
    outcomes = [judge_ratio(samples, "case", due).outcome for due in (2.0, 4.0, 8.0)]
    assert outcomes == ["pass", "inconclusive", "regress"]
    ruling = judge_ratio(samples, "case", 8.0)
    assert ruling.effect == pytest.approx(2.0, rel=0.05)
    assert ruling.low <= ruling.effect <= ruling.high
    assert judge_ratio(samples.first(5), "case", 2.0).outcome == "inconclusive"


def test_pairs_needed_are_enough_and_not_many_too_many() -> None:
    needed = pairs_needed(0.03, 0.05, 0.005, alpha=0.001)
    draw = np.random.default_rng(12)

    def power(pairs: int) -> float:
        logs = 0.03 * draw.standard_normal((1500, pairs)) + math.log(1.05)
        return float((shift_intervals(logs, 0.001)[0] > math.log(1.005)).mean())

    assert power(needed) > 0.98
    assert power(needed // 2) < 0.9
    with pytest.raises(BadRule, match="above the tolerance"):
        pairs_needed(0.03, 0.005, 0.005)


def aa(draw: np.random.Generator, runs: int, layout: float) -> list[PairedSamples]:
    factors = np.exp(layout * draw.standard_normal(runs))
    return [in_pairs(trace_of("steady"), draw, 1, 20, float(factor)).samples(0) for factor in factors]


@pytest.mark.parametrize("runs", [10, 58, 59])
def test_the_tolerance_holds_19_of_20_runs_in_19_of_20_calibrations(runs: int) -> None:
    draw = np.random.default_rng(runs)
    limits = np.array([tolerance_limit(0.01 * draw.standard_normal(runs)) for _ in range(500)])
    held = (2 * norm.cdf(limits / 0.01) - 1 >= 0.95).sum()
    assert binom.cdf(held, 500, 0.95) > 1e-4
    if runs == 10:
        assert held < 500 * 0.99, "a limit that always holds is no limit but a wall"


def test_a_calibration_sees_what_layout_does() -> None:
    tolerance = calibrate(aa(np.random.default_rng(13), 12, 0.02)).tolerance
    assert 0.02 * 1.96 < tolerance < 0.02 * 1.96 * 2.5


def test_a_quiet_case_keeps_the_least_tolerance_and_knows_its_pairs(tmp_path: Path) -> None:
    found = calibrate(aa(np.random.default_rng(14), 12, 0.0))
    assert found.tolerance <= 2 * LEAST_TOLERANCE
    assert found.noise == pytest.approx(math.sqrt(2) * 0.01, rel=0.2)
    assert found.pairs_for_5_percent == 20
    kept = {("case", ("hip", "gfx950", "AMD Instinct MI355X")): found}
    save_thresholds(tmp_path / "thresholds.json", kept)
    assert load_thresholds(tmp_path / "thresholds.json") == kept
    (tmp_path / "thresholds.json").write_text('{"schema": 1, "thresholds": [{"case": "case", "runs": 20}]}')
    with pytest.raises(BadCalibration, match=r"thresholds\.json: no thresholds"):
        load_thresholds(tmp_path / "thresholds.json")
    with pytest.raises(BadCalibration, match="9 A/A runs"):
        calibrate(aa(np.random.default_rng(15), 9, 0.0))
    with pytest.raises(BadCalibration, match=r"0\.004"):
        Threshold(0.004, 0.01, 20, 12)


def test_more_noise_takes_more_pairs_and_too_much_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "PAIRS_TRIED", (20, 40, 80))
    draw = np.random.default_rng(16)
    logs = draw.standard_normal(400)
    found = [pairs_to_find(spread * logs, 0.05, 0.005, trials=60) for spread in (0.01, 0.03, 1.0)]
    assert found[0] == 20
    assert found[1] in (40, 80)
    assert found[2] is None
    assert pairs_to_find(np.array([0.01]), 0.05, 0.06) is None
