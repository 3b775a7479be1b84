"""Verification of trees step by step, in float64: what the planted faults of trees are faults of.

A row is walked in Python, one node after the other. A planted fault is a function of one :class:`Tree`,
:class:`GreedyTree` or :class:`TargetOnlyRequest` call; :func:`tree`, :func:`greedy_tree` and
:func:`target_only_request` give it the positional arguments of its operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import Result, drawn, filtered_law, named_as


@dataclass(frozen=True)
class Tree:
    """A call of ``target_only_verify``."""

    candidates: Tensor
    child: Tensor
    sibling: Tensor
    target: Tensor
    coins: Tensor
    final: Tensor
    single: float
    acc: float
    depth: int


@dataclass(frozen=True)
class GreedyTree:
    """A call of ``tree_verify_greedy``."""

    candidates: Tensor
    child: Tensor
    sibling: Tensor
    predict: Tensor
    depth: int


@dataclass(frozen=True)
class TargetOnlyRequest:
    """A call of ``target_only_accept_sampling``."""

    candidates: Tensor
    logits: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    coins: Tensor
    final: Tensor
    single: float
    acc: float
    path: str


@dataclass(frozen=True)
class Walk:
    """How far a row came."""

    path: tuple[int, ...]
    """Accepted nodes, the root first."""
    refused: tuple[tuple[int, ...], ...]
    """Tokens of the children that were refused at each node of the path; of none at a node of full depth."""


def children(call: Tree | GreedyTree, row: int, node: int) -> list[int]:
    """Nodes below a node, in order."""
    found, at = [], int(call.child[row, node])
    while at != -1:
        found.append(at)
        at = int(call.sibling[row, at])
    return found


def coin_of_parent(call: Tree, row: int, path: tuple[int, ...], child: int) -> float:
    """The coin that judges a child: that of the last accepted node."""
    return float(call.coins[row, path[-1]])


def added(total: float, p: float) -> float:
    """The sum of p with one more child."""
    return total + p


def none_carried(total: float) -> float:
    """What a level begins its sum with, given that of the level before."""
    return 0.0


def accepts(call: Tree, coin: float, p: float, total: float) -> bool:
    """Whether a child is accepted."""
    return p > 0.0 and (coin < total / call.acc or p >= call.single)


def levels(call: Tree | GreedyTree) -> int:
    """Most draft tokens that can be accepted."""
    return call.depth - 1


def without_refused(call: Tree, row: int, walk: Walk) -> Tensor:
    """float64[V]: weights of the token after the last accepted node."""
    p = call.target[row, walk.path[-1]].double()
    return removed(p, walk.refused[-1])


def removed(p: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """The weights without some tokens; with all of them where nothing would be left."""
    left = p.clone()
    left[list(tokens)] = 0.0
    return p if float(left.sum()) == 0.0 else left


@dataclass(frozen=True)
class TreeSteps:
    """How a row is walked; a planted fault replaces a step or two."""

    children: Callable[[Tree, int, int], list[int]] = children
    coin: Callable[[Tree, int, tuple[int, ...], int], float] = coin_of_parent
    added: Callable[[float, float], float] = added
    carried: Callable[[float], float] = none_carried
    accepts: Callable[[Tree, float, float, float], bool] = accepts
    levels: Callable[[Tree], int] = levels
    weights: Callable[[Tree, int, Walk], Tensor] = without_refused
    drawn: Callable[[Tensor, Tensor], Tensor] = drawn


def walked(call: Tree, row: int, steps: TreeSteps) -> Walk:
    """Down from the root, as far as children are accepted."""
    path: tuple[int, ...] = (0,)
    refused: list[tuple[int, ...]] = []
    total = 0.0
    while True:
        taken, tokens, total = -1, [], steps.carried(total)
        for child in steps.children(call, row, path[-1]) if len(path) <= steps.levels(call) else ():
            token = int(call.candidates[row, child])
            p = float(call.target[row, path[-1], token])
            total = steps.added(total, p)
            if steps.accepts(call, steps.coin(call, row, path, child), p, total):
                taken = child
                break
            tokens.append(token)
        refused.append(tuple(tokens))
        if taken == -1:
            return Walk(path, tuple(refused))
        path += (taken,)


def walk_all(call: Tree, steps: TreeSteps = TreeSteps()) -> Result:
    """A whole call of ``target_only_verify``."""
    batch, final = len(call.candidates), call.final.double()
    paths, lasts = [], []
    for row in range(batch):
        walk = walked(call, row, steps)
        paths.append(walk.path)
        lasts.append(int(steps.drawn(steps.weights(call, row, walk)[None], final[row : row + 1])))
    return along(call.candidates, paths, lasts, call.depth)


def along(candidates: Tensor, paths: list[tuple[int, ...]], lasts: list[int], depth: int) -> Result:
    """The results: tokens of the nodes below the root, the last token and -1 behind."""
    count = torch.zeros(len(paths), dtype=torch.int32)
    tokens = torch.full((len(paths), depth), -1, dtype=torch.int32)
    for row, (path, last) in enumerate(zip(paths, lasts, strict=True)):
        count[row] = len(path) - 1
        tokens[row, : len(path)] = torch.cat([candidates[row, list(path[1:])], torch.tensor([last])]).int()
    return count, tokens


def matching(call: GreedyTree, row: int, path: tuple[int, ...], below: list[int]) -> list[int]:
    """Children that are the target's choice at the last accepted node."""
    return [child for child in below if int(call.candidates[row, child]) == int(call.predict[row, path[-1]])]


