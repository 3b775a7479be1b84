"""Planted faults of ``mla_decode`` in memory, form and refusals.

Each is right but for what its docstring says. For use as
``--provider mla_decode=selftest/mutants/mla_decode_memory.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import torch

from waveproof.selftest.mutants.mla_steps import Paged, Result, as_if_contiguous, attend, page_slots, paged, rows_of

_LAST: dict[torch.Size, torch.Tensor] = {}
_BUFFER: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
_CALLS = itertools.count()

# Memory ---------------------------------------------------------------------------------------------------------------


@paged
def stale_output(call: Paged) -> Result:
    """Returns what the call before it left in a buffer of the same shape; zeros at first."""
    out, lse = attend(call)
    before = _LAST.get(out.shape, torch.zeros_like(out)).to(out.dtype, copy=True)
    _LAST[out.shape] = out
    return before, lse


@paged
def last_request_stale(call: Paged) -> Result:
    """The last request's rows hold what the call before it wrote there."""
    out, lse = attend(call)
    before = _LAST.get(out.shape, torch.zeros_like(out))
    _LAST[out.shape] = out.clone()
    rows = rows_of(call.qo_indptr, len(call.qo_indptr) - 2)
    out[rows] = before[rows]
    return out, lse


@paged
def same_buffer_again(call: Paged) -> Result:
    """Returns the same memory on every call, so that a later call changes an earlier result."""
    out, lse = attend(call)
    return _BUFFER.setdefault((out.shape, out.dtype), torch.zeros_like(out)).copy_(out), lse


