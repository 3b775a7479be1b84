"""What a judge says: whether a rule holds, by what figure against what bound, and how to show it to somebody else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from waveproof.kernels.operators.contract import Call

Kind = Literal[
    "values", "head-norm", "head-scale", "same-rows", "raised", "accepted", "incident", "crash", "timeout", "compile"
]


@dataclass(frozen=True)
class Demonstration:
    """Everything that a stand-alone script needs to show the fault again."""

    kind: Kind
    """``values``: an output leaves [low, high]. ``head-norm``, ``head-scale``: the error of a head [T, H, D] of the
    first output has a larger norm than ``high`` [T, H], or a larger part along ``low``, the float64 output, relative to
    it. ``same-rows``: rows of the first and the second call's output must
    have the same bits. ``raised``: the call must not raise. ``accepted``: the call must be refused with a ValueError or
    TypeError. ``incident``: the call writes where it must not, or gives other bits when repeated. ``crash`` and
    ``timeout``: the call takes its process down or does not return. ``compile``: it does not compile, or into something
    that breaks a rule; shown by its figures."""
    calls: tuple[Call, ...]
    low: torch.Tensor | None = None
    """Smallest legal values of the output, float64, its shape."""
    high: torch.Tensor | None = None
    """Largest legal values of the output, float64, its shape."""
    rows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """For ``same-rows``: which rows of the first and of the second call's first output correspond."""
    axis: int = 0
    """For ``same-rows``: the dimension that they are rows of; 1 for heads."""
    output: int = 0
    """Which output ``low`` and ``high`` are of."""
    incident: str = ""
    """For ``incident``: its kind, ``input-changed``, ``out-of-bounds``, ``unrepeatable`` or ``result-reused``."""


@dataclass(frozen=True)
class Judgement:
    """One rule applied to one outcome."""

    rule: str
    """Short name of the rule, e.g. ``kept values``; equal rules are one line in a summary."""
    holds: bool
    figure: float = 0.0
    """What was measured, in ``unit``; for a rule without a measure 0 where it holds and 1 where it does not."""
    bound: float = 0.0
    """What the figure may be at most."""
    unit: str = ""
    derivation: str = ""
    """Where the bound comes from, for a reader of the report."""
    message: str = ""
    """One sentence on what is wrong, empty where the rule holds."""
    index: tuple[int, ...] | None = None
    """Where it is wrong first."""
    expected: str = ""
    got: str = ""
    demonstration: Demonstration | None = None

    @property
    def severity(self) -> float:
        """The figure in units of its bound: above 1 is a breach, infinite where nothing was allowed."""
        if self.bound > 0:
            return self.figure / self.bound
        return math.inf if self.figure > 0 else 0.0


class Nonconformance(AssertionError):
    """A rule does not hold; carries the judgement."""

    def __init__(self, judgement: Judgement) -> None:
        self.judgement = judgement
        super().__init__(explain(judgement))


def explain(judgement: Judgement) -> str:
    """A failure message: the rule, the figure and its bound, the first bad index with expected and got, the input."""
    lines = [f"{judgement.rule}: {judgement.message}"]
    if judgement.bound or judgement.figure not in (0.0, 1.0):
        lines.append(f"  figure    {judgement.figure:.3g} {judgement.unit}, bound {judgement.bound:.3g}")
    if judgement.derivation:
        lines.append(f"  bound     {judgement.derivation}")
    if judgement.index is not None:
        lines.append(f"  first bad [{', '.join(map(str, judgement.index))}]")
    if judgement.expected or judgement.got:
        lines.append(f"  expected  {judgement.expected}")
        lines.append(f"  got       {judgement.got}")
    if judgement.demonstration is not None:
        lines += [f"  call      {call.operator}({call.describe()})" for call in judgement.demonstration.calls]
    return "\n".join(lines)
