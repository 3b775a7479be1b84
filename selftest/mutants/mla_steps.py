"""Attention step by step, in float32: what the planted faults of family ``mla`` are faults of.

A call is taken apart into one :class:`Problem` a request, which is solved and written to its rows. Each step is a plain
function and stands in a table of steps, so that a fault is the one function that it replaces. Nothing here comes from
the reference that the suite judges by.

A planted fault is a function of one :class:`Paged` or :class:`Ragged` call; :func:`paged`, :func:`extending` and
:func:`ragged` give it the positional arguments of its operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

LOG2_E = math.log2(math.e)
VALUES = 512
"""Numbers of a latent that are value as well as key."""

Result: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""Output [T, H, D] and natural LSE [T, H]."""


@dataclass(frozen=True)
class Paged:
    """A call of ``mla_decode``, ``mla_prefill_absorbed`` or, with ``kv_new``, ``mla_extend``."""

    q: torch.Tensor
    kv_cache: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_last_page_len: torch.Tensor
    sm_scale: float
    q_scale: float
    kv_scale: float
    kv_new: torch.Tensor | None = None

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self.kv_cache.shape[1]

    def length(self, request: int) -> int:
        """Tokens of a request in the cache."""
        pages = len(self.pages(request))
        return (pages - 1) * self.page_size + int(self.kv_last_page_len[request]) if pages else 0

    def pages(self, request: int) -> torch.Tensor:
        """int64[pages of the request]."""
        begin, end = self.kv_indptr[request : request + 2].tolist()
        return self.kv_indices[begin:end].long()


@dataclass(frozen=True)
class Ragged:
    """A call of ``mla_prefill``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    sm_scale: float
    causal: bool
    k_scale: float
    v_scale: float


@dataclass(frozen=True)
class Problem:
    """What the queries of one request attend to; float32 throughout."""

    q: torch.Tensor
    """[n, H, Dk]."""
    k: torch.Tensor
    """[m, H or 1, Dk]."""
    v: torch.Tensor
    """[m, H or 1, D]."""
    visible: torch.Tensor
    """bool[n, m]."""
    scale: float
    narrow: torch.dtype
    """In which weights may meet V: that of the output."""


# Which queries and keys -----------------------------------------------------------------------------------------------


def rows_of(indptr: torch.Tensor, request: int) -> slice:
    """Where a request lies in a ragged tensor."""
    begin, end = indptr[request : request + 2].tolist()
    return slice(begin, end)


def scaled_queries(call: Paged, request: int) -> torch.Tensor:
    """[n, H, 576]: the queries of a request."""
    return call.q[rows_of(call.qo_indptr, request)].float() * call.q_scale


def page_slots(pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """int64[pages * page_size]: places of the pages' tokens in the pool."""
    return (pages[:, None] * page_size + torch.arange(page_size)).reshape(-1)


def slots(call: Paged, request: int) -> torch.Tensor:
    """int64[m]: places in the pool of a request's tokens, in their order."""
    return page_slots(call.pages(request), call.page_size)[: call.length(request)]


