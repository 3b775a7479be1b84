"""The sampling judges on trial: both of their error rates, and what they refuse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from waveproof.golden.judges.budget import Budget, BudgetExceeded
from waveproof.golden.judges.evidence import (
    LEAST_EXPECTED,
    RARE_SHARE,
    Evidence,
    UnusableSample,
    detectable_bias,
    detectable_distance,
    dkw_test,
    g_test,
    merged_cells,
    most_false_alarms,
    samples_needed,
    two_sample_dkw,
    two_sample_g,
    uniforms_needed,
)
from waveproof.selftest.judge_figures import judge_runs, least_favourable

GEOMETRIC = np.power(0.8, np.arange(40.0)) / np.power(0.8, np.arange(40.0)).sum()


class TestRates:
    @pytest.mark.parametrize("runs", [120, pytest.param(1000, marks=pytest.mark.slow)])
    def test_false_alarms_and_finds_are_as_stated(self, runs: int) -> None:
        """On right samplers, and on the hardest law at the detectable deviation; each with confidence 0.999."""
        judged = list(judge_runs(runs))
        assert {one.judge for one in judged} == {"G", "two-sample G", "DKW", "two-sample DKW"}
        for one in judged:
            assert one.alarms <= one.allowed, one
            assert one.found >= one.due, one

    @pytest.mark.parametrize("direction", ["half", "one outcome", "every second", "impossible"])
    def test_a_bias_in_any_direction_is_found(self, direction: str) -> None:
        """At the detectable total variation, where no outcome is merged: 300 samples, power 0.99, confidence 0.999."""
        law, n, alpha = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05, 0.0]), 3000, 1e-3
        bias = detectable_bias(law, n, alpha)
        other = {
            "half": least_favourable(law, bias),
            "one outcome": law * (1.0 - bias / 0.95) + bias / 0.95 * np.eye(7)[5],
            "every second": law + bias / 2.0 * np.array([1, -1, 1, -1, 0, 0, 0]),
            "impossible": law * (1.0 - bias) + bias * np.eye(7)[6],
        }[direction]
        assert np.abs(other - law).sum() / 2.0 == pytest.approx(bias)
        random = np.random.default_rng(3)
        judged = [g_test(random.multinomial(n, other), law, alpha) for _ in range(300)]
        assert judged[0].merged == 0.0
        assert sum(one.rejects for one in judged) >= stats.binom.ppf(0.001, 300, 0.99)

    def test_half_the_detectable_bias_is_often_missed(self) -> None:
        """So that ``detectable`` is no idle bound: a quarter of the noncentrality."""
        random, n = np.random.default_rng(4), 3000
        law = np.full(8, 1 / 8)
        other = least_favourable(law, detectable_bias(law, n, 1e-3) / 2.0)
        assert sum(g_test(random.multinomial(n, other), law, 1e-3).rejects for _ in range(200)) < 100

    @pytest.mark.slow
    @pytest.mark.parametrize("cells", [2, 30, 300])
    def test_the_approximation_holds_at_the_limit(self, cells: int) -> None:
        """All cells at the least expectation; 20,000 samples, alpha 1e-3, at most 1.5 times that (docstring: 1.07)."""
        law, random = np.full(cells, 1.0 / cells), np.random.default_rng(5)
        counts = random.multinomial(int(LEAST_EXPECTED) * cells, law, size=20_000)
        alarms = sum(g_test(one, law, 1e-3).rejects for one in counts)
        assert alarms <= most_false_alarms(20_000, 1.5e-3)

    def test_calibration_would_show_a_bad_judge(self) -> None:
        """Without merging, a chi-square of 400 cells of expectation 1 alarms far too often."""
        random, law = np.random.default_rng(6), np.full(400, 1 / 400)
        counts = random.multinomial(400, law, size=500)
        raw = [stats.power_divergence(one, 400 * law, lambda_="log-likelihood").pvalue for one in counts]
        assert (np.array(raw) < 0.01).sum() > most_false_alarms(500, 0.01)
        assert sum(g_test(one, law, 0.01).rejects for one in counts) <= most_false_alarms(500, 0.01)


class TestG:
    def test_by_hand(self) -> None:
        """30 of 100 heads: G = 2 (30 ln 0.6 + 70 ln 1.4); Williams' factor 1 + (4 - 1) / (6 x 100 x 1)."""
        judged = g_test([30, 70], [0.5, 0.5], 1e-3)
        statistic = 2.0 * (30 * math.log(0.6) + 70 * math.log(1.4)) / 1.005
        assert judged.statistic == pytest.approx(statistic)
        assert (judged.n, judged.df, judged.merged) == (100, 1, 0.0)
        assert judged.p_value == pytest.approx(stats.chi2.sf(statistic, 1) / (1.0 - RARE_SHARE))
        assert judged.rejects

    def test_an_impossible_outcome(self) -> None:
        judged = g_test([5000, 5000, 1], [0.5, 0.5, 0.0], 1e-9)
        assert (judged.p_value, judged.statistic, judged.rejects) == (0.0, math.inf, True)
        assert not g_test([5000, 5000, 0], [0.5, 0.5, 0.0], 0.1).rejects

    def test_an_outcome_that_is_too_rare(self) -> None:
        """One in 1e9, seen once in 1,000 draws: G merges it with others, the exact test of rare outcomes does not."""
        judged = g_test([500, 499, 1], [0.5, 0.5 - 1e-9, 1e-9], 1e-4)
        assert judged.p_value == pytest.approx(1e-6 / RARE_SHARE, rel=1e-3)
        assert g_test([500, 500, 0], [0.5, 0.5 - 1e-9, 1e-9], 1e-4).p_value > 0.1

    def test_the_merged_are_told(self) -> None:
        judged = g_test(np.round(200 * GEOMETRIC), GEOMETRIC, 1e-3)
        small = GEOMETRIC[judged.n * GEOMETRIC < LEAST_EXPECTED].sum()
        assert judged.merged >= small > 0.1
        assert judged.detectable_anywhere == pytest.approx(min(1.0, judged.detectable + judged.merged))

    @pytest.mark.parametrize("n", [1, 5, 12])
    def test_too_few_draws_show_nothing(self, n: int) -> None:
        judged = g_test([n, 0, 0], [0.4, 0.3, 0.3], 1e-3)
        assert (judged.df, judged.p_value, judged.detectable) == (0, 1.0, 1.0)

    def test_nothing_drawn(self) -> None:
        assert g_test([0, 0], [0.5, 0.5], 1e-3).p_value == 1.0
        assert two_sample_g([0, 0], [0, 0], 1e-3).p_value == 1.0
        assert two_sample_g([0, 0], [50, 50], 1e-3).detectable == 1.0

    def test_two_samples(self) -> None:
        same = two_sample_g([400, 600], [800, 1200], 1e-3)
        assert same.statistic == pytest.approx(0.0, abs=1e-9)
        assert (same.n, same.df) == (3000, 1)
        assert two_sample_g([400, 600], [1000, 1000], 1e-3).rejects
        assert not two_sample_g([3, 0], [0, 3000], 1e-3).rejects, "three draws cannot speak at this alpha"

    @pytest.mark.parametrize(
        ("judge", "message"),
        [
            (lambda: g_test([1.5, 2], [0.5, 0.5], 0.01), r"1\.5, which is no count"),
            (lambda: g_test([-1, 2], [0.5, 0.5], 0.01), "-1.0, which is no count"),
            (lambda: g_test([math.nan, 2], [0.5, 0.5], 0.01), "counts holds nan"),
            (lambda: g_test([1, 2], [0.5, 0.4], 0.01), "sum 0.9"),
            (lambda: g_test([1, 2], [1.5, -0.5], 0.01), "smallest -0.5"),
            (lambda: g_test([1, 2, 3], [0.5, 0.5], 0.01), "3 outcomes where probs has 2"),
            (lambda: g_test([[1, 2]], [0.5, 0.5], 0.01), "2 dimensions"),
            (lambda: two_sample_g([1, 2], [1, 2, 3], 0.01), "of 2 and of 3 outcomes"),
            (lambda: dkw_test([0.5, 1.1], 0.01), "1.1, which lies outside"),
            (lambda: dkw_test([0.5, math.nan], 0.01), "uniforms holds nan"),
            (lambda: samples_needed([1.0, 0.0], 0.1, 0.01), "one possible outcome"),
            (lambda: samples_needed([0.5, 0.5], 0.0, 0.01), "0.0 is not between"),
        ],
    )
    def test_what_is_refused(self, judge: Callable[[], Evidence], message: str) -> None:
        with pytest.raises(UnusableSample, match=message):
            judge()


