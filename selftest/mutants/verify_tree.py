"""Planted faults of ``target_only_verify``: each is right but for what its docstring says.

For use as ``--provider target_only_verify=selftest/mutants/verify_tree.py:NAME``; the table is ``verify.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from waveproof.selftest.mutants.verify_steps import Result
from waveproof.selftest.mutants.verify_walks import (
    GreedyTree,
    Tree,
    TreeSteps,
    Walk,
    children,
    levels,
    removed,
    tree,
    walk_all,
    walk_greedily,
)

# Target only: who is accepted -----------------------------------------------------------------------------------------


@tree
def argmax_only(call: Tree) -> Result:
    """Accepts the target's argmax only and ends with it, whatever the coins (sgl-project/sglang#37134, C1)."""
    choice = call.target.argmax(-1)
    return walk_greedily(GreedyTree(call.candidates, call.child, call.sibling, choice, call.depth))


@tree
def threshold_acc_ignored(call: Tree) -> Result:
    """threshold_acc is taken for 1: shows below 1."""
    return walk_all(replace(call, acc=1.0))


@tree
def threshold_single_ignored(call: Tree) -> Result:
    """No child is accepted for its p alone: shows below 1."""
    return walk_all(replace(call, single=2.0))


@tree
def thresholds_swapped(call: Tree) -> Result:
    """The thresholds stand in each other's place: shows where they differ."""
    return walk_all(replace(call, single=call.acc, acc=call.single))


@tree
def threshold_acc_multiplies(call: Tree) -> Result:
    """The coin is compared with the sum times threshold_acc: shows below 1."""
    return walk_all(replace(call, acc=1.0 / call.acc))


@tree
def threshold_single_exclusive(call: Tree) -> Result:
    """p > threshold_single: shows where p is threshold_single and the coin is not below."""
    return walk_all(
        call, TreeSteps(accepts=lambda c, coin, p, total: p > 0.0 and (coin < total / c.acc or p > c.single))
    )


@tree
def threshold_single_of_sum(call: Tree) -> Result:
    """The sum of p is compared with threshold_single: shows from two children on."""
    return walk_all(
        call, TreeSteps(accepts=lambda c, coin, p, total: p > 0.0 and (coin < total / c.acc or total >= c.single))
    )


@tree
def at_the_sum(call: Tree) -> Result:
    """coin <= sum and no look at p: coin 0 accepts a child of p 0 (sgl-project/sglang#35771, C5)."""
    return walk_all(call, TreeSteps(accepts=lambda c, coin, p, total: coin <= total / c.acc or p >= c.single))


@tree
def sum_not_accumulated(call: Tree) -> Result:
    """Each child is judged by its own p: shows at the second child."""
    return walk_all(call, TreeSteps(added=lambda total, p: p))


@tree
def sum_carried_down(call: Tree) -> Result:
    """The sum of the level before is not cleared: shows from the second level on."""
    return walk_all(call, TreeSteps(carried=lambda total: total))


@tree
def sum_in_float16(call: Tree) -> Result:
    """The sum is kept in float16."""
    return walk_all(call, TreeSteps(added=lambda total, p: float(torch.tensor(total + p).half())))


@tree
def sum_a_ten_thousandth_more(call: Tree) -> Result:
    """Every child adds 1e-4 more than its p."""
    return walk_all(call, TreeSteps(added=lambda total, p: total + p + 1e-4))


@tree
def coin_of_root(call: Tree) -> Result:
    """The root's coin judges all levels: shows from the second level on."""
    return walk_all(call, TreeSteps(coin=lambda c, row, path, child: float(c.coins[row, 0])))


@tree
def coin_of_child(call: Tree) -> Result:
    """A child is judged by its own coin instead of its parent's."""
    return walk_all(call, TreeSteps(coin=lambda c, row, path, child: float(c.coins[row, child])))


@tree
def coin_of_level(call: Tree) -> Result:
    """The coin is that of the level, not of the accepted node: shows where a node is not its level's number."""
    return walk_all(call, TreeSteps(coin=lambda c, row, path, child: float(c.coins[row, len(path) - 1])))


