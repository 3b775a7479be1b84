"""Judge merged attention states and padded heads.

**Merge.** Weights are ``e**(lse_x - lse)``, relative to their sum off by ``6 u + 4 u max |lse|``: the difference of two
LSE (each an exact input) rounds once, relative to the larger of them, the exponential and its factor log2(e) a few
times, then sum, division and product, with ``u = 2**-23`` as in :mod:`waveproof.golden.judges.mla`. An element is off
by that share of ``w_a |a| + w_b |b|``, and by the rounding of the output. LSE is off by ``8 u max(1, |lse|)``.

**Padding** moves values and computes none: it is judged bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.golden.judges.mla import FLOAT32_STEP, HALF_STEP, UNIT_ROUNDOFF, judge_within
from waveproof.golden.references.mla_merge import SIDES, merge, weight_error
from waveproof.golden.references.padded_heads import padded_heads, unpadded_heads
from waveproof.kernels.operators.contract import Call

MERGED, MERGED_LSE, PADDED = "merged output", "merged LSE", "padded heads"


def judge_merged(outputs: Sequence[torch.Tensor], call: Call, variant: str = "") -> list[Judgement]:
    """Merged output and LSE of a call of ``merge_state``."""
    sides = [call.tensor(name) for name in SIDES]
    dtype = sides[0].dtype
    expected, lse = merge(*sides)
    bound = weight_error(*sides, step=FLOAT32_STEP) + UNIT_ROUNDOFF[dtype] * expected.abs() + HALF_STEP[dtype]
    bound_lse = 8.0 * FLOAT32_STEP * torch.where(lse.isfinite(), lse.abs(), 0.0).clamp(min=1.0)
    derivation = "(6 + 4 max|lse|) u (w_a|a| + w_b|b|) + u_out |o|, u = 2^-23 (golden/judges/mla_merge.py)"
    return [
        judge_within(
            MERGED,
            outputs[0],
            expected,
            bound,
            derivation,
            Demonstration("values", (call,), expected - bound, expected + bound),
        ),
        judge_within(
            MERGED_LSE,
            outputs[1],
            lse,
            bound_lse,
            "8 u max(1, |lse|) (golden/judges/mla_merge.py)",
            Demonstration("values", (call,), lse - bound_lse, lse + bound_lse, output=1),
        ),
    ]


def judge_heads_moved(outputs: Sequence[torch.Tensor], call: Call, variant: str = "") -> list[Judgement]:
    """Result of a call of ``pad_heads`` or ``unpad_heads``, bit by bit."""
    x, mode = call.tensor("x"), str(call.arguments["mode"])
    if call.operator == "pad_heads":
        due = padded_heads(x, int(call.number("target")), mode)
    else:
        due = unpadded_heads(x, int(call.number("heads")), mode)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.itemsize]
    differ = outputs[0].contiguous().view(kind) != due.contiguous().view(kind)
    if not differ.any():
        return [Judgement(PADDED, True)]
    index = tuple(int(i) for i in torch.nonzero(differ)[0])
    values = due.double()
    return [
        Judgement(
            PADDED,
            False,
            float(differ.sum()),
            unit="values that differ",
            message=f"{int(differ.sum())} of {differ.numel()} values are not those of the head that is due, "
            f"the first in head {index[1]}",
            index=index,
            expected=f"{float(values[index]):.9g}",
            got=f"{float(outputs[0][index]):.9g}",
            demonstration=Demonstration("values", (call,), values, values),
        )
    ]
