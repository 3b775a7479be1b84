"""Judge attention outputs and their LSE against float64: each element, each head's scale and norm, and the LSE.

The error model is of a kernel that multiplies 16-bit inputs exactly and adds in float32 in any order, computes the
softmax in float32 with a maximum that may grow, rounds the weights to a narrow type before they meet V, divides by the
sum of the weights *as they were before that*, and rounds the output once. With ``u`` the most that one float32
operation may be off (relative; ``2**-23``: how matrix units round is not documented, so truncation is allowed for) and
``g(n) = n u / (1 - n u)`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1):

- a product of two bf16 values has 16 bits and is exact in float32;
- a score, its scale and the factor log2(e) are off by ``s = g(D + 4) * magnitude``, D being the head size and magnitude
  the largest ``scale * sum |q_d k_d|``;
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

**Whole heads.** What is allowed for one element is what it takes when all roundings conspire: on a long context it is
more than the output itself, and a 1 % scale error hides in it. Roundings of *different keys* do not conspire: they are
independent, or nearly so, with mean zero (the probabilistic model of Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019,
whose growth factor is ``l sqrt(n) u`` for n u). So for each head of each query two more figures are judged, relative to
the norm of that head's own output o; weights are p_j, values v_j, and ``l`` = 8:

- *head norm*: ``|got - o| / |o|``. Errors of weights move the output by ``sum e_j p_j v_j`` with independent
  ``|e_j| <= p + 2 s'``; by Pinelis' inequality for sums in a Hilbert space its norm stays below
  ``l (p + 2 s') sqrt(sum p_j^2 |v_j|^2)`` but for a probability of ``2 exp(-l^2 / 2) = 2.5e-14``. Sums of n terms add
  ``l sqrt(n) u |spread|``, the output's rounding adds its unit roundoff times ``|o|``.
- *head scale*: ``<got - o, o> / |o|^2``, by Hoeffding's inequality with ``<v_j, o>`` in the place of ``v_j``; the
  output's roundings are independent as well: ``l u_out sqrt(sum o_d^4) / |o|^2``. The mean over the queries of a batch
  is judged too, for each head and for all heads (which round independently of each other), against the same figure
  with its independent part smaller by the root of their number.

What stays below the rounding of the weights in one head, such as an exponential good to 1e-3 only, is seen by the LSE
or not at all. Weights that are truncated to q's type instead of rounded lose half a step on average: that is rejected.

``s'`` is s with ``l sqrt(D + 4)`` for D + 4. Errors that all keys share (the sum, the scale factor, the merge of
splits) are added in full. The LSE is judged the same way: by Hoeffding it is off by ``l s' sqrt(sum p_j^2)``, not by s.
A run judges fewer than 10^6 heads by at most six such terms each: 2e-7 false alarms a run under the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.references.mla import HEAD_SIZE, Attended

FLOAT32_STEP = 2.0**-23
UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
"""Of round to nearest: half the distance of neighbours, relative."""
HALF_STEP = {torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25, torch.float32: 2.0**-150}
"""Half the distance of neighbours below the smallest normal number, absolute."""
DEVIATIONS = 8.0
"""``l`` of the model."""
HEAD_NORM, HEAD_SCALE = "head norm", "head scale"


@dataclass(frozen=True)
class Bounds:
    """Largest legal errors."""

    output: torch.Tensor
    """float64[queries, heads, D], absolute."""
    lse: torch.Tensor
    """float64[queries, heads], absolute."""
    derivation: str
    norm: torch.Tensor
    """float64[queries, heads]: of ``|got - o|``."""
    scale_shared: torch.Tensor
    """float64[queries, heads]: of ``<got - o, o> / |o|^2``, the part that queries may have in common."""
    scale_own: torch.Tensor
    """float64[queries, heads]: the part that is independent from query to query."""


def error_bounds(
    expected: Attended,
    output: torch.dtype,
    weights: torch.dtype = torch.bfloat16,
    splits: int = 1,
    head_size: int = HEAD_SIZE,
) -> Bounds:
    """The bounds of the module's docstring.

    Args:
        expected: the reference.
        output: dtype of the output.
        weights: dtype in which the weights meet V.
        splits: parts of the KV that are merged.
        head_size: numbers of a key.
    """
    count = expected.visible[:, None].double()
    score = _growth(torch.tensor(head_size + 4.0)) * expected.magnitude
    lse = score + _growth(count + 8) + 8 * FLOAT32_STEP * _finite(expected.lse).abs().clamp(min=1)
    merging = 2 * lse if splits > 1 else torch.zeros_like(lse)
    rounded, last = UNIT_ROUNDOFF[weights], UNIT_ROUNDOFF[output]
    factor = (2 * score + merging).exp() * (1 + _growth(4 * count + 16)) * (1 + rounded) * (1 + _growth(count))
    before = (factor[..., None] - 1) * expected.spread

    square, size = _square(expected), expected.output.norm(dim=-1)
    spread = expected.spread.norm(dim=-1)
    likely = torch.minimum(score, _likely(torch.tensor(head_size + 4.0)) * expected.magnitude)
    averaged = likely * (DEVIATIONS * expected.concentration).clamp(max=1.0)
    likely_lse = averaged + _likely(count + 8) + 8 * FLOAT32_STEP * _finite(expected.lse).abs().clamp(min=1)
    whole_sum = _likely(4 * count + 16)
    parts = 2 * likely_lse * spread if splits > 1 else torch.zeros_like(lse)
    products = _likely(count) * spread
    each = rounded + 2 * likely
    return Bounds(
        before + last * (expected.output.abs() + before) + HALF_STEP[output],
        torch.minimum(lse, likely_lse),
        f"(e^(2s) (1+g(4n+16)) (1+{rounded:.3g}) (1+g(n)) - 1) sum p|v| + {last:.3g} |o|, "
        f"s = g({head_size + 4}) scale sum |q k|, g(n) = n u/(1-n u), u = 2^-23 (golden/judges/mla.py)",
        each * torch.minimum(DEVIATIONS * expected.value_norm, expected.mean_norm)
        + averaged * size
        + whole_sum * size
        + parts
        + products
        + last * size,
        whole_sum + parts / square.sqrt(),
        each * torch.minimum(DEVIATIONS * expected.value_along, expected.mean_along) / square
        + averaged
        + _likely(count) * (expected.spread * expected.output).norm(dim=-1) / square
        + DEVIATIONS * last * expected.output.square().norm(dim=-1) / square,
    )


def judge_attention(output: torch.Tensor, expected: Attended, bounds: Bounds) -> Judgement:
    """Whether every element of [queries, heads, D] is within its bound; NaN never is."""
    return judge_within("attention output", output, expected.output, bounds.output, bounds.derivation)


def judge_lse(lse: torch.Tensor, expected: Attended, bounds: Bounds) -> Judgement:
    """Whether every natural LSE of [queries, heads] is within its bound, -inf where no key is seen; NaN never is."""
    derivation = (
        "8 s' sqrt(sum p^2) + 8 sqrt(n+8) u + 8u max(1, |lse|), s' = 8 sqrt(580) u scale sum |q k|, u = 2^-23 "
        "(golden/judges/mla.py)"
    )
    judgement = judge_within("natural LSE", lse, expected.lse, bounds.lse, derivation)
    if judgement.holds or lse.shape != expected.lse.shape:
        return judgement
    finite = expected.lse.isfinite() & (expected.lse.abs() > 0.1)
    ratio = (lse.double() / expected.lse)[finite]
    if len(ratio) and bool(((ratio - math.log2(math.e)).abs() < 1e-3).all()):
        return replace(
            judgement, message=f"{judgement.message}: all are 1.4427 times what is due, logarithms to base 2"
        )
    return judgement


def judge_heads(output: torch.Tensor, expected: Attended, bounds: Bounds) -> list[Judgement]:
    """Norm of each head's error and scale of each head, of each query and in the mean of all queries.

    A head whose output is zero (no key, or only zeros) has no scale of its own: the elements' bounds judge it.
    """
    if not output.numel():
        return [Judgement(HEAD_NORM, True), Judgement(HEAD_SCALE, True)]
    error = output.double() - expected.output
    size = expected.output.norm(dim=-1)
    live = size > 0
    norm = torch.where(live, error.norm(dim=-1) / size, 0.0)
    model = "golden/judges/mla.py, whole heads"
    judgements = [
        _worst(
            HEAD_NORM, norm, torch.where(live, bounds.norm / size, 1.0), model, "of the head's norm", output, expected
        )
    ]
    scale = torch.where(live, (error * expected.output).sum(-1) / _square(expected), 0.0)
    own, shared = (torch.where(live, part, 1.0) for part in (bounds.scale_own, bounds.scale_shared))
    judgements.append(
        _worst(HEAD_SCALE, scale.abs(), own + shared, model, "relative to the head's scale", output, expected)
    )
    queries = live.sum(0).clamp(min=1)
    mean = torch.where(live, scale, 0.0).sum(0) / queries
    own_mean = torch.where(live, bounds.scale_own, 0.0).square().sum(0).sqrt() / queries
    shared_mean = torch.where(live, bounds.scale_shared, 0.0).sum(0) / queries
    some = live.any(0)
    allowed = torch.where(some, own_mean + shared_mean, 1.0)
    each = "of a head's scale, mean of all queries"
    judgements.append(_worst(HEAD_SCALE, mean.abs()[None], allowed[None], model, each))
    count = live.sum().clamp(min=1)
    every = torch.where(live, scale, 0.0).sum() / count
    own_every = torch.where(live, bounds.scale_own, 0.0).square().sum().sqrt() / count
    shared_every = torch.where(live, bounds.scale_shared, 0.0).sum() / count
    limit = torch.where(live.any(), own_every + shared_every, 1.0)
    judgements.append(
        _worst(HEAD_SCALE, every.abs()[None, None], limit[None, None], model, "of the scale of all heads")
    )
    return judgements


def judge_within(
    rule: str,
    got: torch.Tensor,
    want: torch.Tensor,
    bound: torch.Tensor,
    derivation: str,
    demonstration: Demonstration | None = None,
) -> Judgement:
    """Whether every element of ``got`` is within ``bound`` of float64 ``want``; NaN never is, equal infinities are.

    Args:
        rule: name of the rule.
        got: any shape.
        want: float64, the same shape.
        bound: float64, the same shape, absolute.
        derivation: where the bound comes from.
        demonstration: what shows a breach.
    """
    if got.shape != want.shape:
        return Judgement(rule, False, 1.0, message=f"shape {list(got.shape)} where {list(want.shape)} is due")
    if not got.numel():
        return Judgement(rule, True)
    error = torch.where(got.double() == want, 0.0, (got.double() - want).abs())  # equal infinities are no error
    ratio = torch.where(error.isnan(), torch.inf, torch.where(error == 0, 0.0, error / bound))
    worst = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), ratio.shape))
    figure, limit = float(error[index]), float(bound[index])
    if float(ratio[index]) <= 1:
        return Judgement(rule, True, figure, limit, "absolute", derivation)
    bad = ratio > 1
    first = tuple(int(i) for i in torch.nonzero(bad)[0])
    return Judgement(
        rule,
        False,
        figure,
        limit,
        "absolute",
        derivation,
        f"{int(bad.sum())} of {ratio.numel()} elements are outside their bounds",
        first,
        f"{float(want[first]):.9g}",
        f"{float(got[first]):.9g}",
        demonstration,
    )


def judge_all(output: torch.Tensor, expected: Attended, bounds: Bounds) -> list[Judgement]:
    """Elements, then heads, in the order in which a reader wants to know of them."""
    return [judge_attention(output, expected, bounds), *judge_heads(output, expected, bounds)]


def _square(expected: Attended) -> torch.Tensor:
    """Squared norm of each head's output; 1 where it is 0, which is never used."""
    square = expected.output.square().sum(-1)
    return torch.where(square > 0, square, 1.0)


