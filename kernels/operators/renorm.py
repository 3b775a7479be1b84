"""Family ``renorm``: filter a next-token distribution by top-k and top-p and renormalise what is kept.

Semantics follow the interface that flashinfer documents for ``top_k_renorm_probs`` and ``top_p_renorm_probs``
(flashinfer ``sampling.py``) and that sglang's verifier of speculative decoding calls on every platform
(``sglang/kernels/ops/sampling/renorm.py``), with the gaps that those leave open closed here.

**Rows.** A row is *legal* when all its values are finite and not negative and it sums to 1 within the rounding of its
dtype; a row is *degenerate* when it sums to zero or holds NaN, inf or a negative value. What a degenerate row becomes
is left open, with two limits: it must not raise, hang or crash (one such row kills a whole batch:
sgl-project/sglang#27618), and no other row may change by a bit.

**Ties.** ``threshold`` keeps every value that is not smaller than the boundary value; ``exact-k`` (for top-p:
``exact-p``) keeps as few as the rule needs and, among equals, the lowest indices. ``any-k`` keeps exactly k and leaves
open which of the equals: all that ``torch.topk`` promises.

**Error model.** Let u = 2^-24 be float32's unit roundoff and gamma_n = n u / (1 - n u) (Higham, *Accuracy and Stability
of Numerical Algorithms*, 2nd ed., section 3.1).

* *Sum of a row.* Terms are not negative, so a sum whose longest chain has d additions is off by at most gamma_d,
  relatively (ibid., section 4.2). No CDNA kernel reduces a row with less than one wavefront of 64 lanes, which gives
  d(n) = ceil(n / 64) + 6. At n = 163,840 this is 1.5e-4: small enough that a 0.1 % scale error is visible at any size.
* *Renormalised value.* One sum, one division (or reciprocal and product: two roundings), one rounding of the result.
  Adding zeros is exact, so a sum of m kept tokens rounds at most m - 1 times however it is formed: relative error at
  most gamma_{min(d(n), m - 1) + 3}. Results below 2^-126 may be flushed to zero (AMD's float mode allows it), so they
  are judged to within 2^-126 absolutely.
* *Kept set of top-k* is decided by comparing inputs, so it is exact. The kept set of top-p depends on a sum that
  implementations form in different orders: a token may fall on either side only while the exact mass before it lies
  within gamma_{d(n) + 2} + |1 - sum of the row| of top_p.
* *Softmax.* The argument of exp((x - m) / T) carries the roundings of x / T and m / T, of their difference, of log2(e)
  and of the product with it; each shifts the exponent by its own absolute size, hence the term by that size,
  relatively. The exponential itself is taken to be good to 4 ulp (OpenCL C 3.0, section 7.4, allows 3 for ``exp`` and
  ``exp2``), at most 8 u: relative error ((|x| + |m|) / T + 3 |x - m| / T + 8) u for each term.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from waveproof.kernels.operators.contract import Argument, Operator

if TYPE_CHECKING:
    import torch

UNIT_ROUNDOFF = 2.0**-24
"""float32's unit roundoff (round to nearest)."""

SMALLEST_NORMAL = 2.0**-126
"""float32's smallest normal number; results below it may be flushed to zero."""

WAVEFRONT = 64
"""Lanes of a wavefront on CDNA3 and CDNA4 (AMD Instinct MI300 / CDNA4 ISA documents, section 3)."""

MAX_ROWS = 65_536
"""Rows that serving reaches: 4,096 concurrent requests with 16 draft tokens each."""

TOP_K_ALL = 1 << 30
"""sglang's way of saying "no top-k" (``sglang/srt/sampling/sampling_params.py``)."""


def gamma(n: int) -> float:
    """Higham's gamma_n = n u / (1 - n u) for float32: the relative error of n successive roundings."""
    return n * UNIT_ROUNDOFF / (1.0 - n * UNIT_ROUNDOFF)


