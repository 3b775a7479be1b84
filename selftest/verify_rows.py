"""Small rows for the planted faults of family ``verify``: what they are called with in ``test_verify_mutants.py``.

Coins lie at random, at both ends of their range, on the steps of laws that float32 does not round, and a little beside
those that it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from waveproof.kernels.operators.contract import Call, Value
from waveproof.selftest.mutants.mutant import Mutant
from waveproof.selftest.mutants.verify import ACCEPT, CHAIN, CORRECT, GREEDY_TREE, TARGET_ONLY, TREE
from waveproof.selftest.mutants.verify_steps import (
    Chain,
    filtered_law,
    h_of,
    masses_after,
    of_draft_tokens,
    prefixes,
)

LAST_COIN = 1.0 - 2.0**-24
BESIDE = (3e-5, -3e-5, 1e-3, -1e-3)
"""How far from a step, relatively: far more than float32 rounds, and two of them less than a planted bias of 1e-4."""
TOP_K_ALL = 1 << 30
BAD_Q = (float("nan"), float("inf"), -0.25, 1.5, 0.0)


@dataclass(frozen=True)
class Given:
    """A call, and the rows that must come out in one way only."""

    call: Call
    settled: Tensor


def settled(call: Call) -> Given:
    return Given(call, torch.ones(len(call.tensor("candidates"))).bool())


def first_right(operator: str) -> Mutant:
    return next(mutant for mutant in CORRECT if mutant.operator == operator)


# Chains ---------------------------------------------------------------------------------------------------------------


def dyadic(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of multiples of 1/64 that sum to 1, some of them 0."""
    edges = torch.randint(65, (*shape[:-1], shape[-1] - 1), generator=generator).sort(-1).values
    ends = torch.zeros(*shape[:-1], 1)
    return torch.cat([ends, edges, ends + 64], -1).diff(dim=-1) / 64.0


