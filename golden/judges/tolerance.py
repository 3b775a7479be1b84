"""Judge a filtered distribution against its reference: kept set, values, sums, form.

Errors are relative to each kept value, never to the largest one or to a constant: public checks of top-p renorm pass an
output of zeros at a vocabulary of 32,000 because they compare with an absolute 1e-3. NaN is outside every tolerance.
"""

from __future__ import annotations

import torch

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.references.renorm import Expected
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.renorm import SMALLEST_NORMAL


def judge_form(
    output: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, call: Call, position: int = 0
) -> Judgement:
    """Whether the output at a position has the contract's shape and dtype."""
    expected = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    got = "nothing"
    if output is not None:
        got = f"{str(output.dtype).removeprefix('torch.')}{list(output.shape)}"
    if got == expected:
        return Judgement("form", True)
    anything = torch.zeros(shape, dtype=torch.float64), torch.full(shape, torch.inf, dtype=torch.float64)
    return Judgement(
        "form",
        False,
        figure=1.0,
        message=f"returned {got} where {expected} is due" + (f" as result {position + 1}" if position else ""),
        expected=expected,
        got=got,
        demonstration=Demonstration("values", (call,), *anything, output=position),
    )


def judge_kept_set(output: torch.Tensor, expected: Expected, call: Call) -> Judgement:
    """Whether exactly the right tokens are kept: certain ones in, impossible ones out, count and tie rule kept.

    A kept token whose reference is below the smallest normal float32 may have been flushed to zero and is not missed.
    """
    rule = "kept set"
    live = ~expected.degenerate[:, None]
    kept = (output > 0) & live
    wrong = live & ~torch.isnan(output) & (((output != 0) & ~expected.possible) | (output < 0))
    visible = expected.value >= 4.0 * SMALLEST_NORMAL
    missing = live & expected.certain & visible & ~kept
    counts = (wrong | missing).sum(-1)
    if counts.any():
        index = _first(wrong | missing)
        is_missing = bool(missing[index])
        row = index[0]
        fewest, most = int(expected.certain[row].sum()), int(expected.possible[row].sum())
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        message = (
            f"row {row} keeps {int(kept[row].sum())} tokens where {number} "
            f"are due; in all rows {int(missing.sum())} are missing and {int(wrong.sum())} are kept wrongly"
        )
        due = f"> 0 (float64: {expected.value[index].item():.9g})" if is_missing else "0 (dropped)"
        return _broken(rule, message, call, index, due, f"{output[index].item():.9g}", expected)
    return _judge_counts(kept, expected, call, rule) or Judgement(rule, True)


def _judge_counts(kept: torch.Tensor, expected: Expected, call: Call, rule: str) -> Judgement | None:
    """Rules on which tokens were chosen inside the band."""
    live = ~expected.degenerate
    count = kept.sum(-1)
    positive = (expected.possible & (expected.weights > 4.0 * SMALLEST_NORMAL)).sum(-1)
    few = live & (count < torch.minimum(expected.fewest, positive))
    many = live & (count > expected.most)
    for bad, word, bound in ((few, "at least", expected.fewest), (many, "at most", expected.most)):
        if bad.any():
            row = int(torch.nonzero(bad)[0])
            return _broken(
                rule,
                f"row {row} keeps {int(count[row])} tokens, {word} {int(bound[row])} are due",
                call,
                (row,),
                f"{word} {int(bound[row])} kept",
                f"{int(count[row])} kept",
                expected,
            )
    # Whatever was chosen inside the band, nothing dropped may outweigh something kept.
    lightest_kept = torch.where(kept, expected.weights, torch.inf).amin(-1) if kept.shape[1] else None
    if lightest_kept is None:
        return None
    dropped = ~kept & (expected.weights > 4.0 * SMALLEST_NORMAL) & expected.possible
    slack = 1.0 - 2.0 * expected.tolerance if not torch.equal(expected.certain, expected.possible) else 1.0
    limit = lightest_kept[:, None]
    outweighs = expected.weights * slack > limit
    if expected.ties_together:
        outweighs = outweighs | (expected.weights == limit)
    bad_tokens = live[:, None] & dropped & outweighs
    if bad_tokens.any():
        index = _first(bad_tokens)
        return _broken(
            rule,
            f"row {index[0]} drops token {index[1]} of weight {expected.weights[index].item():.9g} and keeps one of "
            f"{lightest_kept[index[0]].item():.9g}",
            call,
            index,
            "kept",
            "0 (dropped)",
            expected,
        )
    return None


