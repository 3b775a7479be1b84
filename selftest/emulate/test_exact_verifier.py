"""The float64 verifier against what the papers prove: its output follows the target's law, for any draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from waveproof.selftest.emulate.exact_verifier import Verified, verify_block, verify_tokens

TARGET = [[0.5, 0.25, 0.25], [0.125, 0.5, 0.375], [0.25, 0.25, 0.5]]
DRAFT = [[0.375, 0.125, 0.5], [0.5, 0.25, 0.25]]
STEPS = 16
"""Coins are the middles of this many equal intervals: thresholds that fall on their ends are counted exactly."""


def _laws(verifier: Callable[..., Verified]) -> tuple[dict[int, float], float]:
    """Law of the first token and mean number accepted, over all drafts of two tokens and all coins of the grid.

    Distributions do not depend on the tokens before, so the later ones need not be followed.
    """
    target, draft = torch.tensor(TARGET), torch.tensor(DRAFT)
    coins = [(step + 0.5) / STEPS for step in range(STEPS)]
    law, accepted = dict.fromkeys(range(3), 0.0), 0.0
    for tokens in itertools.product(range(3), repeat=2):
        weight = DRAFT[0][tokens[0]] * DRAFT[1][tokens[1]] / STEPS**2
        for first, second in itertools.product(coins, repeat=2):
            # Only if nothing was accepted does the last coin decide on the first token.
            candidates, pair = torch.tensor([0, *tokens]), torch.tensor([first, second])
            found = verifier(target, draft, candidates, pair, 0.5)
            accepted += weight * found.accepted
            if found.accepted:
                law[found.tokens[0]] += weight
            else:
                # The residual of the first place is (1, 1, 0) / 2.
                for last in (0.25, 0.75):
                    one = verifier(target, draft, candidates, pair, last)
                    law[one.tokens[0]] += weight / 2
    return law, accepted


def test_both_rules_give_the_target_law_and_the_block_accepts_more() -> None:
    by_token, by_token_accepted = _laws(verify_tokens)
    by_block, by_block_accepted = _laws(verify_block)
    for token, probability in enumerate(TARGET[0]):
        assert by_token[token] == pytest.approx(probability, abs=1e-12)
        # Chances of a block are no multiples of a coin's step: each of nine drafts is off by half a step at most.
        assert by_block[token] == pytest.approx(probability, abs=0.5 / STEPS)
    overlap = [sum(map(min, p, q)) for p, q in zip(TARGET, DRAFT, strict=False)]
    assert by_token_accepted == pytest.approx(overlap[0] * (1 + overlap[1]), abs=1e-12)
    assert by_block_accepted > by_token_accepted + 0.5 / STEPS


@pytest.mark.parametrize("verifier", [verify_tokens, verify_block])
def test_a_close_decision_is_told(verifier: Callable[..., Verified]) -> None:
    target, draft = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.5, 0.5]])
    candidates = torch.tensor([0, 0])
    edge = torch.tensor([0.5])
    on, off = (verifier(target, draft, candidates, coin, 0.25) for coin in (edge, edge - 0.125))
    assert (on.accepted, off.accepted) == (0, 1)
    assert on.margin < 1.0 < off.margin
    sampled = verifier(target, draft, candidates, edge - 0.125, 0.5)
    assert sampled.margin < 1.0, "the last coin is on the border of two tokens"
