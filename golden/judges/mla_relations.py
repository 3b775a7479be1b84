"""Relations of family ``mla`` that hold to the bit, or within the bounds of the parts that are put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from waveproof.golden.judges.conformance import Outputs, attention_bounds
from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.judges.mla import judge_within
from waveproof.golden.references.mla import reference
from waveproof.golden.references.mla_merge import merge
from waveproof.kernels.operators.contract import Call


def judge_parts(parts: Sequence[Outputs], whole: Outputs, call: Call, variant: str) -> Judgement:
    """Whether attention to a first and to the other keys, merged in float64, is attention to all of them.

    The merged output carries the error of a part, and its LSE as weights: within three times the bound of one result.
    """
    (out_a, lse_a), (out_b, lse_b) = parts
    merged, lse = merge(out_a, lse_a, out_b, lse_b)
    expected = reference(call, variant)
    bounds = attention_bounds(expected, call, variant)
    slack = 2.0 * bounds.lse[..., None] * (merged.abs() + expected.spread)
    due = judge_within(
        "parts merge to the whole",
        whole[0],
        merged,
        3.0 * bounds.output + slack,
        "three bounds of one result and 2 |lse error| (|o| + spread)",
    )
    if not due.holds:
        return due
    return judge_within("LSE of parts merge to the whole", whole[1], lse, 3.0 * bounds.lse, "three bounds of one LSE")


def judge_exact_multiple(first: Outputs, second: Outputs, factor: float, calls: tuple[Call, Call]) -> Judgement:
    """Whether the second output is ``factor`` (a power of two) times the first, and the LSE the same, to the bit."""
    rule = "exact multiple"
    for at, (before, after, times) in enumerate(zip(first, second, (factor, 1.0), strict=False)):  # LSE may be omitted
        due = before.double() * times
        differ = (after.double() != due) & ~(after.isnan() & due.isnan())
        if differ.any():
            index = tuple(int(i) for i in torch.nonzero(differ)[0])
            return Judgement(
                rule,
                False,
                float(differ.sum()),
                unit="values that differ",
                message=f"latents times {factor:g} and sm_scale by {factor:g} must give {factor:g} times the output "
                f"and the same LSE; {int(differ.sum())} values of {('the output', 'the LSE')[at]} differ",
                index=index,
                expected=f"{float(due[index]):.9g}",
                got=f"{float(after[index]):.9g}",
                demonstration=Demonstration("values", (calls[1],), due, due, output=at),
            )
    return Judgement(rule, True)


def judge_codes(output: torch.Tensor, call: Call) -> Judgement:
    """Whether a request of one token gets that token's values: each code times the scale, rounded once.

    The product with the scale and the division by the sum (1) may round: two neighbours in the output's dtype pass.
    """
    expected = reference(call).output
    bound = expected.abs() * (2.0**-7 if output.dtype is torch.bfloat16 else 2.0**-10)
    return judge_within(
        "codes of the cache",
        output,
        expected,
        bound,
        "one step of the output's dtype",
        Demonstration("values", (call,), expected - bound, expected + bound),
    )
