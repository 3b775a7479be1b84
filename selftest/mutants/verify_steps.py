"""Verification of a chain step by step, in float64: what the planted faults of family ``verify`` are faults of.

Each step is a plain function and stands in a table of steps, so that a fault is the one function that it replaces. All
rows of a batch are decided at once. Nothing here comes from the reference that the suite judges by.

A planted fault is a function of one :class:`Chain`, :class:`Request` or :class:`Keyed` call; :func:`chain`,
:func:`request` and :func:`keyed` give it the positional arguments of its operator. Trees are in ``verify_walks.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from waveproof.selftest.mutants.correct_renorm import target_probs_threshold

Result: TypeAlias = "tuple[Tensor, Tensor]"
"""accept_len int32[B] and tokens int32[B, S]."""


@dataclass(frozen=True)
class Chain:
    """A call of ``chain_verify``."""

    candidates: Tensor
    target: Tensor
    draft: Tensor
    coins: Tensor
    final: Tensor
    block: bool

    @property
    def drafts(self) -> int:
        """Draft tokens of each row: S - 1."""
        return self.candidates.shape[1] - 1


@dataclass(frozen=True)
class Request:
    """A call of ``accept_sampling``."""

    candidates: Tensor
    logits: Tensor
    draft: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    coins: Tensor
    final: Tensor
    lens: Tensor
    block: bool
    path: str


@dataclass(frozen=True)
class Keyed:
    """A call of ``seeded_chain_verify``."""

    candidates: Tensor
    logits: Tensor
    draft_logits: Tensor
    temperature: Tensor
    draft_temperature: Tensor
    seed: int


# Acceptance -----------------------------------------------------------------------------------------------------------


def is_probability(q: Tensor) -> Tensor:
    """bool: where a draft token can have been drawn with this q."""
    return (q > 0.0) & (q <= 1.0)


def stands(coin: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """bool[B, S-1]: which draft tokens pass by themselves."""
    return is_probability(q) & (coin * q < p)


def leading(passed: Tensor) -> Tensor:
    """int64[B]: how many of [B, S-1] pass before the first that does not."""
    return passed.long().cumprod(1).sum(1)


def last_standing(passed: Tensor) -> Tensor:
    """int64[B]: the length of the longest prefix whose own coin passed, whatever the shorter ones did."""
    lengths = torch.arange(1, passed.shape[1] + 1)
    return (passed * lengths).amax(1) if passed.shape[1] else torch.zeros(len(passed), dtype=torch.int64)


def of_draft_tokens(call: Chain) -> tuple[Tensor, Tensor]:
    """float64[B, S-1]: p and q of each draft token."""
    tokens = call.candidates[:, 1:, None]
    return call.target[:, :-1].gather(2, tokens)[..., 0].double(), call.draft.gather(2, tokens)[..., 0].double()


def clamped(prefix: Tensor) -> Tensor:
    """At most 1."""
    return prefix.clamp(max=1.0)


def prefixes(p: Tensor, q: Tensor, clamp: Callable[[Tensor], Tensor] = clamped) -> Tensor:
    """float64[B, S-1]: min(1, prefix before * p / q), 0 from the first q on that is no probability."""
    ratio = torch.where(is_probability(q), p / q, 0.0)
    prefix, found = torch.ones(len(p), dtype=torch.float64), []
    for step in range(p.shape[1]):
        prefix = clamp(prefix * ratio[:, step])
        found.append(prefix)
    return torch.stack(found, 1) if found else torch.ones(p.shape, dtype=torch.float64)


def usable(q: Tensor) -> Tensor:
    """q where it is a probability, else 0."""
    return torch.where((q >= 0.0) & (q <= 1.0), q, 0.0)


def masses_after(call: Chain, prefix: Tensor) -> Tensor:
    """float64[B, S-2]: mass of max(prefix * p - q, 0) after each prefix that is not the whole chain."""
    scaled = prefix[:, :-1, None] * call.target[:, 1:-1].double()
    return (scaled - usable(call.draft[:, 1:].double())).clamp(min=0.0).sum(-1)


def h_of(prefix: Tensor, mass: Tensor) -> Tensor:
    """h of a prefix that is not the whole chain."""
    return torch.where(prefix >= 1.0, 1.0, mass / (mass + 1.0 - prefix))


def below(coin: Tensor, threshold: Tensor) -> Tensor:
    """Whether a coin lies below."""
    return coin < threshold


def scale_after(prefix: Tensor, count: Tensor) -> Tensor:
    """float64[B]: the accepted prefix's probability; 1 where none or all of it was accepted."""
    whole = torch.ones(len(prefix), 1, dtype=torch.float64)
    return torch.cat([whole, prefix[:, :-1], whole], 1).gather(1, count[:, None])[:, 0]