def judge_values(output: torch.Tensor, expected: Expected, call: Call) -> Judgement:
    """Whether each kept value is its weight's share of the kept mass, within the derived relative error.

    The share is taken of what the implementation itself kept, so a token that lies in the band costs nothing here.
    """
    rule = "kept values"
    live = ~expected.degenerate[:, None]
    got = output.double()
    # A certain token that was flushed to zero still belongs to the mass (it changes it by less than a rounding).
    kept = ((output > 0) | expected.certain) & expected.possible
    weights = torch.where(kept, expected.weights, 0.0)
    share = weights / weights.sum(-1, keepdim=True)
    error = (got - share).abs()
    allowed = expected.tolerance * share + SMALLEST_NORMAL
    ratio = torch.where(live & (kept | torch.isnan(got)), error / allowed, 0.0)
    ratio = torch.where(live & ~torch.isfinite(got), torch.inf, ratio)
    if not ratio.numel():
        return Judgement(rule, True)
    at = int(torch.argmax(ratio))
    index = (at // ratio.shape[1], at % ratio.shape[1])
    relative = (error[index] / (share[index] + SMALLEST_NORMAL)).item()
    bound = (allowed[index] / (share[index] + SMALLEST_NORMAL)).item()
    if ratio[index] <= 1.0:
        return Judgement(rule, True, relative, bound, "relative error", expected.derivation)
    bad = int((ratio > 1.0).sum())
    return Judgement(
        rule,
        False,
        relative if torch.isfinite(got[index]) else float("inf"),
        bound,
        "relative error",
        expected.derivation,
        f"{bad} of {int(kept.sum())} kept values are off, the worst in row {index[0]}",
        _first(ratio > 1.0),
        f"{share[_first(ratio > 1.0)].item():.9g}",
        f"{output[_first(ratio > 1.0)].item():.9g}",
        Demonstration("values", (call,), expected.low, expected.high),
    )


def judge_sums(output: torch.Tensor, expected: Expected, call: Call) -> Judgement:
    """Whether each row sums to 1 within the error that its values may have."""
    rule = "row sums"
    live = ~expected.degenerate
    total = output.double().sum(-1)
    error = torch.where(live, (total - 1.0).abs(), 0.0)
    if not error.numel():
        return Judgement(rule, True)
    error = torch.where(torch.isnan(error), torch.inf, error)
    # A row that is no distribution has no error bound either (NaN logits give a NaN tolerance).
    bound = torch.where(live, expected.tolerance.amax(-1), 1.0)
    row = int(torch.argmax(error / bound))
    figure, limit = error[row].item(), bound[row].item()
    if figure <= limit:
        return Judgement(rule, True, figure, limit, "absolute error of the row sum", expected.derivation)
    return Judgement(
        rule,
        False,
        figure,
        limit,
        "absolute error of the row sum",
        expected.derivation,
        f"row {row} does not sum to 1",
        (row,),
        "1",
        f"{total[row].item():.9g}",
        Demonstration("values", (call,), expected.low, expected.high),
    )


def judge_distribution(output: torch.Tensor, expected: Expected, call: Call) -> list[Judgement]:
    """Kept set, values and sums, in the order in which a reader wants to know of them."""
    return [judge(output, expected, call) for judge in (judge_kept_set, judge_values, judge_sums)]


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.nonzero(mask)[0])


def _broken(
    rule: str,
    message: str,
    call: Call,
    index: tuple[int, ...],
    expected: str,
    got: str,
    bounds: Expected,
) -> Judgement:
    return Judgement(
        rule,
        False,
        figure=1.0,
        message=message,
        index=index,
        expected=expected,
        got=got,
        demonstration=Demonstration("values", (call,), bounds.low, bounds.high),
    )