class TestMerging:
    @pytest.mark.parametrize("n", [30, 100, 1000, 100_000])
    def test_every_cell_reaches_the_limit(self, n: int) -> None:
        expected = n * GEOMETRIC
        cells = merged_cells(expected)
        sums = np.bincount(cells, expected)
        assert len(sums) == cells.max() + 1
        assert sums.min() >= LEAST_EXPECTED * (1.0 - 1e-9) or len(sums) == 1
        order = np.argsort(expected, kind="stable")
        assert (np.diff(cells[order]) >= 0).all(), "neighbours in expectation are merged"

    def test_large_cells_stay_alone(self) -> None:
        assert merged_cells(np.array([50.0, 3.0, 20.0, 0.0, 9.0])).tolist() == [2, 0, 1, 0, 0]


class TestDesign:
    @pytest.mark.parametrize("bias", [0.3, 0.01, 1e-4])
    @pytest.mark.parametrize("law", [GEOMETRIC, np.full(2, 1 / 2), np.full(512, 1 / 512)], ids=["tail", "coin", "flat"])
    def test_twins(self, law: np.ndarray, bias: float) -> None:
        n = samples_needed(law, bias, 1e-3)
        assert detectable_bias(law, n, 1e-3) <= bias < detectable_bias(law, n - 1, 1e-3)

    def test_a_coin(self) -> None:
        """One degree of freedom: (z_(alpha/2) + z_power)^2 / (4 bias^2), the far tail being nothing."""
        n = samples_needed([0.5, 0.5], 0.01, 1e-3)
        roots = stats.norm.isf(0.0009 / 2.0) + stats.norm.isf(0.01)
        assert n == pytest.approx(roots**2 / (4.0 * 0.01**2), rel=1e-3)

    def test_distances(self) -> None:
        n = uniforms_needed(0.01, 1e-3)
        assert detectable_distance(n, 1e-3) <= 0.01 < detectable_distance(n - 1, 1e-3)
        assert detectable_distance(0, 1e-3) == 1.0

    def test_a_judge_states_what_its_twin_does(self) -> None:
        assert g_test([600, 400], [0.6, 0.4], 1e-3).detectable == detectable_bias([0.6, 0.4], 1000, 1e-3)
        assert dkw_test(np.linspace(0, 1, 50), 1e-3).detectable == detectable_distance(50, 1e-3)


