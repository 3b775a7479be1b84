"""Planted faults of ``mla_prefill``: each is right but for what its docstring says.

For use as ``--provider mla_prefill=selftest/mutants/mla_prefill.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants.correct_mla import as_e4m3, by_tiles
from waveproof.selftest.mutants.mla_steps import (
    LOG2_E,
    Problem,
    Ragged,
    RaggedSteps,
    Result,
    as_if_contiguous,
    attend_ragged,
    bottom_right,
    keys_and_values,
    ragged,
    rows_of,
    solve,
)

TILE = 64


@ragged
def zeros(call: Ragged) -> Result:
    """Nothing but zeros, with the right LSE."""
    out, lse = attend_ragged(call)
    return torch.zeros_like(out), lse


@ragged
def dead_last_head(call: Ragged) -> Result:
    """The last head is zero."""
    out, lse = attend_ragged(call)
    out[:, -1] = 0.0
    return out, lse


@ragged
def head_scale_percent(call: Ragged) -> Result:
    """The first head's outputs 1 % too large."""

    def enlarged(problem: Problem) -> Result:
        out, lse = solve(problem)
        out[:, 0] *= 1.01
        return out, lse

    return attend_ragged(call, RaggedSteps(solve=enlarged))


@ragged
def always_causal(call: Ragged) -> Result:
    """Ignores ``causal=False`` (AMD-Ecosystem/flashinfer#296, B11)."""
    return attend_ragged(replace(call, causal=True))


@ragged
def never_causal(call: Ragged) -> Result:
    """Ignores ``causal=True`` (AMD-Ecosystem/flashinfer#296, B11)."""
    return attend_ragged(replace(call, causal=False))


@ragged
def top_left(call: Ragged) -> Result:
    """The first query sees the first key only, the second two (ROCm/flash-attention#158, B11)."""

    def aligned(queries: int, keys: int, causal: bool) -> torch.Tensor:
        shown = torch.ones(queries, keys).bool()
        return shown.tril() if causal else shown

    return attend_ragged(call, RaggedSteps(visible=aligned))


@ragged
def one_future_key(call: Ragged) -> Result:
    """Causal queries see the key after their own."""

    def later(queries: int, keys: int, causal: bool) -> torch.Tensor:
        return bottom_right(queries, keys + 1)[:, :keys] if causal else torch.ones(queries, keys).bool()

    return attend_ragged(call, RaggedSteps(visible=later))


@ragged
def causal_by_tiles(call: Ragged) -> Result:
    """Causal by whole tiles of 16 keys: a query sees its tile to the end."""

    def by_tile(queries: int, keys: int, causal: bool) -> torch.Tensor:
        own = torch.arange(queries)[:, None] + keys - queries
        shown = torch.arange(keys) <= own.div(16, rounding_mode="floor") * 16 + 15
        return shown if causal else torch.ones(queries, keys).bool()

    return attend_ragged(call, RaggedSteps(visible=by_tile))


@ragged
def heads_in_groups_of_two(call: Ragged) -> Result:
    """Two heads share the first one's keys and values, as if there were half as many."""
    first = torch.arange(call.q.shape[1]) // 2 * 2
    return attend_ragged(replace(call, k=call.k[:, first], v=call.v[:, first]))


@ragged
def no_rope(call: Ragged) -> Result:
    """Scores of the first 128 numbers only."""
    return attend_ragged(replace(call, q=torch.cat([call.q[..., :128], torch.zeros_like(call.q[..., 128:])], -1)))


