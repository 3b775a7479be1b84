"""Planted faults of ``mla_decode`` in output, scores, softmax and formats.

Each is right but for what its docstring says. For use as
``--provider mla_decode=selftest/mutants/mla_decode.py:NAME``; the table is ``mla.py``. Other faults of decode are in
the files beside this one: ``mla_decode_lse.py`` (LSE, splits, heads), ``mla_decode_tokens.py`` (pages, masks) and
``mla_decode_memory.py`` (memory, form, refusals).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from waveproof.selftest.mutants.correct_mla import (
    as_e4m3,
    by_tiles,
    shrinkage,
)
from waveproof.selftest.mutants.mla_steps import (
    LOG2_E,
    Paged,
    Problem,
    Result,
    Steps,
    attend,
    paged,
    scaled_queries,
    scaled_scores,
    softmax,
    solve,
    solved_with,
)

LATENT = 576
E4M3_LARGEST = 448.0


def truncated(weights: torch.Tensor) -> torch.Tensor:
    """Cut to bfloat16, towards zero."""
    return (weights.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32)


@paged
def truncated_weights(call: Paged) -> Result:
    """Weights cut to bfloat16 instead of rounded: every output 0.3 % too small on average."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, narrow=truncated)))


# Output ---------------------------------------------------------------------------------------------------------------


@paged
def zeros(call: Paged) -> Result:
    """Nothing but zeros, with the right LSE."""
    out, lse = attend(call)
    return torch.zeros_like(out), lse


@paged
def dead_head(call: Paged) -> Result:
    """The second head is zero; public checks by a share of elements let one of 32 through."""
    out, lse = attend(call)
    out[:, 1:2] = 0.0
    return out, lse


@paged
def dead_last_head(call: Paged) -> Result:
    """The last head is zero."""
    out, lse = attend(call)
    out[:, -1] = 0.0
    return out, lse


@paged
def swapped_heads(call: Paged) -> Result:
    """The outputs of the first and the last head stand in each other's place, their LSE do not."""
    out, lse = attend(call)
    out[:, [0, -1]] = out[:, [-1, 0]]
    return out, lse


@paged
def scale_percent(call: Paged) -> Result:
    """All outputs 1 % too large."""
    return attend(call, Steps(solve=lambda problem: enlarged(problem, 1.01)))


@paged
def head_scale_percent(call: Paged) -> Result:
    """The last head's outputs 1 % too large."""
    return attend(call, Steps(solve=lambda problem: enlarged(problem, 1.01, slice(-1, None))))


@paged
def head_scale_half_percent(call: Paged) -> Result:
    """The first head's outputs 0.5 % too small: less than what one rounded element may be off."""
    return attend(call, Steps(solve=lambda problem: enlarged(problem, 0.995, slice(1))))


def enlarged(problem: Problem, factor: float, heads: slice = slice(None)) -> Result:
    """The solution with the outputs of some heads multiplied."""
    out, lse = solve(problem)
    out[:, heads] *= factor
    return out, lse


@paged
def rope_in_values(call: Paged) -> Result:
    """Takes the last 512 of a latent's 576 numbers for the value, the rotary part among them."""
    return attend(call, Steps(values=lambda latents: latents[:, -512:]))


@paged
def last_value_tile_repeated(call: Paged) -> Result:
    """The last 64 numbers of an output repeat the 64 before them."""
    return attend(call, Steps(values=lambda latents: torch.cat([latents[:, :448], latents[:, 384:448]], 1)))


# Scores ---------------------------------------------------------------------------------------------------------------


@paged
def half_scale(call: Paged) -> Result:
    """Half of the softmax scale: public checks by an absolute 0.1 let it through."""
    return attend(replace(call, sm_scale=call.sm_scale / 2))


@paged
def scale_of_head_size(call: Paged) -> Result:
    """Scales by 1 / sqrt(576), the absorbed head size, whatever it was given."""
    return attend(replace(call, sm_scale=LATENT**-0.5))


@paged
def constant_scale(call: Paged) -> Result:
    """Scales by 1 / sqrt(192), whatever it was given: wrong where a model stretches its context (YaRN)."""
    return attend(replace(call, sm_scale=192**-0.5))


@paged
def no_rope(call: Paged) -> Result:
    """Scores of the first 512 numbers only: positions do not count."""
    return attend(call, Steps(queries=lambda call, request: without_rope(scaled_queries(call, request))))


def without_rope(q: torch.Tensor) -> torch.Tensor:
    """Queries whose rotary part is zero."""
    return torch.nn.functional.pad(q[..., :512], (0, 64))


@paged
def bfloat16_scores(call: Paged) -> Result:
    """Scores are rounded to bfloat16 before the softmax."""
    return attend(call, Steps(solve=solved_with(scores=lambda problem: scaled_scores(problem).bfloat16().float())))


@paged
def soft_capped(call: Paged) -> Result:
    """Scores pass through 30 tanh(x / 30), as other models want it."""
    return attend(call, Steps(solve=solved_with(scores=soft_cap)))


def soft_cap(problem: Problem) -> torch.Tensor:
    """Scaled scores, capped."""
    scores = scaled_scores(problem)
    return torch.where(problem.visible[:, None], 30.0 * torch.tanh(scores / 30.0), scores)


@paged
def clipped_scores(call: Paged) -> Result:
    """Scores above 20 count as 20."""
    return attend(call, Steps(solve=solved_with(scores=lambda problem: scaled_scores(problem).clamp(max=20.0))))


