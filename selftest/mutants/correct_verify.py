"""Right implementations of family ``verify`` by different algorithms: what the suite must not reject.

The first of each operator is also what the planted faults beside this file are faults of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import (
    Chain,
    Keyed,
    Request,
    Result,
    Steps,
    accept,
    chain,
    counted,
    decide,
    filtered_law,
    is_probability,
    keyed,
    request,
    residual,
    rows_after,
    sampled,
    tempered,
    usable,
    verify,
    written,
)
from waveproof.selftest.mutants.verify_walks import (
    GreedyTree,
    TargetOnlyRequest,
    Tree,
    accept_target_only,
    greedy_tree,
    target_only_request,
    tree,
    walk_all,
    walk_greedily,
)

# Chains ---------------------------------------------------------------------------------------------------------------


@chain
def chain_in_float64(call: Chain) -> Result:
    """All rows at once, coin * q < p in float64."""
    return verify(call)


def quotient_above(coin: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Whether the coin lies below p / q, rounded to float32."""
    return is_probability(q) & (coin.float() < p.float() / q.float())


@chain
def chain_by_division(call: Chain) -> Result:
    """coin < p / q in float32, and a float32 sum from left to right."""
    return verify(call, Steps(stands=quotient_above, residual=residual_in_float32, drawn=drawn_from_left_to_right))