@tree
def coins_of_first_row(call: Tree) -> Result:
    """The first row's coins judge every row."""
    return walk_all(replace(call, coins=call.coins[:1].expand(call.coins.shape)))


@tree
def first_child_only(call: Tree) -> Result:
    """Siblings are not looked at."""
    return walk_all(call, TreeSteps(children=lambda c, row, node: children(c, row, node)[:1]))


@tree
def last_sibling_missed(call: Tree) -> Result:
    """The last of several children is not looked at."""
    return walk_all(call, TreeSteps(children=lambda c, row, node: all_but_last(children(c, row, node))))


def all_but_last(found: list[int]) -> list[int]:
    """Without the last of several."""
    return found[:-1] if len(found) > 1 else found


@tree
def children_in_reverse(call: Tree) -> Result:
    """The last child is judged first: shows from two children on."""
    return walk_all(call, TreeSteps(children=lambda c, row, node: children(c, row, node)[::-1]))


@tree
def one_level_only(call: Tree) -> Result:
    """Stops after one accepted token: shows from the second level on."""
    return walk_all(call, TreeSteps(levels=lambda c: min(1, levels(c))))


@tree
def last_level_missed(call: Tree) -> Result:
    """The deepest level is not walked."""
    return walk_all(call, TreeSteps(levels=lambda c: max(levels(c) - 1, 0)))


@tree
def links_of_first_row(call: Tree) -> Result:
    """Every row is walked along the first row's tree: shows where trees differ."""
    child, sibling = (links[:1].expand(links.shape) for links in (call.child, call.sibling))
    return walk_all(replace(call, child=child, sibling=sibling))


@tree
def candidates_of_first_row(call: Tree) -> Result:
    """Every row has the first row's tokens."""
    return walk_all(replace(call, candidates=call.candidates[:1].expand(call.candidates.shape)))


@tree
def target_of_root(call: Tree) -> Result:
    """All levels are judged and drawn by the root's target: shows from the second level on."""
    return walk_all(replace(call, target=call.target[:, :1].expand(call.target.shape)))


@tree
def target_of_node_before(call: Tree) -> Result:
    """The target of the node before in memory, not of the node."""
    return walk_all(replace(call, target=torch.cat([call.target[:, :1], call.target[:, :-1]], 1)))


# Target only: the token after -----------------------------------------------------------------------------------------


@tree
def refused_stay(call: Tree) -> Result:
    """Refused children stay in the target that the last token is drawn from."""
    return walk_all(call, TreeSteps(weights=lambda c, row, walk: c.target[row, walk.path[-1]].double()))


@tree
def only_last_refused_removed(call: Tree) -> Result:
    """The last refused child is removed and the ones before it stay: shows from two children on."""
    return walk_all(call, TreeSteps(weights=lambda c, row, walk: removed(row_of(c, row, walk), walk.refused[-1][-1:])))


@tree
def refused_of_all_levels_removed(call: Tree) -> Result:
    """What was refused on the way down is removed as well: shows after an accepted sibling of a refused child."""
    return walk_all(call, TreeSteps(weights=lambda c, row, walk: removed(row_of(c, row, walk), sum(walk.refused, ()))))


@tree
def refused_of_level_before_removed(call: Tree) -> Result:
    """What was refused one level up is removed, not what was refused here."""
    return walk_all(
        call, TreeSteps(weights=lambda c, row, walk: removed(row_of(c, row, walk), ((), *walk.refused)[-2]))
    )


@tree
def refused_of_root_at_full_depth(call: Tree) -> Result:
    """At full depth the tokens of the last accepted node's siblings are removed, where all of the target is due."""

    def without(c: Tree, row: int, walk: Walk) -> Tensor:
        deepest = len(walk.path) == c.depth
        return removed(row_of(c, row, walk), walk.refused[-2 if deepest and len(walk.path) > 1 else -1])

    return walk_all(call, TreeSteps(weights=without))


