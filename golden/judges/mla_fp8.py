"""Bounds for attention kernels that round the weights to an 8-bit float before these meet V.

Queries and cache are 8-bit floats and taken as exact, their scales included: a product of two has at most 8 bits. To
the model of :mod:`waveproof.golden.judges.mla` one thing is added, the rounding of a weight. A kernel rounds
``e**(score - m)``, m being a maximum so far and at most the final one, so that a value of at most 1 goes in. Of the two
e4m3 formats the OCP one (bias 7; OCP 8-bit Floating Point Specification 1.0) has the coarser grid:

- a normal value moves by ``2**-4`` of itself;
- one below ``2**-6`` moves by half of the smallest step, ``2**-10``, relative to a largest weight of 1: of the sum of
  weights ``Z = e**(lse - largest score)`` that is ``2**-10 / Z``, for every token;
- weights below ``2**-9`` of the largest may vanish all together, so what they carry is allowed for in full.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from waveproof.golden.judges.mla import DEVIATIONS, Bounds
from waveproof.golden.references.mla import Attended

NORMAL = 2.0**-4
SMALLEST = 2.0**-10
SECOND_ORDER = 1.02
"""What products of the error terms may add: the other factors of the model are below 1.02 for scores up to 100."""


def with_fp8_weights(bounds: Bounds, expected: Attended) -> Bounds:
    """Bounds for wider weights, widened.

    Args:
        bounds: of the other roundings.
        expected: the reference.
    """
    step = SMALLEST / torch.where(expected.total > 0, expected.total, 1.0)
    rounded = NORMAL * expected.spread + step[..., None] * expected.values_seen
    square = expected.output.square().sum(-1)
    square = torch.where(square > 0, square, 1.0)
    faint = expected.faint
    norm = NORMAL * torch.minimum(DEVIATIONS * expected.value_norm, expected.mean_norm)
    norm = norm + DEVIATIONS * step * expected.seen_norm + faint.norm(dim=-1)
    own = NORMAL * torch.minimum(DEVIATIONS * expected.value_along, expected.mean_along)
    own = (own + DEVIATIONS * step * expected.seen_along) / square
    return replace(
        bounds,
        output=bounds.output + SECOND_ORDER * rounded,
        norm=bounds.norm + SECOND_ORDER * norm,
        scale_own=bounds.scale_own + SECOND_ORDER * own,
        scale_shared=bounds.scale_shared + SECOND_ORDER * (faint * expected.output.abs()).sum(-1) / square,
        derivation=f"{bounds.derivation} + 1.02 (2^-4 sum p|v| + 2^-10 sum |v| / Z) (golden/judges/mla_fp8.py)",
    )