def softmax(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.softmax(1.5 * torch.randn(shape, generator=generator).double(), -1).float()


def chain_arguments(seed: int, rows: int, vocab_size: int, slots: int, block: bool) -> dict[str, Value]:
    """Odd seeds: laws in multiples of 1/64, and coins on their steps. Even seeds: softmax, and coins beside steps."""
    generator = torch.Generator().manual_seed(seed)
    law = dyadic if seed % 2 else softmax
    p, q = (law((rows, count, vocab_size), generator) for count in (slots, slots - 1))
    p[2::7, :, -1] = 0.0
    p[..., 0] = torch.where(p.sum(-1) > 0.0, p[..., 0], 1.0)
    p = p / p.sum(-1, keepdim=True)
    p[::5] = torch.nn.functional.one_hot(p[::5].argmax(-1), vocab_size).float()
    q[1::5] = torch.nn.functional.one_hot(q[1::5].argmax(-1), vocab_size).float()
    p[3::11, :-1] = q[3::11]
    drafts = torch.multinomial(q.flatten(0, 1) + 0.02, 1, generator=generator).view(rows, slots - 1)
    candidates = torch.cat([torch.randint(vocab_size, (rows, 1), generator=generator), drafts], 1)
    coins, final = torch.rand(rows, slots - 1, generator=generator), torch.rand(rows, generator=generator)
    if seed % 2:
        coins, final = (coins * 64).floor() / 64, (final * 64).floor() / 64
    call = Chain(candidates, p, q, coins, final, block)
    near = steps_of(call)
    placed = torch.rand(near.shape, generator=generator) < 0.5
    # On a step only where float32 makes no rounding: q of a power of two.
    exact = (near * 1024 == (near * 1024).floor()) if seed % 2 and not block else torch.zeros(near.shape).bool()
    near = torch.where(exact, near, beside(near, generator))
    coins = torch.where(placed & (near < 1.0), near.float(), coins)
    coins[4::6, :1], coins[5::6, :1] = 0.0, LAST_COIN
    final[2::6], final[3::6] = 0.0, LAST_COIN
    return {
        "candidates": candidates,
        "target_probs": p,
        "draft_probs": q,
        "coins": coins,
        "final_coins": final,
        "block_verification": block,
    }


def beside(steps: Tensor, generator: torch.Generator) -> Tensor:
    """A little below and above steps."""
    return steps * (1.0 + torch.tensor(BESIDE)[torch.randint(4, steps.shape, generator=generator)].double())


def steps_of(call: Chain) -> Tensor:
    """float64[B, S-1]: where each coin's step lies."""
    p, q = of_draft_tokens(call)
    if not call.block or not call.drafts:
        return torch.nan_to_num(p / q, nan=0.0, posinf=2.0)
    prefix = prefixes(p, q)
    return torch.cat([h_of(prefix[:, :-1], masses_after(call, prefix)), prefix[:, -1:]], 1)


def beside_steps(arguments: dict[str, Value], right: Mutant, seed: int) -> dict[str, Value]:
    """The same with final coins beside a step of the law that the row draws from."""
    call = Chain(*arguments.values())  # type: ignore[arg-type]
    accept_len = right.function()(*arguments.values())[0].long()
    rows, generator = torch.arange(len(accept_len)), torch.Generator().manual_seed(seed)
    weights = call.target[rows, accept_len].double()
    if call.drafts and not call.block:
        q = call.draft[rows, accept_len.clamp(max=call.drafts - 1)].double()
        q = torch.where((q >= 0.0) & (q <= 1.0), q, 0.0)
        rest = (weights - q).clamp(min=0.0)
        weights = torch.where(((accept_len < call.drafts) & (rest.sum(-1) > 0.0))[:, None], rest, weights)
    cumulative = weights.cumsum(-1) / weights.sum(-1, keepdim=True)
    step = cumulative.gather(1, torch.randint(weights.shape[1], (len(rows), 1), generator=generator))[:, 0]
    return {**arguments, "final_coins": beside(step, generator).clamp(0.0, LAST_COIN).float()}


def chain_calls() -> Iterator[Given]:
    yield from random_chains(range(4))
    for seed, block in ((30, False), (32, True)):
        arguments = chain_arguments(seed, 6, 5, 3, block)
        for value in (0.0, float("nan")):
            target = arguments["target_probs"].clone()  # type: ignore[union-attr]
            target[2] = value
            yield Given(Call(CHAIN, {**arguments, "target_probs": target}, 2), torch.arange(6) != 2)
        yield settled(Call(CHAIN, strided(arguments), 2))
        yield settled(Call(CHAIN, {name: of_rows(value, 0) for name, value in arguments.items()}, 2))
        yield settled(Call(CHAIN, chain_arguments(seed, 3, 4, 1, block), 2))
        yield settled(Call(CHAIN, with_empty_residual(block), 2))
        yield settled(Call(CHAIN, over_all_tokens(seed, block, 1030), 2))
        for value in BAD_Q:
            yield settled(Call(CHAIN, with_bad_q(chain_arguments(seed, 80, 6, 4, block), value, seed), 2))
    yield settled(Call(CHAIN, chain_arguments(26, 40, 5, 3, False), 2))
    yield settled(Call(CHAIN, chain_arguments(28, 80, 5, 4, True), 2))
    yield from random_chains(range(4, 18))


def random_chains(seeds: range) -> Iterator[Given]:
    right = first_right(CHAIN)
    for seed in seeds:
        arguments = chain_arguments(seed, 12, 2 + seed % 8, 2 + seed % 3, block=seed % 4 > 1)
        yield settled(Call(CHAIN, arguments, 2))
        yield settled(Call(CHAIN, beside_steps(arguments, right, seed), 2))


def of_rows(value: Value, rows: int) -> Value:
    return value[:rows] if isinstance(value, Tensor) else value


def with_bad_q(arguments: dict[str, Value], value: float, seed: int) -> dict[str, Value]:
    """Some of the draft tokens have a q that is no probability, and some token of every row has one."""
    generator = torch.Generator().manual_seed(seed)
    q, candidates = arguments["draft_probs"], arguments["candidates"]
    assert isinstance(q, Tensor)
    assert isinstance(candidates, Tensor)
    bad = torch.where(
        torch.rand(q.shape[:2], generator=generator) < 0.5, value, q.gather(2, candidates[:, 1:, None])[..., 0]
    )
    q.scatter_(2, candidates[:, 1:, None], bad[..., None])
    q[:, :, 0] = torch.where(torch.rand(q.shape[:2], generator=generator) < 0.5, value, q[:, :, 0])
    near = beside(steps_of(Chain(*arguments.values())), generator)  # type: ignore[arg-type]
    coins = torch.rand(q.shape[:2], generator=generator)
    coins = torch.where((coins < 0.8) & (near > 0.0) & (near < 1.0), near.float(), coins)
    coins[::4] *= 0.05
    return {**arguments, "coins": coins}


def over_all_tokens(seed: int, block: bool, vocab_size: int) -> dict[str, Value]:
    """Many tokens, and final coins over all of them."""
    arguments = chain_arguments(seed, 24, vocab_size, 2, block)
    return {**arguments, "final_coins": torch.linspace(0.001, 0.9999, 24)}


def strided(arguments: dict[str, Value]) -> dict[str, Value]:
    """The same values in tensors that have gaps between rows."""
    return {
        name: padded(value) if isinstance(value, Tensor) and value.dim() > 1 else value
        for name, value in arguments.items()
    }


def with_empty_residual(last: bool) -> dict[str, Value]:
    """p = q and a draft token that q does not propose: one token has all of both."""
    law = torch.tensor([0.0, 1.0, 0.0])
    return {
        "candidates": torch.tensor([[0, 2 if last else 0]]),
        "target_probs": law.expand(1, 2, 3).contiguous(),
        "draft_probs": law.expand(1, 1, 3).contiguous(),
        "coins": torch.tensor([[0.5]]),
        "final_coins": torch.tensor([0.5]),
        "block_verification": last,
    }


# Trees ----------------------------------------------------------------------------------------------------------------

PARENTS = ((-1, 0, 1, 2), (-1, 0, 0, 0, 0), (-1, 0, 0, 1, 1, 2, 3, 3), (-1, 0, 1, 0, 3, 3, 4))


def tree_rows(seed: int, rows: int, vocab_size: int, law: Tensor) -> tuple[dict[str, Tensor], int]:
    """Rows take turns in two trees of one size; siblings differ, but for one pair in four."""
    generator = torch.Generator().manual_seed(seed)
    parents = PARENTS[seed % 4]
    nodes = len(parents)
    flat = (-1, *[0] * (nodes - 1))
    child, sibling = torch.full((rows, nodes), -1), torch.full((rows, nodes), -1)
    candidates = torch.zeros(rows, nodes, dtype=torch.int64)
    for row in range(rows):
        for node, parent in enumerate(flat if row % 4 == 3 else parents):
            candidates[row, node] = torch.multinomial(law[row, max(parent, 0)] + 0.05, 1, generator=generator)
            if parent < 0:
                continue
            elder = child[row, parent]
            if elder == -1:
                child[row, parent] = node
                continue
            taken = [int(candidates[row, elder])]
            while sibling[row, elder] != -1:
                elder = sibling[row, elder]
                taken.append(int(candidates[row, elder]))
            sibling[row, elder] = node
            if row % 4 and int(candidates[row, node]) in taken:
                free = [token for token in range(vocab_size) if token not in taken]
                candidates[row, node] = free[int(torch.randint(len(free), (1,), generator=generator))]
    levels = [0] * nodes
    for node in range(1, nodes):
        levels[node] = levels[parents[node]] + 1
    links = {"retrieve_next_token": child, "retrieve_next_sibling": sibling}
    return {"candidates": candidates, **links}, max(levels) + 1


def tree_calls() -> Iterator[Given]:
    thresholds = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.25, 0.75))
    for seed in range(24):
        generator = torch.Generator().manual_seed(seed)
        rows, nodes, vocab_size = 12, len(PARENTS[seed % 4]), 8 + seed % 3
        law = (dyadic if seed % 2 else softmax)((rows, nodes, vocab_size), generator)
        law[::5, :, -1] = 0.0
        law = law / law.sum(-1, keepdim=True)
        tree, depth = tree_rows(seed, rows, vocab_size, law)
        coins, final = torch.rand(rows, nodes, generator=generator), torch.rand(rows, generator=generator)
        if seed % 2:
            coins, final = (coins * 64).floor() / 64, (final * 64).floor() / 64
        first = tree["candidates"].gather(1, tree["retrieve_next_token"].clamp(min=0))
        p = law.gather(2, first[..., None])[..., 0]
        placed = torch.rand(p.shape, generator=generator) < 0.4
        coins = torch.where(placed, beside(p, generator).clamp(max=LAST_COIN).float(), coins)
        coins[4::6], coins[5::6, 0] = 0.0, LAST_COIN
        final[::6], final[1::6] = 0.0, LAST_COIN
        single, acc = thresholds[seed % 3 if seed < 12 else 3]
        arguments: dict[str, Value] = {
            **tree,
            "target_probs": law,
            "coins": coins,
            "final_coins": final,
            "threshold_single": single,
            "threshold_acc": acc,
            "depth": depth - (seed % 5 == 4 and depth > 2),
        }
        if seed == 2:
            broken = law.clone()
            broken[2] = 0.0
            yield Given(Call(TREE, {**arguments, "target_probs": broken}, 2), torch.arange(rows) != 2)
        yield settled(Call(TREE, arguments, 2))

    # A child whose p is threshold_single, and a coin above it.
    at_threshold: dict[str, Value] = {
        "candidates": torch.tensor([[2, 0]]),
        "retrieve_next_token": torch.tensor([[1, -1]]),
        "retrieve_next_sibling": torch.tensor([[-1, -1]]),
        "target_probs": torch.tensor([0.5, 0.25, 0.25]).expand(1, 2, 3).contiguous(),
        "coins": torch.tensor([[0.75, 0.5]]),
        "final_coins": torch.tensor([0.5]),
        "threshold_single": 0.5,
        "threshold_acc": 1.0,
        "depth": 2,
    }
    yield settled(Call(TREE, at_threshold, 2))


