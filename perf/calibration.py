"""Cases that are timed on this machine, each against itself, in runs that are processes of their own.

A run is a station's life (:class:`waveproof.perf.gpu_day_station.ChildStation`): both sides are loaded apart, with
inputs of their own, and timed in pairs by coins that are drawn anew. Results are not judged here: the tests do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from waveproof.kernels.providers.registry import Implementation, Subject
from waveproof.perf.gpu_day_plan import VOCABULARY, renorm_call, trials_for
from waveproof.perf.gpu_day_terms import WARM, Contender, OutOfTime, SideMissing, Station, Trial, TrialEnded, Way
from waveproof.perf.measure import PairedSamples
from waveproof.perf.records import Place
from waveproof.perf.thresholds import FEWEST_RUNS, BadCalibration, Threshold, calibrate

STEP_SECONDS = 180.0
"""Patience for loading a side, which may compile, and for its pairs."""
PAIRS_OF_A_RUN = 80
"""As many as the gate looks at last: fewer leave noise that is taken for a difference."""
LOUD = 0.05
"""A tolerance that would hide the change that the gate is there to find. None so large is handed out."""
TOP_K_ROWS = (2, 5)
"""What ``perf/test_pairs.py`` times on the CPU."""


@dataclass(frozen=True)
class AloneCase:
    """A side that is held against itself."""

    side: Contender
    work: str
    way: Way

    @property
    def case(self) -> str:
        """Operator, provider, work, way."""
        implementation = self.side.subject.implementation
        return f"{implementation.operator}/{implementation.provider}/{self.work}/{self.way.name}"


@dataclass(frozen=True)
class Calibration:
    """What runs of cases against themselves came to."""

    place: Place
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    """By case."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a case has none, by case."""


def top_k_alone(rows: int) -> AloneCase:
    """``by_topk`` on the CPU."""
    operator = "top_k_renorm_prob"
    form = Implementation("topk", operator, "threshold", ("cpu",), "waveproof.perf.renorm_forms:by_topk")
    side = Contender(Subject(form, "cpu"), partial(renorm_call, operator, rows, VOCABULARY))
    return AloneCase(side, f"rows={rows}/vocabulary={VOCABULARY}", WARM)


def alone(trial: Trial) -> tuple[AloneCase, ...]:
    """Both sides of a trial, in each of its ways."""
    return tuple(AloneCase(side, trial.name, way) for side in (trial.fast, trial.slow) for way in trial.ways)


def timed_cases(runtime: str) -> tuple[AloneCase, ...]:
    """All that is timed on a runtime.

    Raises:
        NoTrials: nothing is planned for it.
    """
    cases = [top_k_alone(rows) for rows in TOP_K_ROWS] if runtime == "cpu" else []
    cases += [case for trial in trials_for(runtime) for case in alone(trial)]
    return tuple({one.case: one for one in cases}.values())


def eased(trial: Trial, tolerance: Callable[[str], float]) -> Trial:
    """What is asked of the fast side, less what either side differs by from itself.

    Args:
        trial: with a promise.
        tolerance: of a case.
    """
    return replace(trial, at_least=trial.at_least / (1 + max(tolerance(one.case) for one in alone(trial))))


def calibration(
    start: Callable[[], AbstractContextManager[Station]],
    cases: Sequence[AloneCase],
    runs: int,
    told: Callable[[int], None] = lambda run: None,
) -> Calibration:
    """Time cases against themselves, and conclude their thresholds.

    Args:
        start: a station in a process of its own; asked once a run.
        cases: what is timed. One that cannot be is not asked for again.
        runs: how many.
        told: called after each run.

    Raises:
        BadCalibration: too few runs; before anything is measured.
        DeviceMissing: of a station that cannot be started.
    """
    if runs < FEWEST_RUNS:
        raise BadCalibration(f"{runs} A/A runs: {FEWEST_RUNS} at least")
    taken: dict[str, list[PairedSamples]] = {one.case: [] for one in cases}
    refused: dict[str, str] = {}
    for run in range(runs):
        with start() as station:
            place = station.place
            for one in cases:
                if one.case not in refused:
                    try:
                        taken[one.case].append(_pairs(one, station))
                    except (SideMissing, TrialEnded, OutOfTime) as error:
                        refused[one.case] = str(error)
        told(run + 1)
    found = {case: calibrate(samples) for case, samples in taken.items() if case not in refused}
    refused |= {
        case: f"differs from itself by up to {one.tolerance:.1%} (noise {one.noise:.1%}), which would hide "
        f"{LOUD:.0%}: calibrate again where nothing else runs"
        for case, one in found.items()
        if one.tolerance >= LOUD
    }
    return Calibration(place, {case: one for case, one in found.items() if case not in refused}, refused)


def _pairs(one: AloneCase, station: Station) -> PairedSamples:
    if why := station.unavailable(one.side):
        raise SideMissing(why)
    call = one.side.build()
    station.open([(one.side, call), (one.side, call)], STEP_SECONDS)  # each side is sent its own copy
    return station.pairs(one.way, STEP_SECONDS)
