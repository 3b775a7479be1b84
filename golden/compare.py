"""Where stored goldens and float64 disagree.

The reference is computed afresh from the stored inputs, so a diff tries three things at once: what an implementation
once gave, the reference as it is now, and, for stored goldens of the reference itself, that it has not moved.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from waveproof.golden.capture import REFERENCE
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.tolerance import judge_distribution, judge_form
from waveproof.golden.manifest import Golden
from waveproof.golden.store import GoldenStore, StoredGolden
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.registry import operator_named

FLOAT64_TO_FLOAT32 = 2.0**-29
"""Ratio of the unit roundoffs, 2^-53 to 2^-24."""


class Interval(Protocol):
    """What is used of a family's reference: float64 tensors of the output's shape."""

    @property
    def value(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def low(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def high(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def tolerance(self) -> torch.Tensor: ...  # noqa: D102


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


def compare_store(store: GoldenStore, reference: Callable[[Call, str], Interval] | None = None) -> Iterator[Comparison]:
    """Hold every golden of a store against ``reference``, by default the one of its operator's family.

    Raises:
        BadManifest, TamperedGolden: the store is not in order.
    """
    for entry in store.entries():
        stored = store.load(entry.golden.id)
        yield compare(stored, (reference or family_reference)(stored.call, stored.golden.variant))


def family_reference(call: Call, variant: str) -> Any:
    """The float64 reference of the call's operator: ``golden/references/<family>.py:reference``."""
    family = operator_named(call.operator).family
    return importlib.import_module(f"waveproof.golden.references.{family}").reference(call, variant)


def compare(stored: StoredGolden, expected: Interval) -> Comparison:
    """Hold one golden against its reference."""
    golden, output = stored.golden, stored.outputs[0]
    dtype = torch.float64 if golden.provider == REFERENCE else torch.float32
    form = judge_form(output, tuple(expected.value.shape), dtype, stored.call)
    if not form.holds:
        return Comparison(golden, float("inf"), (_from_judgement(form),))
    if golden.provider == REFERENCE:
        return _against_itself(golden, output, expected)
    inside = _inside(output, expected)
    judge = _JUDGES.get(operator_named(golden.operator).family)
    judgements = judge(output, expected, stored.call) if judge else []
    broken = [inside] if inside else []
    broken += [_from_judgement(judgement) for judgement in judgements if not judgement.holds]
    return Comparison(golden, max((judgement.severity for judgement in judgements), default=0.0), tuple(broken))


_JUDGES: dict[str, Callable[[torch.Tensor, Any, Call], list[Judgement]]] = {"renorm": judge_distribution}
"""What a family demands of an output beyond the interval of each element."""


def _inside(output: torch.Tensor, expected: Interval) -> Disagreement | None:
    """Whether each element lies in its legal interval; NaN lies in none."""
    got, low, high = output.double(), expected.low, expected.high
    outside = ~((got >= low) & (got <= high)) & ~(torch.isnan(got) & torch.isinf(high))
    if not outside.any():
        return None
    index = _first(outside)
    return Disagreement(
        "legal interval",
        index,
        f"[{low[index].item():.9g}, {high[index].item():.9g}]",
        f"{got[index].item():.9g}",
        f"{int(outside.sum())} of {outside.numel()} elements lie outside, the first by "
        f"{max(low[index].item() - got[index].item(), got[index].item() - high[index].item()):.3g}",
    )


def _against_itself(golden: Golden, output: torch.Tensor, expected: Interval) -> Comparison:
    """Whether the reference gives what it once gave; both are off by the error model, in float64's roundoff."""
    value = expected.value
    bound = 2.0 * FLOAT64_TO_FLOAT32 * expected.tolerance * value
    error = (output - value).abs()
    moved = ~(error <= bound) & ~(torch.isnan(output) & torch.isnan(value))
    ratio = torch.where(error > 0, error / bound, 0.0)
    severity = ratio.nan_to_num(nan=0.0).max().item() if ratio.numel() else 0.0
    if not moved.any():
        return Comparison(golden, severity, ())
    index = _first(moved)
    low, high = (value[index] - bound[index]).item(), (value[index] + bound[index]).item()
    moved_much = Disagreement(
        "reference unmoved",
        index,
        f"[{low:.17g}, {high:.17g}]",
        f"{output[index].item():.17g}",
        f"{int(moved.sum())} of {moved.numel()} elements of the stored reference are not what it gives now",
    )
    return Comparison(golden, severity, (moved_much,))


def _from_judgement(judgement: Judgement) -> Disagreement:
    return Disagreement(judgement.rule, judgement.index, judgement.expected, judgement.got, judgement.message)


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.nonzero(mask)[0])
