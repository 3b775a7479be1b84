"""Each output of a call in float64, and how far the reference itself may be off: what goldens store and must not move.

Error models are those of the judges with float64's unit roundoff, 2^-53, in the place of float32's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from waveproof.golden.references import mla, mla_merge, renorm
from waveproof.kernels.operators.contract import Call, Operator

ROUNDOFF = 2.0**-53
FLOAT64_TO_FLOAT32 = 2.0**-29
"""Ratio of the unit roundoffs, 2^-53 to 2^-24."""


@dataclass(frozen=True)
class Exact:
    """One output."""

    value: torch.Tensor
    """float64."""
    own_error: torch.Tensor
    """float64 of the same shape: most that the reference may be off, absolute."""


def reference_outputs(call: Call, variant: str) -> tuple[Exact, ...]:
    """All outputs of a call, in the order of the operator's returns.

    Raises:
        KeyError: an operator without a float64 reference (see :func:`distinct_variants`).
    """
    return _REFERENCES[call.operator](call, variant)


def distinct_variants(operator: Operator) -> tuple[str, ...]:
    """The variants under which the reference gives values of their own; none where it has no values.

    Variants of attention differ in the errors that they allow, and not in the value that is due.
    """
    if operator.name not in _REFERENCES:
        return ()  # padded heads and verified tokens are judged one by one: no number is computed
    return operator.variants[:1] if operator.family == "mla" else operator.variants


def _renormed(call: Call, variant: str) -> tuple[Exact, ...]:
    expected = renorm.reference(call, variant)
    return (Exact(expected.value, FLOAT64_TO_FLOAT32 * expected.tolerance * expected.value),)


def _attended(call: Call, variant: str) -> tuple[Exact, ...]:
    head_size = call.tensor("q").shape[-1]
    expected = mla.reference(call, variant)
    count = expected.visible[:, None].double()
    score = (head_size + 4) * ROUNDOFF * expected.magnitude
    lse = score + (count + 8) * ROUNDOFF + _last(expected.lse)
    return Exact(expected.output, mla.own_error(expected, head_size)), Exact(expected.lse, lse)


def _merged(call: Call, variant: str) -> tuple[Exact, ...]:
    sides = [call.tensor(name) for name in mla_merge.SIDES]
    out, lse = mla_merge.merge(*sides)
    # Beside what a kernel rounds, the sum of the two sides, which the judge counts as the output's own rounding.
    error = mla_merge.weight_error(*sides, step=ROUNDOFF, roundings=mla_merge.WEIGHT_ROUNDINGS + 1)
    return Exact(out, error), Exact(lse, _last(lse))


def _last(lse: torch.Tensor) -> torch.Tensor:
    """Of the logarithm and what follows it."""
    return 8 * ROUNDOFF * torch.where(lse.isfinite(), lse.abs(), 0.0).clamp(min=1.0)


_REFERENCES: dict[str, Callable[[Call, str], tuple[Exact, ...]]] = {
    "top_k_renorm_prob": _renormed,
    "top_p_renorm_prob": _renormed,
    "target_probs": _renormed,
    "mla_decode": _attended,
    "mla_prefill_absorbed": _attended,
    "mla_extend": _attended,
    "mla_prefill": _attended,
    "merge_state": _merged,
}