@dataclass(frozen=True)
class GreedySteps:
    """How a row is walked at temperature 0."""

    children: Callable[[GreedyTree, int, int], list[int]] = children
    matching: Callable[[GreedyTree, int, tuple[int, ...], list[int]], list[int]] = matching
    levels: Callable[[GreedyTree], int] = levels
    last: Callable[[GreedyTree, int, tuple[int, ...]], int] = lambda call, row, path: int(call.predict[row, path[-1]])


def walk_greedily(call: GreedyTree, steps: GreedySteps = GreedySteps()) -> Result:
    """A whole call of ``tree_verify_greedy``."""
    paths, lasts = [], []
    for row in range(len(call.candidates)):
        path: tuple[int, ...] = (0,)
        while len(path) <= steps.levels(call):
            found = steps.matching(call, row, path, steps.children(call, row, path[-1]))
            if not found:
                break
            path += (found[0],)
        paths.append(path)
        lasts.append(steps.last(call, row, path))
    return along(call.candidates, paths, lasts, call.depth)


def as_tree(call: TargetOnlyRequest, target: Tensor) -> Tree:
    """The chain of a request as a tree in which every node has one child."""
    batch, slots = call.candidates.shape
    child = torch.arange(1, slots + 1).expand(batch, slots).clone()
    child[:, -1] = -1
    alone = torch.full_like(child, -1)
    return Tree(call.candidates, child, alone, target, call.coins, call.final, call.single, call.acc, slots)


def target_only_law(call: TargetOnlyRequest, **changed: Any) -> Tensor:
    """float32[B, S, V]: the target's law of a request, with other limits or steps where they are given."""
    limits = {name: getattr(call, name) for name in ("logits", "temperature", "top_k", "top_p", "path")}
    return filtered_law(**{**limits, **changed})


def accept_target_only(call: TargetOnlyRequest, target: Tensor | None = None, steps: TreeSteps = TreeSteps()) -> Result:
    """A whole call of ``target_only_accept_sampling``, with another law of the target where one is given."""
    return walk_all(as_tree(call, target_only_law(call) if target is None else target), steps)


# Operators ------------------------------------------------------------------------------------------------------------


def tree(fault: Callable[[Tree], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``target_only_verify``."""

    def operator(
        candidates: Tensor,
        retrieve_next_token: Tensor,
        retrieve_next_sibling: Tensor,
        target_probs: Tensor,
        coins: Tensor,
        final_coins: Tensor,
        threshold_single: float,
        threshold_acc: float,
        depth: int,
    ) -> Any:
        links = (retrieve_next_token, retrieve_next_sibling)
        return fault(Tree(candidates, *links, target_probs, coins, final_coins, threshold_single, threshold_acc, depth))

    return named_as(fault, operator)


def greedy_tree(fault: Callable[[GreedyTree], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``tree_verify_greedy``."""

    def operator(
        candidates: Tensor,
        retrieve_next_token: Tensor,
        retrieve_next_sibling: Tensor,
        target_predict: Tensor,
        depth: int,
    ) -> Any:
        return fault(GreedyTree(candidates, retrieve_next_token, retrieve_next_sibling, target_predict, depth))

    return named_as(fault, operator)


def target_only_request(fault: Callable[[TargetOnlyRequest], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``target_only_accept_sampling``."""

    def operator(
        candidates: Tensor,
        target_logits: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        coins: Tensor,
        final_coins: Tensor,
        threshold_single: float,
        threshold_acc: float,
        path: str,
    ) -> Any:
        limits = (temperature, top_k, top_p)
        thresholds = (threshold_single, threshold_acc)
        return fault(TargetOnlyRequest(candidates, target_logits, *limits, coins, final_coins, *thresholds, path))

    return named_as(fault, operator)