# Softmax --------------------------------------------------------------------------------------------------------------


@paged
def softmax_without_maximum(call: Paged) -> Result:
    """Exponentials of the scores as they are: they overflow from 89 on."""
    return attend(call, Steps(solve=solved_with(weights=plain_exponentials)))


def plain_exponentials(scores: torch.Tensor) -> Result:
    """Softmax without a maximum taken off."""
    powers = torch.exp(scores)
    total = powers.sum(-1, keepdim=True)
    return torch.where(total > 0, powers / total, 0.0), torch.log(total)[..., 0]


@paged
def softmax_in_base_two(call: Paged) -> Result:
    """Powers of two where powers of e are due, in output and LSE alike."""
    return attend(replace(call, sm_scale=call.sm_scale / LOG2_E))


@paged
def maximum_starts_at_zero(call: Paged) -> Result:
    """The growing maximum starts at 0 instead of -inf: very negative scores underflow together."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, lowest=0.0)))


@paged
def sums_not_rescaled(call: Paged) -> Result:
    """A maximum that grows from tile to tile (64 keys) leaves the sums so far as they are."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, shrink=never_shrinks)))


def never_shrinks(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """1, whatever the maxima are, but for sums that are empty still."""
    return torch.where(before == -torch.inf, shrinkage(before, now), 1.0)


@paged
def bfloat16_sums(call: Paged) -> Result:
    """The output is summed up in bfloat16, 16 keys at a time."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, 16, keep=lambda sums: sums.bfloat16().float())))


@paged
def e4m3_weights(call: Paged) -> Result:
    """Declares ``wide`` and rounds weights to e4m3 before they meet V."""
    return attend(call, Steps(solve=lambda problem: by_tiles(problem, narrow=as_e4m3)))


@paged
def flushed_weights(call: Paged) -> Result:
    """Weights below a thousandth of the largest are dropped."""
    return attend(call, Steps(solve=solved_with(weights=without_small)))


def without_small(scores: torch.Tensor) -> Result:
    """Softmax over the scores that are not far below the maximum; LSE of all."""
    near = scores >= scores.amax(-1, keepdim=True) - math.log(1000.0)
    return softmax(scores.masked_fill(~near, -torch.inf))[0], softmax(scores)[1]


# Formats and scales ---------------------------------------------------------------------------------------------------


@paged
def other_fp8_format(call: Paged) -> Result:
    """Reads an 8-bit cache in the format of the other arch, fn for fnuz and the reverse (sglang#28455, B10)."""
    other = {
        torch.float8_e4m3fn: torch.float8_e4m3fnuz,
        torch.float8_e4m3fnuz: torch.float8_e4m3fn,
    }.get(call.kv_cache.dtype, call.kv_cache.dtype)
    return attend(replace(call, kv_cache=call.kv_cache.view(other)))


@paged
def kv_scale_ignored(call: Paged) -> Result:
    """Takes the numbers of an 8-bit cache as they are."""
    return attend(replace(call, kv_scale=1.0))


@paged
def kv_scale_on_scores_only(call: Paged) -> Result:
    """Applies kv_scale to keys and not to values."""
    return attend(call, Steps(values=lambda latents: latents[:, :512] / call.kv_scale))


@paged
def kv_scale_on_values_only(call: Paged) -> Result:
    """Applies kv_scale to values and not to keys."""
    return attend(replace(call, sm_scale=call.sm_scale / call.kv_scale))


@paged
def q_scale_ignored(call: Paged) -> Result:
    """Takes the numbers of 8-bit queries as they are."""
    return attend(replace(call, q_scale=1.0))


@paged
def float16_as_bfloat16(call: Paged) -> Result:
    """float16 queries and caches pass through bfloat16: three bits less."""
    q, cache = (x.bfloat16() if x.dtype == torch.float16 else x for x in (call.q, call.kv_cache))
    out, lse = attend(replace(call, q=q, kv_cache=cache))
    return out.to(attend(call)[0].dtype), lse


@paged
def output_in_e4m3(call: Paged) -> Result:
    """Output passes through e4m3, scaled by the largest of a head."""

    def coarse(problem: Problem) -> Result:
        out, lse = solve(problem)
        largest = out.abs().amax(-1, keepdim=True).clamp(min=1e-30)
        return as_e4m3(out / largest) * largest, lse

    return attend(call, Steps(solve=coarse))


@paged
def queries_in_fp8(call: Paged) -> Result:
    """16-bit queries are quantised to e4m3 by the largest of the batch (flashinfer#4975, B8)."""
    if call.q.dtype.itemsize == 1 or not call.q.numel():
        return attend(call)
    scale = float(call.q.abs().max()) / E4M3_LARGEST or 1.0
    quantised = (call.q.float() / scale).to(torch.float8_e4m3fn)
    out, lse = attend(replace(call, q=quantised, q_scale=scale))
    return out.to(call.q.dtype), lse


@paged
def half_of_fp8_cache_at_odd_heads(call: Paged) -> Result:
    """Heads that 16 does not divide and an 8-bit cache: half of the keys go unscheduled (vllm#51011, B1)."""

    def first_half(problem: Problem) -> Result:
        hidden = torch.arange(len(problem.k)) >= max(1, len(problem.k) // 2)
        return solve(replace(problem, visible=problem.visible & ~hidden))

    odd = call.q.shape[1] % 16 and call.kv_cache.dtype.itemsize == 1
    return attend(call, Steps(solve=first_half if odd else solve))