@ragged
def values_from_keys(call: Ragged) -> Result:
    """Takes the first 128 numbers of a key for its value."""

    def same(call: Ragged, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        k, _ = keys_and_values(call, request)
        return k, k[..., : call.v.shape[-1]]

    return attend_ragged(call, RaggedSteps(keys_and_values=same))


@ragged
def constant_scale(call: Ragged) -> Result:
    """Scales by 1 / sqrt(192), whatever it was given."""
    return attend_ragged(replace(call, sm_scale=192**-0.5))


@ragged
def scale_of_value_size(call: Ragged) -> Result:
    """Scales by 1 / sqrt(128), the head size of the values."""
    return attend_ragged(replace(call, sm_scale=128**-0.5))


@ragged
def k_scale_ignored(call: Ragged) -> Result:
    """Takes 8-bit keys as they are."""
    return attend_ragged(replace(call, k_scale=1.0))


@ragged
def v_scale_ignored(call: Ragged) -> Result:
    """Takes 8-bit values as they are."""
    return attend_ragged(replace(call, v_scale=1.0))


@ragged
def k_and_v_scales_swapped(call: Ragged) -> Result:
    """Applies the scale of the keys to the values and the other way round."""
    return attend_ragged(replace(call, k_scale=call.v_scale, v_scale=call.k_scale))


@ragged
def e4m3_weights(call: Ragged) -> Result:
    """Declares ``wide`` and rounds weights to e4m3 before they meet V."""
    return attend_ragged(call, RaggedSteps(solve=lambda problem: by_tiles(problem, narrow=as_e4m3)))


@ragged
def keys_begin_with_queries(call: Ragged) -> Result:
    """Reads keys where the queries begin: every test that draws as many keys as queries lets it through."""

    def misplaced(call: Ragged, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows_of(call.kv_indptr, request)
        begin = int(call.qo_indptr[request])
        length = rows.stop - rows.start
        begin = min(begin, max(len(call.k) - length, 0))
        return (
            call.k[begin : begin + length].float() * call.k_scale,
            call.v[begin : begin + length].float() * call.v_scale,
        )

    return attend_ragged(call, RaggedSteps(keys_and_values=misplaced))


@ragged
def equal_lengths(call: Ragged) -> Result:
    """Ignores both indptr: every request has T / B queries and S / B keys."""
    requests = len(call.qo_indptr) - 1
    queries, keys = (
        torch.arange(requests + 1, dtype=torch.int32) * (len(x) // max(1, requests)) for x in (call.q, call.k)
    )
    queries[-1], keys[-1] = len(call.q), len(call.k)
    return attend_ragged(replace(call, qo_indptr=queries, kv_indptr=keys))


@ragged
def next_requests_keys(call: Ragged) -> Result:
    """Reads whole tiles of 16 keys and sees those of the next request, where a request may see all of its own."""

    def whole(call: Ragged, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows_of(call.kv_indptr, request)
        stop = min(len(call.k), rows.start + -(-(rows.stop - rows.start) // 16) * 16)
        return call.k[rows.start : stop].float() * call.k_scale, call.v[rows.start : stop].float() * call.v_scale

    return attend_ragged(call, RaggedSteps(keys_and_values=keys_and_values if call.causal else whole))


@ragged
def rest_of_queries_unwritten(call: Ragged) -> Result:
    """Leaves queries beyond the last whole 64 of a longer request as they were allocated."""
    out, lse = attend_ragged(call)
    fresh = torch.empty_like(out).copy_(out)
    for request in range(len(call.qo_indptr) - 1):
        rows = rows_of(call.qo_indptr, request)
        if rows.stop - rows.start > TILE:
            begin = rows.start + (rows.stop - rows.start) // TILE * TILE
            fresh[begin : rows.stop] = torch.empty_like(fresh[begin : rows.stop])
    return fresh, lse


@ragged
def rest_of_keys_dropped(call: Ragged) -> Result:
    """Leaves out the keys behind the last whole 16, once a request has more."""

    def whole(queries: int, keys: int, causal: bool) -> torch.Tensor:
        shown = bottom_right(queries, keys) if causal else torch.ones(queries, keys).bool()
        return shown & (torch.arange(keys) < (keys // 16 * 16 or keys))

    return attend_ragged(call, RaggedSteps(visible=whole))


@ragged
def lse_in_base_two(call: Ragged) -> Result:
    """Logarithm to base 2 of the sum of exponentials (ROCm/aiter#3606, B7)."""
    out, lse = attend_ragged(call)
    return out, lse * LOG2_E


@ragged
def nan_without_keys(call: Ragged) -> Result:
    """A query that sees no key divides 0 by 0 (vllm#57094, B8)."""
    out, lse = attend_ragged(call)
    return torch.where(lse[..., None] == -torch.inf, torch.nan, out), lse


@ragged
def ignores_strides(call: Ragged) -> Result:
    """Takes keys and values to lie one after the other, though both may be parts of a wider tensor."""
    return attend_ragged(replace(call, k=as_if_contiguous(call.k), v=as_if_contiguous(call.v)))