class TestUniforms:
    def test_by_hand(self) -> None:
        judged = dkw_test([0.1, 0.2, 0.3, 0.4], 1e-3)
        assert judged.statistic == pytest.approx(0.6)
        assert judged.p_value == pytest.approx(stats.kstwo.sf(0.6, 4))
        assert judged.p_value <= 2.0 * math.exp(-2.0 * 4 * 0.36), "Massart's bound"

    def test_a_thousand_equal_ones(self) -> None:
        assert dkw_test(np.full(1000, 0.5), 1e-9).rejects
        assert two_sample_dkw(np.full(1000, 0.5), np.linspace(0, 1, 1000), 1e-9).rejects

    def test_nothing_drawn(self) -> None:
        assert dkw_test([], 1e-3).p_value == two_sample_dkw([], [0.5], 1e-3).p_value == 1.0


class TestBudget:
    def test_it_is_divided(self) -> None:
        budget = Budget(0.01)
        assert budget.share("engines", 40, 0.5) == pytest.approx(0.01 * 0.5 / 40)
        assert budget.share("servers", 10, 0.5) == pytest.approx(0.01 * 0.5 / 10)
        assert [(one.name, one.total) for one in budget.spent] == [("engines", 0.005), ("servers", 0.005)]
        assert budget.left == pytest.approx(0.0)

    def test_asked_again(self) -> None:
        budget = Budget(0.01)
        assert budget.share("engines", 40) == budget.share("engines", 40)
        assert len(budget.spent) == 1
        with pytest.raises(BudgetExceeded, match=r"engines has 0\.1 of the budget for 40 tests"):
            budget.share("engines", 80)

    def test_no_more_than_all(self) -> None:
        budget = Budget(0.01)
        budget.share("engines", 1, 0.7)
        with pytest.raises(BudgetExceeded, match=r"servers asks for 0\.4 of the budget where 0\.3 is left"):
            budget.share("servers", 1, 0.4)


def test_most_false_alarms() -> None:
    """P(at most 2 of 1,000 at 1e-3) = 0.92, of at most 5 0.9994."""
    assert most_false_alarms(1000, 1e-3, 0.9) == 2
    assert most_false_alarms(1000, 1e-3) == 5


def test_order_in_which_outcomes_were_first_seen_does_not_matter() -> None:
    # Most outcomes come once or twice: cells made along the list would hold one sample's outcomes or the other's.
    random = np.random.default_rng(5)
    rejected = 0
    for _ in range(40):
        first, second = (Counter(random.integers(0, 3000, 1500).tolist()) for _ in range(2))
        seen = [*first, *(outcome for outcome in second if outcome not in first)]
        rejected += two_sample_g([first[one] for one in seen], [second[one] for one in seen], 0.01).rejects
    assert rejected <= most_false_alarms(40, 0.01)
