"""Planted faults of ``tree_verify_greedy``: each is right but for what its docstring says.

For use as ``--provider tree_verify_greedy=selftest/mutants/verify_greedy_tree.py:NAME``; the table is ``verify.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants.mla_steps import as_if_contiguous
from waveproof.selftest.mutants.verify_steps import Result
from waveproof.selftest.mutants.verify_tree import all_but_last
from waveproof.selftest.mutants.verify_walks import (
    GreedySteps,
    GreedyTree,
    children,
    greedy_tree,
    levels,
    matching,
    walk_greedily,
)


@greedy_tree
def first_child_only(call: GreedyTree) -> Result:
    """Siblings are not looked at."""
    return walk_greedily(call, GreedySteps(children=lambda c, row, node: children(c, row, node)[:1]))


@greedy_tree
def last_sibling_missed(call: GreedyTree) -> Result:
    """The last of several children is not looked at."""
    return walk_greedily(call, GreedySteps(children=lambda c, row, node: all_but_last(children(c, row, node))))


@greedy_tree
def any_child(call: GreedyTree) -> Result:
    """The first child is accepted whatever the target says."""
    return walk_greedily(call, GreedySteps(matching=lambda c, row, path, below: below))


@greedy_tree
def last_match(call: GreedyTree) -> Result:
    """The last child that matches is taken: shows where two siblings have one token."""
    return walk_greedily(call, GreedySteps(matching=lambda c, row, path, below: matching(c, row, path, below)[::-1]))


@greedy_tree
def one_level_only(call: GreedyTree) -> Result:
    """Stops after one accepted token: shows from the second level on."""
    return walk_greedily(call, GreedySteps(levels=lambda c: min(1, levels(c))))


@greedy_tree
def last_level_missed(call: GreedyTree) -> Result:
    """The deepest level is not walked."""
    return walk_greedily(call, GreedySteps(levels=lambda c: max(levels(c) - 1, 0)))


@greedy_tree
def last_from_root(call: GreedyTree) -> Result:
    """The last token is the target's after the root: shows from one accepted token on."""
    return walk_greedily(call, GreedySteps(last=lambda c, row, path: int(c.predict[row, 0])))


@greedy_tree
def last_from_parent(call: GreedyTree) -> Result:
    """The last accepted token comes again: the target's after its parent."""
    return walk_greedily(call, GreedySteps(last=lambda c, row, path: int(c.predict[row, path[-2:][0]])))


@greedy_tree
def matches_own_choice(call: GreedyTree) -> Result:
    """A child is compared with the target's choice after itself."""
    return walk_greedily(
        call,
        GreedySteps(
            matching=lambda c, row, path, below: [
                n for n in below if int(c.candidates[row, n]) == int(c.predict[row, n])
            ]
        ),
    )


@greedy_tree
def candidates_of_first_row(call: GreedyTree) -> Result:
    """Every row has the first row's tokens."""
    return walk_greedily(replace(call, candidates=call.candidates[:1].expand(call.candidates.shape)))


@greedy_tree
def target_of_row_before(call: GreedyTree) -> Result:
    """Every row has the target's choices of the row before."""
    return walk_greedily(replace(call, predict=call.predict.roll(1, 0)))


@greedy_tree
def sibling_is_child(call: GreedyTree) -> Result:
    """After an accepted node its next sibling is judged as if it were below."""
    merged = torch.where(call.child == -1, call.sibling, call.child)
    return walk_greedily(replace(call, child=merged))


@greedy_tree
def counts_root(call: GreedyTree) -> Result:
    """accept_len counts the root too."""
    accept_len, tokens = walk_greedily(call)
    return accept_len + 1, tokens


@greedy_tree
def without_last(call: GreedyTree) -> Result:
    """-1 stands where the target's token after the accepted ones is due."""
    accept_len, tokens = walk_greedily(call)
    return accept_len, torch.where(torch.arange(tokens.shape[1]) == accept_len[:, None], -1, tokens)


@greedy_tree
def returns_int64(call: GreedyTree) -> Result:
    """int64 tokens instead of int32."""
    accept_len, tokens = walk_greedily(call)
    return accept_len, tokens.long()


@greedy_tree
def depth_plus_one(call: GreedyTree) -> Result:
    """Tokens [B, D + 1]: a slot for the root, which has none."""
    accept_len, tokens = walk_greedily(call)
    return accept_len, torch.cat([call.candidates[:, :1].int(), tokens], 1)


@greedy_tree
def ignores_strides(call: GreedyTree) -> Result:
    """Takes the target's choices to lie one row after the other."""
    return walk_greedily(replace(call, predict=as_if_contiguous(call.predict)))
