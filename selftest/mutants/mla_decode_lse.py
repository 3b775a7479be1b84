"""Planted faults of ``mla_decode`` in LSE, in the merge of a split KV and in the number of heads.

Each is right but for what its docstring says. For use as
``--provider mla_decode=selftest/mutants/mla_decode_lse.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from waveproof.selftest.mutants.correct_mla import by_splits, by_tiles, natural_merge
from waveproof.selftest.mutants.mla_steps import (
    LOG2_E,
    Paged,
    Result,
    Steps,
    attend,
    exponentials,
    paged,
    softmax,
    solved_with,
)

# LSE ------------------------------------------------------------------------------------------------------------------


@paged
def lse_in_base_two(call: Paged) -> Result:
    """Logarithm to base 2 of the sum of exponentials (sglang#40903, B7)."""
    out, lse = attend(call)
    return out, lse * LOG2_E


@paged
def lse_without_maximum(call: Paged) -> Result:
    """Logarithm of the sum of exponentials below the maximum, which is never added back."""
    return attend(call, Steps(solve=solved_with(weights=lse_of(lambda total, top: torch.log(total)))))


@paged
def lse_of_maximum(call: Paged) -> Result:
    """The largest score instead of LSE."""
    maximum = lse_of(lambda total, top: torch.where(total > 0, top, -torch.inf))
    return attend(call, Steps(solve=solved_with(weights=maximum)))


def lse_of(formula: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Result]:
    """Softmax with another LSE, of (sum, maximum)."""

    def weights(scores: torch.Tensor) -> Result:
        _, total, top = exponentials(scores)
        return softmax(scores)[0], formula(total, top)[..., 0]

    return weights


@paged
def lse_of_unscaled_scores(call: Paged) -> Result:
    """LSE of the scores as they were before the scale."""
    return attend(call)[0], attend(replace(call, sm_scale=1.0))[1]


@paged
def lse_in_bfloat16(call: Paged) -> Result:
    """LSE passes through bfloat16."""
    out, lse = attend(call)
    return out, lse.bfloat16().float()


@paged
def lse_of_rounded_weights(call: Paged) -> Result:
    """LSE of the sum of weights that were rounded to bfloat16."""
    return attend(call, Steps(solve=solved_with(weights=sums_rounded)))


def sums_rounded(scores: torch.Tensor) -> Result:
    """Softmax whose LSE is that of bfloat16 exponentials."""
    powers, _, top = exponentials(scores)
    return softmax(scores)[0], (top + torch.log(powers.bfloat16().float().sum(-1, keepdim=True)))[..., 0]


@paged
def lse_counts_hidden_keys(call: Paged) -> Result:
    """LSE over all keys of a request, the later ones of other queries too."""
    everything = Steps(visible=lambda queries, keys: torch.ones(queries, keys).bool())
    return attend(call)[0], attend(call, everything)[1]


@paged
def empty_lse_is_zero(call: Paged) -> Result:
    """A query without keys gets LSE 0, which a merge takes for real (flashinfer#4975, B8)."""
    out, lse = attend(call)
    return out, torch.where(lse == -torch.inf, 0.0, lse)


# Splits ---------------------------------------------------------------------------------------------------------------


@paged
def last_split_dropped(call: Paged) -> Result:
    """Four parts of the keys, three of which are merged."""
    return attend(call, Steps(solve=lambda problem: by_splits(problem, merge=without_last)))


def without_last(outs: torch.Tensor, lses: torch.Tensor) -> Result:
    """Merges all parts but the last, where there are two."""
    return natural_merge(outs[: max(1, len(outs) - 1)], lses[: max(1, len(lses) - 1)])


@paged
def splits_weigh_the_same(call: Paged) -> Result:
    """Four parts of the keys, merged by the plain mean of their outputs."""
    return attend(call, Steps(solve=lambda problem: by_splits(problem, merge=plain_mean)))


def plain_mean(outs: torch.Tensor, lses: torch.Tensor) -> Result:
    """The mean of the parts that have keys; the right LSE."""
    seen = (lses > -torch.inf)[..., None]
    mean = torch.where(seen, outs, 0.0).sum(0) / seen.sum(0).clamp(min=1)
    return mean, natural_merge(outs, lses)[1]


@paged
def splits_merged_in_base_two(call: Paged) -> Result:
    """Four parts of the keys, whose natural LSE are merged as powers of two (sglang#40903, B7)."""
    return attend(call, Steps(solve=lambda problem: by_splits(problem, merge=powers_of_two)))


def powers_of_two(outs: torch.Tensor, lses: torch.Tensor) -> Result:
    """Output by wrong weights; the right LSE."""
    return natural_merge(outs, lses / LOG2_E)[0], natural_merge(outs, lses)[1]


@paged
def split_weights_overflow(call: Paged) -> Result:
    """Four parts of the keys, merged by exp(LSE) without a maximum: it overflows from 89 on."""
    return attend(call, Steps(solve=lambda problem: by_splits(problem, merge=without_maximum)))


def without_maximum(outs: torch.Tensor, lses: torch.Tensor) -> Result:
    """Weights of the parts are plain exponentials."""
    total = lses.exp().sum(0)
    out = torch.where((lses > -torch.inf)[..., None], outs * lses.exp()[..., None], 0.0).sum(0)
    return torch.where(total[..., None] > 0, out / total[..., None], 0.0), torch.log(total)


@paged
def empty_split_unwritten(call: Paged) -> Result:
    """Eight parts; those without keys are left as they were allocated and multiplied with 0 (B8)."""

    def merge(outs: torch.Tensor, lses: torch.Tensor) -> Result:
        workspace = torch.empty(8, *outs.shape[1:])
        workspace[: len(outs)] = outs
        padded = torch.nn.functional.pad(lses, (0, 0, 0, 0, 0, 8 - len(lses)), value=-torch.inf)
        lse = natural_merge(workspace, padded)[1]
        shares = torch.exp(padded - torch.where(lse == -torch.inf, 0.0, lse))
        return (workspace * shares[..., None]).sum(0), lse

    return attend(call, Steps(solve=lambda problem: by_splits(problem, 8, merge=merge)))


@paged
def rest_of_splits_dropped(call: Paged) -> Result:
    """From three requests on keys are cut in three equal parts, and one or two keys are left over."""

    def cut(keys: int, parts: int) -> list[slice]:
        size = max(1, keys // parts)
        return [slice(first * size, (first + 1) * size) for first in range(min(parts, keys))]

    busy = len(call.qo_indptr) > 3
    return attend(call, Steps(solve=lambda problem: by_splits(problem, 3, cut=cut) if busy else by_tiles(problem)))


# Heads ----------------------------------------------------------------------------------------------------------------


@paged
def heads_modulo_16(call: Paged) -> Result:
    """Heads from the seventeenth on repeat the first sixteen."""
    out, lse = attend(call)
    again = torch.arange(call.q.shape[1]) % 16
    return out[:, again], lse[:, again]


@paged
def heads_in_whole_groups_of_four(call: Paged) -> Result:
    """Heads beyond the last whole four are zero."""
    out, lse = attend(call)
    out[:, call.q.shape[1] // 4 * 4 :] = 0.0
    return out, lse


@paged
def padding_that_does_nothing(call: Paged) -> Result:
    """Below 16 heads, repeats them 16 // n times, 12 only once, and reads 16 in a row (sglang#36356, B3)."""
    tokens, heads, size = call.q.shape
    if heads >= 16:
        return attend(call)
    times = 16 // heads
    flat = call.q.float().repeat_interleave(times, 1).reshape(-1, size)
    # What a kernel for 16 heads takes for token t begins at row 16 t; zeros stand for what lies behind the buffer.
    flat = torch.nn.functional.pad(flat, (0, 0, 0, tokens * 16 - len(flat)))
    out, lse = attend(replace(call, q=flat.reshape(tokens, 16, size)))
    return out[:, : heads * times : times].to(attend(call)[0].dtype), lse[:, : heads * times : times].contiguous()
