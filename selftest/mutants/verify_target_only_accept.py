"""Planted faults of ``target_only_accept_sampling``: each is right but for what its docstring says.

For use as ``--provider target_only_accept_sampling=selftest/mutants/verify_target_only_accept.py:NAME``; the table is
``verify.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants import renorm_target_probs
from waveproof.selftest.mutants.mla_steps import as_if_contiguous
from waveproof.selftest.mutants.verify_steps import Result, leading, written
from waveproof.selftest.mutants.verify_walks import (
    TargetOnlyRequest,
    TreeSteps,
    accept_target_only,
    levels,
    target_only_law,
    target_only_request,
)


@target_only_request
def greedy(call: TargetOnlyRequest) -> Result:
    """Accepts the target's argmax only and ends with it, at any temperature (sgl-project/sglang#37134, C1)."""
    choice = call.logits.argmax(-1)
    count = leading(call.candidates[:, 1:] == choice[:, :-1])
    return written(call.candidates, count, choice.gather(1, count[:, None])[:, 0])


@target_only_request
def temperature_ignored(call: TargetOnlyRequest) -> Result:
    """Temperature 1 for every request."""
    return accept_target_only(call, target_only_law(call, temperature=torch.ones_like(call.temperature)))


@target_only_request
def temperature_of_first_request(call: TargetOnlyRequest) -> Result:
    """The first request's temperature for every request."""
    first = call.temperature[:1].expand(call.temperature.shape)
    return accept_target_only(call, target_only_law(call, temperature=first))


@target_only_request
def filters_ignored(call: TargetOnlyRequest) -> Result:
    """Neither top-k nor top-p (kind: sgl-project/sglang#32569, C2)."""
    whole = {"top_k": torch.zeros_like(call.top_k), "top_p": torch.ones_like(call.top_p)}
    return accept_target_only(call, target_only_law(call, **whole))


@target_only_request
def sparse_path_without_top_p(call: TargetOnlyRequest) -> Result:
    """The sparse path forgets top-p."""
    return accept_target_only(call, target_only_law(call, law=renorm_target_probs.sparse_path_without_top_p))


@target_only_request
def top_p_first(call: TargetOnlyRequest) -> Result:
    """Top-p before top-k: shows where both cut."""
    return accept_target_only(call, target_only_law(call, law=renorm_target_probs.top_p_first))


@target_only_request
def limits_repeated_by_slot(call: TargetOnlyRequest) -> Result:
    """Limits are repeated as a whole, so that slots of one request get those of others: from two requests on."""
    return accept_target_only(call, target_only_law(call, of_each=lambda limit, slots: limit.repeat(slots)))


@target_only_request
def thresholds_ignored(call: TargetOnlyRequest) -> Result:
    """Both thresholds are taken for 1: shows below 1."""
    return accept_target_only(replace(call, single=1.0, acc=1.0))


@target_only_request
def thresholds_swapped(call: TargetOnlyRequest) -> Result:
    """The thresholds stand in each other's place: shows where they differ."""
    return accept_target_only(replace(call, single=call.acc, acc=call.single))


@target_only_request
def always_lossy(call: TargetOnlyRequest) -> Result:
    """A token of p 0.3 and more is accepted whatever threshold_single says."""
    return accept_target_only(replace(call, single=min(call.single, 0.3)))


@target_only_request
def coin_of_judged_token(call: TargetOnlyRequest) -> Result:
    """The coin of the token that is judged, not of the slot before it."""
    return accept_target_only(replace(call, coins=call.coins.roll(-1, 1)))


@target_only_request
def refused_token_stays(call: TargetOnlyRequest) -> Result:
    """The refused token stays in the target that the last token is drawn from."""
    steps = TreeSteps(weights=lambda c, row, walk: c.target[row, walk.path[-1]].double())
    return accept_target_only(call, steps=steps)


@target_only_request
def at_the_step(call: TargetOnlyRequest) -> Result:
    """coin <= p: coin 0 accepts what a filter took away (sgl-project/sglang#35771, C5)."""
    steps = TreeSteps(accepts=lambda c, coin, p, total: coin <= total / c.acc or p >= c.single)
    return accept_target_only(call, steps=steps)


@target_only_request
def last_slot_not_judged(call: TargetOnlyRequest) -> Result:
    """The last draft token is never accepted."""
    return accept_target_only(call, steps=TreeSteps(levels=lambda c: max(levels(c) - 1, 0)))


@target_only_request
def bonus_from_root(call: TargetOnlyRequest) -> Result:
    """The last token is drawn from the root's target."""
    return accept_target_only(call, steps=TreeSteps(weights=lambda c, row, walk: c.target[row, 0].double()))


@target_only_request
def argmax_after_walk(call: TargetOnlyRequest) -> Result:
    """The last token is the most probable one instead of a drawn one."""
    return accept_target_only(call, steps=TreeSteps(drawn=lambda weights, coin: weights.argmax(-1)))


@target_only_request
def unknown_path_is_dense(call: TargetOnlyRequest) -> Result:
    """A path that does not exist gets an answer instead of a refusal."""
    return accept_target_only(replace(call, path=call.path if call.path == "sparse" else "dense"))


@target_only_request
def ignores_strides(call: TargetOnlyRequest) -> Result:
    """Takes logits to lie one row after the other, also where the vocabulary is padded."""
    return accept_target_only(call, target_only_law(call, logits=as_if_contiguous(call.logits)))
