"""Judge attention outputs and their LSE against float64, each element by a bound that is derived for it.

The error model is of a kernel that multiplies 16-bit inputs exactly and adds in float32 in any order, computes the
softmax in float32 with a maximum that may grow, rounds the weights to a narrow type before they meet V, divides by the
sum of the weights *as they were before that*, and rounds the output once. With ``u`` the most that one float32
operation may be off (relative; ``2**-23``: how matrix units round is not documented, so truncation is allowed for) and
``g(n) = n u / (1 - n u)`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1):

- a product of two bf16 values has 16 bits and is exact in float32;
- a score, its scale and the factor log2(e) are off by ``s = g(576 + 4) * magnitude``, magnitude being the largest
  ``scale * sum |q_d k_d|``;
- a weight relative to the sum of weights is off by ``w``: a factor ``e**(2 s)`` for the scores above and below the
  line, and ``g(4 n + 16)`` for n exponentials, their rescalings, the sum, and the division;
- rounding a weight to a type of unit roundoff ``p`` changes it by the factor ``1 + p``; adding n products costs
  ``g(n)``. So an output element is off by ``(e**(2 s) (1 + g(4 n + 16)) (1 + p) (1 + g(n)) - 1) * spread``, spread
  being the mean of ``|v|`` under the weights;
- the output's own rounding adds its unit roundoff times what the output may be;
- LSE is off by ``s + g(n + 8) + 8 u max(1, |lse|)``: the score, the sum of n positive terms, logarithm, product with
  ln 2 and the sum with the maximum.

Were the sum taken of the rounded weights, LSE would be off by up to ``p``; it is held to float32 on its own, so that
the sum before rounding is the one to allow for. Merging the parts of a split KV puts two more exponentials of an LSE
in the weights, each off by as much as an LSE is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.references.mla import HEAD_SIZE, Attended

FLOAT32_STEP = 2.0**-23
UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
"""Of round to nearest: half the distance of neighbours, relative."""


@dataclass(frozen=True)
class Bounds:
    """Largest legal absolute errors."""

    output: torch.Tensor
    """float64[queries, heads, 512]."""
    lse: torch.Tensor
    """float64[queries, heads]."""
    derivation: str


def error_bounds(
    expected: Attended, output: torch.dtype, weights: torch.dtype = torch.bfloat16, splits: int = 1
) -> Bounds:
    """The bounds of the module's docstring.

    Args:
        expected: the reference.
        output: dtype of the output.
        weights: dtype in which the weights meet V.
        splits: parts of the KV that are merged.
    """
    count = expected.visible[:, None].double()
    score = _growth(torch.tensor(HEAD_SIZE + 4.0)) * expected.magnitude
    lse = score + _growth(count + 8) + 8 * FLOAT32_STEP * expected.lse.abs().clamp(min=1)
    merging = 2 * lse if splits > 1 else torch.zeros_like(lse)
    rounded = UNIT_ROUNDOFF[weights]
    factor = (2 * score + merging).exp() * (1 + _growth(4 * count + 16)) * (1 + rounded) * (1 + _growth(count))
    before = (factor[..., None] - 1) * expected.spread
    last = UNIT_ROUNDOFF[output]
    return Bounds(
        before + last * (expected.output.abs() + before),
        lse,
        f"(e^(2s) (1+g(4n+16)) (1+{rounded:.3g}) (1+g(n)) - 1) sum p|v| + {last:.3g} |o|, s = g(580) scale sum |q k|, "
        "g(n) = n u/(1-n u), u = 2^-23 (golden/judges/mla.py)",
    )


def judge_attention(output: torch.Tensor, expected: Attended, bounds: Bounds) -> Judgement:
    """Whether every element of [queries, heads, 512] is within its bound; NaN never is."""
    return _judge("attention output", output, expected.output, bounds.output, bounds.derivation)


def judge_lse(lse: torch.Tensor, expected: Attended, bounds: Bounds) -> Judgement:
    """Whether every natural LSE of [queries, heads] is within its bound; NaN never is."""
    derivation = "s + g(n+8) + 8u max(1, |lse|), s = g(580) scale sum |q k|, u = 2^-23 (golden/judges/mla.py)"
    return _judge("natural LSE", lse, expected.lse, bounds.lse, derivation)


def _growth(operations: torch.Tensor) -> torch.Tensor:
    """Higham's gamma of that many float32 operations."""
    return operations * FLOAT32_STEP / (1 - operations * FLOAT32_STEP)


def _judge(rule: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor, derivation: str) -> Judgement:
    if got.shape != want.shape:
        return Judgement(rule, False, 1.0, message=f"shape {list(got.shape)} where {list(want.shape)} is due")
    error = (got.double() - want).abs()
    ratio = torch.where(error.isnan(), torch.inf, error / bound)
    worst = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), ratio.shape))
    figure, limit = float(error[index]), float(bound[index])
    if float(ratio[index]) <= 1:
        return Judgement(rule, True, figure, limit, "absolute", derivation)
    wrong = int((ratio > 1).sum())
    return Judgement(
        rule,
        False,
        figure,
        limit,
        "absolute",
        derivation,
        f"{wrong} of {ratio.numel()} elements are outside their bounds",
        index,
        f"{float(want[index]):.9g}",
        f"{float(got[index]):.9g}",
    )