def greedy_tree_calls() -> Iterator[Given]:
    for seed in range(16):
        generator = torch.Generator().manual_seed(seed)
        rows, nodes, vocab_size = 12, len(PARENTS[seed % 4]), 8
        tree, depth = tree_rows(seed, rows, vocab_size, softmax((rows, nodes, vocab_size), generator))
        younger = tree["candidates"][:, torch.randperm(nodes, generator=generator)]
        first = tree["candidates"].gather(1, tree["retrieve_next_token"].clamp(min=0))
        predict = torch.where(torch.rand(first.shape, generator=generator) < 0.5, first, younger)
        depth -= seed % 5 == 4 and depth > 2
        choices: dict[str, Value] = {"target_predict": padded(predict), "depth": depth}
        yield settled(Call(GREEDY_TREE, {**tree, **choices}, 2))
    # Two siblings with one token, and different nodes below them.
    twins: dict[str, Value] = {
        "candidates": torch.tensor([[0, 3, 3, 1, 2]]),
        "retrieve_next_token": torch.tensor([[1, 3, 4, -1, -1]]),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1, -1]]),
        "target_predict": torch.tensor([[3, 1, 2, 5, 4]]),
        "depth": 3,
    }
    yield settled(Call(GREEDY_TREE, twins, 2))


