"""What differs though nothing was changed: the tolerance of a case, from runs of a side against itself.

Two copies of one kernel in one process are not alike: code lies at another address, buffers in other pages, in every
run anew. Within a run that difference is as steady as a real change, and no number of pairs averages it out. So a
case is calibrated by A/A runs, each in a process of its own, and its tolerance is a limit that the relative
difference of such runs keeps with stated confidence.

The limit is a *tolerance limit*: with confidence :data:`CONFIDENCE` at least the share :data:`CONTENT` of all A/A
runs lies within (NIST/SEMATECH e-Handbook of Statistical Methods, section 7.2.6.3; Hahn and Meeker, *Statistical
Intervals*). The log effects of A/A runs are centred at 0, for which of two like sides is called the candidate is
arbitrary; so where they are normal, with r runs,

    limit = z((1 + content)/2) * sqrt(sum of squares / chi-square quantile of r at 1 - confidence).

It is never below the largest difference that was seen. From :data:`RUNS_WITHOUT_A_LAW` runs on the largest alone is
such a limit, whatever the law: ``1 - content**r >= confidence`` (S. S. Wilks, 1941).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waveproof.perf.sign_flips import Rule, decide, shift_intervals

if TYPE_CHECKING:
    from waveproof.perf.measure import PairedSamples
    from waveproof.perf.records import Place

CONTENT = 0.95
CONFIDENCE = 0.95
RUNS_WITHOUT_A_LAW = math.ceil(math.log(1 - CONFIDENCE) / math.log(CONTENT))
"""59."""
FEWEST_RUNS = 10
FEWEST_PAIRS = 10
LEAST_TOLERANCE = 0.005
"""Less than half a percent is never called a change, however quiet the calibration was."""
PAIRS_TRIED = (20, 40, 80, 160, 320, 640)
"""Repetitions that a calibration chooses from."""


Key = tuple[str, tuple[str, str, str]]
"""A case, and runtime, arch and device: what like sides differ by is a machine's."""


class BadCalibration(ValueError):
    """A/A runs from which no threshold can be had; the message holds the number and the rule."""


@dataclass(frozen=True)
class Threshold:
    """Of one case at one place."""

    tolerance: float
    """Relative: see the module."""
    noise: float
    """Robust standard deviation of a pair's log ratio (1.4826 times the median absolute one)."""
    pairs_for_5_percent: int | None
    """Repetitions after which +5 % is found in 99 of 100 runs; none of :data:`PAIRS_TRIED` where absent."""
    runs: int
    """A/A runs that it is made of."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= LEAST_TOLERANCE):
            raise BadCalibration(f"tolerance = {self.tolerance}: finite, and {LEAST_TOLERANCE} at least")
        if self.runs < FEWEST_RUNS:
            raise BadCalibration(f"{self.runs} A/A runs: {FEWEST_RUNS} at least")


def calibrate(aa: Sequence[PairedSamples]) -> Threshold:
    """The threshold of a case from runs of its baseline against itself.

    Args:
        aa: one :class:`~waveproof.perf.measure.PairedSamples` a run, both sides built alike but apart (their own
            buffers, modules, graphs); runs in processes of their own, for what is due to layout is to show.

    Raises:
        BadCalibration: fewer runs than :data:`FEWEST_RUNS`, or pairs in a run than :data:`FEWEST_PAIRS`.
    """
    if len(aa) < FEWEST_RUNS:
        raise BadCalibration(f"{len(aa)} A/A runs: {FEWEST_RUNS} at least, {RUNS_WITHOUT_A_LAW} to assume no law")
    few = [len(one.candidate) for one in aa if len(one.candidate) < FEWEST_PAIRS]
    if few:
        raise BadCalibration(f"an A/A run of {few[0]} pairs: {FEWEST_PAIRS} at least")
    logs = [np.log(one.candidate) - np.log(one.baseline) for one in aa]
    effects = np.array([shift_intervals(one[None, :], 0.5)[1][0] for one in logs])
    tolerance = max(LEAST_TOLERANCE, math.expm1(tolerance_limit(effects)))
    centred = np.concatenate([one - effect for one, effect in zip(logs, effects, strict=True)])
    noise = 1.4826 * float(np.median(np.abs(centred)))
    return Threshold(tolerance, noise, pairs_to_find(centred, 0.05, tolerance), len(aa))


def tolerance_limit(effects: NDArray[np.float64]) -> float:
    """What the absolute effect of an A/A run stays below: see the module.

    Args:
        effects: [r] log effects of runs.
    """
    from scipy.stats import chi2, norm

    largest = float(np.abs(effects).max())
    if len(effects) >= RUNS_WITHOUT_A_LAW:
        return largest
    quantile = float(norm.ppf((1 + CONTENT) / 2))
    spread = math.sqrt(float((effects**2).sum()) / float(chi2.ppf(1 - CONFIDENCE, len(effects))))
    return max(largest, quantile * spread)


def pairs_to_find(
    log_ratios: NDArray[np.float64], effect: float, tolerance: float, alpha: float = 0.001, power: float = 0.99,
    trials: int = 400, seed: int = 0,
) -> int | None:  # fmt: skip
    """The fewest pairs of :data:`PAIRS_TRIED` after which the gate finds a change, by trying it.

    Log ratios are drawn with fresh signs, divided evenly among the sides, and moved by the change. There is a look at
    each of the numbers.

    Args:
        log_ratios: of pairs without a change, of any shape of law.
        effect: the relative change: 0.05 is 5 %.
        tolerance: what is let pass.
        alpha: of the gate.
        power: the share of trials in which it must be found.
        trials: how many.
        seed: of the draws.

    Returns:
        The number, or nothing where the most do not do or the change is not above the tolerance.
    """
    if tolerance >= effect:
        return None
    draw = np.random.default_rng(seed)
    size = (trials, PAIRS_TRIED[-1])
    half = draw.choice(log_ratios, size) * draw.choice([-0.5, 0.5], size)
    made = decide(np.exp(half + math.log1p(effect)), np.exp(-half), Rule(tolerance, effect, alpha, PAIRS_TRIED))
    found = made.pairs[made.outcome == "regress"]
    return next((pairs for pairs in PAIRS_TRIED if (found <= pairs).sum() >= power * trials), None)


def key_of(case: str, place: Place) -> Key:
    """What a threshold is kept under: of a CPU the device is its model, which records do not name."""
    from waveproof.reports.environment import processor

    runtime, arch, device = place.without_versions()
    return case, (runtime, arch, processor() if runtime == "cpu" else device)


def save_thresholds(path: Path, thresholds: Mapping[Key, Threshold]) -> None:
    """Write them as JSON, in the order of cases."""
    rows = [{"case": case, "place": place, **asdict(one)} for (case, place), one in sorted(thresholds.items())]
    path.write_text(json.dumps({"schema": 1, "thresholds": rows}, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load_thresholds(path: Path) -> dict[Key, Threshold]:
    """By case and place.

    Raises:
        BadCalibration: the file holds none; the message says where.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != 1:
            raise BadCalibration(f"{path.name}: schema {document['schema']}: 1 is read")
        return {_key(row): Threshold(**row) for row in document["thresholds"]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadCalibration):
            raise
        raise BadCalibration(f"{path.name}: no thresholds: {error!r}") from None


def _key(row: dict[str, Any]) -> Key:
    """Taken out of the row."""
    runtime, arch, device = row.pop("place")
    return row.pop("case"), (runtime, arch, device)
