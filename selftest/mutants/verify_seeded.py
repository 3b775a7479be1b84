"""Planted faults of ``seeded_chain_verify``: each is right but for what its docstring says.

For use as ``--provider seeded_chain_verify=selftest/mutants/verify_seeded.py:NAME``; the table is ``verify.py``. They
are seen by what many calls, or many equal rows, draw.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import (
    Keyed,
    Result,
    Steps,
    coins_of_seed,
    first_above,
    is_probability,
    keyed,
    leading,
    sampled,
    stands,
    tempered,
    written,
)


@keyed
def greedy(call: Keyed) -> Result:
    """Accepts the target's argmax only and ends with it, at any temperature (sgl-project/sglang#37134, C1)."""
    choice = call.logits.argmax(-1)
    count = leading(call.candidates[:, 1:] == choice[:, :-1])
    return written(call.candidates, count, choice.gather(1, count[:, None])[:, 0])


@keyed
def seed_ignored(call: Keyed) -> Result:
    """The same numbers for every seed: what it draws is right within one call of many rows."""
    return sampled(replace(call, seed=7))


@keyed
def seed_by_the_clock(call: Keyed) -> Result:
    """Other numbers in every call, whatever the seed."""
    return sampled(
        call, coins=lambda c: (torch.rand(len(c.candidates), c.candidates.shape[1] - 1), torch.rand(len(c.candidates)))
    )


@keyed
def same_noise_for_every_row(call: Keyed) -> Result:
    """All rows have the first row's coins: equal rows get equal tokens."""

    def first(c: Keyed) -> tuple[Tensor, Tensor]:
        coins, final = coins_of_seed(c)
        return coins[:1].expand(coins.shape), final[:1].expand(final.shape)

    return sampled(call, coins=first)


@keyed
def same_noise_for_pairs_of_rows(call: Keyed) -> Result:
    """Rows 2n and 2n + 1 have the same coins: each is right alone."""

    def paired(c: Keyed) -> tuple[Tensor, Tensor]:
        coins, final = coins_of_seed(c)
        source = torch.arange(len(final)) // 2 * 2
        return coins[source], final[source]

    return sampled(call, coins=paired)


@keyed
def one_coin_for_all(call: Keyed) -> Result:
    """One coin a row judges all of its draft tokens: shows from two draft tokens on."""
    return sampled(
        call, coins=lambda c: (coins_of_seed(c)[0][:, :1].expand(coins_of_seed(c)[0].shape), coins_of_seed(c)[1])
    )


@keyed
def coin_by_token(call: Keyed) -> Result:
    """The coin is looked up by token, not by position, so that a token that comes twice has one coin."""

    def looked_up(c: Keyed) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(c.seed)
        noise = torch.rand(len(c.candidates), c.logits.shape[-1], generator=generator)
        return noise.gather(1, c.candidates[:, 1:]), torch.rand(len(c.candidates), generator=generator)

    return sampled(call, coins=looked_up)


@keyed
def rejecting_coin_draws(call: Keyed) -> Result:
    """The coin that rejected draws the token too (vllm-project/vllm#54282, C3): from two residual tokens on."""
    coins, final = coins_of_seed(call)
    shared = torch.cat([coins, final[:, None]], 1)
    return sampled(call, Steps(final=lambda c, count: shared.gather(1, count[:, None])[:, 0].double()))


@keyed
def first_coin_draws(call: Keyed) -> Result:
    """The first position's coin draws the last token too: shows after a rejection and after a whole chain."""
    coins, final = coins_of_seed(call)
    return sampled(call, Steps(final=lambda c, count: (coins[:, 0] if c.drafts else final).double()))


@keyed
def coins_in_sixteenths(call: Keyed) -> Result:
    """Coins have four bits."""
    return sampled(call, coins=lambda c: (coarse(coins_of_seed(c)[0]), coarse(coins_of_seed(c)[1])))


def coarse(coins: Tensor) -> Tensor:
    """Multiples of a sixteenth."""
    return (coins * 16.0).floor() / 16.0


@keyed
def final_coin_in_sixteenths(call: Keyed) -> Result:
    """The last token's coin has four bits; a token of less than a sixteenth may never be drawn."""
    return sampled(call, coins=lambda c: (coins_of_seed(c)[0], coarse(coins_of_seed(c)[1])))


@keyed
def normal_noise(call: Keyed) -> Result:
    """The last token is the largest of log-weights plus normal noise instead of Gumbel noise."""

    def largest(weights: Tensor, coin: Tensor) -> Tensor:
        noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(call.seed + 1), dtype=torch.float64)
        return (weights.log() + noise).argmax(-1)

    return sampled(call, Steps(drawn=largest))


@keyed
def temperature_ignored(call: Keyed) -> Result:
    """The target at temperature 1."""
    return sampled(replace(call, temperature=torch.ones_like(call.temperature)))


@keyed
def temperature_of_first_row(call: Keyed) -> Result:
    """The first row's temperature for every row."""
    return sampled(replace(call, temperature=call.temperature[:1].expand(call.temperature.shape)))


@keyed
def draft_temperature_ignored(call: Keyed) -> Result:
    """q at temperature 1, though the drafts were drawn at another (kind: huggingface/transformers#47932, C4)."""
    return sampled(replace(call, draft_temperature=torch.ones_like(call.draft_temperature)))


@keyed
def one_temperature_for_both(call: Keyed) -> Result:
    """q at the target's temperature, though the drafts were drawn at another (kind: C4)."""
    return sampled(replace(call, draft_temperature=call.temperature))


@keyed
def all_accepted(call: Keyed) -> Result:
    """Every draft token stands."""
    return sampled(call, Steps(stands=lambda coin, p, q: torch.ones_like(coin).bool()))


@keyed
def draft_ignored(call: Keyed) -> Result:
    """Accepts iff coin < p."""
    return sampled(call, Steps(stands=lambda coin, p, q: stands(coin, p, torch.ones_like(q))))


@keyed
def threshold_nine_tenths(call: Keyed) -> Result:
    """Accepts iff p / q >= 0.9."""
    return sampled(call, Steps(stands=lambda coin, p, q: is_probability(q) & (p >= 0.9 * q)))


@keyed
def target_instead_of_residual(call: Keyed) -> Result:
    """Draws from the target after a rejection too."""
    return sampled(call, Steps(residual=lambda p, q, scale: p))


@keyed
def residual_not_renormalised(call: Keyed) -> Result:
    """Compares the final coin with sums that end below 1: the last token gets the rest."""
    return sampled(call, Steps(drawn=lambda weights, coin: first_above(weights.cumsum(-1), coin[:, None])))


@keyed
def argmax_of_residual(call: Keyed) -> Result:
    """Takes the largest of the residual instead of drawing."""
    return sampled(call, Steps(drawn=lambda weights, coin: weights.argmax(-1)))


@keyed
def bonus_from_root(call: Keyed) -> Result:
    """Where all were accepted the last token is drawn from the root's row."""
    accept_len, tokens = sampled(call)
    cumulative = tempered(call.logits, call.temperature)[:, 0].double().cumsum(-1)
    last = first_above(cumulative, coins_of_seed(call)[1].double()[:, None] * cumulative[:, -1:])
    whole = accept_len == call.candidates.shape[1] - 1
    tokens[:, -1] = torch.where(whole, last.int(), tokens[:, -1])
    return accept_len, tokens
