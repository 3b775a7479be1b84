"""Planted faults of ``chain_verify`` in which draft tokens stand: each is right but for what its docstring says.

For use as ``--provider chain_verify=selftest/mutants/verify_chain.py:NAME``; the table is ``verify.py``. Other faults
of the chain are in the files beside this one: ``verify_draw.py`` (the token after), ``verify_block.py`` (whole
prefixes) and ``verify_memory.py`` (batches, memory, form). Most show token by token and not in a block.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import (
    Chain,
    Result,
    Steps,
    chain,
    final_coins,
    is_probability,
    last_standing,
    leading,
    of_draft_tokens,
    stands,
    verify,
    written,
)

TEN_THOUSANDTH = 1e-4


def judged(call: Chain, other: Chain) -> Result:
    """The draft tokens are looked up in other rows than the last token is drawn from."""
    return verify(call, Steps(probabilities=lambda _: of_draft_tokens(other)))


# Which are accepted ---------------------------------------------------------------------------------------------------


@chain
def greedy(call: Chain) -> Result:
    """Accepts the target's argmax only and ends with it, whatever the coins (sgl-project/sglang#37134, C1)."""
    choice = call.target.argmax(-1)
    count = leading(call.candidates[:, 1:] == choice[:, :-1])
    return written(call.candidates, count, choice.gather(1, count[:, None])[:, 0])


@chain
def all_accepted(call: Chain) -> Result:
    """Every draft token stands."""
    return verify(call, Steps(stands=lambda coin, p, q: torch.ones_like(coin).bool()))


@chain
def none_accepted(call: Chain) -> Result:
    """No draft token stands: shows at any coin below p / q."""
    return verify(call, Steps(stands=lambda coin, p, q: torch.zeros_like(coin).bool()))


@chain
def accepted_where_target_is_larger(call: Chain) -> Result:
    """Accepts iff p >= q: no coin is needed for that."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (p >= q)))


@chain
def threshold_nine_tenths(call: Chain) -> Result:
    """Accepts iff p / q >= 0.9."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (p >= 0.9 * q)))


@chain
def nine_tenths_are_enough(call: Chain) -> Result:
    """Always accepts at p / q >= 0.9, else as due: shows at p / q in [0.9, 1) and a coin from there on."""
    return verify(call, Steps(stands=lambda coin, p, q: stands(coin, p, q) | (is_probability(q) & (p >= 0.9 * q))))


@chain
def typical(call: Chain) -> Result:
    """Accepts iff p > min(0.09, 0.3 exp(-entropy)): typical acceptance, lossy by design and another contract."""

    def typically(coin: Tensor, p: Tensor, q: Tensor) -> Tensor:
        law = call.target[:, :-1].double()
        entropy = torch.special.entr(law).sum(-1)
        return is_probability(q) & (p > torch.exp(-entropy).mul(0.3).clamp(max=0.09))

    return verify(call, Steps(stands=typically))


@chain
def draft_ignored(call: Chain) -> Result:
    """Accepts iff coin < p: shows at q below 1 and a coin from p to p / q."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin < p)))


@chain
def ratio_inverted(call: Chain) -> Result:
    """Accepts iff coin < q / p."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin * p < q)))


@chain
def epsilon_in_denominator(call: Chain) -> Result:
    """Compares the coin with p / (q + 1e-5): shows at small q."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin * (q + 1e-5) < p)))


@chain
def ratio_in_bfloat16(call: Chain) -> Result:
    """Rounds p / q to bfloat16."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin < (p / q).bfloat16().double())))


@chain
def ratio_in_float16(call: Chain) -> Result:
    """Rounds p / q to float16."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin < (p / q).half().double())))


@chain
def accepts_ten_thousandth_more(call: Chain) -> Result:
    """Compares the coin with p / q + 1e-4."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & ((coin - TEN_THOUSANDTH) * q < p)))