# The token after ------------------------------------------------------------------------------------------------------


def rows_after(call: Chain, count: Tensor) -> tuple[Tensor, Tensor]:
    """float64[B, V]: target and draft after the accepted tokens, the draft 0 where all were accepted."""
    rows = torch.arange(len(count))
    if not call.drafts:
        return call.target[rows, count].double(), torch.zeros(call.target[:, 0].shape, dtype=torch.float64)
    q = call.draft[rows, count.clamp(max=call.drafts - 1)].double()
    return call.target[rows, count].double(), torch.where((count < call.drafts)[:, None], q, 0.0)


def residual(p: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """max(scale * p - q, 0); scale is [B, 1]."""
    return (scale * p - q).clamp(min=0.0)


def target_if_empty(weights: Tensor, p: Tensor) -> Tensor:
    """The target where no token has weight."""
    return torch.where(weights.sum(-1, keepdim=True) == 0.0, p, weights)


def final_coins(call: Chain, count: Tensor) -> Tensor:
    """float64[B]: coins that draw the last token."""
    return call.final.double()


def drawn(weights: Tensor, coin: Tensor) -> Tensor:
    """int64[B]: the first token whose cumulative weight lies above the coin's share of all."""
    cumulative = weights.cumsum(-1)
    return first_above(cumulative, coin[:, None] * cumulative[:, -1:])


def first_above(cumulative: Tensor, share: Tensor) -> Tensor:
    """int64[B]: the first index whose cumulative weight lies above ``share`` [B, 1]; the last one if none does."""
    return (cumulative <= share).sum(-1).clamp(max=cumulative.shape[-1] - 1)


# Whole calls ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """How a chain is verified; a planted fault replaces a step or two."""

    probabilities: Callable[[Chain], tuple[Tensor, Tensor]] = of_draft_tokens
    stands: Callable[[Tensor, Tensor, Tensor], Tensor] = stands
    count: Callable[[Tensor], Tensor] = leading
    prefixes: Callable[[Tensor, Tensor], Tensor] = prefixes
    masses: Callable[[Chain, Tensor], Tensor] = masses_after
    h: Callable[[Tensor, Tensor], Tensor] = h_of
    below: Callable[[Tensor, Tensor], Tensor] = below
    block_count: Callable[[Tensor], Tensor] = last_standing
    scale: Callable[[Tensor, Tensor], Tensor] = scale_after
    rows: Callable[[Chain, Tensor], tuple[Tensor, Tensor]] = rows_after
    usable: Callable[[Tensor], Tensor] = usable
    residual: Callable[[Tensor, Tensor, Tensor], Tensor] = residual
    if_empty: Callable[[Tensor, Tensor], Tensor] = target_if_empty
    final: Callable[[Chain, Tensor], Tensor] = final_coins
    drawn: Callable[[Tensor, Tensor], Tensor] = drawn


def counted(call: Chain, steps: Steps) -> tuple[Tensor, Tensor]:
    """Accepted tokens int64[B], and what the target is scaled with for the next, float64[B]."""
    p, q = steps.probabilities(call)
    coins = call.coins.double()
    if not call.block or not call.drafts:
        return steps.count(steps.stands(coins, p, q)), torch.ones(len(p), dtype=torch.float64)
    prefix = steps.prefixes(p, q)
    h = torch.cat([steps.h(prefix[:, :-1], steps.masses(call, prefix)), prefix[:, -1:]], 1)
    count = steps.block_count(steps.below(coins, h))
    return count, steps.scale(prefix, count)


def decide(call: Chain, steps: Steps = Steps()) -> tuple[Tensor, Tensor]:
    """Accepted tokens and the one after them, both int64[B]."""
    count, scale = counted(call, steps)
    p, q = steps.rows(call, count)
    weights = steps.if_empty(steps.residual(p, steps.usable(q), scale[:, None]), p)
    return count, steps.drawn(weights, steps.final(call, count))


def written(candidates: Tensor, count: Tensor, last: Tensor) -> Result:
    """The results, from the draft tokens int64[B, S] and what was decided."""
    slots = torch.arange(candidates.shape[1])
    following = torch.cat([candidates[:, 1:], candidates[:, :1]], 1)
    behind = torch.where(slots == count[:, None], last[:, None], -1)
    return count.int(), torch.where(slots < count[:, None], following, behind).int()


def verify(call: Chain, steps: Steps = Steps()) -> Result:
    """A whole call of ``chain_verify``."""
    return written(call.candidates, *decide(call, steps))


def of_each_slot(limit: Tensor, slots: int) -> Tensor:
    """[B * S]: a request's limit for each of its slots."""
    return limit.repeat_interleave(slots)


def filtered_law(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    path: str,
    of_each: Callable[[Tensor, int], Tensor] = of_each_slot,
    law: Callable[..., Tensor] = target_probs_threshold,
) -> Tensor:
    """float32[B, S, V]: the target's law from logits [B, S, V]."""
    batch, slots, vocab_size = logits.shape
    limits = (of_each(limit, slots) for limit in (temperature, top_k, top_p))
    return law(logits.reshape(batch * slots, vocab_size), *limits, path).reshape(logits.shape)


def cut_off(call: Request, count: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """At most verify_lens - 1 tokens, and the draft token after them where it was accepted too."""
    most = call.lens.long() - 1
    following = call.candidates.gather(1, (most + 1).clamp(max=call.candidates.shape[1] - 1)[:, None])[:, 0]
    return torch.minimum(count, most), torch.where(count > most, following, last)


def target_of(call: Request, **changed: Any) -> Tensor:
    """float32[B, S, V]: the target's law of a request, with other limits or steps where they are given."""
    limits = {name: getattr(call, name) for name in ("logits", "temperature", "top_k", "top_p", "path")}
    return filtered_law(**{**limits, **changed})


def accept(
    call: Request,
    target: Tensor | None = None,
    steps: Steps = Steps(),
    cut: Callable[[Request, Tensor, Tensor], tuple[Tensor, Tensor]] = cut_off,
) -> Result:
    """A whole call of ``accept_sampling``, with another law of the target where one is given."""
    target = target_of(call) if target is None else target
    chain_call = Chain(call.candidates, target, call.draft, call.coins, call.final, call.block)
    return written(call.candidates, *cut(call, *decide(chain_call, steps)))


def coins_of_seed(call: Keyed) -> tuple[Tensor, Tensor]:
    """float32[B, S-1] and [B]: a coin for each draft token and one for each last token."""
    coins = torch.rand(call.candidates.shape, generator=torch.Generator().manual_seed(call.seed))
    return coins[:, 1:], coins[:, 0]


def tempered(logits: Tensor, temperature: Tensor) -> Tensor:
    """float32: softmax(logits / temperature) of [B, n, V], with [B] temperatures."""
    return torch.softmax(logits.double() / temperature.double()[:, None, None], -1).float()


def sampled(
    call: Keyed,
    steps: Steps = Steps(),
    coins: Callable[[Keyed], tuple[Tensor, Tensor]] = coins_of_seed,
    law: Callable[[Tensor, Tensor], Tensor] = tempered,
) -> Result:
    """A whole call of ``seeded_chain_verify``."""
    target, draft = law(call.logits, call.temperature), law(call.draft_logits, call.draft_temperature)
    return verify(Chain(call.candidates, target, draft, *coins(call), False), steps)


# Operators ------------------------------------------------------------------------------------------------------------


def chain(fault: Callable[[Chain], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``chain_verify``."""

    def operator(
        candidates: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
        coins: Tensor,
        final_coins: Tensor,
        block_verification: bool,
    ) -> Any:
        return fault(Chain(candidates, target_probs, draft_probs, coins, final_coins, bool(block_verification)))

    return named_as(fault, operator)


def request(fault: Callable[[Request], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``accept_sampling``."""

    def operator(
        candidates: Tensor,
        target_logits: Tensor,
        draft_probs: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        coins: Tensor,
        final_coins: Tensor,
        verify_lens: Tensor,
        block_verification: bool,
        path: str,
    ) -> Any:
        limits = (temperature, top_k, top_p)
        block = bool(block_verification)
        return fault(
            Request(candidates, target_logits, draft_probs, *limits, coins, final_coins, verify_lens, block, path)
        )

    return named_as(fault, operator)


def keyed(fault: Callable[[Keyed], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``seeded_chain_verify``."""

    def operator(
        candidates: Tensor,
        target_logits: Tensor,
        draft_logits: Tensor,
        temperature: Tensor,
        draft_temperature: Tensor,
        seed: int,
    ) -> Any:
        return fault(Keyed(candidates, target_logits, draft_logits, temperature, draft_temperature, int(seed)))

    return named_as(fault, operator)


def named_as(fault: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator under the fault's name and docstring."""
    # Not functools.wraps: inspect.signature would follow __wrapped__ to the function of one call.
    operator.__name__, operator.__qualname__, operator.__doc__ = fault.__name__, fault.__qualname__, fault.__doc__
    return operator