def rows_in_pool(cache: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """float32[places, 576]: rows of a pool."""
    return cache[places // cache.shape[1], places % cache.shape[1], 0].float()


def cached_latents(call: Paged, request: int, places: torch.Tensor) -> torch.Tensor:
    """float32[m, 576]: the cached tokens of a request, of which only the places are known so far."""
    return rows_in_pool(call.kv_cache, places) * call.kv_scale


def new_latents(call: Paged, request: int) -> torch.Tensor:
    """float32[new, 576]: tokens that are not in the cache yet; none but for ``mla_extend``."""
    if call.kv_new is None:
        return torch.empty(0, call.kv_cache.shape[-1])
    return call.kv_new[rows_of(call.qo_indptr, request), 0].float()


def first_512(latents: torch.Tensor) -> torch.Tensor:
    """[m, 512]: the part of latents [m, 576] that is the value."""
    return latents[:, :VALUES]


def bottom_right(queries: int, keys: int) -> torch.Tensor:
    """bool[queries, keys]: the queries are the last tokens."""
    return torch.arange(keys) <= torch.arange(queries)[:, None] + keys - queries


def keys_and_values(call: Ragged, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[m, H, 192] and [m, H, 128]: the keys and values of a request."""
    rows = rows_of(call.kv_indptr, request)
    return call.k[rows].float() * call.k_scale, call.v[rows].float() * call.v_scale


def causal_or_all(queries: int, keys: int, causal: bool) -> torch.Tensor:
    """bool[queries, keys]: bottom-right, or everything."""
    return bottom_right(queries, keys) if causal else torch.ones(queries, keys).bool()


def as_if_contiguous(x: torch.Tensor) -> torch.Tensor:
    """What a kernel reads that is not told the strides."""
    strides = torch.empty(x.shape, device="meta").stride()
    return torch.as_strided(x, x.shape, strides)


# Attention ------------------------------------------------------------------------------------------------------------


def products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[n, H, m]: of [n, H, D] with [m, H or 1, D]."""
    if k.shape[1] == 1:
        return q @ k[:, 0].T
    return torch.einsum("nhd,mhd->nhm", q, k)


def mixed(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[n, H, D]: values [m, H or 1, D] under weights [n, H, m]."""
    if v.shape[1] == 1:
        return weights @ v[:, 0]
    return torch.einsum("nhm,mhd->nhd", weights, v)


def scaled_scores(problem: Problem) -> torch.Tensor:
    """[n, H, m]: -inf where a key is hidden."""
    return (products(problem.q, problem.k) * problem.scale).masked_fill(~problem.visible[:, None], -torch.inf)


def exponentials(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exponentials [n, H, m] below their maximum, their sum and the maximum, 0 if there is none, both [n, H, 1]."""
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    powers = torch.exp(scores - top)
    return powers, powers.sum(-1, keepdim=True), top


def softmax(scores: torch.Tensor) -> Result:
    """Weights [n, H, m], 0 where no key is visible, and LSE [n, H], -inf there."""
    powers, total, top = exponentials(scores)
    return torch.where(total > 0, powers / total, 0.0), (top + torch.log(total))[..., 0]


def solve(
    problem: Problem,
    scores: Callable[[Problem], torch.Tensor] = scaled_scores,
    weights: Callable[[torch.Tensor], Result] = softmax,
) -> Result:
    """Output float32[n, H, D] and LSE float32[n, H] of one request that has keys."""
    shares, lse = weights(scores(problem))
    return mixed(shares, problem.v), lse


def solved_with(
    scores: Callable[[Problem], torch.Tensor] = scaled_scores, weights: Callable[[torch.Tensor], Result] = softmax
) -> Callable[[Problem], Result]:
    """:func:`solve` with a step replaced."""
    return lambda problem: solve(problem, scores, weights)


# Whole calls ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """How a paged call is taken apart and solved; a planted fault replaces one."""

    queries: Callable[[Paged, int], torch.Tensor] = scaled_queries
    slots: Callable[[Paged, int], torch.Tensor] = slots
    cached: Callable[[Paged, int, torch.Tensor], torch.Tensor] = cached_latents
    new: Callable[[Paged, int], torch.Tensor] = new_latents
    values: Callable[[torch.Tensor], torch.Tensor] = first_512
    visible: Callable[[int, int], torch.Tensor] = bottom_right
    solve: Callable[[Problem], Result] = solve

    def problem(self, call: Paged, request: int) -> Problem:
        """One request of a call."""
        q = self.queries(call, request)
        latents = torch.cat([self.cached(call, request, self.slots(call, request)), self.new(call, request)])
        visible = self.visible(len(q), len(latents))
        values = self.values(latents)
        return Problem(q, latents[:, None], values[:, None], visible, call.sm_scale, output_dtype(call.q))


@dataclass(frozen=True)
class RaggedSteps:
    """The same for a call with a key for each head."""

    keys_and_values: Callable[[Ragged, int], tuple[torch.Tensor, torch.Tensor]] = keys_and_values
    visible: Callable[[int, int, bool], torch.Tensor] = causal_or_all
    solve: Callable[[Problem], Result] = solve

    def problem(self, call: Ragged, request: int) -> Problem:
        """One request of a call."""
        q = call.q[rows_of(call.qo_indptr, request)].float()
        k, v = self.keys_and_values(call, request)
        visible = self.visible(len(q), len(k), call.causal)
        return Problem(q, k, v, visible, call.sm_scale, output_dtype(call.q))


def attend(call: Paged, steps: Steps = Steps()) -> Result:
    """All requests of a paged call: output in the dtype of q, bfloat16 where that has 8 bits, and LSE float32."""
    problems = [steps.problem(call, request) for request in range(len(call.qo_indptr) - 1)]
    out, lse = write(call.qo_indptr, problems, (*call.q.shape[:2], VALUES), steps.solve)
    return out.to(output_dtype(call.q)), lse


def attend_ragged(call: Ragged, steps: RaggedSteps = RaggedSteps()) -> Result:
    """All requests of a call of ``mla_prefill``."""
    problems = [steps.problem(call, request) for request in range(len(call.qo_indptr) - 1)]
    out, lse = write(call.qo_indptr, problems, (*call.q.shape[:2], call.v.shape[-1]), steps.solve)
    return out.to(output_dtype(call.q)), lse


def write(
    indptr: torch.Tensor, problems: Iterable[Problem], shape: tuple[int, ...], solve: Callable[[Problem], Result]
) -> Result:
    """Each request's solution in its rows: 0 and -inf in those of a request without keys."""
    out, lse = torch.zeros(shape), torch.full(shape[:2], -torch.inf)
    for request, problem in enumerate(problems):
        rows = rows_of(indptr, request)
        if len(problem.k):
            out[rows], lse[rows] = solve(problem)
    return out, lse


def output_dtype(q: torch.Tensor) -> torch.dtype:
    """That of the queries if they have 16 bits."""
    return q.dtype if q.dtype.itemsize == 2 else torch.bfloat16


# Operators ------------------------------------------------------------------------------------------------------------


def paged(fault: Callable[[Paged], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``mla_decode`` and ``mla_prefill_absorbed``."""

    def operator(
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_last_page_len: torch.Tensor,
        sm_scale: float,
        q_scale: float,
        kv_scale: float,
    ) -> Any:
        return fault(
            Paged(q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, q_scale, kv_scale)
        )

    return _named_as(fault, operator)


def extending(fault: Callable[[Paged], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``mla_extend``."""

    def operator(
        q: torch.Tensor,
        kv_new: torch.Tensor,
        kv_cache: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_last_page_len: torch.Tensor,
        sm_scale: float,
        kv_scale: float,
    ) -> Any:
        return fault(
            Paged(q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, 1.0, kv_scale, kv_new)
        )

    return _named_as(fault, operator)


def ragged(fault: Callable[[Ragged], Any]) -> Callable[..., Any]:
    """A function with the arguments of ``mla_prefill``."""

    def operator(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        sm_scale: float,
        causal: bool,
        k_scale: float,
        v_scale: float,
    ) -> Any:
        return fault(Ragged(q, k, v, qo_indptr, kv_indptr, sm_scale, causal, k_scale, v_scale))

    return _named_as(fault, operator)


def _named_as(fault: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
    # Not functools.wraps: inspect.signature would follow __wrapped__ to the function of one call.
    operator.__name__, operator.__qualname__, operator.__doc__ = fault.__name__, fault.__qualname__, fault.__doc__
    return operator
