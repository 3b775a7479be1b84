"""Planted faults of ``mla_extend``: each is right but for what its docstring says.

For use as ``--provider mla_extend=selftest/mutants/mla_extend.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants.mla_steps import (
    LOG2_E,
    Paged,
    Result,
    Steps,
    attend,
    bottom_right,
    extending,
    new_latents,
    page_slots,
    rows_in_pool,
    rows_of,
    slots,
)

TILE = 64


@extending
def prefix_dropped(call: Paged) -> Result:
    """Sees the new tokens only."""
    return attend(call, Steps(slots=lambda call, request: slots(call, request)[:0]))


@extending
def new_dropped(call: Paged) -> Result:
    """Sees the prefix only, and the new tokens where there is none."""

    def prefix_only(queries: int, keys: int) -> torch.Tensor:
        shown = bottom_right(queries, keys)
        return shown & (torch.arange(keys) < keys - queries) if keys > queries else shown

    return attend(call, Steps(visible=prefix_only))


@extending
def not_causal(call: Paged) -> Result:
    """New tokens see later new tokens."""
    return attend(call, Steps(visible=lambda queries, keys: torch.ones(queries, keys).bool()))


@extending
def prefix_causal(call: Paged) -> Result:
    """Masks the prefix too: new token i sees its first i + 1 tokens."""

    def masked(queries: int, keys: int) -> torch.Tensor:
        new = torch.ones(queries, queries).tril().bool()
        return torch.cat([torch.ones(queries, keys - queries).tril().bool(), new], 1)

    return attend(call, Steps(visible=masked))


@extending
def own_key_hidden(call: Paged) -> Result:
    """A new token with a prefix does not see itself."""

    def earlier(queries: int, keys: int) -> torch.Tensor:
        shown = bottom_right(queries, keys)
        own = torch.arange(keys) == torch.arange(queries)[:, None] + keys - queries
        return shown & ~own if keys > queries else shown

    return attend(call, Steps(visible=earlier))


@extending
def tail_of_last_page(call: Paged) -> Result:
    """Ignores kv_last_page_len and takes the prefix's last page for full."""
    return attend(call, Steps(slots=lambda call, request: page_slots(call.pages(request), call.page_size)))


@extending
def prefix_of_neighbour(call: Paged) -> Result:
    """Each request but the first has the prefix of the one before it."""
    return attend(call, Steps(slots=lambda call, request: slots(call, max(request - 1, 0))))


@extending
def new_from_cache(call: Paged) -> Result:
    """Reads new tokens from the cache, where they would be, with the prefix's last token in front of them."""

    def cached(call: Paged, request: int) -> torch.Tensor:
        new, own = new_latents(call, request), slots(call, request)
        ahead = (own[-1:] + 1 + torch.arange(len(new))) % (call.kv_cache.shape[0] * call.page_size)
        return rows_in_pool(call.kv_cache, ahead) * call.kv_scale if len(own) else new

    return attend(call, Steps(new=cached))


@extending
def new_scaled(call: Paged) -> Result:
    """Applies the cache's scale to new tokens, which have 16 bits and none."""
    return attend(call, Steps(new=lambda call, request: new_latents(call, request) * call.kv_scale))


@extending
def prefix_unscaled(call: Paged) -> Result:
    """Takes the numbers of an 8-bit cache as they are."""
    return attend(replace(call, kv_scale=1.0))


@extending
def new_in_cache_format(call: Paged) -> Result:
    """Rounds new tokens to the cache's 8 bits before it attends to them."""

    def rounded(call: Paged, request: int) -> torch.Tensor:
        new = new_latents(call, request)
        if call.kv_cache.dtype.itemsize > 1:
            return new
        largest = torch.finfo(call.kv_cache.dtype).max
        return (new / call.kv_scale).clamp(-largest, largest).to(call.kv_cache.dtype).float() * call.kv_scale

    return attend(call, Steps(new=rounded))


@extending
def first_requests_prefix_length(call: Paged) -> Result:
    """No prefix is longer than that of the first request."""
    return attend(call, Steps(slots=lambda call, request: slots(call, request)[: call.length(0)]))


@extending
def dead_last_head(call: Paged) -> Result:
    """The last head is zero."""
    out, lse = attend(call)
    out[:, -1] = 0.0
    return out, lse


@extending
def prefix_page_dropped(call: Paged) -> Result:
    """Leaves out the last page of a prefix that has two."""

    def fewer(call: Paged, request: int) -> torch.Tensor:
        own, pages = slots(call, request), len(call.pages(request))
        return own[: (pages - 1) * call.page_size] if pages > 1 else own

    return attend(call, Steps(slots=fewer))


@extending
def nan_without_prefix(call: Paged) -> Result:
    """A request without a prefix merges an empty part, 0 / 0, with weight 0 (B8)."""
    out, lse = attend(call)
    for request in range(len(call.qo_indptr) - 1):
        if not len(call.pages(request)):
            out[rows_of(call.qo_indptr, request)] = torch.nan
    return out, lse


@extending
def lse_of_new(call: Paged) -> Result:
    """LSE of the new tokens only."""
    return attend(call)[0], attend(call, Steps(slots=lambda call, request: slots(call, request)[:0]))[1]


@extending
def prefix_merged_in_base_two(call: Paged) -> Result:
    """Attends to prefix and new tokens apart, and merges natural LSE as powers of two (sglang#40903, B7)."""
    empty = Steps(slots=lambda call, request: slots(call, request)[:0])
    prefix = Steps(visible=lambda queries, keys: (torch.arange(keys) < keys - queries).expand(queries, keys))
    (new, new_lse), (old, old_lse) = attend(call, empty), attend(call, prefix)
    share = torch.sigmoid((new_lse - old_lse) / LOG2_E)[..., None]
    return (new.float() * share + old.float() * (1 - share)).to(new.dtype), torch.logaddexp(new_lse, old_lse)
