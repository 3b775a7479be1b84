"""What is measured on the day when there is a GPU: pairs of a fast and a slow way, within a budget of minutes.

Each trial takes the same steps, and one that fails ends it, so that no time stands for something else:

1. both sides' results are held to float64; what is wrong is not timed;
2. both sides' kernels are proven from a profiler's trace; a fallback under the fast side's name is red;
3. both are timed in pairs (:func:`waveproof.perf.measure.measure_pair`) by the device's own events and by replayed
   graphs, with caches warm and cold;
4. no time lies below the roofline's floor, and the last results are still right;
5. the fast side is as many times as fast as its counts promise.

**Budget.** Trials run in order of importance. Each may take its share of the time that is left, so that one that hangs
does not eat the others' time, and what it leaves is theirs. A trial that cannot be done in what is left is not begun
and is named. What was found is handed out after every trial, so that an abort loses the trial that runs and no other.

What a device does is behind :class:`waveproof.perf.gpu_day_terms.Station`; here is only what is concluded from it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.memory_floor import NoFloor
from waveproof.kernels.operators.contract import Call
from waveproof.perf import roofline
from waveproof.perf.gate import judge_ratio
from waveproof.perf.gpu_day_terms import OutOfTime, SideMissing, Station, Trial, TrialEnded, Way
from waveproof.perf.measure import PairedSamples
from waveproof.perf.records import Measurement, Outcome, Place, Ruling, gravest
from waveproof.perf.run_files import results_text
from waveproof.reports.sections import Section, section_fields

State = Literal["measured", "red", "unavailable", "no time"]
"""``unavailable``: a side cannot run here. ``no time``: not begun, or not ended within its share."""

OUTCOMES: dict[State, Outcome] = {
    "measured": "pass",
    "red": "regress",
    "unavailable": "inconclusive",
    "no time": "inconclusive",
}
"""What a trial's state says where its rulings say nothing graver. What could not be seen is not passed."""


class BadBudget(ValueError):
    """No trial fits the budget, or it is no time; the message holds it."""


@dataclass(frozen=True)
class Reached:
    """A time beside its floor."""

    case: str
    provider: str
    way: str
    keys: int
    seconds: float
    """Median."""
    low: float
    """Smallest sample."""
    high: float
    """Largest sample."""
    floor: roofline.Floor | None
    """None where the device or the operator has none."""

    @property
    def share(self) -> float | None:
        """Of the floor."""
        return None if self.floor is None else self.floor.share(self.seconds)