def residual_in_float32(p: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """max(scale * p - q, 0) with two roundings."""
    return (scale.float() * p.float() - q.float()).clamp(min=0.0)


def drawn_from_left_to_right(weights: Tensor, coin: Tensor) -> Tensor:
    """numpy's float32 cumulative sum, which rounds after each addition."""
    cumulative = torch.from_numpy(np.cumsum(weights.float().numpy(), axis=-1, dtype=np.float32))
    share = coin.float()[:, None] * cumulative[:, -1:]
    return (cumulative > share).int().argmax(-1)


def reciprocal_above(coin: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Whether the coin lies below p times the reciprocal of q: two roundings."""
    return is_probability(q) & (coin.float() < p.float() * q.float().reciprocal())


@chain
def chain_by_reciprocal(call: Chain) -> Result:
    """p times the reciprocal of q, and a binary search in the cumulative weights over their total."""
    return verify(call, Steps(stands=reciprocal_above, drawn=searched))


def searched(weights: Tensor, coin: Tensor) -> Tensor:
    """Binary search in normalised cumulative weights; the last token with weight where rounding left too little."""
    cumulative = torch.nan_to_num(weights.float() / weights.float().sum(-1, keepdim=True)).cumsum(-1)
    found = torch.searchsorted(cumulative, coin.float()[:, None], right=True)[:, 0]
    last = weights.shape[-1] - 1 - (weights > 0.0).int().flip(-1).argmax(-1)
    return torch.minimum(found, last)


@chain
def chain_by_rows(call: Chain) -> Result:
    """One row after the other in Python floats; a block from the formulas of arXiv 2403.10444, from the longest down.

    Where the residual is empty it takes the most probable token.
    """
    rows = [
        verified_row(
            call.candidates[row, 1:].tolist(),
            call.target[row].double().numpy(),
            call.draft[row].double().numpy(),
            call.coins[row].tolist(),
            float(call.final[row]),
            call.block,
        )
        for row in range(len(call.candidates))
    ]
    counts, lasts = zip(*rows, strict=True) if rows else ((), ())
    as_ids = (torch.tensor(found, dtype=torch.int64) for found in (counts, lasts))
    return written(call.candidates, *as_ids)


def verified_row(
    drafts: Sequence[int], target: np.ndarray, draft: np.ndarray, coins: Sequence[float], final: float, block: bool
) -> tuple[int, int]:
    """Accepted tokens of one row and the token after them."""
    count, scale = block_of(drafts, target, draft, coins) if block else (tokens_of(drafts, target, draft, coins), 1.0)
    if count == len(drafts):
        return count, picked(target[count], target[count], final)
    return count, picked(leftover(scale, target[count], draft[count]), target[count], final)


def leftover(scale: float, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """max(scale * p - q, 0), a q that is no probability counting as 0."""
    with np.errstate(invalid="ignore"):
        return np.maximum(scale * p - np.where((q >= 0.0) & (q <= 1.0), q, 0.0), 0.0)


def picked(weights: np.ndarray, p: np.ndarray, final: float) -> int:
    """Goes through the tokens until the weight up to one lies above the coin's share; sums exactly enough for that."""
    total = float(np.cumsum(weights)[-1])
    if total == 0.0:
        return int(np.argmax(p))
    mass, share = 0.0, final * total
    for token, weight in enumerate(weights.tolist()):
        mass += weight
        if mass > share:
            return token
    return 0


def tokens_of(drafts: Sequence[int], target: np.ndarray, draft: np.ndarray, coins: Sequence[float]) -> int:
    """Algorithm 1 of arXiv 2211.17192."""
    for step, (token, coin) in enumerate(zip(drafts, coins, strict=True)):
        p, q = float(target[step, token]), float(draft[step, token])
        if not (0.0 < q <= 1.0 and coin < p / q):
            return step
    return len(drafts)


def block_of(drafts: Sequence[int], target: np.ndarray, draft: np.ndarray, coins: Sequence[float]) -> tuple[int, float]:
    """Algorithm 2 of arXiv 2403.10444: accepted tokens and what the next law is scaled with."""
    prefix = [1.0]
    for step, token in enumerate(drafts):
        p, q = float(target[step, token]), float(draft[step, token])
        prefix.append(min(prefix[-1] * p / q, 1.0) if 0.0 < q <= 1.0 else 0.0)
    for step in range(len(drafts), 0, -1):
        h = prefix[step]
        if step < len(drafts) and 0.0 < h < 1.0:
            mass = float(leftover(h, target[step], draft[step]).sum())
            h = mass / (mass + 1.0 - h)
        if coins[step - 1] < h:
            return step, prefix[step]
    return 0, 1.0


# Trees ----------------------------------------------------------------------------------------------------------------


@tree
def tree_by_loops(call: Tree) -> Result:
    """Down from the root, in float64."""
    return walk_all(call)


@tree
def tree_by_recursion(call: Tree) -> Result:
    """The children of a node, then the tree below the one that is accepted; the sum in float32."""
    rows = [below(call, row, 0, call.depth - 1) for row in range(len(call.candidates))]
    tokens = torch.tensor([row + [-1] * (call.depth - len(row)) for row in rows], dtype=torch.int32)
    return torch.tensor([len(row) - 1 for row in rows], dtype=torch.int32), tokens.reshape(len(rows), call.depth)


def below(call: Tree, row: int, node: int, levels: int) -> list[int]:
    """Accepted tokens below a node, and the one after them."""
    p = call.target[row, node].clone()
    total = torch.zeros((), dtype=torch.float32)
    child = int(call.child[row, node]) if levels else -1
    while child != -1:
        token = int(call.candidates[row, child])
        mass = call.target[row, node, token]
        total = total + mass
        if bool(mass > 0.0) and bool((call.coins[row, node] < total / call.acc) | (mass >= call.single)):
            return [token, *below(call, row, child, levels - 1)]
        p[token] = 0.0
        child = int(call.sibling[row, child])
    weights = p if bool((p > 0.0).any()) else call.target[row, node]
    return [int(drawn_from_left_to_right(weights[None], call.final[row : row + 1]))]


@greedy_tree
def greedy_by_loops(call: GreedyTree) -> Result:
    """Down from the root while a child is the target's choice."""
    return walk_greedily(call)


@greedy_tree
def greedy_by_recursion(call: GreedyTree) -> Result:
    """Node by node with Python lists."""
    trees = zip(*(x.tolist() for x in (call.candidates, call.child, call.sibling, call.predict)), strict=True)
    rows = [chosen(tokens, child, sibling, predict, 0, call.depth - 1) for tokens, child, sibling, predict in trees]
    filled = [row + [-1] * (call.depth - len(row)) for row in rows]
    counts = torch.tensor([len(row) - 1 for row in rows], dtype=torch.int32)
    return counts, torch.tensor(filled, dtype=torch.int32).reshape(len(rows), call.depth)


def chosen(
    tokens: list[int], child: list[int], sibling: list[int], predict: list[int], node: int, levels: int
) -> list[int]:
    """The target's choices from a node on, as far as the tree has them, and one more."""
    at = child[node] if levels else -1
    while at != -1 and tokens[at] != predict[node]:
        at = sibling[at]
    return [predict[node], *(chosen(tokens, child, sibling, predict, at, levels - 1) if at != -1 else [])]


# From logits ----------------------------------------------------------------------------------------------------------


@request
def accept_at_once(call: Request) -> Result:
    """Both paths alike: filters in float64, the chain, the cut."""
    return accept(call)


@request
def accept_by_requests(call: Request) -> Result:
    """One request after the other, rows in Python floats; what lies behind the cut is never looked at but for one."""
    counts, lasts = [], []
    for row in range(len(call.candidates)):
        temperature, top_k, top_p = (limit[row : row + 1] for limit in (call.temperature, call.top_k, call.top_p))
        law = filtered_law(call.logits[row : row + 1], temperature, top_k, top_p, call.path)
        target = law[0].double().numpy()
        draft = call.draft[row].double().numpy()
        drafts, coins = call.candidates[row, 1:].tolist(), call.coins[row].tolist()
        most = int(call.lens[row]) - 1
        count, last = verified_row(drafts, target, draft, coins, float(call.final[row]), call.block)
        counts.append(min(count, most))
        lasts.append(drafts[most] if count > most else last)
    return written(call.candidates, torch.tensor(counts, dtype=torch.int64), torch.tensor(lasts, dtype=torch.int64))


@request
def accept_by_division(call: Request) -> Result:
    """coin < p / q in float32, and a float32 sum from left to right."""
    return accept(call, steps=Steps(stands=quotient_above, drawn=drawn_from_left_to_right))


@target_only_request
def target_only_at_once(call: TargetOnlyRequest) -> Result:
    """The chain as a tree of single children."""
    return accept_target_only(call)


@target_only_request
def target_only_as_one_hot(call: TargetOnlyRequest) -> Result:
    """At thresholds of 1 a chain sampler with one-hot draft laws: the same acceptance and the same residual."""
    if call.single < 1.0 or call.acc < 1.0:
        return accept_target_only(call)
    target = filtered_law(call.logits, call.temperature, call.top_k, call.top_p, call.path)
    draft = torch.zeros_like(target[:, 1:]).scatter_(2, call.candidates[:, 1:, None], 1.0)
    count, last = decide(Chain(call.candidates, target, draft, call.coins[:, :-1], call.final, False))
    return written(call.candidates, count, last)


# With its own random numbers ------------------------------------------------------------------------------------------


@keyed
def seeded_coins(call: Keyed) -> Result:
    """Draws a coin for each draft token and one for each last token."""
    return sampled(call)


@keyed
def seeded_gumbel(call: Keyed) -> Result:
    """Draws the last token as the largest of log-weights plus Gumbel noise of its own."""
    generator = torch.Generator().manual_seed(call.seed ^ 0x5EED)
    coins = torch.rand(call.candidates.shape, generator=generator)
    target = tempered(call.logits, call.temperature)
    draft = tempered(call.draft_logits, call.draft_temperature)
    chain_call = Chain(call.candidates, target, draft, coins[:, 1:], coins[:, 0], False)
    count, _ = counted(chain_call, Steps())
    p, q = rows_after(chain_call, count)
    weights = residual(p, usable(q), torch.ones(len(p), 1))
    weights = torch.where(weights.sum(-1, keepdim=True) == 0.0, p, weights)
    noise = -torch.log(torch.empty(p.shape, dtype=torch.float64).exponential_(generator=generator))
    return written(call.candidates, count, (weights.log() + noise).argmax(-1))


@keyed
def seeded_by_slots(call: Keyed) -> Result:
    """A generator for each slot, whatever the other slots and requests are."""
    return sampled(call, coins=coins_of_slots)


def coins_of_slots(call: Keyed) -> tuple[Tensor, Tensor]:
    """float32[B, S-1] and [B]: the last token's coins come from the generator of the first slot."""
    batch, slots = call.candidates.shape
    generators = [torch.Generator().manual_seed(call.seed * 1_000_003 + slot) for slot in range(slots)]
    coins = torch.stack([torch.rand(batch, generator=generator) for generator in generators], 1)
    return coins[:, 1:], coins[:, 0]
