"""What the performance tests are given: a place to hold figures against their baselines, and to leave what was found.

A test measures and calls :meth:`Night.hold`; nothing is raised until its end, so that every figure of a test is on
record and can be accepted. Then the gravest ruling decides (:meth:`Night.settle`):

- ``regress`` and ``improve`` fail the test. So does a case without a baseline where the ledger has baselines of this
  very place and these versions: it was forgotten.
- ``stale`` because of other versions, or at a place that the ledger knows nothing of, leaves the test inconclusive: on
  such a machine nobody has promised anything. ``--perf-strict`` fails it, and ``waveproof perf nightly`` ends with
  exit status 4 either way.
- ``inconclusive`` is inconclusive.

A failing test says the command that accepts the figure. Waivers apply as to any other case.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from waveproof.fixtures.inspection import Inspection
from waveproof.golden.judges.judgement import Judgement, Nonconformance
from waveproof.perf.ledger import LEDGER, Entry, Ledger
from waveproof.perf.records import GRAVITY, Measurement, Outcome, Place, Ruling, to_json
from waveproof.perf.run_files import ruling_fields
from waveproof.perf.thresholds import Key, Threshold, key_of
from waveproof.reports.sections import Section, section_fields

TOLERANCE = 0.02
"""Of noisy quantities where none was calibrated."""

DRIFT = 0.10
"""How much worse than the frozen anchor a figure may be, all accepted steps together."""

MISSING = "missing baseline"
"""What a figure is against that has no baseline, though the ledger knows its place and these versions."""


@dataclass
class Night:
    """One session of performance tests."""

    path: Path = LEDGER
    signers: Path | None = None
    """Where it is not the file beside the ledger."""
    results: Path | None = None
    """The file of ``--perf-results``."""
    strict: bool = False
    thresholds: Mapping[Key, Threshold] = field(default_factory=dict)
    """Of ``--perf-thresholds``."""
    inspection: Inspection | None = None
    """Of the test that is running."""
    left: list[dict[str, Any]] = field(default_factory=list)
    """Measurements, rulings and sections since the last report, as JSON has them."""
    unsettled: list[tuple[Ruling, bool]] = field(default_factory=list)
    """Of the test that is running, with whether it fails the test."""
    raised: Nonconformance | None = None
    """What a test ended with last because of its rulings, and not because it broke."""

    @cached_property
    def ledger(self) -> Ledger:
        """Verified when it is first asked for.

        Raises:
            BadLedger: it cannot be trusted.
        """
        return Ledger.load(self.path, self.signers)

    def hold(
        self, measured: Measurement, tolerance: float = TOLERANCE, detectable: float = 0.05, alpha: float = 0.001
    ) -> Ruling:
        """Record a measurement and hold it against its baseline and the anchor; the graver ruling is returned.

        Args:
            measured: at one place.
            tolerance: of a noisy quantity, calibrated for the case.
            detectable: a pass rules out changes of so much.
            alpha: two-sided false alarm of a noisy quantity.
        """
        rulings = rule_on(measured, self.ledger, tolerance, detectable, alpha, self.results)
        self.left.append({"measurement": to_json((measured,))})
        if self.inspection is not None:
            self.inspection.arch = self.inspection.arch or measured.place.arch
            self.inspection.versions = {**self.inspection.versions, **measured.place.versions}
            self.inspection.looked_at += 1
        for ruling in rulings:
            self._leave(ruling)
        return max(rulings, key=lambda one: GRAVITY.index(one.outcome))

    def hold_all(self, measured: Iterable[Measurement], tolerance: float = TOLERANCE) -> tuple[Ruling, ...]:
        """Hold each."""
        return tuple(self.hold(one, tolerance) for one in measured)

    def tolerance(self, case: str, place: Place) -> float:
        """What is let pass of a pair: as calibrated on this machine, or else :data:`TOLERANCE`, which is noted."""
        found = self.thresholds.get(key_of(case, place))
        if found is None and self.inspection is not None:
            self.inspection.note(f"tolerance {TOLERANCE:.1%}: not calibrated here (waveproof perf calibrate)")
        return TOLERANCE if found is None else found.tolerance

    def rule(self, ruling: Ruling) -> Ruling:
        """Record a ruling, of a pair for example; the test ends accordingly."""
        if self.inspection is not None:
            self.inspection.looked_at += 1
        self._leave(ruling)
        return ruling

    def _leave(self, ruling: Ruling) -> None:
        self.left.append({"ruling": ruling_fields(ruling)})
        red = fails(ruling, self.strict)
        if self.inspection is not None and (red or ruling.outcome == "pass"):
            self.inspection.judgements.append(judgement_of(ruling, not red))
        if ruling.outcome != "pass":
            self.unsettled.append((ruling, red))

    def measure(self, measured: Measurement) -> None:
        """Record a measurement that nothing is held against: it goes to the results and the history."""
        self.left.append({"measurement": to_json((measured,))})
        if self.inspection is not None:
            self.inspection.looked_at += 1

    def add_section(self, section: Section) -> None:
        """Leave something to be read on the page of the run."""
        self.left.append({"section": section_fields(section)})

    def settle(self) -> None:
        """End the running test as its rulings have it.

        Raises:
            Nonconformance: with the gravest that fails it; the message counts the others.
            pytest.skip.Exception: inconclusive.
        """
        unsettled, self.unsettled = self.unsettled, []
        if red := [ruling for ruling, fatal in unsettled if fatal]:
            worst = max(red, key=lambda one: (GRAVITY.index(one.outcome), abs(math.log(max(one.effect, 1e-9)))))
            more = f" (and {len(red) - 1} more of this test)" if len(red) > 1 else ""
            judgement = judgement_of(worst, False)
            self.raised = Nonconformance(replace(judgement, message=judgement.message + more))
            raise self.raised
        if unsettled:
            more = f" (and {len(unsettled) - 1} more of this test)" if len(unsettled) > 1 else ""
            pytest.skip(f"{unsettled[0][0].reason}{more}")

    def take(self) -> list[dict[str, Any]]:
        """What was left since the last time, for a report."""
        left, self.left = self.left, []
        return left


def rule_on(
    measured: Measurement,
    ledger: Ledger,
    tolerance: float = TOLERANCE,
    detectable: float = 0.05,
    alpha: float = 0.001,
    results: Path | None = None,
) -> tuple[Ruling, ...]:
    """What the gate says of a measurement against its baseline, and against the anchor where that says more.

    It does where it is older than the baseline, and where versions changed: then nothing is promised of the baseline,
    and an upgrade could hide how much worse a figure has become.

    Args:
        measured: at one place.
        ledger: with both.
        tolerance: of a noisy quantity.
        detectable: of a noisy quantity.
        alpha: of a noisy quantity.
        results: file that the figures are accepted from, for the text.
    """
    from waveproof.perf.gate import judge_exact, judge_unpaired

    accept = accept_command(measured.case, results)
    entry = ledger.baseline(measured)
    if entry is None:
        why = f"no baseline; accept {_figure(measured)} with: {accept}"
        if ledger.covers(measured.place):
            return (replace(_unjudged(measured, why), against=MISSING),)
        place = " ".join(filter(None, measured.place.without_versions()))
        return (_unjudged(measured, f"unknown to the ledger is {place} with these versions: {why}"),)
    if changed := entry.changed_versions(measured.place):
        old = f"{_figure(entry.measurement)} -> {_figure(measured)}"
        why = f"unknown with these versions: {', '.join(changed)}; {old}; accept with: {accept}"
        ruling = _unjudged(measured, why, entry)
    elif measured.quantity.exact:
        ruling = judge_exact(measured, entry.measurement)
    else:
        ruling = judge_unpaired(measured, entry.measurement, tolerance, alpha, detectable)
    if ruling.outcome in ("regress", "improve"):
        ruling = replace(ruling, reason=f"{ruling.reason}; where it is meant, accept with: {accept}")
    anchor = ledger.anchor(measured)
    if anchor is None or (anchor.line == entry.line and not changed):
        return (ruling,)
    return ruling, rule_on_drift(measured, anchor, alpha=alpha)


def rule_on_drift(measured: Measurement, anchor: Entry, tolerance: float = DRIFT, alpha: float = 0.001) -> Ruling:
    """Whether a figure is worse than the anchor by more than all accepted steps together may make it.

    Versions may differ: that is what an anchor is for. Better is a pass, since every step to it was signed; from then
    on drift should be counted anew (``--anchor``).

    Args:
        measured: the figure.
        anchor: of its key.
        tolerance: relative.
        alpha: of a noisy quantity, two-sided.
    """
    from waveproof.perf.gate import judge_exact, judge_unpaired

    then = replace(anchor.measurement, place=measured.place)
    if measured.quantity.exact:
        ruling = judge_exact(measured, then, "anchor")
    else:
        ruling = judge_unpaired(measured, then, tolerance, alpha, 2 * tolerance, "anchor")
    told = f"since {anchor.date} {_figure(anchor.measurement)} -> {_figure(measured)}, {ruling.effect:.4g} times"
    outcome: Outcome = "pass"
    if ruling.low > 1 + tolerance:
        outcome = "regress"
        told += f", and {1 + tolerance:g} are let pass; where that is meant, sign a new anchor: accept with --anchor"
    elif ruling.high > 1 + tolerance:
        outcome = "inconclusive"
        told += f", with an interval that reaches beyond {1 + tolerance:g}: {ruling.low:.4g} to {ruling.high:.4g}"
    return replace(ruling, outcome=outcome, tolerance=tolerance, reason=f"cumulative: {told}")


def fails(ruling: Ruling, strict: bool = False) -> bool:
    """Whether a ruling turns its test red, see above."""
    if ruling.outcome == "stale":
        return strict or ruling.against == MISSING
    return ruling.outcome in ("regress", "improve")


def judgement_of(ruling: Ruling, holds: bool) -> Judgement:
    """A ruling as the suite's records have it; above 1 is worse, whichever way is better."""
    bound = 1 + ruling.tolerance
    return Judgement(
        f"{ruling.quantity} against its {ruling.against}", holds, ruling.effect, bound, "times",
        f"gate: {ruling.low:.4g} to {ruling.high:.4g} at confidence {ruling.confidence:g}",
        "" if holds else f"{ruling.outcome}: {ruling.case}: {ruling.reason}",
    )  # fmt: skip


def accept_command(case: str, results: Path | None) -> str:
    """What a person who answers for a new figure types."""
    file = shlex.quote(str(results)) if results else "perf.json"
    first = "" if results else "pytest perf -m rocm --perf-results=perf.json && "
    return f"{first}waveproof perf ledger accept {file} --case {shlex.quote(case)} --reason 'WHY' --key KEY_FILE"


def _unjudged(measured: Measurement, why: str, entry: Entry | None = None) -> Ruling:
    """Stale: nothing that it could be held against. The effect is that of the medians, without an interval."""
    effect = measured.quantity.worsening(entry.measurement.median, measured.median) if entry is not None else 1.0
    return Ruling(
        measured.case, measured.quantity.name, "stale", effect, 0.0, math.inf, 0.0, 0.0, why, "baseline"
    )  # fmt: skip


def _figure(measured: Measurement) -> str:
    unit = "" if measured.quantity.unit == "1" else f" {measured.quantity.unit}"
    exact = measured.quantity.exact
    return f"{measured.quantity.name} {measured.median:{'.15g' if exact else '.4g'}}{unit}"
