"""Where stored goldens and float64 disagree.

The reference is computed afresh from the stored inputs, so a diff tries three things at once: what an implementation
once gave, the reference as it is now, and, for stored goldens of the reference itself, that it has not moved. What an
implementation may be off is for the judges of its operator to say, the same that judge a conformance run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from waveproof.golden.capture import REFERENCE
from waveproof.golden.judges.conformance import Form, Outputs, forms, judge_forms, judge_outputs
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.manifest import Golden
from waveproof.golden.references import renorm as renorm_reference
from waveproof.golden.references.outputs import Exact, reference_outputs
from waveproof.golden.store import GoldenStore, StoredGolden
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.registry import operator_named


@dataclass(frozen=True)
class Disagreement:
    """One rule that a stored golden breaks."""

    rule: str
    index: tuple[int, ...] | None
    """Where it is broken first."""
    expected: str
    """Legal interval, or what is due in words."""
    got: str
    message: str


@dataclass(frozen=True)
class Comparison:
    """One stored golden held against float64."""

    golden: Golden
    severity: float
    """Worst error of a value in units of its bound; above 1 is a breach."""
    disagreements: tuple[Disagreement, ...]


def compare_store(store: GoldenStore) -> Iterator[Comparison]:
    """Hold every golden of a store against the reference of its operator.

    Raises:
        BadManifest, TamperedGolden: the store is not in order.
    """
    for entry in store.entries():
        yield compare(store.load(entry.golden.id))


def compare(stored: StoredGolden) -> Comparison:
    """Hold one golden against its reference: every output that it has."""
    golden, call, outputs = stored.golden, stored.call, stored.outputs
    broken = [judgement for judgement in judge_forms(outputs, _due(stored), call) if not judgement.holds]
    if broken:
        return Comparison(golden, math.inf, tuple(map(_from_judgement, broken)))
    if golden.provider == REFERENCE:
        return _against_itself(golden, outputs, reference_outputs(call, golden.variant))
    beyond = _BEYOND.get(operator_named(golden.operator).family)
    found = beyond(outputs, call, golden.variant) if beyond else []
    judgements = judge_outputs(outputs, call, golden.variant)
    found += [_from_judgement(judgement) for judgement in judgements if not judgement.holds]
    return Comparison(golden, max(map(_severity, judgements), default=0.0), tuple(found))


def _due(stored: StoredGolden) -> list[Form]:
    """Forms of the outputs that the golden has; those of the reference are float64."""
    names = [item.name for item in operator_named(stored.golden.operator).returns]
    due = [form for name, form in zip(names, forms(stored.call), strict=True) if name in stored.golden.outputs]
    if stored.golden.provider == REFERENCE:
        return [(shape, torch.float64) for shape, _ in due]
    return due


def _legal_interval(outputs: Outputs, call: Call, variant: str) -> list[Disagreement]:
    """Whether each element lies in its legal interval; NaN lies in none."""
    expected = renorm_reference.reference(call, variant)
    got, low, high = outputs[0].double(), expected.low, expected.high
    outside = ~((got >= low) & (got <= high)) & ~(torch.isnan(got) & torch.isinf(high))
    if not outside.any():
        return []
    index = _first(outside)
    return [
        Disagreement(
            "legal interval",
            index,
            f"[{low[index].item():.9g}, {high[index].item():.9g}]",
            f"{got[index].item():.9g}",
            f"{int(outside.sum())} of {outside.numel()} elements lie outside, the first by "
            f"{max(low[index].item() - got[index].item(), got[index].item() - high[index].item()):.3g}",
        )
    ]


_BEYOND: dict[str, Callable[[Outputs, Call, str], list[Disagreement]]] = {"renorm": _legal_interval}
"""What a diff of a family shows beyond what its judges say."""


def _against_itself(golden: Golden, outputs: Outputs, expected: tuple[Exact, ...]) -> Comparison:
    """Whether the reference gives what it once gave; both may be off by its own error."""
    severity, found = 0.0, []
    for name, output, exact in zip(golden.outputs, outputs, expected, strict=True):
        value, bound = exact.value, 2.0 * exact.own_error
        same = (output == value) | (torch.isnan(output) & torch.isnan(value))
        error = torch.where(same, 0.0, (output - value).abs())
        moved = ~(error <= bound) & ~same
        ratio = torch.where(same, 0.0, error / bound)
        severity = max(severity, ratio.nan_to_num(nan=math.inf).max().item() if ratio.numel() else 0.0)
        if moved.any():
            index = _first(moved)
            low, high = (value[index] - bound[index]).item(), (value[index] + bound[index]).item()
            found.append(
                Disagreement(
                    "reference unmoved",
                    index,
                    f"[{low:.17g}, {high:.17g}]",
                    f"{output[index].item():.17g}",
                    f"{int(moved.sum())} of {moved.numel()} elements of the stored {name} are not what the reference "
                    "gives now",
                )
            )
    return Comparison(golden, severity, tuple(found))


def _severity(judgement: Judgement) -> float:
    """Infinite where the figure is NaN, as the error of a NaN is."""
    return math.inf if math.isnan(judgement.severity) else judgement.severity


def _from_judgement(judgement: Judgement) -> Disagreement:
    return Disagreement(judgement.rule, judgement.index, judgement.expected, judgement.got, judgement.message)


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.nonzero(mask)[0])
