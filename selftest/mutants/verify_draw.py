"""Planted faults of ``chain_verify`` in the token after the accepted ones.

Each is right but for what its docstring says. For use as
``--provider chain_verify=selftest/mutants/verify_draw.py:NAME``; the table is ``verify.py``. Where the docstring names
no case, the fault shows after a rejection with at least two tokens in the residual.
"""

from __future__ import annotations

import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import (
    Chain,
    Result,
    Steps,
    chain,
    first_above,
    residual,
    rows_after,
    target_if_empty,
    usable,
    verify,
)

TEN_THOUSANDTH = 1e-4
TILE = 1024


def one_hot(tokens: Tensor, vocab_size: int) -> Tensor:
    """float64[B, V]."""
    return torch.nn.functional.one_hot(tokens, vocab_size).double()


# Weights --------------------------------------------------------------------------------------------------------------


@chain
def target_instead_of_residual(call: Chain) -> Result:
    """Draws from the target after a rejection too."""
    return verify(call, Steps(residual=lambda p, q, scale: p))


@chain
def draft_instead_of_residual(call: Chain) -> Result:
    """Draws from the draft after a rejection."""
    return verify(call, Steps(residual=lambda p, q, scale: torch.where(q.sum(-1, keepdim=True) > 0.0, q, p)))


@chain
def absolute_difference(call: Chain) -> Result:
    """Draws from abs(p - q)."""
    return verify(call, Steps(residual=lambda p, q, scale: (scale * p - q).abs()))


@chain
def difference_of_wrong_sign(call: Chain) -> Result:
    """Draws from max(q - p, 0) after a rejection."""
    return verify(
        call,
        Steps(residual=lambda p, q, scale: torch.where(q.sum(-1, keepdim=True) > 0.0, residual(q, p, 1.0 / scale), p)),
    )


@chain
def residual_not_renormalised(call: Chain) -> Result:
    """Compares the final coin with sums that end below 1: the last token gets the rest."""
    return verify(call, Steps(drawn=lambda weights, coin: first_above(weights.cumsum(-1), coin[:, None])))


@chain
def argmax_of_residual(call: Chain) -> Result:
    """Takes the largest of the residual instead of drawing: shows where all were accepted too."""
    return verify(call, Steps(drawn=lambda weights, coin: weights.argmax(-1)))


