"""Planted faults of ``chain_verify`` in block verification: right token by token, and but for what is said in a block.

For use as ``--provider chain_verify=selftest/mutants/verify_block.py:NAME``; the table is ``verify.py``. The prefixes
are those of arXiv 2403.10444, Algorithm 2. Where the docstring names no case, the fault shows from two draft tokens on.
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
    h_of,
    is_probability,
    leading,
    masses_after,
    of_draft_tokens,
    prefixes,
    residual,
    rows_after,
    scale_after,
    verify,
)

TEN_THOUSANDTH = 1e-4


@chain
def judged_by_token(call: Chain) -> Result:
    """Ignores the flag: always token by token."""
    return verify(replace(call, block=False))


@chain
def always_a_block(call: Chain) -> Result:
    """Ignores the flag: always a block."""
    return verify(replace(call, block=True))


@chain
def flag_inverted(call: Chain) -> Result:
    """A block without the flag and tokens with it."""
    return verify(replace(call, block=not call.block))


# Prefixes -------------------------------------------------------------------------------------------------------------


@chain
def prefix_not_clamped(call: Chain) -> Result:
    """Products of p / q without the minimum with 1: shows where one ratio is above 1 and another below."""
    return verify(call, Steps(prefixes=lambda p, q: prefixes(p, q, clamp=lambda prefix: prefix)))


@chain
def prefix_clamped_at_end(call: Chain) -> Result:
    """The minimum with 1 of the whole product: shows where a ratio above 1 precedes one below."""
    return verify(call, Steps(prefixes=lambda p, q: prefixes(p, q, clamp=lambda prefix: prefix).clamp(max=1.0)))


@chain
def prefix_of_last_token_only(call: Chain) -> Result:
    """Each prefix has the ratio of its last token."""
    return verify(call, Steps(prefixes=lambda p, q: torch.where(is_probability(q), p / q, 0.0).clamp(max=1.0)))


@chain
def prefix_a_ten_thousandth_more(call: Chain) -> Result:
    """Every ratio is 1e-4 too large, relatively."""
    return verify(call, Steps(prefixes=lambda p, q: prefixes(p * (1.0 + TEN_THOUSANDTH), q)))


@chain
def prefix_a_ten_thousandth_less(call: Chain) -> Result:
    """Every ratio is 1e-4 too small, relatively."""
    return verify(call, Steps(prefixes=lambda p, q: prefixes(p * (1.0 - TEN_THOUSANDTH), q)))


@chain
def prefix_in_float16(call: Chain) -> Result:
    """The running product is kept in float16."""
    halved = lambda prefix: prefix.clamp(max=1.0).half().double()  # noqa: E731
    return verify(call, Steps(prefixes=lambda p, q: prefixes(p, q, clamp=halved)))


@chain
def prefix_outlives_what_is_no_probability(call: Chain) -> Result:
    """A q that is NaN, infinite, negative, zero or above 1 leaves the prefix as it was instead of ending it."""
    return verify(call, Steps(prefixes=lambda p, q: prefixes(torch.where(is_probability(q), p, 1.0), fixed(q))))


@chain
def negative_q_twice(call: Chain) -> Result:
    """A negative q makes a prefix below 0, which the next one turns above 0 again: at two of them in a chain."""

    def signed(p: Tensor, q: Tensor) -> Tensor:
        negative = (q < 0.0) & (q > -torch.inf)
        return prefixes(torch.where(negative, p / q, p), torch.where(negative, 1.0, q))

    return verify(call, Steps(prefixes=signed))


def fixed(q: Tensor) -> Tensor:
    """1 in the place of what is no probability."""
    return torch.where(is_probability(q), q, 1.0)


# Thresholds -----------------------------------------------------------------------------------------------------------


@chain
def prefix_as_threshold(call: Chain) -> Result:
    """h is the prefix itself, also before the end of the chain."""
    return verify(call, Steps(h=lambda prefix, mass: prefix))


@chain
def threshold_without_complement(call: Chain) -> Result:
    """h is mass / (mass + 1)."""
    return verify(call, Steps(h=lambda prefix, mass: torch.where(prefix >= 1.0, 1.0, mass / (mass + 1.0))))


@chain
def mass_as_threshold(call: Chain) -> Result:
    """h is the mass of the residual."""
    return verify(call, Steps(h=lambda prefix, mass: torch.where(prefix >= 1.0, 1.0, mass)))


@chain
def mass_of_slot_before(call: Chain) -> Result:
    """The mass is that of the slot that is judged, not of the next one."""

    def earlier(c: Chain, prefix: Tensor) -> Tensor:
        shifted = replace(c, target=c.target.roll(1, 1), draft=c.draft.roll(1, 1))
        return masses_after(shifted, prefix)

    return verify(call, Steps(masses=earlier))


@chain
def mass_unscaled(call: Chain) -> Result:
    """The mass is that of max(p - q, 0), without the prefix."""
    return verify(call, Steps(masses=lambda c, prefix: masses_after(c, torch.ones_like(prefix))))


@chain
def mass_counts_negative_q(call: Chain) -> Result:
    """The mass takes q as it is where it is negative: shows at a negative q in a row after the first."""

    def raw(c: Chain, prefix: Tensor) -> Tensor:
        q = c.draft[:, 1:].double()
        rest = torch.where((q < 0.0) & (q > -torch.inf), -q, 0.0)
        return masses_after(c, prefix) + rest.sum(-1)

    return verify(call, Steps(masses=raw))


@chain
def mass_loses_what_is_no_probability(call: Chain) -> Result:
    """Tokens whose q is NaN or infinite have no part in the mass, and their p in the weights."""

    def cut(c: Chain, prefix: Tensor) -> Tensor:
        q = c.draft[:, 1:]
        return masses_after(replace(c, target=hidden(c.target, torch.isfinite(q))), prefix)

    return verify(call, Steps(masses=cut))


def hidden(target: Tensor, seen: Tensor) -> Tensor:
    """The target without some tokens of its inner rows."""
    changed = target.clone()
    changed[:, 1:-1] = torch.where(seen, changed[:, 1:-1], 0.0)
    return changed


@chain
def at_the_threshold(call: Chain) -> Result:
    """coin <= h: at coin 0 a prefix of probability 0 is accepted (kind: sgl-project/sglang#35771, C5)."""
    return verify(call, Steps(below=lambda coin, h: coin <= h))


# Which prefix ---------------------------------------------------------------------------------------------------------


@chain
def stops_at_first_failure(call: Chain) -> Result:
    """Goes up from the shortest prefix and stops at the first that fails."""
    return verify(call, Steps(block_count=leading))


@chain
def shortest_prefix(call: Chain) -> Result:
    """Takes the shortest prefix that stands."""
    return verify(call, Steps(block_count=lambda passed: (passed.int().argmax(1) + 1) * passed.any(1)))


@chain
def whole_or_nothing(call: Chain) -> Result:
    """Takes all of the chain or none of it."""
    return verify(call, Steps(block_count=lambda passed: passed[:, -1] * passed.shape[1]))


@chain
def coins_reversed(call: Chain) -> Result:
    """The longest prefix has the first coin."""
    return verify(replace(call, coins=call.coins.flip(1)) if call.block else call)


@chain
def one_coin_for_block(call: Chain) -> Result:
    """One coin judges all prefixes."""
    return verify(replace(call, coins=call.coins[:, :1].expand(call.coins.shape)) if call.block else call)


# The token after ------------------------------------------------------------------------------------------------------


@chain
def residual_without_scale(call: Chain) -> Result:
    """Draws from max(p - q, 0) after a prefix below 1."""
    return verify(call, Steps(scale=lambda prefix, count: torch.ones(len(count), dtype=torch.float64)))


@chain
def scale_of_whole_chain(call: Chain) -> Result:
    """The target is scaled with the last prefix that was computed, not the accepted one."""
    return verify(call, Steps(scale=lambda prefix, count: torch.where(count < prefix.shape[1], prefix[:, -1], 1.0)))


@chain
def scale_of_prefix_before(call: Chain) -> Result:
    """The target is scaled with the prefix before the accepted one."""
    return verify(call, Steps(scale=lambda prefix, count: scale_after(prefix, (count - 1).clamp(min=0))))


@chain
def scale_on_draft(call: Chain) -> Result:
    """Draws from max(p - scale * q, 0)."""
    return verify(call, Steps(residual=lambda p, q, scale: residual(p, q * scale, torch.ones_like(scale))))


@chain
def threshold_as_scale(call: Chain) -> Result:
    """The target is scaled with h instead of the prefix."""

    def scaled(prefix: Tensor, count: Tensor) -> Tensor:
        h = torch.cat([h_of(prefix[:, :-1], masses_after(call, prefix)), prefix[:, -1:]], 1)
        return scale_after(h, count)

    return verify(call, Steps(scale=scaled))


@chain
def target_after_block(call: Chain) -> Result:
    """Draws from the target after a block that was cut short."""
    return verify(call, Steps(residual=lambda p, q, scale: p) if call.block else Steps())


@chain
def rejected_prefix_gives_root_row(call: Chain) -> Result:
    """The residual is that of the first row, whichever prefix was accepted."""
    rows = lambda c, count: rows_after(c, torch.where(count < c.drafts, 0, count))  # noqa: E731
    return verify(call, Steps(rows=rows) if call.block else Steps())


@chain
def probabilities_of_next_slot(call: Chain) -> Result:
    """Prefixes are computed from the target after each token instead of before it."""
    later = replace(call, target=call.target.roll(-1, 1))
    return verify(call, Steps(probabilities=lambda _: of_draft_tokens(later)) if call.block else Steps())