# From logits ----------------------------------------------------------------------------------------------------------


def limits(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    def one_of(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]

    top_k = one_of((2, 3, 5, TOP_K_ALL)).to(torch.int64)
    return {"temperature": one_of((0.5, 0.8, 1.4)), "top_k": top_k, "top_p": one_of((0.6, 0.85, 1.0))}


def accept_calls() -> Iterator[Given]:
    yield from random_requests(range(4))
    arguments = dict(next(random_requests(range(1))).call.arguments)
    for value in (float("nan"), float("inf")):
        logits = arguments["target_logits"].clone()  # type: ignore[union-attr]
        logits[2] = value
        yield Given(Call(ACCEPT, {**arguments, "target_logits": logits}, 2), torch.arange(len(logits)) != 2)
    yield from random_requests(range(4, 18))


def random_requests(seeds: range) -> Iterator[Given]:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        rows, slots, vocab_size = 10, 2 + seed % 3, 7 + seed % 4
        logits = (1.5 * torch.randn(rows, slots, vocab_size, generator=generator)).to(
            torch.bfloat16 if seed % 6 == 5 else torch.float32
        )
        noise = torch.randn(rows, slots - 1, vocab_size, generator=generator)
        q = torch.softmax(logits[:, :-1].double() + 0.5 * noise, -1).float()
        drafts = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(rows, slots - 1)
        coins, final = torch.rand(rows, slots - 1, generator=generator), torch.rand(rows, generator=generator)
        coins[::3] *= 0.3
        filters = limits(rows, generator)
        target = filtered_law(logits, filters["temperature"], filters["top_k"], filters["top_p"], "dense")
        candidates = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), drafts], 1)
        near = beside(steps_of(Chain(candidates, target, q, coins, final, False)), generator)
        placed = (torch.rand(coins.shape, generator=generator) < 0.4) & (near < 1.0)
        coins = torch.where(placed, near.float(), coins)
        coins[1::5], final[::4] = 0.0, LAST_COIN
        if seed % 2:
            filters["top_k"] = filters["top_k"].int()
        yield settled(
            Call(
                ACCEPT,
                {
                    "candidates": candidates,
                    "target_logits": padded(logits) if seed % 4 == 3 else logits,
                    "draft_probs": q,
                    **filters,
                    "coins": coins,
                    "final_coins": final,
                    "verify_lens": torch.randint(1, slots + 1, (rows,), generator=generator).int(),
                    "block_verification": seed % 4 > 1,
                    "path": ("dense", "sparse")[seed // 2 % 2],
                },
                2,
            )
        )


def padded(rows: Tensor) -> Tensor:
    """The same values with gaps between rows."""
    around = torch.zeros(*rows.shape[:-1], rows.shape[-1] + 3, dtype=rows.dtype)
    around[..., : rows.shape[-1]] = rows
    return around[..., : rows.shape[-1]]


def target_only_calls() -> Iterator[Given]:
    for given in accept_calls():
        old = dict(given.call.arguments)
        seed = int(given.call.tensor("final_coins")[1] * 2**20)
        rows, slots = given.call.tensor("candidates").shape
        generator = torch.Generator().manual_seed(seed)
        coins = torch.rand(rows, slots, generator=generator)
        coins[::3] *= 0.3
        coins[1::5] = 0.0
        single, acc = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5))[seed % 3]
        names = ("candidates", "target_logits", "temperature", "top_k", "top_p")
        arguments: dict[str, Value] = {
            **{name: old[name] for name in names},
            "coins": coins,
            "final_coins": old["final_coins"],
            "threshold_single": single,
            "threshold_acc": acc,
            "path": old["path"],
        }
        yield Given(Call(TARGET_ONLY, arguments, 2), given.settled)
