"""Planted faults of ``mla_prefill_absorbed``: each is right but for what its docstring says.

For use as ``--provider mla_prefill_absorbed=selftest/mutants/mla_prefill_absorbed.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants.mla_steps import (
    Paged,
    Result,
    Steps,
    attend,
    bottom_right,
    paged,
    rows_of,
    slots,
)

TILE = 64


@paged
def causal_by_tiles(call: Paged) -> Result:
    """Causal by whole tiles of 16 keys: a query sees its tile to the end."""

    def by_tile(queries: int, keys: int) -> torch.Tensor:
        own = torch.arange(queries)[:, None] + keys - queries
        return torch.arange(keys) <= own.div(16, rounding_mode="floor") * 16 + 15

    return attend(call, Steps(visible=by_tile))


@paged
def not_causal(call: Paged) -> Result:
    """All queries see all keys (AMD-Ecosystem/flashinfer#296, B11)."""
    return attend(call, Steps(visible=lambda queries, keys: torch.ones(queries, keys).bool()))


@paged
def top_left(call: Paged) -> Result:
    """The first query sees the first key only: right without a prefix (B11)."""
    return attend(call, Steps(visible=lambda queries, keys: torch.ones(queries, keys).tril().bool()))


@paged
def rest_of_queries_zero(call: Paged) -> Result:
    """Queries beyond the last whole 16 of a longer request are zero."""
    out, lse = attend(call)
    for request in range(len(call.qo_indptr) - 1):
        rows = rows_of(call.qo_indptr, request)
        if rows.stop - rows.start > 16:
            out[rows.start + (rows.stop - rows.start) // 16 * 16 : rows.stop] = 0.0
    return out, lse


@paged
def tile_overwrites_next_request(call: Paged) -> Result:
    """Tiles of 16 queries that reach into the next request overwrite its first rows with their own tail."""
    out, lse = attend(call)
    for request in range(len(call.qo_indptr) - 2):
        rows = rows_of(call.qo_indptr, request)
        ahead = min(-(rows.stop - rows.start) % 16, 1)
        out[rows.stop : rows.stop + ahead] = out[rows.stop - 1 : rows.stop]
    return out, lse


@paged
def last_four_queries(call: Paged) -> Result:
    """A decode kernel for four queries: it takes the last four of a request for all that there are."""
    out, lse = attend(call)
    for request in range(len(call.qo_indptr) - 1):
        rows = rows_of(call.qo_indptr, request)
        out[rows.start : max(rows.start, rows.stop - 4)] = 0.0
    return out, lse


@paged
def rest_of_keys_dropped(call: Paged) -> Result:
    """Leaves out the keys behind the last whole 64, once a request has more."""

    def whole(queries: int, keys: int) -> torch.Tensor:
        return bottom_right(queries, keys) & (torch.arange(keys) < (keys // TILE * TILE or keys))

    return attend(call, Steps(visible=whole))


@paged
def page_looked_up_once_a_tile(call: Paged) -> Result:
    """Looks the page up once for 16 tokens, though pages may be smaller (B6)."""

    def looked_up(call: Paged, request: int) -> torch.Tensor:
        own = slots(call, request)
        first = torch.arange(len(own)) // 16 * 16
        ahead = (own[first] + torch.arange(len(own)) - first) % (call.kv_cache.shape[0] * call.page_size)
        return ahead if call.page_size < 16 else own

    return attend(call, Steps(slots=looked_up))


@paged
def kv_scale_ignored(call: Paged) -> Result:
    """Takes the numbers of an 8-bit cache as they are."""
    return attend(replace(call, kv_scale=1.0))


@paged
def lse_of_last_tile(call: Paged) -> Result:
    """LSE of the keys from the last whole 64 on (ROCm/aiter#3606, B7)."""

    def last(queries: int, keys: int) -> torch.Tensor:
        return bottom_right(queries, keys) & (torch.arange(keys) >= (keys - 1) // TILE * TILE)

    return attend(call)[0], attend(call, Steps(visible=last))[1]