def summation_depth(n: int) -> int:
    """Longest chain of additions when one wavefront sums n terms: ceil(n / 64) in a lane, then a tree of 6."""
    return math.ceil(n / WAVEFRONT) + 6


def value_tolerance(vocab_size: int, kept: int | None = None) -> float:
    """Relative error that a renormalised value may have: the row's sum, a reciprocal, a product, a store.

    Adding zeros is exact, so the sum of ``kept`` tokens rounds at most ``kept`` - 1 times, in whatever order.
    """
    depth = summation_depth(vocab_size)
    return gamma((depth if kept is None else min(depth, max(kept - 1, 0))) + 3)


def mass_band(vocab_size: int) -> float:
    """Absolute error that a float32 prefix mass (at most 1) may have when it is compared with top_p."""
    return gamma(summation_depth(vocab_size) + 2)


def softmax_tolerance(operands: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
    """Relative error of one term exp((x - m) / T); ``operands`` is (|x| + |m|) / T, ``argument`` is |x - m| / T."""
    return (operands + 3.0 * argument + 8.0) * UNIT_ROUNDOFF


_PROBS = Argument("probs", ("B", "V"), ("float32",), "next-token probabilities, one row a request position")
_OUT = Argument("renormed", ("B", "V"), ("float32",), "probabilities of the kept tokens, summing to 1; zero elsewhere")

TOP_K_RENORM_PROB = Operator(
    name="top_k_renorm_prob",
    family="renorm",
    summary="Keep the top_k most probable tokens of each row and renormalise. k <= 0 and k >= V mean no filter.",
    arguments=(
        _PROBS,
        Argument("top_k", ("B",), ("int32", "int64"), "tokens to keep, one for all rows or one a row", scalar="int"),
    ),
    returns=(_OUT,),
    variants=("threshold", "exact-k"),
    refusals=(
        "probs that is not two-dimensional",
        "top_k tensor whose length is neither 1 nor B",
    ),
    source="flashinfer sampling.top_k_renorm_probs; sglang/kernels/ops/sampling/renorm.py",
)

TOP_P_RENORM_PROB = Operator(
    name="top_p_renorm_prob",
    family="renorm",
    summary="Keep the most probable tokens whose mass reaches top_p, at least one, and renormalise. "
    "top_p >= 1 is the identity up to normalisation.",
    arguments=(
        _PROBS,
        Argument(
            "top_p", ("B",), ("float32",), "mass to keep in (0, 1], one for all rows or one a row", scalar="float"
        ),
    ),
    returns=(_OUT,),
    variants=("threshold", "exact-p"),
    refusals=(
        "probs that is not two-dimensional",
        "scalar top_p that is NaN or not above 0",
        "top_p tensor whose length is neither 1 nor B",
    ),
    source="Holtzman et al., arXiv 1904.09751; flashinfer sampling.top_p_renorm_probs",
)

TARGET_PROBS = Operator(
    name="target_probs",
    family="renorm",
    summary="softmax(logits / temperature), then top-k, then top-p, renormalised between: the law that the verifier of "
    "speculative decoding draws from. The dense path filters probabilities, the sparse path takes the top-k logits.",
    arguments=(
        Argument("logits", ("B", "V"), ("float32", "bfloat16", "float16"), "target logits; -inf masks a token"),
        Argument("temperature", ("B",), ("float32",), "softmax temperature above 0"),
        Argument("top_k", ("B",), ("int32", "int64"), "as in top_k_renorm_prob"),
        Argument("top_p", ("B",), ("float32",), "as in top_p_renorm_prob"),
        Argument("path", (), (), "'dense' or 'sparse'", scalar="str"),
    ),
    returns=(_OUT,),
    variants=("threshold", "exact-k", "any-k"),
    refusals=("a path that is neither 'dense' nor 'sparse'",),
    source="sglang/srt/speculative/dflash_utils.py build_speculative_verify_target_probs",
)

OPERATORS = (TOP_K_RENORM_PROB, TOP_P_RENORM_PROB, TARGET_PROBS)