@tree
def not_renormalised(call: Tree) -> Result:
    """Compares the final coin with sums that end below 1: the last token gets the rest."""

    def without_total(weights: Tensor, coin: Tensor) -> Tensor:
        return (weights.cumsum(-1) <= coin[:, None]).sum(-1).clamp(max=weights.shape[-1] - 1)

    return walk_all(call, TreeSteps(drawn=without_total))


@tree
def interval_closed_above(call: Tree) -> Result:
    """A coin on an edge gives the token before it, and coin 0 token 0 even without weight (C5)."""

    def closed(weights: Tensor, coin: Tensor) -> Tensor:
        cumulative = weights.cumsum(-1)
        return (cumulative < coin[:, None] * cumulative[:, -1:]).sum(-1).clamp(max=weights.shape[-1] - 1)

    return walk_all(call, TreeSteps(drawn=closed))


@tree
def last_from_root(call: Tree) -> Result:
    """The last token is drawn from the root's target, without what was refused at the last node."""
    return walk_all(call, TreeSteps(weights=lambda c, row, walk: removed(c.target[row, 0].double(), walk.refused[-1])))


@tree
def last_from_parent(call: Tree) -> Result:
    """The last token is drawn from the target before the last accepted token."""
    return walk_all(
        call, TreeSteps(weights=lambda c, row, walk: removed(c.target[row, walk.path[-2:][0]].double(), ()))
    )


@tree
def argmax_after_walk(call: Tree) -> Result:
    """The last token is the most probable one instead of a drawn one."""
    return walk_all(call, TreeSteps(drawn=lambda weights, coin: weights.argmax(-1)))


def row_of(call: Tree, row: int, walk: Walk) -> Tensor:
    """float64[V]: the target after the last accepted node."""
    return call.target[row, walk.path[-1]].double()


# Target only: memory and form -----------------------------------------------------------------------------------------


@tree
def refused_cleared_in_place(call: Tree) -> Result:
    """Leaves the last rows of the caller's target without the tokens that were refused."""
    result = walk_all(call)

    def clear(c: Tree, row: int, walk: Walk) -> Tensor:
        c.target[row, walk.path[-1], list(walk.refused[-1])] = 0.0
        return row_of(c, row, walk)

    walk_all(call, TreeSteps(weights=clear))
    return result


@tree
def nodes_for_tokens(call: Tree) -> Result:
    """Gives the numbers of the accepted nodes instead of their tokens."""
    accept_len, tokens = walk_all(call)
    drawn_at = torch.arange(tokens.shape[1]) == accept_len[:, None]
    return accept_len, torch.where(drawn_at, tokens, accepted_nodes(call))


def accepted_nodes(call: Tree) -> Tensor:
    """int32[B, D]: the accepted nodes of each row, then -1."""
    found = torch.full((len(call.candidates), call.depth), -1, dtype=torch.int32)

    def note(c: Tree, row: int, walk: Walk) -> Tensor:
        found[row, : len(walk.path) - 1] = torch.tensor(walk.path[1:], dtype=torch.int32)
        return row_of(c, row, walk)

    walk_all(call, TreeSteps(weights=note))
    return found


@tree
def counts_root(call: Tree) -> Result:
    """accept_len counts the root too."""
    accept_len, tokens = walk_all(call)
    return accept_len + 1, tokens


@tree
def as_wide_as_tree(call: Tree) -> Result:
    """Tokens [B, N] instead of [B, D]: shows where the tree is wider than deep."""
    accept_len, tokens = walk_all(call)
    wide = torch.full(call.candidates.shape, -1, dtype=torch.int32)
    wide[:, : call.depth] = tokens
    return accept_len, wide


@tree
def raises_on_zero_row(call: Tree) -> Result:
    """A target row that sums to zero raises for the whole batch (sgl-project/sglang#27618, A8)."""
    if bool((call.target.sum(-1) <= 0.0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    return walk_all(call)
