"""Planted faults of ``mla_decode`` in which tokens a query sees: pages, lengths, masks.

Each is right but for what its docstring says. For use as
``--provider mla_decode=selftest/mutants/mla_decode_tokens.py:NAME``; the table is ``mla.py``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.selftest.mutants.mla_steps import (
    Paged,
    Problem,
    Result,
    Steps,
    attend,
    bottom_right,
    cached_latents,
    first_512,
    page_slots,
    paged,
    rows_in_pool,
    rows_of,
    scaled_scores,
    slots,
    solved_with,
)

LATENT, TILE = 576, 64

# Pages ----------------------------------------------------------------------------------------------------------------


@paged
def first_page_dropped(call: Paged) -> Result:
    """Starts with the second page of a request that has two."""

    def later(call: Paged, request: int) -> torch.Tensor:
        own = slots(call, request)
        return own[call.page_size :] if len(own) > call.page_size else own

    return attend(call, Steps(slots=later))


@paged
def last_page_dropped(call: Paged) -> Result:
    """Stops before the last page of a request that has two."""

    def whole(call: Paged, request: int) -> torch.Tensor:
        own, pages = slots(call, request), len(call.pages(request))
        return own[: (pages - 1) * call.page_size] if pages > 1 else own

    return attend(call, Steps(slots=whole))


@paged
def middle_page_dropped(call: Paged) -> Result:
    """Leaves one page out in the middle of eight or more."""

    def others(call: Paged, request: int) -> torch.Tensor:
        own, pages = slots(call, request), len(call.pages(request))
        page = torch.arange(len(own)) // call.page_size
        return own[page != pages // 2] if pages >= 8 else own

    return attend(call, Steps(slots=others))


@paged
def tail_of_tile_dropped(call: Paged) -> Result:
    """Takes 64 tokens at a time and leaves out what remains after the last whole 64."""

    def whole(call: Paged, request: int) -> torch.Tensor:
        own = slots(call, request)
        return own[: len(own) // TILE * TILE or len(own)]

    return attend(call, Steps(slots=whole))


@paged
def last_256_tokens(call: Paged) -> Result:
    """Holds the places of 256 tokens: of a longer request it sees the last 256."""
    return attend(call, Steps(slots=lambda call, request: slots(call, request)[-256:]))


@paged
def last_page_taken_as_full(call: Paged) -> Result:
    """Ignores kv_last_page_len and reads the last page to its end."""
    return attend(call, Steps(slots=lambda call, request: page_slots(call.pages(request), call.page_size)))


@paged
def one_token_more(call: Paged) -> Result:
    """Takes kv_last_page_len for the place of the last token: one too many where the page is not full."""
    longer = torch.where(
        call.kv_last_page_len > 0, (call.kv_last_page_len + 1).clamp(max=call.page_size), call.kv_last_page_len
    )
    return attend(replace(call, kv_last_page_len=longer))


@paged
def one_token_fewer(call: Paged) -> Result:
    """Drops the last token of a last page that holds more than one."""
    shorter = torch.where(call.kv_last_page_len > 1, call.kv_last_page_len - 1, call.kv_last_page_len)
    return attend(replace(call, kv_last_page_len=shorter))


@paged
def first_token_of_each_page(call: Paged) -> Result:
    """Ignores the page size: sees one token a page (ROCm/aiter#2996, B6)."""
    return attend(call, Steps(slots=lambda call, request: call.pages(request) * call.page_size))


@paged
def pages_taken_for_tokens(call: Paged) -> Result:
    """Ignores the page size: page p is token p of the pool (ROCm/aiter#2996, B6)."""
    return attend(call, Steps(slots=lambda call, request: call.pages(request)))


@paged
def pages_taken_as_contiguous(call: Paged) -> Result:
    """Ignores the page table behind a request's first page, and starts over at the pool's end."""

    def following(call: Paged, request: int) -> torch.Tensor:
        pages = call.pages(request)
        onward = (pages[:1] + torch.arange(len(pages))) % call.kv_cache.shape[0]
        return page_slots(onward, call.page_size)[: call.length(request)]

    return attend(call, Steps(slots=following))


@paged
def pages_in_sorted_order(call: Paged) -> Result:
    """Reads a request's pages in the order of the pool: right for one query on full pages."""

    def ordered(call: Paged, request: int) -> torch.Tensor:
        return page_slots(call.pages(request).sort().values, call.page_size)[: call.length(request)]

    return attend(call, Steps(slots=ordered))


@paged
def shared_pages_once(call: Paged) -> Result:
    """A page that an earlier request has (a shared prefix) is left out for later ones."""

    def unclaimed(call: Paged, request: int) -> torch.Tensor:
        own = slots(call, request)
        earlier = call.kv_indices[: int(call.kv_indptr[request])].long()
        left = own[~torch.isin(own // call.page_size, earlier)]
        return left if len(left) else own[-1:]

    return attend(call, Steps(slots=unclaimed))


@paged
def page_numbers_in_8_bits(call: Paged) -> Result:
    """Page numbers have 8 bits: page 256 is page 0."""
    return attend(replace(call, kv_indices=call.kv_indices & 0xFF))


@paged
def offsets_in_31_bits(call: Paged) -> Result:
    """Offsets into the pool have 31 bits: behind 3.7 million tokens they begin again (kind: sglang#35571, A2)."""
    return attend(
        call, Steps(slots=lambda call, request: (slots(call, request) * LATENT & 0x7FFFFFFF).div(LATENT).long())
    )


@paged
def previous_requests_pages(call: Paged) -> Result:
    """Each request but the first reads the pages of the one before it."""
    return attend(call, Steps(slots=lambda call, request: slots(call, max(request - 1, 0))))


@paged
def next_requests_first_page(call: Paged) -> Result:
    """Reads one page too many, the first of the next request."""

    def more(call: Paged, request: int) -> torch.Tensor:
        own = slots(call, request)
        return torch.cat([own, slots(call, request + 1)[: call.page_size]]) if request + 1 < requests else own

    requests = len(call.qo_indptr) - 1
    return attend(call, Steps(slots=more))


@paged
def first_requests_length(call: Paged) -> Result:
    """No request is longer than the first one."""
    return attend(call, Steps(slots=lambda call, request: slots(call, request)[: max(1, call.length(0))]))


# What lies beside the tokens ------------------------------------------------------------------------------------------


@paged
def tail_times_zero(call: Paged) -> Result:
    """Reads the last page to its end and gives what lies there a weight of 0: NaN stays NaN (B8)."""
    out, lse = attend(call)
    for request in range(len(call.qo_indptr) - 1):
        tail = page_slots(call.pages(request), call.page_size)[call.length(request) :]
        out[rows_of(call.qo_indptr, request)] += 0.0 * first_512(rows_in_pool(call.kv_cache, tail)).sum(0)
    return out, lse


@paged
def largest_of_pool(call: Paged) -> Result:
    """Normalises by the largest number of the pool's first 64 pages, which unused ones may have as NaN (B8)."""

    def normalised(call: Paged, request: int, places: torch.Tensor) -> torch.Tensor:
        largest = call.kv_cache[:64].float().abs().max() if call.kv_cache.numel() else torch.tensor(1.0)
        return cached_latents(call, request, places) / largest * largest

    return attend(call, Steps(cached=normalised))


@paged
def new_token_is_stale(call: Paged) -> Result:
    """The last token of each request, just written, is not in the cache yet: the one before it counts twice."""

    def repeated(call: Paged, request: int, places: torch.Tensor) -> torch.Tensor:
        before = torch.cat([places[:-1], places[-2:-1]]) if len(places) > 1 else places
        return rows_in_pool(call.kv_cache, before) * call.kv_scale

    return attend(call, Steps(cached=repeated))


# Masks ----------------------------------------------------------------------------------------------------------------


@paged
def one_future_key(call: Paged) -> Result:
    """Each query sees the key after its own, where there is one."""
    return attend(call, Steps(visible=lambda queries, keys: bottom_right(queries, keys + 1)[:, :keys]))


@paged
def own_key_hidden(call: Paged) -> Result:
    """No query sees its own key, but for one that would see none."""

    def earlier(queries: int, keys: int) -> torch.Tensor:
        shown = bottom_right(queries, keys)
        own = torch.arange(keys) == torch.arange(queries)[:, None] + keys - queries
        return shown & ~(own & (keys > queries))

    return attend(call, Steps(visible=earlier))


@paged
def not_causal(call: Paged) -> Result:
    """Several queries of a request all see all of its keys (AMD-Ecosystem/flashinfer#296, B11)."""
    return attend(call, Steps(visible=lambda queries, keys: torch.ones(queries, keys).bool()))


@paged
def top_left(call: Paged) -> Result:
    """Of several queries the first sees the first key only, the second two (ROCm/flash-attention#158, B11)."""

    def aligned(queries: int, keys: int) -> torch.Tensor:
        return bottom_right(queries, keys) if queries == 1 else torch.ones(queries, keys).tril().bool()

    return attend(call, Steps(visible=aligned))


@paged
def longest_query_for_all(call: Paged) -> Result:
    """Masks by the batch's longest query: shorter requests do not see their last keys."""
    longest = int(call.qo_indptr.diff().max()) if len(call.qo_indptr) > 1 else 0

    def padded(queries: int, keys: int) -> torch.Tensor:
        return torch.arange(keys) <= torch.arange(queries)[:, None] + max(keys - longest, 0)

    return attend(call, Steps(visible=padded))


@paged
def equal_query_lengths(call: Paged) -> Result:
    """Ignores qo_indptr: every request has T / B queries, the last one the rest."""
    requests = len(call.qo_indptr) - 1
    starts = torch.arange(requests + 1, dtype=torch.int32) * (len(call.q) // max(1, requests))
    starts[-1] = len(call.q)
    return attend(replace(call, qo_indptr=starts))


@paged
def last_query_for_all(call: Paged) -> Result:
    """Scores of a request's last query stand for all of its queries."""
    return attend(call, Steps(queries=lambda call, request: last_repeated(call, request)))


def last_repeated(call: Paged, request: int) -> torch.Tensor:
    """The last query of a request as often as it has queries."""
    begin, end = call.qo_indptr[request : request + 2].tolist()
    return call.q[end - 1 : end].float().repeat(end - begin, 1, 1) * call.q_scale


@paged
def hidden_keys_weigh_little(call: Paged) -> Result:
    """Hidden keys get a score of -1e9: a query that sees none gets the mean of all (B8)."""

    def finite(problem: Problem) -> torch.Tensor:
        return scaled_scores(problem).clamp(min=-1e9)

    return attend(call, Steps(solve=solved_with(scores=finite)))


@paged
def nan_without_keys(call: Paged) -> Result:
    """A query that sees no key divides 0 by 0 (vllm#57094, B8)."""
    out, lse = attend(call)
    return torch.where(lse[..., None] == -torch.inf, torch.nan, out), lse


@paged
def nan_of_one_poisons_batch(call: Paged) -> Result:
    """The NaN of a query without keys reaches all through the batch's largest output (vllm#57094, B8)."""
    out, lse = attend(call)
    if (lse == -torch.inf).any():
        out = out * torch.nan
    return out, lse