@chain
def accepts_ten_thousandth_less(call: Chain) -> Result:
    """Compares the coin with p / q - 1e-4."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & ((coin + TEN_THOUSANDTH) * q < p)))


@chain
def at_the_step(call: Chain) -> Result:
    """coin <= p / q: at coin 0 a token of p 0 is accepted (sgl-project/sglang#35771, C5)."""
    return verify(call, Steps(stands=lambda coin, p, q: is_probability(q) & (coin * q <= p)))


@chain
def counts_all_that_stand(call: Chain) -> Result:
    """Goes on after a rejection: accepts as many as pass anywhere in the chain; shows from two draft tokens on."""
    return verify(call, Steps(count=lambda passed: passed.sum(1)))


@chain
def until_last_that_stands(call: Chain) -> Result:
    """Accepts up to the last token that passes, also over rejected ones; shows from two draft tokens on."""
    return verify(call, Steps(count=last_standing))


@chain
def one_at_most(call: Chain) -> Result:
    """Stops after one accepted token; shows from two draft tokens on."""
    return verify(call, Steps(count=lambda passed: leading(passed).clamp(max=1)))


@chain
def last_draft_token_never(call: Chain) -> Result:
    """The last draft token is not judged: the loop ends one slot early."""
    return verify(call, Steps(count=lambda passed: leading(passed).clamp(max=max(call.drafts - 1, 0))))


# What is no probability -----------------------------------------------------------------------------------------------


@chain
def zero_q_accepted(call: Chain) -> Result:
    """coin * 0 < p accepts what the draft cannot have drawn: shows at q 0 and any coin."""
    return verify(call, Steps(stands=lambda coin, p, q: (q >= 0.0) & (q <= 1.0) & (coin * q < p)))


@chain
def nan_q_accepted(call: Chain) -> Result:
    """Rejects where coin * q >= p, which no NaN is."""
    return verify(call, Steps(stands=lambda coin, p, q: stands(coin, p, q) | (torch.isnan(q) & (p > 0.0))))


@chain
def infinite_q_accepted(call: Chain) -> Result:
    """A guard q == q lets inf through, and inf counts as 1 (sgl-project/sglang#37134, C1)."""
    return verify(call, Steps(stands=lambda coin, p, q: stands(coin, p, torch.where(q == torch.inf, 1.0, q))))


@chain
def negative_q_accepted(call: Chain) -> Result:
    """coin * q < p holds for every negative q (kind: sgl-project/sglang#37134, C1)."""
    return verify(call, Steps(stands=lambda coin, p, q: stands(coin, p, q) | ((q < 0.0) & (coin * q < p))))


@chain
def q_above_one_accepted(call: Chain) -> Result:
    """No upper guard: q 1.5 passes at a coin below p / 1.5."""
    return verify(call, Steps(stands=lambda coin, p, q: (q > 0.0) & (coin * q < p)))


@chain
def q_of_one_rejected(call: Chain) -> Result:
    """The guard is q < 1: a one-hot draft is never accepted."""
    return verify(call, Steps(stands=lambda coin, p, q: stands(coin, p, q) & (q < 1.0)))


# Which coins ----------------------------------------------------------------------------------------------------------


@chain
def one_coin_for_all(call: Chain) -> Result:
    """The first coin judges every position; shows from two draft tokens on."""
    return verify(replace(call, coins=call.coins[:, :1].expand(call.coins.shape)))


@chain
def coins_of_first_row(call: Chain) -> Result:
    """The first row's coins judge every row."""
    return verify(replace(call, coins=call.coins[:1].expand(call.coins.shape)))


@chain
def coins_of_next_position(call: Chain) -> Result:
    """Each position has the coin of the one after it."""
    return verify(replace(call, coins=call.coins.roll(-1, 1)))


@chain
def final_coin_judges_last(call: Chain) -> Result:
    """The last draft token and the token after the chain share the final coin."""
    coins = call.coins.clone()
    coins[:, -1:] = call.final[:, None]
    return verify(replace(call, coins=coins))


@chain
def rejecting_coin_draws(call: Chain) -> Result:
    """The coin that rejected draws the token instead: noise shared (kind: vllm-project/vllm#54282, C3)."""

    def shared(chain_call: Chain, count: Tensor) -> Tensor:
        return torch.cat([chain_call.coins, chain_call.final[:, None]], 1).gather(1, count[:, None])[:, 0].double()

    return verify(call, Steps(final=shared))


@chain
def first_coin_draws(call: Chain) -> Result:
    """The first position's coin draws the last token too."""
    return verify(call, Steps(final=lambda c, count: c.coins[:, 0].double() if c.drafts else final_coins(c, count)))


@chain
def final_coin_of_first_row(call: Chain) -> Result:
    """The first row's final coin draws for every row."""
    return verify(replace(call, final=call.final[:1].expand(call.final.shape)))


@chain
def coins_in_bfloat16(call: Chain) -> Result:
    """All coins pass through bfloat16: one just below 1 becomes 1."""
    return verify(replace(call, coins=call.coins.bfloat16(), final=call.final.bfloat16()))


# Which rows -----------------------------------------------------------------------------------------------------------


@chain
def target_of_next_slot(call: Chain) -> Result:
    """A draft token is judged by the target after it, not before: off by one row."""
    return judged(call, replace(call, target=torch.cat([call.target[:, 1:], call.target[:, :1]], 1)))


@chain
def target_of_slot_before(call: Chain) -> Result:
    """A draft token is judged by the stale target of the slot before; shows from two draft tokens on."""
    return judged(call, replace(call, target=torch.cat([call.target[:, :1], call.target[:, :-1]], 1)))


@chain
def target_of_first_slot(call: Chain) -> Result:
    """All draft tokens are judged by the first slot's target; shows from two draft tokens on."""
    return judged(call, replace(call, target=call.target[:, :1].expand(call.target.shape)))


@chain
def draft_of_slot_before(call: Chain) -> Result:
    """q is read one slot too early; shows from two draft tokens on."""
    return judged(call, replace(call, draft=torch.cat([call.draft[:, :1], call.draft[:, :-1]], 1)[:, : call.drafts]))


@chain
def target_of_request_before(call: Chain) -> Result:
    """Draft tokens are judged by the target of the row before; shows from two rows on."""
    return judged(call, replace(call, target=call.target.roll(1, 0)))


@chain
def tokens_of_slot_before(call: Chain) -> Result:
    """p and q are looked up for the token before the one that is judged."""
    return judged(call, replace(call, candidates=call.candidates.roll(1, 1)))
