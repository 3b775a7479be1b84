"""Verifiers of draft tokens judged by what they draw: whether they sample, and by what law with a seed.

The contract: ``kernels/operators/verify.py``; the tests with their error rates: ``golden/judges/sampled.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.verify_sampling import equal_logits, seeded_call
from waveproof.golden.judges.sampled import (
    judge_neighbours,
    judge_really_samples,
    judge_sampled_law,
    judge_seed_decides,
)
from waveproof.golden.references.decisions import Outcome, law
from waveproof.golden.references.verify import seeded_decision

pytestmark = pytest.mark.rocm

CHAIN, ACCEPT, SEEDED = "chain_verify", "accept_sampling", "seeded_chain_verify"


@pytest.mark.operator(CHAIN, ACCEPT, SEEDED, asks="really samples")
@pytest.mark.one_arch
def test_really_samples_above_temperature_zero(bench: Bench, seed: int) -> None:
    # The cheapest check there is of a verifier that is silently greedy (sglang#37134): 64 draws, two equal logits.
    call = equal_logits(bench.operator, bench.path, seed=seed)
    bench.hold(judge_really_samples(bench.results(call)))


# A verifier with random numbers of its own --------------------------------------------------------------------------


@pytest.mark.operator(SEEDED)
@pytest.mark.broad
@pytest.mark.parametrize("case", ["alike", "warm", "twice", "short", "long"])
def test_law_of_a_verifier_with_random_numbers_of_its_own(bench: Bench, case: str, seed: int) -> None:
    # Rows of two kinds by turns, alike but for what they draw: two samples of two laws.
    rows = bench.budget(4000, 600)
    call = seeded_call(case, rows, seed + 7)
    outputs = bench.all_conform(call)
    for first, step in ((0, 1),) if case == "alike" else ((0, 2), (1, 2)):
        due = {one: mass for one, mass in law(seeded_decision(call, first)).items() if isinstance(one, Outcome)}
        drawn = [output[first::step] for output in outputs]
        judgement, evidence = judge_sampled_law(drawn, due)
        bench.note(f"{evidence.n} rows of {case} find a total variation of {evidence.detectable:.3f}")
        bench.hold(judgement)
        bench.hold(judge_neighbours(drawn, due))


@pytest.mark.operator(SEEDED)
@pytest.mark.broad
def test_seed_decides(bench: Bench, seed: int) -> None:
    call = replace(seeded_call("alike", 128, seed + 7), repeats=2)
    first = bench.results(call)
    for other in (1, 2, 256):
        bench.hold(judge_seed_decides(first, bench.results(call.with_arguments(seed=seed + 7 + other))))
