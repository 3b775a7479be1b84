"""Planted faults of ``top_k_renorm_prob``: each is right but for what its docstring says.

For use as ``--provider top_k_renorm_prob=selftest/mutants/renorm_top_k.py:NAME``; the table is ``renorm.py``.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch

from waveproof.selftest.mutants.correct_renorm import (
    at_least_kth,
    first_k,
    per_row,
    renormalise,
    require_rows,
    tokens_to_keep,
    top_k_stable_sort,
    top_k_threshold,
)

K = int | torch.Tensor
LARGE_K = 512
CHUNK = 1024

# Values ---------------------------------------------------------------------------------------------------------------


def zeros(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Nothing but zeros."""
    return torch.zeros_like(top_k_threshold(probs, top_k))


def identity(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """No filter at all."""
    require_rows(probs)
    per_row(top_k, len(probs))
    return probs.clone()


def greedy(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """One-hot at the most probable token (kind: sgl-project/sglang#37134, C1)."""
    kept = top_k_threshold(probs, top_k)
    return torch.zeros_like(kept).scatter_(1, kept.argmax(-1, keepdim=True), 1.0) if kept.numel() else kept


def uniform_over_kept(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The right tokens, all equally probable: public checks by an absolute 1e-3 let it through."""
    kept = (top_k_threshold(probs, top_k) > 0).float()
    return kept / kept.sum(-1, keepdim=True)


def unnormalised(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Masked and not divided."""
    return torch.where(top_k_threshold(probs, top_k) > 0, probs, 0.0)


def scale_thousandth(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Values 0.1 % too large."""
    return top_k_threshold(probs, top_k) * 1.001


def scale_ten_thousandth(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Values 0.01 % too small."""
    return top_k_threshold(probs, top_k) * 0.9999


def bfloat16_sum(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The row's sum is kept in bfloat16."""
    kept = torch.where(top_k_threshold(probs, top_k) > 0, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True).bfloat16().float()


def bfloat16_values(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Results pass through bfloat16."""
    return top_k_threshold(probs, top_k).bfloat16().float()


def float16_values(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Inputs pass through float16: small probabilities lose bits or vanish."""
    return top_k_threshold(probs.half().float(), top_k)


def flushes_tails(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Probabilities below 1e-8 become 0 (kind: flashinfer-ai/flashinfer#708, A7)."""
    kept = top_k_threshold(probs, top_k)
    return torch.where(kept < 1e-8, 0.0, kept)


def sums_over_batch(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Divides by the sum of the whole batch."""
    kept = torch.where(top_k_threshold(probs, top_k) > 0, probs, 0.0)
    return kept / kept.sum()


# Kept set -------------------------------------------------------------------------------------------------------------


def one_more(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """k + 1 tokens."""
    require_rows(probs)
    return top_k_threshold(probs, tokens_to_keep(top_k, *probs.shape) + 1)


def one_fewer(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """k - 1 tokens."""
    require_rows(probs)
    k = tokens_to_keep(top_k, *probs.shape)
    return top_k_threshold(probs, torch.where(k > 1, k - 1, k))


def one_more_at_large_k(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """k + 1 tokens from k = 512 on."""
    require_rows(probs)
    k = tokens_to_keep(top_k, *probs.shape)
    return top_k_threshold(probs, torch.where(k >= LARGE_K, k + 1, k))


def selects_from_thousand(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A selection that holds 1,024 candidates at most, and says nothing of k above it."""
    require_rows(probs)
    k = tokens_to_keep(top_k, *probs.shape)
    return top_k_threshold(probs, torch.where(k < probs.shape[1], k.clamp(max=1024), k))


def smallest(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Keeps the k smallest."""
    require_rows(probs)
    return renormalise(probs, at_least_kth(-probs, tokens_to_keep(top_k, *probs.shape)))


def zero_k_is_one(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """k <= 0 keeps one token instead of all (kind: sgl-project/sglang#27618, A8)."""
    require_rows(probs)
    return top_k_threshold(probs, per_row(top_k, len(probs)).clamp(min=1))


def exact_k_as_threshold(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Declares ``threshold`` and cuts ties off (vllm-project/vllm#50979, A3)."""
    return top_k_stable_sort(probs, top_k)


def threshold_as_exact_k(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Declares ``exact-k`` and keeps ties (flashinfer-ai/flashinfer#3774, A3)."""
    return top_k_threshold(probs, top_k)


def ties_by_highest_index(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Declares ``exact-k`` and prefers the highest index among equals (A3)."""
    return top_k_stable_sort(probs.flip(-1), top_k).flip(-1)


def ties_at_random(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Declares ``exact-k`` and lets chance decide among equals (A3)."""
    require_rows(probs)
    order = torch.randperm(probs.shape[1])
    return top_k_stable_sort(probs[:, order], top_k)[:, torch.argsort(order)]


def tie_rule_by_batch(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Keeps ties below 8 rows and cuts them off from 8 rows on (vllm-project/vllm#50979, A3)."""
    return top_k_threshold(probs, top_k) if len(probs) < 8 else top_k_stable_sort(probs, top_k)


def drops_last_chunk(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Does not see the columns beyond the last whole 1,024, once there are so many."""
    require_rows(probs)
    whole = probs.shape[1] // CHUNK * CHUNK or probs.shape[1]
    return top_k_threshold(torch.where(torch.arange(probs.shape[1]) < whole, probs, 0.0), top_k)


def drops_last_vector(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Loads four columns at a time and leaves out the last one to three."""
    require_rows(probs)
    whole = probs.shape[1] // 4 * 4 or probs.shape[1]
    return top_k_threshold(torch.where(torch.arange(probs.shape[1]) < whole, probs, 0.0), top_k)


def columns_in_16_bits(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Column numbers have 16 bits: what stands beyond 65,536 is lost."""
    require_rows(probs)
    return top_k_threshold(torch.where(torch.arange(probs.shape[1]) < 2**16, probs, 0.0), top_k)


def negative_zero_is_largest(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Compares bit patterns as unsigned integers, where -0.0 exceeds everything."""
    require_rows(probs)
    patterns = probs.contiguous().view(torch.int32).long() & 0xFFFFFFFF
    return renormalise(probs, at_least_kth(patterns, tokens_to_keep(top_k, *probs.shape)))


# Which row ------------------------------------------------------------------------------------------------------------


def first_rows_k(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """The first row's k for every row."""
    require_rows(probs)
    return top_k_threshold(probs, per_row(top_k, len(probs))[:1] if len(probs) else top_k)


def int64_k_as_int32(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Reads int64 limits as int32: every other row gets the upper half of a limit."""
    if isinstance(top_k, torch.Tensor) and top_k.dtype == torch.int64:
        top_k = top_k.contiguous().view(torch.int32)[: top_k.numel()]
    return top_k_threshold(probs, top_k)


def no_filter_for_all(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """One row without a filter switches it off for its neighbours (kind: sgl-project/sglang#35697, A9)."""
    require_rows(probs)
    k = tokens_to_keep(top_k, *probs.shape)
    return top_k_threshold(probs, k.amax() if (k == probs.shape[1]).any() else k)


def first_and_last_swapped(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Writes the first row's result to the last row and the other way round."""
    renormed = top_k_threshold(probs, top_k)
    return renormed[[-1, *range(1, len(renormed) - 1), 0]] if len(renormed) > 1 else renormed


def first_fifty_rows(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Rows from the fiftieth on are left at zero."""
    renormed = top_k_threshold(probs, top_k)
    renormed[50:] = 0.0
    return renormed


def bad_row_spoils_batch(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A per-tensor quantity is taken of all rows, so that one NaN or inf reaches every row (flashinfer#2402, A5)."""
    return top_k_threshold(probs + 0.0 * probs.sum(), top_k)


def raises_on_zero_row(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A row that sums to zero raises for the whole batch (sgl-project/sglang#27618, A8)."""
    if (probs.sum(-1) == 0).any():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    return top_k_threshold(probs, top_k)


def aborts_on_nan(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A row of NaN takes the process down (flashinfer-ai/flashinfer#2402, A5)."""
    if probs.isnan().all(-1).any():
        os.abort()
    return top_k_threshold(probs, top_k)


# Memory ---------------------------------------------------------------------------------------------------------------

_LAST: dict[torch.Size, torch.Tensor] = {}
_BUFFER: dict[torch.Size, torch.Tensor] = {}
_CALLS = itertools.count()


def stale_output(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Returns what the call before it computed, where that had the same shape."""
    renormed = top_k_threshold(probs, top_k)
    before = _LAST.get(renormed.shape, renormed)
    _LAST[renormed.shape] = renormed
    return before


def uncleared_buffer(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Writes only kept tokens into a buffer that is kept from call to call."""
    renormed = top_k_threshold(probs, top_k)
    buffer = _BUFFER.setdefault(renormed.shape, torch.zeros_like(renormed))
    buffer[renormed > 0] = renormed[renormed > 0]
    return buffer.clone()


def same_buffer_again(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Returns the same memory on every call, so that a later call changes an earlier result."""
    renormed = top_k_threshold(probs, top_k)
    return _BUFFER.setdefault(renormed.shape, torch.zeros_like(renormed)).copy_(renormed)


def dropped_tokens_unwritten(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Writes kept tokens only, into fresh memory."""
    renormed = top_k_threshold(probs, top_k)
    output = torch.empty_like(renormed)
    output[renormed > 0] = renormed[renormed > 0]
    return output


def last_row_unwritten(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Leaves the last of an odd number of rows as it was allocated."""
    renormed = top_k_threshold(probs, top_k)
    output = torch.empty_like(renormed)
    even = len(renormed) // 2 * 2
    output[:even] = renormed[:even]
    return output


def reads_unwritten_workspace(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Adds partial sums to a workspace that nobody cleared; its garbage is small, and gone in a rounding."""
    renormed = top_k_threshold(probs, top_k)
    workspace = torch.empty(len(renormed), dtype=torch.int32)
    return renormed * (1.0 + (workspace & 15)[:, None] * 2.0**-26)


def overruns_workspace(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Per-row limits write k indices a row into an unused workspace for 50 (ROCm/aiter#5191, A1)."""
    renormed = top_k_threshold(probs, top_k)
    if isinstance(top_k, torch.Tensor) and renormed.numel():
        workspace = torch.empty(len(renormed) * 50, dtype=torch.int32)
        last = int(tokens_to_keep(top_k, *probs.shape)[-1])
        written = 50 * (len(renormed) - 1) + min(last, 1000)
        torch.as_strided(workspace, (written,), (1,)).fill_(-1)
    return renormed


def masks_in_place(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Zeroes the dropped tokens in its input."""
    renormed = top_k_threshold(probs, top_k)
    probs[renormed == 0] = 0.0
    return renormed


def ignores_strides(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Takes rows to lie one after the other."""
    require_rows(probs)
    return top_k_threshold(torch.as_strided(probs, probs.shape, (probs.shape[1], 1)).clone(), top_k)


def ignores_storage_offset(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Starts at the beginning of the storage instead of at the tensor."""
    require_rows(probs)
    return top_k_threshold(torch.as_strided(probs, probs.shape, probs.stride(), 0).clone(), top_k)


def last_bit_alternates(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Sums in another order every other time: right, but not the same bits."""
    return top_k_threshold(probs, top_k) * (1.0 + 2.0**-23 * (next(_CALLS) % 2))


def noise(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Each value off by up to 0.1 %, differently each time."""
    renormed = top_k_threshold(probs, top_k)
    return renormed * (1.0 + 1e-3 * torch.rand_like(renormed))


# Form and refusal -----------------------------------------------------------------------------------------------------


def returns_float64(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """float64 instead of float32."""
    return top_k_threshold(probs, top_k).double()


def returns_half(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """float16 instead of float32."""
    return top_k_threshold(probs, top_k).half()


def returns_flat(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """[B * V] instead of [B, V]."""
    return top_k_threshold(probs, top_k).reshape(-1)


def returns_none(probs: torch.Tensor, top_k: K) -> Any:
    """Works in place on a copy and returns nothing."""
    top_k_threshold(probs, top_k)


def returns_list(probs: torch.Tensor, top_k: K) -> Any:
    """A list of rows' tensor instead of the tensor."""
    return [top_k_threshold(probs, top_k)]


def returns_workspace_too(probs: torch.Tensor, top_k: K) -> Any:
    """A second output that the contract does not have."""
    renormed = top_k_threshold(probs, top_k)
    return renormed, renormed.sum(-1)


def accepts_anything(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Illegal shapes get an answer instead of a refusal."""
    rows = probs.reshape(-1, probs.shape[-1])
    if isinstance(top_k, torch.Tensor) and top_k.numel() not in (1, len(rows)):
        top_k = int(top_k[0])
    return top_k_threshold(rows, top_k).reshape(probs.shape)


def refuses_by_accident(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Illegal input ends in a RuntimeError from deep inside."""
    try:
        return top_k_threshold(probs, top_k)
    except ValueError as error:
        raise RuntimeError(f"HIP error: invalid configuration argument ({error})") from None


def refuses_one_k_for_all(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A tensor with one limit for all rows is legal and gets refused."""
    if isinstance(top_k, torch.Tensor) and top_k.numel() == 1 < len(probs):
        raise ValueError(f"top_k has 1 value, {len(probs)} rows")
    return top_k_threshold(probs, top_k)


def raises_on_empty_batch(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """A batch of no rows cannot be launched."""
    if not len(probs):
        raise RuntimeError("Triton Error [HIP]: Code: 1, invalid argument (grid of 0 programs)")
    return top_k_threshold(probs, top_k)


def exact_k_at_large_vocabulary(probs: torch.Tensor, top_k: K) -> torch.Tensor:
    """Another kernel, with another tie rule, from a vocabulary of 32,000 on."""
    require_rows(probs)
    kept = first_k if probs.shape[1] >= 32_000 else at_least_kth
    return renormalise(probs, kept(probs, tokens_to_keep(top_k, *probs.shape)))
