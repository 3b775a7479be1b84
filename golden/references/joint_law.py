"""The exact law of the first tokens that an engine generates, by enumeration of a tiny model.

A next-token law is made of logits by the engine's own filters *in its own order*, because top-k, top-p and temperature
do not commute. What engines do (read in their sources):

* *transformers* (``generation/logits_process.py``): temperature, top_k, top_p. ``TopKLogitsWarper`` drops logits below
  the k-th, so ties with it stay. ``TopPLogitsWarper`` drops tokens whose ascending cumulative mass, own one included,
  is <= 1 - top_p: a token stays iff the mass of those before it in descending order is below top_p.
* *vLLM* (``v1/sample/ops/topk_topp_sampler.py``): temperature, top_k, top_p, with the same two rules.
* *llama.cpp* (``src/llama-sampler.cpp``): top_k, top_p, temperature by default. Exactly k tokens stay; top_p keeps
  tokens in descending order until their mass reaches it, which is the same rule as above but for ties.
* *sglang* (``srt/layers/sampler.py``): temperature, top_k, top_p.

So the engines differ where tokens tie, or where a float32 sum decides whether the mass before a token is below top_p.
No law is given there: :func:`next_law` raises :class:`UndecidedFilter` within a margin, and a case uses another seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

TEMPERATURE_FIRST = ("temperature", "top_k", "top_p")
"""Order of transformers, vLLM and sglang."""

TEMPERATURE_LAST = ("top_k", "top_p", "temperature")
"""Order of llama.cpp's default chain."""

MARGIN = 1e-5
"""How close, in nats or in mass, a filter's limit may come to a token before the law is called undecided."""


class UndecidedFilter(ValueError):
    """Which tokens a filter keeps hangs on a tie or on the rounding of an engine."""


@dataclass(frozen=True)
class Filter:
    """How an engine makes the law that it samples from out of logits."""

    temperature: float = 1.0
    """Above 0."""
    top_k: int = 0
    """Tokens to keep; 0 is off."""
    top_p: float = 1.0
    """Mass to keep; 1 is off."""
    order: tuple[str, ...] = TEMPERATURE_FIRST
    """The three in the order in which the engine applies them."""
    banned: tuple[int, ...] = ()
    """Token ids that are masked before all else, like an EOS under ``ignore_eos``."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature!r}")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k must be 0 or more and top_p in (0, 1], got {self.top_k!r} and {self.top_p!r}")
        if sorted(self.order) != sorted(TEMPERATURE_FIRST):
            raise ValueError(f"order must hold each of {TEMPERATURE_FIRST} once, got {self.order!r}")

    def __str__(self) -> str:
        """What is on, as applied: ``T=0.8 k=5 p=0.9``; the temperature always, what is banned never."""
        words = {
            "temperature": f"T={self.temperature:g}",
            "top_k": f"k={self.top_k}" if self.top_k else "",
            "top_p": f"p={self.top_p:g}" if self.top_p < 1.0 else "",
        }
        return " ".join(filter(None, map(words.__getitem__, self.order)))


def next_law(logits: torch.Tensor, filter: Filter, margin: float = MARGIN) -> torch.Tensor:
    """The law of the next token.

    Args:
        logits: float64[V], natural logarithms up to a constant.
        filter: the engine's filters.
        margin: see :data:`MARGIN`; 0 decides ties by index and never raises.

    Returns:
        float64[V], sums to 1; 0 for what is filtered or banned.

    Raises:
        UndecidedFilter: a limit of top-k or top-p lies within the margin of a token.
    """
    scores = torch.as_tensor(logits).to(torch.float64).clone()
    scores[list(filter.banned)] = -torch.inf
    for step in filter.order:
        if step == "temperature":
            scores = scores / filter.temperature
        elif step == "top_k" and 0 < filter.top_k < len(scores):
            scores = _top_k(scores, filter.top_k, margin)
        elif step == "top_p" and filter.top_p < 1.0:
            scores = _top_p(scores, filter.top_p, margin)
    return torch.softmax(scores, -1)


def joint_law(
    next_logits: Callable[[tuple[int, ...]], torch.Tensor],
    prompt: tuple[int, ...],
    length: int,
    filter: Filter,
    margin: float = MARGIN,
) -> dict[tuple[int, ...], float]:
    """The law of the first ``length`` tokens after a prompt.

    Args:
        next_logits: from all tokens so far, prompt included, to float64[V].
        prompt: token ids.
        length: tokens to enumerate, V ** length at most.
        filter: the engine's filters.
        margin: as in :func:`next_law`.

    Returns:
        From the generated tokens, without the prompt, to their probability; what has none is left out. Sums to 1.

    Raises:
        UndecidedFilter: see :func:`next_law`; names the tokens so far.
    """
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, mass in law.items():
            try:
                conditional = next_law(next_logits((*prompt, *tokens)), filter, margin)
            except UndecidedFilter as error:
                raise UndecidedFilter(f"after {(*prompt, *tokens)}: {error}") from None
            longer.update(
                ((*tokens, token), mass * probability)
                for token, probability in enumerate(conditional.tolist())
                if probability > 0
            )
        law = longer
    return law


def _top_k(scores: torch.Tensor, k: int, margin: float) -> torch.Tensor:
    order = torch.argsort(scores, descending=True, stable=True)
    gap = float(scores[order[k - 1]] - scores[order[k]])
    if gap < margin:
        raise UndecidedFilter(f"places {k} and {k + 1} are {gap:.3g} nats apart, within {margin:g}")
    return scores.index_fill(0, order[k:], -torch.inf)


def _top_p(scores: torch.Tensor, p: float, margin: float) -> torch.Tensor:
    order = torch.argsort(scores, descending=True, stable=True)
    mass = torch.softmax(scores, -1)[order]
    before = mass.cumsum(0) - mass
    before[0] = 0.0
    # Tokens without mass lie at 1 exactly, beyond any limit.
    nearest = float((before[mass > 0][1:] - p).abs().min()) if int((mass > 0).sum()) > 1 else torch.inf
    if nearest < margin:
        raise UndecidedFilter(f"the mass before a token is {nearest:.3g} from top_p {p:g}, within {margin:g}")
    return scores.index_fill(0, order[before >= p], -torch.inf)