@paged
def last_request_unwritten(call: Paged) -> Result:
    """Leaves the last of an odd number of requests as it was allocated."""
    requests = len(call.qo_indptr) - 1
    return only_written(call, torch.arange(len(call.q)) < int(call.qo_indptr[requests // 2 * 2 or requests]))


@paged
def empty_request_unwritten(call: Paged) -> Result:
    """Leaves the rows of a request without tokens as they were allocated (vllm#49294, B8)."""
    return only_written(call, (attend(call)[1] > -torch.inf).any(-1))


@paged
def lse_unwritten(call: Paged) -> Result:
    """Leaves LSE as it was allocated for requests of one page."""
    out, lse = attend(call)
    fresh = torch.empty_like(lse)
    for request in range(len(call.qo_indptr) - 1):
        if len(call.pages(request)) != 1:
            rows = rows_of(call.qo_indptr, request)
            fresh[rows] = lse[rows]
    return out, fresh


def only_written(call: Paged, written: torch.Tensor) -> Result:
    """The result in fresh memory, in some of its rows."""
    out, lse = attend(call)
    fresh, fresh_lse = torch.empty_like(out), torch.empty_like(lse)
    fresh[written], fresh_lse[written] = out[written], lse[written]
    return fresh, fresh_lse


@paged
def reads_unwritten_workspace(call: Paged) -> Result:
    """Adds to LSE a workspace that nobody cleared; its garbage is small, and gone in a rounding."""
    out, lse = attend(call)
    workspace = torch.empty(lse.shape, dtype=torch.int32)
    return out, lse * (1.0 + (workspace & 15) * 2.0**-26)


@paged
def writes_past_output(call: Paged) -> Result:
    """Writes a vector of 64 numbers behind the last row, where the heads are no multiple of 16."""
    out, lse = attend(call)
    fresh = torch.empty_like(out).copy_(out)
    if out.numel() and call.q.shape[1] % 16:
        torch.as_strided(fresh, (64,), (1,), fresh.storage_offset() + fresh.numel()).zero_()
    return fresh, lse


@paged
def scales_queries_in_place(call: Paged) -> Result:
    """Multiplies the softmax scale into its input."""
    result = attend(call)
    call.q.copy_((call.q.float() * call.sm_scale).to(call.q.dtype))
    return result


@paged
def clears_tail_of_last_page(call: Paged) -> Result:
    """Writes zeros into the cache behind the last token of a request."""
    result = attend(call)
    for request in range(len(call.qo_indptr) - 1):
        tail = page_slots(call.pages(request), call.page_size)[call.length(request) :]
        call.kv_cache[tail // call.page_size, tail % call.page_size] = torch.zeros((), dtype=call.kv_cache.dtype)
    return result


@paged
def sorts_pages_in_place(call: Paged) -> Result:
    """Leaves kv_indices in another order than it got it."""
    result = attend(call)
    call.kv_indices.copy_(call.kv_indices.sort().values)
    return result


@paged
def ignores_strides_of_queries(call: Paged) -> Result:
    """Takes queries to lie one after the other."""
    return attend(replace(call, q=as_if_contiguous(call.q)))


@paged
def ignores_storage_offset_of_queries(call: Paged) -> Result:
    """Starts at the beginning of the storage of q instead of at the tensor."""
    return attend(replace(call, q=torch.as_strided(call.q, call.q.shape, call.q.stride(), 0).clone()))


@paged
def last_bit_alternates(call: Paged) -> Result:
    """Sums in another order every other time: right, but not the same bits."""
    out, lse = attend(call)
    return out, lse * (1.0 + 2.0**-23 * (next(_CALLS) % 2))


@paged
def noise(call: Paged) -> Result:
    """Each output off by up to 2 %, differently each time."""
    out, lse = attend(call)
    return (out.float() * (1.0 + 0.02 * torch.rand(out.shape))).to(out.dtype), lse


# Form -----------------------------------------------------------------------------------------------------------------


@paged
def returns_float32(call: Paged) -> Result:
    """float32 output instead of the dtype of the queries."""
    out, lse = attend(call)
    return out.float(), lse


@paged
def bfloat16_for_float16(call: Paged) -> Result:
    """bfloat16 output for float16 queries."""
    out, lse = attend(call)
    return out.bfloat16(), lse


@paged
def returns_heads_in_a_row(call: Paged) -> Result:
    """[T, H * 512] instead of [T, H, 512]."""
    out, lse = attend(call)
    return out.flatten(1), lse


@paged
def lse_of_heads_by_tokens(call: Paged) -> Result:
    """LSE [H, T] instead of [T, H] (vllm#57012, B7)."""
    out, lse = attend(call)
    return out, lse.T.contiguous()


@paged
def lse_in_wrong_order(call: Paged) -> Result:
    """LSE of shape [T, H] whose memory is in the order [H, T] (vllm#57012, B7)."""
    out, lse = attend(call)
    return out, lse.T.reshape(lse.shape)


@paged
def lse_of_half_precision(call: Paged) -> Result:
    """LSE of dtype bfloat16."""
    out, lse = attend(call)
    return out, lse.bfloat16()


@paged
def lse_first(call: Paged) -> Any:
    """LSE and output in the wrong order."""
    return attend(call)[::-1]


@paged
def output_alone(call: Paged) -> Any:
    """Returns no LSE and does not declare it."""
    return attend(call)[0]


@paged
def writes_nowhere(call: Paged) -> Any:
    """Works on a copy and returns nothing."""
    attend(call)


# Refusals -------------------------------------------------------------------------------------------------------------


@paged
def refuses_larger_pages(call: Paged) -> Result:
    """Pages of more than one token are legal by what it declares and get refused."""
    if call.page_size > 1:
        raise NotImplementedError(f"page_size {call.page_size}")
    return attend(call)


@paged
def refuses_unequal_queries(call: Paged) -> Result:
    """Requests with different numbers of queries are legal and get refused."""
    lengths = call.qo_indptr.diff()
    if len(lengths.unique()) > 1:
        raise ValueError(f"all requests must have as many queries, got {lengths.tolist()}")
    return attend(call)


@paged
def raises_on_empty_request(call: Paged) -> Result:
    """A request without tokens raises for the whole batch."""
    if (call.kv_indptr.diff() == 0).any():
        raise RuntimeError("Triton Error [HIP]: Code: 1, invalid argument (grid of 0 programs)")
    return attend(call)


@paged
def answers_any_heads(call: Paged) -> Result:
    """Declares 16 and 128 heads; computes whole groups of 16 and returns zeros for other numbers (B3)."""
    out, lse = attend(call)
    out[:, call.q.shape[1] // 16 * 16 :] = 0.0
    return out, lse


@paged
def answers_larger_pages(call: Paged) -> Result:
    """Declares pages of one token, takes larger ones and reads their first token (ROCm/aiter#2996, B6)."""
    first = replace(call, kv_cache=call.kv_cache[:, :1], kv_last_page_len=call.kv_last_page_len.clamp(max=1))
    return attend(first)


@paged
def answers_longer_queries(call: Paged) -> Result:
    """Declares one query a request and answers more, each as if it were the last."""
    if len(call.qo_indptr) > 1 and int(call.qo_indptr.diff().max()) > 1:
        out, lse = attend(call)
        return torch.zeros_like(out), lse
    return attend(call)


@paged
def aborts_on_twelve_heads(call: Paged) -> Result:
    """Declares 4, 8, 16 and 128 heads and takes the process down for 12 (sglang#36356, B3)."""
    heads = call.q.shape[1]
    if heads == 12:
        os.abort()
    if heads not in (4, 8, 16, 128):
        raise ValueError(f"{heads} heads; 4, 8, 16 and 128 are computed")
    return attend(call)
