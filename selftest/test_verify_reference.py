"""The decision trees of family verify by a second method: summed over drafts they give autoregressive sampling."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch

from waveproof.fixtures.strategies.verify import ChainCase
from waveproof.fixtures.strategies.verify_trees import TREES, TreeCase
from waveproof.golden.references.decisions import Choice, Outcome, explain, law, legal, visits
from waveproof.golden.references.verify import Chain, Law, Tree, coins_of, decision
from waveproof.selftest.emulate.exact_verifier import verify_block, verify_tokens

VOCABULARY, DRAFTS = 3, 2
Table = dict[tuple[int, ...], np.ndarray]


def _conditionals(seed: int, depth: int, sparse: bool = False) -> Table:
    """A law of the next token for every prefix of up to ``depth`` tokens."""
    rng = np.random.default_rng(seed)
    table = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(VOCABULARY), repeat=length):
            weights = rng.exponential(size=VOCABULARY) ** 2
            if sparse:
                weights[rng.integers(VOCABULARY)] = 0.0
            table[prefix] = weights / weights.sum()
    return table


def _joint(table: Table, prefix: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
    """Probability of each continuation of a prefix to ``length`` tokens, sampled one after the other."""
    joint = {prefix: 1.0}
    while len(next(iter(joint))) < length:
        joint = {
            (*tokens, token): mass * float(table[tokens][token])
            for tokens, mass in joint.items()
            for token in range(VOCABULARY)
        }
    return joint


def _given(p: np.ndarray) -> Law:
    return Law(p, np.zeros_like(p), False)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("limit", [0, 1, 2])
@pytest.mark.parametrize("block", [False, True], ids=["tokens", "block"])
def test_chain_summed_over_drafts_is_autoregressive(block: bool, limit: int, sparse: bool) -> None:
    target, draft = _conditionals(1, DRAFTS + 1, sparse), _conditionals(2, DRAFTS + 1, sparse)
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for drafts in itertools.product(range(VOCABULARY), repeat=DRAFTS):
        weight = np.prod([draft[drafts[:at]][drafts[at]] for at in range(DRAFTS)])
        if weight == 0.0:
            continue
        laws = [_given(target[drafts[:at]]) for at in range(DRAFTS + 1)]
        q = np.stack([draft[drafts[:at]] for at in range(DRAFTS)])
        for outcome, mass in law(Chain(drafts, laws, q, limit).tree(block)).items():
            assert isinstance(outcome, Outcome)
            for tokens, rest in _joint(target, outcome.tokens, DRAFTS + 1).items():
                total[tokens] += float(weight) * mass * rest
    due = _joint(target, (), DRAFTS + 1)
    assert max(abs(total[tokens] - mass) for tokens, mass in due.items()) < 1e-12


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deterministic_tree_at_thresholds_of_one_is_autoregressive(depth: int) -> None:
    # Children 0 and 2 of the root, 1 and 2 of the first of them, 0 of the second.
    target = _conditionals(3, 3)
    parents, tokens = (-1, 0, 0, 1, 1, 2), (9, 0, 2, 1, 2, 0)
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(parents)):
        paths.append((*paths[parents[node]], tokens[node]))
    first, sibling = (1, 3, 5, -1, -1, -1), (-1, 2, -1, 4, -1, -1)
    tree = Tree(tokens, first, sibling, [_given(target[path]) for path in paths], 1.0, 1.0, depth)
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for outcome, mass in law(tree.node()).items():
        assert isinstance(outcome, Outcome)
        for continued, rest in _joint(target, outcome.tokens, 3).items():
            total[continued] += mass * rest
    due = _joint(target, (), 3)
    assert max(abs(total[one] - mass) for one, mass in due.items()) < 1e-12


def test_lossy_threshold_is_its_own_formula() -> None:
    # Threshold .5 on p = [.5, .3, .2] with draft 0 accepts always: [1, 0, 0].
    p = np.array([0.5, 0.3, 0.2])
    for single, acc in ((0.5, 1.0), (1.0, 0.5)):
        tree = Tree((9, 0), (1, -1), (-1, -1), [_given(p), _given(p)], single, acc, 2)
        masses = law(tree.node())
        assert sum(mass for one, mass in masses.items() if isinstance(one, Outcome) and one.tokens[0] == 0) == 1.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [False, True])
def test_trees_agree_with_the_verifier_by_loops(block: bool, seed: int) -> None:
    case = ChainCase(16, 4, ("near", "far", "filtered-target", "near", "far"), block, seed=seed).call()
    verifier = verify_block if block else verify_tokens
    for row in range(5):
        p, q = case.tensor("target_probs")[row], case.tensor("draft_probs")[row]
        coins, final = case.tensor("coins")[row], float(case.tensor("final_coins")[row])
        due = verifier(p, q, case.tensor("candidates")[row], coins, final)
        if due.margin > 1.0:
            assert legal(decision(case, row), coins_of(case, row)) == [Outcome(due.accepted, due.tokens)]


def test_coin_on_an_exact_step_is_decided_and_on_another_is_not() -> None:
    choice = Choice(0, np.array([0.25]), np.array([1e-6]), True, lambda branch: Outcome(0, (branch,)))
    assert legal(choice, [0.25]) == [Outcome(0, (1,))]
    assert legal(choice, [0.25 - 2.0**-11]) == [Outcome(0, (0,))]
    rounded = Choice(0, np.array([0.3]), np.array([1e-6]), True, lambda branch: Outcome(0, (branch,)))
    assert len(legal(rounded, [0.3])) == 2
    assert legal(rounded, [0.3 - 2e-6]) == [Outcome(0, (0,))]


def test_law_of_every_tree_sums_to_one() -> None:
    for name in TREES:
        call = TreeCase(name, 8, 2, threshold_single=0.5, threshold_acc=0.75).call("target_only_verify")
        assert sum(law(decision(call, 1)).values()) == pytest.approx(1.0, abs=1e-12)


def test_visits_reach_every_choice_with_its_probability() -> None:
    call = ChainCase(8, 3, ("near",)).call()
    reached = [visit for visit in visits(decision(call, 0)) if not isinstance(visit, float)]
    finals = [visit.reach for visit in reached if visit.choice.coin == 2]
    assert sum(finals) == pytest.approx(1.0, abs=1e-6)
    assert torch.tensor([visit.reach for visit in reached]).min() > 0.0


def test_explanation_names_the_coins() -> None:
    half = np.array([0.25, 0.75])
    chain = Chain((0,), [_given(half), _given(half)], np.array([[0.5, 0.5]]), 1)
    text = explain(chain.tree(False), [0.25, 0.5])
    assert text == (
        "draft token 0 (p/q = 0.5): coin 0 = 0.25 lies in [0, 0.5); "
        "token after 1 accepted: coin 1 = 0.5 lies in [0.25, 1)"
    )
