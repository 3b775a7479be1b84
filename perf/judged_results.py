"""Results of any operator held to float64, before anything of the call is counted or timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waveproof.golden.judges.conformance import forms, judge_forms, judge_outputs
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Implementation
from waveproof.perf.figures_renorm import WrongResult


def judge_results(outputs: Sequence[Any], call: Call, implementation: Implementation) -> list[Judgement]:
    """Form of what an implementation gave, then values; of results whose form is wrong no values are judged.

    Args:
        outputs: in the order of the contract, without those that the implementation omits.
        call: what was asked.
        implementation: who gave them; values are held to the variant that it has on the call's path.
    """
    named = zip(implementation.contract.returns, forms(call), strict=True)
    due = [form for result, form in named if result.name not in implementation.omits]
    judgements = judge_forms(outputs, due, call)
    if all(one.holds for one in judgements):
        path = call.arguments.get("path")
        variant = implementation.variant_of(path) if isinstance(path, str) else implementation.variant
        judgements += judge_outputs(outputs, call, variant)
    return judgements


def require_right(outputs: Sequence[Any], call: Call, implementation: Implementation) -> float:
    """Largest error of a call's results as a share of its bound.

    Raises:
        WrongResult: they are not what float64 gives, or not of the contract's shapes and dtypes.
    """
    judgements = judge_results(outputs, call, implementation)
    for one in judgements:
        if not one.holds:
            raise WrongResult(f"{one.rule}: {one.message} ({one.figure:.3g} where {one.bound:.3g} is allowed)")
    return max((one.severity for one in judgements), default=0.0)
