"""The anytime-valid test on trial: no step can pay on average, right servers pass, faulty decoders do not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from waveproof.golden.judges.bettors import everyone
from waveproof.golden.judges.evidence import most_false_alarms
from waveproof.golden.judges.martingale import (
    RANKS,
    ROUNDING,
    FaithfulnessTest,
    Reported,
    UnusableReport,
    Wealth,
    bounds,
)
from waveproof.golden.judges.symbols import FIRST, IMPOSSIBLE, REST, Step
from waveproof.selftest import judge_figures
from waveproof.selftest.faulty_decoders import World, faulty, honest, make_world, plain, stream
from waveproof.selftest.judge_figures import RIGHT, VIEWS, View, right_runs, watch

ALPHA = 1e-3
HALF = Reported({"a": math.log(0.5), "b": math.log(0.5)}, True)


def step(random: np.random.Generator, complete: bool, draft: bool) -> Step:
    """What could be known before a token of a vocabulary of 12, or of its 8 most probable."""
    law = -np.sort(-random.dirichlet(np.full(12, 0.5)))
    bound = bounds(law if complete else law[:8], complete, ROUNDING)
    m = len(bound)
    return Step(
        bound[None],
        random.random(1) < 0.1,
        random.integers(3, size=(1, m)),
        random.integers(3, size=1),
        random.dirichlet(np.full(m, 0.5))[None] if draft else None,
        np.concatenate(([0, 1], 2 + random.permutation(m - 2)))[None] if complete else None,
    )


class TestEveryStepIsFair:
    @pytest.mark.parametrize("draft", [True, False], ids=["draft", "no draft"])
    @pytest.mark.parametrize("complete", [True, False], ids=["complete", "top-K"])
    def test_no_wager_gains_on_average(self, complete: bool, draft: bool) -> None:
        """By enumeration of the next token after many histories, under any law within the allowance.

        Over symbols of probability at most ``bound``, with sum 1, the dearest law fills up the best paid ones first.
        """
        random = np.random.default_rng(7)
        wealth = Wealth(1, everyone(1, 14, 3, 1))
        for at in range(120):
            now = step(random, complete, draft)
            m = now.bound.shape[1]
            if at % 6 == 0:
                paid = np.stack([np.exp(self.advanced(wealth, now, x) - wealth.logs[0]) for x in range(m)])
                for wager, name in enumerate(wealth.names):
                    order = np.argsort(-paid[:, wager])
                    law = np.diff(np.minimum(np.cumsum(now.bound[0, order]), 1.0), prepend=0.0)
                    assert law.sum() == pytest.approx(1.0)
                    assert law @ paid[order, wager] <= 1.0 + 1e-12, name
            # Faulty on purpose: the bettors shall have something to bet on.
            wealth.advance(now, np.array([min(int(random.integers(4)), m - 1) if at % 2 else FIRST]))
        assert wealth.logs.max() > 1.0, "nobody ever won anything: this proves nothing"

    @staticmethod
    def advanced(wealth: Wealth, now: Step, symbol: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        copy = deepcopy(wealth)
        copy.advance(now, np.array([symbol]))
        return np.asarray(copy.logs[0])

    def test_no_token_ruins_a_wager(self) -> None:
        random = np.random.default_rng(8)
        wealth = Wealth(1, everyone(1, 14, 3, 1))
        for symbol in [IMPOSSIBLE, REST, *range(FIRST, 10)] * 3:
            before = wealth.logs.copy()
            wealth.advance(step(random, False, True), np.array([symbol]))
            assert (wealth.logs - before).min() >= math.log(1e-3) - 0.01

    def test_a_greater_misreport_inflates_by_no_more_than_itself(self) -> None:
        """Tokens of 1.0001 times their reported probability: at most 1e-4 a token in the logarithm, on average."""
        random = np.random.default_rng(9)
        wealth = Wealth(1, everyone(1, 14, 3, 1))
        for _ in range(20):
            now = step(random, True, False)
            paid = np.stack([self.advanced(wealth, now, x) - wealth.logs[0] for x in range(now.bound.shape[1])])
            assert ((1.0001 * now.bound[0]) @ np.exp(paid)).max() <= 1.0001 * (1.0 + 1e-12)
            wealth.advance(now, np.array([FIRST + 2]))


class TestRightDecodersPass:
    @pytest.mark.parametrize(("streams", "tokens"), [(50, 250), pytest.param(500, 1000, marks=pytest.mark.slow)])
    def test_false_alarms(self, streams: int, tokens: int) -> None:
        """In each configuration at two alphas, and over all; each with confidence 0.999."""
        found = list(right_runs(streams, tokens))
        assert len(found) == len(RIGHT)
        for one in found:
            assert one.alarms <= one.allowed, one
            assert one.loose_alarms <= one.loose_allowed, one
        assert sum(one.alarms for one in found) <= most_false_alarms(streams * len(RIGHT), ALPHA)

    def test_a_short_list_of_a_long_tail(self) -> None:
        """The top 5 of 1,000: as they are, faithful; renormalised, another law than the tokens have."""
        random = np.random.default_rng(10)
        law = -np.sort(-random.dirichlet(np.full(1000, 0.3)))
        told = Reported.top(dict(enumerate(np.log(np.maximum(law, 1e-300)).tolist())), 5)
        right, renormalised = FaithfulnessTest(ALPHA, 1), FaithfulnessTest(ALPHA, 2)
        whole = math.log(sum(math.exp(log) for log in told.logprobs.values()))
        other = Reported({token: log - whole for token, log in told.logprobs.items()}, False)
        for token in random.choice(1000, 1500, p=law).tolist():
            right.observe(token, told)
            renormalised.observe(token, other)
        assert not right.rejected
        assert right.inconclusive == ""
        assert renormalised.rejected
        assert renormalised.rejected_at is not None
        assert renormalised.rejected_at < 50

    def test_the_sampled_token_must_not_join_the_list(self) -> None:
        """A server that appends it: taken at its word it looks faulty, its top-K alone does not."""
        random = np.random.default_rng(11)
        law = np.array([0.3, 0.2, 0.1, *[0.04] * 10])
        naive, careful = FaithfulnessTest(ALPHA, 1), FaithfulnessTest(ALPHA, 2)
        for token in random.choice(13, 1500, p=law).tolist():
            named = {at: math.log(law[at]) for at in (0, 1, 2, token)}
            naive.observe(token, Reported(named, False))
            careful.observe(token, Reported.top(named, 3))
        assert naive.rejected
        assert not careful.rejected

    def test_rounded_reports(self) -> None:
        """Four decimals of a logarithm are off by 5e-5: more than the default allows, so it is said."""
        random = np.random.default_rng(12)
        law = random.dirichlet(np.full(8, 1.0))
        told = Reported({at: round(math.log(p), 4) for at, p in enumerate(law.tolist())}, True)
        test = FaithfulnessTest(ALPHA, 1, rounding=6e-5)
        for token in random.choice(8, 1500, p=law).tolist():
            test.observe(token, told)
        assert not test.rejected


class TestFaultsAreFound:
    QUICK = (
        "top-k reported, not applied",
        "greedy impostor",
        "residual not renormalised",
        "argmax of the residual",
        "typical acceptance",
        "accepted only where p/q >= 0.9",
        "q taken for 1",
        "lossy: 3 of 4 drafts accepted, unseen",
        "drawing coins used twice, no draft",
        "target instead of residual",
    )

    def test_quick_ones_where_the_draft_is_known(self) -> None:
        world = make_world(8, 16, 1)
        decoders = [faulty(world)[name] for name in self.QUICK]
        watched = watch(world, decoders, View("", 8, None, True), 5, 1500, ALPHA, 3, until_half=True)
        medians = np.median(watched.rejected_at, 1)
        missed = [name for name, median in zip(self.QUICK, medians, strict=True) if math.isinf(median)]
        assert missed == []
        assert medians[0] <= 10
        assert medians[1] <= 30

    @pytest.mark.slow
    @pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
    def test_all(self, view: View) -> None:
        """One fault is out of reach of any view here: it moves too little mass."""
        found = list(judge_figures.detections_in(view, 5, 12_000))
        assert len(found) >= 15
        missed = {one.fault for one in found if one.median is None}
        assert missed <= {"always accepted where p/q >= 0.9", "one coin a block"}
        assert all((one.median is None) == (2 * one.found < one.streams) for one in found)

    @pytest.mark.parametrize(
        ("fault", "draft_known", "bettor"),
        [
            ("greedy impostor", False, "tilt"),
            ("top-k reported, not applied", False, "leak"),
            ("the token before in 1 of 20", False, "repetition"),
            ("argmax of the residual", True, "draft: argmax of residual"),
            ("accepted only where p/q >= 0.9", True, "draft: only p/q >= 0.9 accepted"),
            ("target instead of residual", True, "draft: target for residual"),
            ("drawing coins used twice, no draft", True, "serial"),
        ],
    )
    def test_each_has_its_bettor(self, fault: str, draft_known: bool, bettor: str) -> None:
        """What a rejection says of the fault: the richest wager in most of seven streams."""
        world = make_world(16, 16, 1)
        view = View("", 16, None, draft_known)
        watched = watch(world, [faulty(world)[fault]], view, 7, 2500, ALPHA, 4, until_half=True)
        names = [one for one in watched.richest[0] if one]
        assert len(names) >= 4
        assert sum(one.startswith(bettor) for one in names) > len(names) / 2, names

    def test_an_impossible_token(self) -> None:
        test = FaithfulnessTest(ALPHA, 1)
        told = Reported({0: math.log(0.6), 1: math.log(0.4), 2: -math.inf}, True)
        test.observe(2, told)
        test.observe(3, told)
        assert test.rejected
        assert test.evidence().best_bettor.startswith("leak")

    def test_rejection_stands(self) -> None:
        """However long the server is right after that."""
        test, random = FaithfulnessTest(ALPHA, 1), np.random.default_rng(13)
        for _ in range(40):
            test.observe("a", HALF)
        assert test.rejected
        at = test.rejected_at
        for token in random.choice(["a", "b"], 400).tolist():
            test.observe(token, HALF)
        assert test.rejected_at == at
        assert test.inconclusive == ""


def test_one_stream_is_judged_like_many() -> None:
    """From dictionaries of log-probabilities as from arrays."""
    world = make_world(4, 12, 2)
    view = View("", 4, None, True)
    watched = watch(world, [honest(world)], view, 1, 200, ALPHA, 6)
    single = FaithfulnessTest(ALPHA, 6)
    source = stream(world, honest(world), 1, 6)
    peak = 0.0
    for _ in range(200):
        (context,), (token,) = (values.tolist() for values in next(source))
        logs = np.log(world.target[context]).astype(np.float32).tolist()
        drafts = dict(enumerate(world.draft[context].tolist()))
        # Listed in any order, as servers do.
        told = dict(sorted(enumerate(logs), key=lambda named: named[0] % 5))
        peak = max(peak, math.log(single.observe(token, Reported(told, True), context, drafts)))
    assert single.tokens == 200
    assert peak == pytest.approx(float(watched.peaks[0, 0]), abs=1e-9)


class TestUnusableReports:
    @pytest.mark.parametrize(
        ("logprobs", "complete", "message"),
        [
            ({"a": math.nan}, False, "nan of token 'a'"),
            ({"a": -1.0, "b": math.inf}, False, "inf of token 'b'"),
            ({"a": 0.3}, False, "0.3 of token 'a'"),
            ({"a": -0.5, "b": -0.6}, False, "sum to 1.155.*mass of at most 1"),
            ({"a": math.log(0.5), "b": math.log(0.4)}, True, "sum to 0.9: a complete law sums to 1"),
            ({"a": -math.inf}, True, "sum to 0"),
        ],
    )
    def test_laws(self, logprobs: Mapping[int | str, float], complete: bool, message: str) -> None:
        test = FaithfulnessTest(ALPHA, 1)
        with pytest.raises(UnusableReport, match=message):
            test.observe("a", Reported(logprobs, complete))
        assert test.tokens == 0
        assert test.observe("a", HALF) > 0.0

    @pytest.mark.parametrize(
        ("draft", "message"),
        [
            ({"a": math.nan}, "draft probability nan"),
            ({"a": -0.1}, "draft probability -0.1"),
            ({"a": 0.8, "b": 0.4}, "sum to 1.2"),
        ],
    )
    def test_drafts(self, draft: Mapping[int | str, float], message: str) -> None:
        with pytest.raises(UnusableReport, match=message):
            FaithfulnessTest(ALPHA, 1).observe("a", HALF, draft=draft)

    def test_a_missing_token(self) -> None:
        with pytest.raises(UnusableReport, match="no token came after 0 tokens"):
            FaithfulnessTest(ALPHA, 1).observe(None, HALF)  # type: ignore[arg-type]

    def test_a_rounding_above_one_is_none(self) -> None:
        FaithfulnessTest(ALPHA, 1).observe("a", Reported({"a": 1e-7}, False))


class TestInconclusive:
    @staticmethod
    def watched(tokens: int, reported: Reported = HALF) -> FaithfulnessTest:
        test, random = FaithfulnessTest(ALPHA, 1), np.random.default_rng(14)
        for token in random.choice(["a", "b"], tokens).tolist():
            test.observe(token if len(reported.logprobs) > 1 else "a", reported)
        return test

    def test_nothing_came(self) -> None:
        assert "0 tokens came, at least 1000" in FaithfulnessTest(ALPHA, 1).inconclusive

    def test_too_few(self) -> None:
        assert "30 tokens came, at least 1000" in self.watched(30).inconclusive
        assert self.watched(1000).inconclusive == ""

    def test_no_logprobs(self) -> None:
        test = self.watched(1000)
        assert test.observe("a", Reported({}, False)) == test.wealth
        assert test.inconclusive == "1 of 1001 tokens came without log-probabilities"

    def test_nothing_left_to_chance(self) -> None:
        test = self.watched(1000, Reported({"a": 0.0}, False))
        assert not test.rejected
        assert "leave nothing to chance" in test.inconclusive

    @pytest.mark.parametrize("counts", [(0, 50), (50, 0)])
    def test_nothing_accepted_or_nothing_rejected(self, counts: tuple[int, int]) -> None:
        test = self.watched(1000)
        test.speculated(*counts)
        assert "{} were accepted and {} rejected".format(*counts) in test.inconclusive
        test.speculated(5, 5)
        assert test.inconclusive == ""


class TestState:
    def test_evidence_is_plain(self) -> None:
        test = TestInconclusive.watched(700)
        kept = test.evidence()
        again = json.loads(json.dumps(asdict(kept)))
        assert again["tokens"] == 700
        assert again["inconclusive"] == test.inconclusive
        assert kept.by_bettor[kept.best_bettor] == max(kept.by_bettor.values())
        assert kept.log10_wealth <= kept.log10_peak
        places = [tokens for tokens, _ in kept.trajectory]
        assert places == sorted(set(places))
        assert 20 < len(places) <= 65
        assert places[-1] == 700

    def test_a_new_request_has_no_past(self) -> None:
        """Else the token before would be one of another request."""
        one, other = FaithfulnessTest(ALPHA, 1), FaithfulnessTest(ALPHA, 1)
        for _ in range(12):
            one.observe("a", HALF)
            other.observe("a", HALF)
            other.restart()
        assert one.by_bettor()["repetition: caution 4"] > 0.5
        assert other.by_bettor()["repetition: caution 4"] == pytest.approx(0.0, abs=0.01)

    def test_more_ranks_than_symbols(self) -> None:
        """A complete law over 500 tokens: the improbable ones share a symbol."""
        random = np.random.default_rng(15)
        law = random.dirichlet(np.full(500, 1.0))
        told = Reported(dict(enumerate(np.log(law).tolist())), True)
        test = FaithfulnessTest(ALPHA, 1)
        tokens = random.choice(500, 300, p=law).tolist()
        assert any((law > law[token]).sum() >= RANKS for token in tokens)
        for token in tokens:
            test.observe(token, told, draft=dict(enumerate(random.dirichlet(np.full(500, 1.0)).tolist())))
        assert not test.rejected

    def test_ties_are_ranked_by_name(self) -> None:
        """A server that lists the sampled token first among equals must not be believed to rank it first."""
        test, random = FaithfulnessTest(ALPHA, 1), np.random.default_rng(16)
        for token in random.choice(["a", "b"], 400).tolist():
            names = [token, "a" if token == "b" else "b"]
            test.observe(token, Reported(dict.fromkeys(names, math.log(0.5)), True))
        assert not test.rejected


class TestSimulatedDecoders:
    def test_a_right_one_has_the_targets_law(self) -> None:
        world = make_world(5, 9, 1)
        for decoder in (honest(world), plain(world)):
            law = world.draft * decoder.accept
            law += (1.0 - law.sum(1, keepdims=True)) * decoder.residual
            np.testing.assert_allclose(law, world.target, atol=1e-12)

    def test_streams_follow_their_tables(self) -> None:
        """Total variation of 200,000 tokens in one context from the target: about sqrt(V / n); a fault's is larger."""
        world = make_world(1, 9, 1)
        assert self.distance(world, "right") < 0.01
        assert self.distance(world, "greedy impostor") > 0.3
        assert self.distance(world, "target instead of residual") > 0.02

    @staticmethod
    def distance(world: World, name: str) -> float:
        decoder = honest(world) if name == "right" else faulty(world)[name]
        source = stream(world, decoder, 10_000, 2)
        counts = sum(np.bincount(next(source)[1], minlength=9) for _ in range(20))
        return float(np.abs(counts / 200_000 - world.target[0]).sum() / 2.0)