@dataclass(frozen=True)
class Result:
    """What one trial came to."""

    trial: str
    state: State
    reasons: tuple[str, ...] = ()
    """Why it is red, unavailable or not begun; the messages of broken rules."""
    rules: tuple[str, ...] = ()
    """Names of the broken rules."""
    measurements: tuple[Measurement, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    reached: tuple[Reached, ...] = ()
    notes: tuple[str, ...] = ()
    """Ways that could not be had, and why."""
    spent: float = 0.0
    """Seconds."""
    asked: float = 0.0
    """How many times as fast the fast side had to be."""

    @property
    def outcome(self) -> Outcome:
        """The gravest of its state and its rulings."""
        return gravest([OUTCOMES[self.state], *(one.outcome for one in self.rulings)])


@dataclass(frozen=True)
class Day:
    """What was found so far."""

    place: Place
    budget: float
    results: tuple[Result, ...] = ()
    notes: tuple[str, ...] = ()
    """Of the device as a whole, and what else was done."""
    when: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """It began."""

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Of all trials."""
        return tuple(one for result in self.results for one in result.measurements)

    @property
    def outcome(self) -> Outcome:
        """The gravest; ``inconclusive`` where nothing was measured."""
        if not any(result.state in ("measured", "red") for result in self.results):
            return "inconclusive"
        return gravest([result.outcome for result in self.results])


def document(day: Day, sections: Sequence[Section] = ()) -> str:
    """JSON that ``waveproof perf history import`` reads, with the trials, their reasons and times beside floors.

    Args:
        day: what was found.
        sections: for a page.
    """
    trials = [
        {
            "trial": one.trial,
            "state": one.state,
            "outcome": one.outcome,
            "reasons": one.reasons,
            "rules": one.rules,
            "notes": one.notes,
            "spent_s": round(one.spent, 3),
            "reached": [{**asdict(each), "share": each.share} for each in one.reached],
        }
        for one in day.results
    ]
    return results_text(
        day.measurements,
        [ruling for one in day.results for ruling in one.rulings],
        day.when,
        place=asdict(day.place),
        budget_s=day.budget,
        notes=day.notes,
        trials=trials,
        sections=[section_fields(one) for one in sections],
    )


def run_day(
    trials: Sequence[Trial],
    station: Station,
    budget: float,
    keep: Callable[[Day], None],
    now: Callable[[], float] = time.monotonic,
    day: Day | None = None,
) -> Day:
    """Run trials in their order until the budget is spent.

    Args:
        trials: the most important first.
        station: the device.
        budget: seconds from now.
        keep: called with all that was found, after each trial.
        now: a clock, seconds.
        day: what was found before.

    Raises:
        BadBudget: it is not positive and finite.
    """
    if not 0 < budget < math.inf:
        raise BadBudget(f"budget = {budget:g} s: it must be positive and finite")
    end = now() + budget
    day = day or Day(station.place, budget)
    for at, trial in enumerate(trials):
        left = end - now()
        if left < trial.least_seconds:
            reason = f"{max(left, 0):.0f} s were left of {budget:.0f}, and it needs about {trial.least_seconds:.0f}"
            result = Result(trial.name, "no time", (reason,))
        else:
            shares = sum(one.share for one in trials[at:])
            granted = max(trial.least_seconds, left * trial.share / shares)
            result = run_trial(trial, station, min(granted, left), now)
        day = replace(day, results=(*day.results, result))
        keep(day)
    return day


@dataclass
class _Course:
    """A trial under way."""

    trial: Trial
    station: Station
    end: float
    now: Callable[[], float]
    measurements: list[Measurement] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def left(self, step: str) -> float:
        seconds = self.end - self.now()
        if seconds <= 0:
            raise OutOfTime(f"its share of the budget was spent before {step}")
        return seconds


def run_trial(trial: Trial, station: Station, seconds: float, now: Callable[[], float] = time.monotonic) -> Result:
    """One trial, which is ended after ``seconds``; what it found before it broke a rule is kept, times excepted."""
    start = now()
    course = _Course(trial, station, start + seconds, now)
    sides = (trial.fast, trial.slow)
    broken: list[Judgement] = []
    state: State = "measured"
    reasons: list[str] = []
    try:
        missing = [f"{one.subject.id}: {why}" for one in sides if (why := station.unavailable(one))]
        if missing:
            return Result(trial.name, "unavailable", tuple(missing))
        broken = _steps(course)
    except SideMissing as error:
        state, reasons = "unavailable", [str(error)]
    except OutOfTime as error:
        state, reasons = "no time", [str(error)]
    except TrialEnded as error:
        state, reasons = "red", [str(error)]
    except Exception as error:  # a trace or a call that cannot be read ends its trial, and a GPU's day goes on
        state, reasons = "red", [f"{type(error).__name__}: {error}"]
    if broken:
        state, reasons = "red", list(dict.fromkeys(one.message or one.rule for one in broken))
    return Result(
        trial.name,
        state,
        tuple(reasons),
        tuple(dict.fromkeys(one.rule for one in broken)),
        tuple(course.measurements),
        tuple(course.rulings),
        tuple(course.reached),
        tuple(course.notes),
        now() - start,
        trial.at_least,
    )


def _steps(course: _Course) -> list[Judgement]:
    """Rules that broke, those of the first step where any did."""
    trial, station = course.trial, course.station
    sides = [(one, one.build()) for one in (trial.fast, trial.slow)]
    station.open(sides, course.left("it began"))
    broken = [one for side in (0, 1) for one in station.results(side, course.left("results")) if not one.holds]
    if broken:
        return broken
    broken = [one for side in (0, 1) for one in station.kernels(side, course.left("kernels")) if not one.holds]
    if broken:
        return broken
    for way in trial.ways:
        try:
            samples = station.pairs(way, course.left(f"it was timed, {way.name}"))
        except SideMissing as error:
            course.notes.append(f"{way.name}: not timed: {error}")
            continue
        broken += _hold(course, way, samples, [call for _, call in sides])
    if not course.measurements and not broken:
        raise SideMissing(f"no way to time it: {'; '.join(course.notes)}")
    # A kernel that computes right once and then leaves early is fast too.
    return broken + [one for side in (0, 1) for one in station.results(side, course.left("the end")) if not one.holds]


def _hold(course: _Course, way: Way, samples: PairedSamples, calls: Sequence[Call]) -> list[Judgement]:
    """Judge times of one way against the floors; only where none lies below they are kept."""
    trial, product = course.trial, course.station.product
    broken: list[Judgement] = []
    reached: list[Reached] = []
    for contender, call, values in zip(
        (trial.fast, trial.slow), calls, (samples.candidate, samples.baseline), strict=True
    ):
        case, middle = trial.case(contender, way), statistics.median(values)
        # Not the median: a side that skips its work in some samples is right in the others.
        fastest = min(values) + samples.resolution
        least: roofline.Floor | None = None
        if product is not None:
            try:
                least = roofline.floor(call, product, cold=way.cold)
                broken += [
                    one for one in roofline.judge_share(fastest, call, product, way.cold, where=case) if not one.holds
                ]
            except NoFloor as error:
                course.notes.append(f"{case}: no floor: {error}")
        provider = contender.subject.implementation.provider
        reached.append(Reached(case, provider, way.name, trial.keys, middle, min(values), max(values), least))
    if broken:
        return broken
    course.reached += reached
    course.measurements += samples.measurements(
        trial.case(trial.fast, way), trial.case(trial.slow, way), course.station.place
    )
    if trial.at_least:
        course.rulings.append(judge_ratio(samples, f"{trial.name}/{way.name}", trial.at_least))
    return []
