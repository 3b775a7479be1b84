"""What the performance tests are given: a place to hold figures against their baselines, and to leave what was found.

A test measures and calls :meth:`Night.hold`; nothing is raised until its end, so that every figure of a test is on
record and can be accepted. Then the gravest ruling decides (:meth:`Night.settle`):

- ``regress`` and ``improve`` fail the test. So does a case without a baseline where the ledger has baselines of this
  very place and these versions: it was forgotten.
- ``stale`` because of other versions, or at a place that the ledger knows nothing of, leaves the test inconclusive: on
  such a machine nobody has promised anything. ``--perf-strict`` fails it, and ``waveproof perf nightly`` ends with
  exit status 4 either way.
- ``inconclusive`` is inconclusive.

A failing test says the command that accepts the figure; of what is stale the terminal says it once, at the end.
Waivers apply as to any other case.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from waveproof.fixtures.inspection import Inspection
from waveproof.golden.judges.judgement import Judgement, Nonconformance
from waveproof.perf.ledger import LEDGER, Entry, Ledger
from waveproof.perf.records import EXIT_STATUS, GRAVITY, Measurement, Outcome, Place, Ruling, gravest, to_json
from waveproof.perf.run_files import ruling_fields
from waveproof.perf.thresholds import Key, Threshold, key_of
from waveproof.reports.sections import Section, section_fields

TOLERANCE = 0.02
"""Of noisy quantities where none was calibrated."""

DRIFT = 0.10
"""How much worse than the frozen anchor a figure may be, all accepted steps together."""

NONE = "no baseline"
"""How the reason begins where there is none."""

BASELINE = "baseline"
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
        rulings = rule_on(measured, self.ledger, tolerance, detectable, alpha)
        self.measure(measured)
        if self.inspection is not None:
            self.inspection.arch = self.inspection.arch or measured.place.arch
            self.inspection.versions = {**self.inspection.versions, **measured.place.versions}
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
            Nonconformance: with the gravest that fails it; the message counts the others and says how it is accepted.
            pytest.skip.Exception: inconclusive, with what all cases of one place have in common.
        """
        unsettled, self.unsettled = self.unsettled, []
        if red := [ruling for ruling, fatal in unsettled if fatal]:
            worst = max(red, key=lambda one: (GRAVITY.index(one.outcome), abs(math.log(max(one.effect, 1e-9)))))
            more = f" (and {len(red) - 1} more of this test)" if len(red) > 1 else ""
            meant = ""
            if worst.against in (BASELINE, MISSING):
                meant = f"; where it is meant, accept with: {accept_command(worst.case, self.results, self.path)}"
            judgement = judgement_of(worst, False)
            self.raised = Nonconformance(replace(judgement, message=f"{judgement.message}{more}{meant}"))
            raise self.raised
        if unsettled:
            pytest.skip(ground(unsettled[0][0]))

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
    """
    from waveproof.perf.gate import judge_exact, judge_unpaired

    entry = ledger.baseline(measured)
    place = " ".join(filter(None, measured.place.without_versions()))
    if entry is None:
        if ledger.covers(measured.place):
            why = f"{NONE} of this case, and others of {place} have one: {_figure(measured)}"
            return (replace(_unjudged(measured, why), against=MISSING),)
        return (_unjudged(measured, f"{NONE} for {place} with these versions: {_figure(measured)}"),)
    if changed := entry.changed_versions(measured.place):
        old = f"{_figure(entry.measurement)} -> {_figure(measured)}"
        why = f"baseline of other versions for {place} ({', '.join(changed)}): {old}"
        ruling = _unjudged(measured, why, entry)
    elif measured.quantity.exact:
        ruling = judge_exact(measured, entry.measurement)
    else:
        ruling = judge_unpaired(measured, entry.measurement, tolerance, alpha, detectable)
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


def ground(ruling: Ruling) -> str:
    """The reason; of what is stale only what it has in common with all others of its place, without the figures."""
    return ruling.reason.rpartition(": ")[0] or ruling.reason if ruling.outcome == "stale" else ruling.reason


def closing(rulings: Sequence[Ruling], strict: bool = False, broken: bool = False) -> str:
    """``62 pass, 522 without a baseline: green here, exit status 4 in waveproof perf nightly``.

    Args:
        rulings: of a session, without those of waived tests.
        strict: as of :func:`fails`.
        broken: whether a test failed otherwise than by its rulings.
    """
    words: dict[str, int] = {}
    for one in sorted(rulings, key=lambda ruling: GRAVITY.index(ruling.outcome)):
        word = "without a baseline" if one.outcome == "stale" and one.reason.startswith(NONE) else one.outcome
        words[word] = words.get(word, 0) + 1
    ends = 1 if broken else EXIT_STATUS[gravest([one.outcome for one in rulings])]
    here = "red" if broken or any(fails(one, strict) for one in rulings) else "green"
    told = ", ".join(f"{amount} {word}" for word, amount in words.items())
    # Where all pass, a night may still end otherwise: by what was not measured.
    return f"{told}: {here} here, exit status {ends} in waveproof perf nightly" if ends else told


def judgement_of(ruling: Ruling, holds: bool) -> Judgement:
    """A ruling as the suite's records have it; above 1 is worse, whichever way is better."""
    bound = 1 + ruling.tolerance
    interval = f"{ruling.low:.4g} to {ruling.high:.4g} at confidence {ruling.confidence:g}"
    return Judgement(
        f"{ruling.quantity} against its {ruling.against}", holds, ruling.effect, bound, "times",
        f"gate: {interval if ruling.confidence else 'nothing to compare with'}",
        "" if holds else f"{ruling.outcome}: {ruling.case}: {ruling.reason}",
    )  # fmt: skip


def accept_command(case: str, results: Path | None, ledger: Path = LEDGER) -> str:
    """What a person who answers for new figures types, of one case or of all."""
    file = shlex.quote(str(results)) if results else "perf.json"
    first = "" if results else "pytest perf -m rocm --perf-results=perf.json && "
    chosen = f" --case {shlex.quote(case)}" if case else ""
    other = "" if ledger.resolve() == LEDGER.resolve() else f" --ledger {shlex.quote(str(ledger))}"
    return f"{first}waveproof perf ledger accept {file}{chosen} --reason '...' --key FILE{other}"


def _unjudged(measured: Measurement, why: str, entry: Entry | None = None) -> Ruling:
    """Stale: nothing that it could be held against. The effect is that of the medians, without an interval."""
    effect = measured.quantity.worsening(entry.measurement.median, measured.median) if entry is not None else 1.0
    return Ruling(
        measured.case, measured.quantity.name, "stale", effect, 0.0, math.inf, 0.0, 0.0, why, BASELINE
    )  # fmt: skip


def _figure(measured: Measurement) -> str:
    unit = "" if measured.quantity.unit == "1" else f" {measured.quantity.unit}"
    exact = measured.quantity.exact
    return f"{measured.quantity.name} {measured.median:{'.15g' if exact else '.4g'}}{unit}"
