"""Bounds for attention kernels that round the weights to an 8-bit float before these meet V.

Queries and cache are 8-bit floats and taken as exact, their scales included: a product of two has at most 8 bits. To
the model of :mod:`waveproof.golden.judges.mla` one thing is added, the rounding of a weight. A kernel rounds
``e**(score - m)``, m being a maximum so far and at most the final one, so that a value of at most 1 goes in. Of the two
e4m3 formats the OCP one (bias 7; OCP 8-bit Floating Point Specification 1.0) has the coarser grid:

- a normal value moves by ``2**-4`` of itself;
- one below ``2**-6`` moves by half of the smallest step, ``2**-10``, relative to a largest weight of 1: of the sum of
  weights ``Z = e**(lse - largest score)`` that is ``2**-10 / Z``, for every token.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.golden.judges.mla import Bounds
from waveproof.golden.references.mla import VALUE_SIZE, Attended

NORMAL = 2.0**-4
SMALLEST = 2.0**-10
SECOND_ORDER = 1.02
"""What products of the error terms may add: the other factors of the model are below 1.02 for scores up to 100."""


def with_fp8_weights(bounds: Bounds, expected: Attended, q: torch.Tensor, kv: torch.Tensor, scale: float) -> Bounds:
    """Bounds for wider weights, widened.

    Args:
        bounds: of the other roundings.
        expected: the reference.
        q: [queries, heads, 576], scaled.
        kv: [tokens, 576], scaled.
        scale: of the scores.
    """
    scores = torch.einsum("qhd,kd->qhk", q.double(), kv.double()) * scale
    hidden = torch.arange(kv.shape[0])[None, None] >= expected.visible[:, None, None]
    total = (expected.lse - scores.masked_fill(hidden, -torch.inf).amax(-1)).exp()
    sizes = kv[:, :VALUE_SIZE].double().abs()
    below = torch.stack([sizes[: int(count)].sum(0) for count in expected.visible])[:, None] * SMALLEST
    rounded = NORMAL * expected.spread + below / total[..., None]
    derivation = f"{bounds.derivation} + 1.02 (2^-4 sum p|v| + 2^-10 sum |v| / Z) (golden/judges/mla_fp8.py)"
    return replace(bounds, output=bounds.output + SECOND_ORDER * rounded, derivation=derivation)