@chain
def argmax_after_rejection(call: Chain) -> Result:
    """Takes the target's argmax after a rejection and draws only where all were accepted."""

    def largest(p: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        return torch.where(q.sum(-1, keepdim=True) > 0.0, one_hot(p.argmax(-1), p.shape[-1]), p)

    return verify(call, Steps(residual=largest))


@chain
def residual_made_uniform(call: Chain) -> Result:
    """All tokens of the residual weigh the same."""
    return verify(
        call,
        Steps(residual=lambda p, q, scale: torch.where(q.sum(-1, keepdim=True) > 0.0, (scale * p > q).double(), p)),
    )


@chain
def residual_squared(call: Chain) -> Result:
    """Squares of the residual: a temperature of a half after a rejection."""
    return verify(
        call,
        Steps(
            residual=lambda p, q, scale: torch.where(q.sum(-1, keepdim=True) > 0.0, residual(p, q, scale).square(), p)
        ),
    )


@chain
def only_rejected_token_removed(call: Chain) -> Result:
    """The target without the rejected token: right for a one-hot draft only."""
    rejected = call.candidates.roll(-1, 1)

    def without(c: Chain, count: Tensor) -> tuple[Tensor, Tensor]:
        p, q = rows_after(c, count)
        token = one_hot(rejected.gather(1, count[:, None])[:, 0], p.shape[-1])
        return p, torch.where(q.sum(-1, keepdim=True) > 0.0, token, 0.0)

    return verify(call, Steps(rows=without))


@chain
def residual_with_floor(call: Chain) -> Result:
    """Adds 1e-5 to every weight, so that a token without any can be drawn."""
    return verify(call, Steps(residual=lambda p, q, scale: residual(p, q, scale) + 1e-5))


@chain
def residual_in_bfloat16(call: Chain) -> Result:
    """p and q are rounded to bfloat16 before they are subtracted."""
    return verify(
        call, Steps(residual=lambda p, q, scale: residual(p.bfloat16().double(), q.bfloat16().double(), scale))
    )


@chain
def ten_thousandth_moved(call: Chain) -> Result:
    """1e-4 of all weight goes from the heaviest token to the next heaviest, where it has that much."""

    def moved(p: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        weights = target_if_empty(residual(p, q, scale), p)
        if weights.shape[-1] < 2:
            return weights
        heaviest = weights.topk(2, dim=-1)
        share = torch.minimum(TEN_THOUSANDTH * weights.sum(-1), heaviest.values[:, 1])
        return weights.scatter_add(1, heaviest.indices, torch.stack([-share, share], 1))

    return verify(call, Steps(residual=moved))


# What is no probability -----------------------------------------------------------------------------------------------


@chain
def nan_q_poisons_residual(call: Chain) -> Result:
    """p - NaN makes every later sum NaN (kind: sgl-project/sglang#37134, C1); at a NaN in the row's q."""
    return verify(call, Steps(usable=lambda q: torch.where(torch.isnan(q), q, usable(q))))


@chain
def nan_q_leaves_nothing(call: Chain) -> Result:
    """A token whose q is NaN gets no weight instead of p."""
    return verify(call, Steps(usable=lambda q: torch.where(torch.isnan(q), 1.0, usable(q))))


@chain
def infinite_q_leaves_nothing(call: Chain) -> Result:
    """A guard q == q lets inf through: p - inf is no weight, p is due (sgl-project/sglang#37134, C1)."""
    return verify(call, Steps(usable=lambda q: torch.where(q == torch.inf, q, usable(q))))


@chain
def negative_q_adds(call: Chain) -> Result:
    """p minus a negative q is more than p (kind: sgl-project/sglang#37134, C1)."""
    return verify(call, Steps(usable=lambda q: torch.where((q < 0.0) & (q > -torch.inf), q, usable(q))))


@chain
def q_above_one_leaves_nothing(call: Chain) -> Result:
    """A q above 1 is subtracted, where it counts as 0."""
    return verify(call, Steps(usable=lambda q: torch.where(q > 1.0, 1.0, usable(q))))


@chain
def empty_residual_gives_first(call: Chain) -> Result:
    """Token 0 where the residual is empty, which may have p 0: at p = q and a draft token with q 0."""
    return verify(call, Steps(if_empty=lambda weights, p: forced(weights, 0)))


@chain
def empty_residual_gives_last(call: Chain) -> Result:
    """Token V - 1 where the residual is empty, which may have p 0: at p = q and a draft token with q 0."""
    return verify(call, Steps(if_empty=lambda weights, p: forced(weights, weights.shape[-1] - 1)))


def forced(weights: Tensor, token: int) -> Tensor:
    """All weight on one token where there is none."""
    alone = torch.zeros_like(weights[:1])
    alone[:, token] = 1.0
    return torch.where(weights.sum(-1, keepdim=True) == 0.0, alone, weights)


# Rows -----------------------------------------------------------------------------------------------------------------


@chain
def bonus_from_slot_before(call: Chain) -> Result:
    """Where all were accepted the last token is drawn from the row before the last."""
    return verify(call, Steps(rows=lambda c, n: other_bonus(c, n, max(c.drafts - 1, 0))))


@chain
def bonus_from_root(call: Chain) -> Result:
    """Where all were accepted the last token is drawn from the root's row."""
    return verify(call, Steps(rows=lambda c, n: other_bonus(c, n, 0)))


def other_bonus(call: Chain, count: Tensor, slot: int) -> tuple[Tensor, Tensor]:
    """The rows to draw from, with another slot's target where all were accepted."""
    p, q = rows_after(call, count)
    return torch.where((count == call.drafts)[:, None], call.target[:, slot].double(), p), q


@chain
def bonus_without_draft(call: Chain) -> Result:
    """Where all were accepted the last row of q is subtracted all the same."""

    def always(c: Chain, count: Tensor) -> tuple[Tensor, Tensor]:
        p, _ = rows_after(c, count)
        return p, rows_after(c, count.clamp(max=max(c.drafts - 1, 0)))[1]

    return verify(call, Steps(rows=always))


@chain
def residual_of_slot_before(call: Chain) -> Result:
    """The residual of the last accepted slot, not of the rejected one: after an accepted and a rejected token."""
    return verify(call, Steps(rows=lambda c, n: rows_after(c, torch.where(n < c.drafts, n - 1, n).clamp(min=0))))


@chain
def draft_of_first_slot(call: Chain) -> Result:
    """The first slot's q is subtracted from whichever row: after an accepted and a rejected token."""
    return verify(
        call, Steps(rows=lambda c, n: (rows_after(c, n)[0], rows_after(c, n.clamp(max=0))[1] * (n < c.drafts)[:, None]))
    )


@chain
def draft_of_request_before(call: Chain) -> Result:
    """The residual subtracts the q of the row before; shows from two rows on."""
    return verify(call, Steps(rows=lambda c, n: (rows_after(c, n)[0], rows_after(c, n)[1].roll(1, 0))))


@chain
def target_of_first_request(call: Chain) -> Result:
    """The last token is drawn from the first row's target; shows from two rows on."""
    return verify(call, Steps(rows=lambda c, n: (c.target[0, n].double(), rows_after(c, n)[1])))


# Intervals ------------------------------------------------------------------------------------------------------------


@chain
def interval_closed_above(call: Chain) -> Result:
    """A coin on an edge gives the token before it, and coin 0 token 0 even without weight (C5)."""

    def closed(weights: Tensor, coin: Tensor) -> Tensor:
        cumulative = weights.cumsum(-1)
        return (cumulative < coin[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=weights.shape[-1] - 1)

    return verify(call, Steps(drawn=closed))


@chain
def one_token_early(call: Chain) -> Result:
    """Takes the token before the one whose interval holds the coin."""
    return verify(call, Steps(drawn=lambda weights, coin: (of(weights, coin) - 1).clamp(min=0)))


@chain
def last_token_for_high_coins(call: Chain) -> Result:
    """Coins above 0.999 give token V - 1, whatever its weight."""
    return verify(call, Steps(drawn=lambda weights, coin: of(weights, torch.where(coin > 0.999, 1.0, coin))))


@chain
def coin_stretched(call: Chain) -> Result:
    """Multiplies the coin by 1.001: token V - 1 for the highest, whatever its weight."""
    return verify(call, Steps(drawn=lambda weights, coin: of(weights, coin * 1.001)))


@chain
def coin_in_float16(call: Chain) -> Result:
    """The final coin passes through float16: one just below 1 becomes 1 and gives token V - 1."""
    return verify(call, Steps(drawn=lambda weights, coin: of(weights, coin.half().double())))


@chain
def sums_in_float16(call: Chain) -> Result:
    """Cumulative weights in float16."""
    return verify(call, Steps(drawn=lambda weights, coin: in_steps(weights, coin, torch.float16)))


@chain
def sums_in_bfloat16(call: Chain) -> Result:
    """Cumulative weights in bfloat16."""
    return verify(call, Steps(drawn=lambda weights, coin: in_steps(weights, coin, torch.bfloat16)))


def of(weights: Tensor, coin: Tensor) -> Tensor:
    """The token whose interval holds the coin; the last one for a coin of 1 and more."""
    cumulative = weights.cumsum(-1)
    return first_above(cumulative, coin[:, None] * cumulative[:, -1:])


def in_steps(weights: Tensor, coin: Tensor, dtype: torch.dtype) -> Tensor:
    """The same, with sums that are kept in another dtype."""
    cumulative = weights.cumsum(-1).to(dtype).double()
    return first_above(cumulative, coin[:, None] * cumulative[:, -1:])


@chain
def rest_of_vocabulary_dropped(call: Chain) -> Result:
    """Goes through whole vectors of four tokens: the rest is never drawn where V is no multiple of 4."""

    def whole_vectors(weights: Tensor, coin: Tensor) -> Tensor:
        end = weights.shape[-1] // 4 * 4 or weights.shape[-1]
        return of(weights[:, :end], coin)

    return verify(call, Steps(drawn=whole_vectors))


@chain
def edge_of_tile_counted_twice(call: Chain) -> Result:
    """The first token of each later tile of 1024 weighs twice: shows from V 1025 on."""

    def twice(weights: Tensor, coin: Tensor) -> Tensor:
        weights = weights.clone()
        weights[:, TILE::TILE] *= 2.0
        return of(weights, coin)

    return verify(call, Steps(drawn=twice))


@chain
def sum_of_first_tile(call: Chain) -> Result:
    """The coin's share is of the first 1024 tokens' weight: shows from V 1025 on."""

    def share_of_first(weights: Tensor, coin: Tensor) -> Tensor:
        cumulative = weights.cumsum(-1)
        return first_above(cumulative, coin[:, None] * cumulative[:, min(TILE, weights.shape[-1]) - 1, None])

    return verify(call, Steps(drawn=share_of_first))


@chain
def index_within_tile(call: Chain) -> Result:
    """Gives the index within a tile of 1024 instead of the token: shows from V 1025 on."""
    return verify(call, Steps(drawn=lambda weights, coin: of(weights, coin) % TILE))