def _finite(lse: torch.Tensor) -> torch.Tensor:
    return torch.where(lse.isfinite(), lse, 0.0)


def _growth(operations: torch.Tensor) -> torch.Tensor:
    """Higham's gamma of that many float32 operations."""
    return operations * FLOAT32_STEP / (1 - operations * FLOAT32_STEP)


def _likely(operations: torch.Tensor) -> torch.Tensor:
    """The same with the root of the number of operations, of Higham and Mary, and never more than gamma."""
    return torch.minimum(DEVIATIONS * operations.sqrt() * FLOAT32_STEP, _growth(operations))


def _worst(
    rule: str,
    figure: torch.Tensor,
    bound: torch.Tensor,
    derivation: str,
    unit: str,
    output: torch.Tensor | None = None,
    expected: Attended | None = None,
) -> Judgement:
    """The head whose figure takes the largest share of its bound."""
    ratio = torch.where(figure.isnan(), torch.inf, figure / bound)
    at = int(ratio.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), ratio.shape))
    value, limit = float(figure[index]), float(bound[index])
    if float(ratio[index]) <= 1.0:
        return Judgement(rule, True, value, limit, unit, derivation)
    heads = sorted(set(torch.nonzero(ratio > 1)[:, 1].tolist()))
    named = ", ".join(map(str, heads[:8])) + (", ..." if len(heads) > 8 else "")
    message = f"{int((ratio > 1).sum())} of {ratio.numel()} heads of all queries are off: heads {named}"
    want = got = ""
    if output is not None and expected is not None:
        want, got = (
            f"norm {float(expected.output[index].norm()):.6g}",
            f"norm {float(output[index].double().norm()):.6g}",
        )
    return Judgement(
        rule, False, value if math.isfinite(value) else math.inf, limit, unit, derivation, message, index, want, got
    )
