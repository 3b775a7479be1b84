"""Laws read off coins: right verifiers hold, planted biases are found and measured to the last float."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from waveproof.fixtures.strategies.verify import CHAIN_KINDS, ChainCase
from waveproof.fixtures.strategies.verify_trees import TreeCase
from waveproof.golden.judges.law import LAW, extract, judge_law
from waveproof.golden.judges.law_probes import Run, probing
from waveproof.golden.judges.verify import OUTCOME, judge_outcomes, outcome_of
from waveproof.golden.references.decisions import Outcome
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.verify import LAST_COIN
from waveproof.kernels.providers import pytorch_verify

Outputs = Sequence[torch.Tensor]


def chain(call: Call) -> Outputs:
    return pytorch_verify.chain_verify(*call.arguments.values())  # type: ignore[arg-type]


def tree(call: Call) -> Outputs:
    return pytorch_verify.target_only_verify(*call.arguments.values())  # type: ignore[arg-type]


def moved_final_coin(bias: float) -> Run:
    def run(call: Call) -> Outputs:
        return chain(call.with_arguments(final_coins=(call.tensor("final_coins") + bias).clamp(max=LAST_COIN)))

    return run


@pytest.mark.parametrize("block", [False, True], ids=["tokens", "block"])
def test_right_verifier_has_the_due_law(block: bool) -> None:
    call = ChainCase(8, 4, CHAIN_KINDS * 3, block, seed=3).call()
    extracted = extract(chain, call)
    assert extracted.holds
    assert judge_law(extracted, call).holds
    assert max(extracted.bound) < 1e-5
    assert set(extracted.total_variation) == {0.0}
    assert extracted.steps > 150
    assert extracted.launches <= 3


def test_right_tree_verifier_has_the_due_law() -> None:
    call = TreeCase("eagle", 8, 6, threshold_single=0.5, threshold_acc=0.75).call("target_only_verify")
    assert extract(tree, call).holds


@pytest.mark.parametrize("bias", [1e-2, 1e-4, 1e-5])
def test_planted_bias_is_measured(bias: float) -> None:
    # One draft token that is never accepted: the law is that of one draw, and a coin raised by a bias moves it by that.
    p = torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]])
    q = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
    arguments = {"candidates": torch.tensor([[0, 2]]), "target_probs": p, "draft_probs": q}
    arguments |= {"coins": torch.zeros(1, 1), "final_coins": torch.zeros(1)}
    call = Call("chain_verify", {**arguments, "block_verification": False})
    extracted = extract(moved_final_coin(bias), call)
    assert not extracted.holds
    assert extracted.total_variation[0] == pytest.approx(bias, rel=2e-2)
    judgement = judge_law(extracted, call)
    assert judgement.rule == LAW
    assert not judgement.holds
    assert judgement.figure > judgement.bound
    assert "due at" in judgement.message
    assert judgement.demonstration is not None
    assert len(judgement.demonstration.calls) == 1


@pytest.mark.parametrize("kind", CHAIN_KINDS)
def test_small_bias_is_found_in_every_kind_that_draws(kind: str) -> None:
    call = ChainCase(8, 3, (kind,) * 4, seed=5).call()
    found = extract(moved_final_coin(1e-4), call)
    if kind == "one-hot-target":
        assert found.holds  # nothing is drawn: there is no law to bias
    else:
        assert len({one.row for one in found.misplaced}) >= 3


def test_law_that_is_another_altogether_is_reported() -> None:
    def greedy(call: Call) -> Outputs:
        accept_len, tokens = chain(call.with_arguments(final_coins=torch.zeros(len(call.tensor("final_coins")))))
        return accept_len, tokens

    extracted = extract(greedy, ChainCase(8, 2, ("near",), seed=1).call())
    assert not extracted.holds
    assert extracted.total_variation[0] > 0.1


def test_outcome_names_row_coins_and_both_outcomes() -> None:
    call = ChainCase(8, 3, ("near", "far", "near"), seed=2).call()
    accept_len, tokens = chain(call)
    tokens = tokens.clone()
    at = int(accept_len[1])
    tokens[1, at] = (tokens[1, at] + 1) % 8
    (judgement,) = judge_outcomes((accept_len, tokens), call)
    assert judgement.rule == OUTCOME
    assert not judgement.holds
    assert judgement.index == (1,)
    assert judgement.message.startswith("row 1 is not what its coins decide: ")
    assert judgement.got.startswith(f"accept_len {at}")
    assert judgement.demonstration is not None
    low = judgement.demonstration.low
    assert low is not None
    assert low.shape == tokens.shape


@pytest.mark.parametrize(
    ("accept_len", "tokens", "due"),
    [
        (1, [4, 2, -1], Outcome(1, (4, 2))),
        (1, [4, 2, 0], None),
        (3, [4, 2, 0], None),
        (-1, [4, -1, -1], None),
        (0, [-1, -1, -1], Outcome(0, (-1,))),
    ],
)
def test_only_well_formed_rows_are_outcomes(accept_len: int, tokens: list[int], due: Outcome | None) -> None:
    assert outcome_of(accept_len, tokens) == due


def test_probing_repeats_rows_and_replaces_coins() -> None:
    call = ChainCase(8, 3, ("near", "far")).call()
    probe = probing(call, [1, 1, 0], [[0.1, 0.2, 0.3]] * 3)
    assert probe.tensor("target_probs").shape == (3, 3, 8)
    assert torch.equal(probe.tensor("target_probs")[0], call.tensor("target_probs")[1])
    assert probe.tensor("coins").shape == (3, 2)
    assert probe.tensor("final_coins").tolist() == pytest.approx([0.3] * 3)
