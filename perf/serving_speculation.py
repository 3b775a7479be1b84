"""Speculation on against off: speed-ups at the same concurrency, beside the acceptance length that explains them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from waveproof.perf.intervals import bootstrap_interval
from waveproof.perf.serving import PointResult, SweepResult
from waveproof.perf.serving_plan import Target, differences

ON, OFF = "on", "off"
"""Folders of the two runs."""


class NotComparable(ValueError):
    """Two runs that no speed-up can be taken from; the message says what differs."""


@dataclass(frozen=True)
class SpeedUp:
    """At one concurrency, on over off."""

    concurrency: int
    per_stream: float
    per_stream_interval: tuple[float, float] | None
    """95 % by bootstrap over the requests of both, of the ratio of medians."""
    aggregate: float
    acceptance_length: float | None
    """Tokens emitted by a verification step; None where the server does not tell."""


def speed_ups(on: SweepResult, off: SweepResult) -> tuple[SpeedUp, ...]:
    """Compare two runs of one plan at each concurrency that both report.

    Raises:
        NotComparable: the plans differ in more than the server, the one server drafts nothing, or the other does.
    """
    aside = Target("http://any", "any")
    if changed := differences(replace(on.plan, target=aside), replace(off.plan, target=aside)):
        raise NotComparable(f"the runs asked different things: {'; '.join(changed[:4])}")
    if idle := [one.point.name for one in on.reported if one.facts.acceptance.drafts == 0]:
        raise NotComparable(f"the server with speculation verified no draft in {', '.join(idle)}")
    if drafting := [one.point.name for one in off.reported if one.facts.acceptance.drafts]:
        raise NotComparable(f"the server without speculation verified drafts in {', '.join(drafting)}")
    plain = {one.point.concurrency: one for one in off.reported}
    pairs = [(one, plain[one.point.concurrency]) for one in on.reported if one.point.concurrency in plain]
    return tuple(_speed_up(one, other) for one, other in pairs)


def _speed_up(on: PointResult, off: PointResult) -> SpeedUp:
    fast, slow = on.figures, off.figures
    assert fast is not None
    assert slow is not None
    return SpeedUp(
        on.point.concurrency,
        fast.per_stream_tok_s / slow.per_stream_tok_s,
        bootstrap_interval(_ratio_of_medians, fast.stream_rates, slow.stream_rates),
        fast.aggregate_tok_s / slow.aggregate_tok_s,
        on.acceptance_length,
    )


def _ratio_of_medians(above: np.ndarray, below: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(np.median(above, axis=axis) / np.median(below, axis=axis))
