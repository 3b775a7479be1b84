"""What is measured, in the one form that gate, ledger, history, pictures and pages share.

A :class:`Measurement` is some figures of one quantity of one case at one place: wall or device seconds of a kernel,
wave instructions of a launch, tokens per second of a server. Whether a figure is exact (a count, where any change is
real) or noisy (a time) is the quantity's, so that the gate knows which rule applies.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "regress", "improve", "inconclusive", "stale"]
"""What the gate says. ``stale``: the baseline is of other versions, or there is none."""

EXIT_STATUS: dict[Outcome, int] = {"pass": 0, "regress": 1, "inconclusive": 3, "stale": 4, "improve": 4}
"""Of a command whose gravest outcome this is; 2 is a wrong command line."""

GRAVITY: tuple[Outcome, ...] = ("pass", "inconclusive", "improve", "stale", "regress")
"""From what may be ignored to what may not."""


class BadMeasurement(ValueError):
    """A measurement cannot be one; the message holds the case, the value and the rule."""


@dataclass(frozen=True)
class Quantity:
    """What is measured."""

    name: str
    unit: str
    exact: bool = False
    """A count: two runs of the same versions give the same figure."""
    higher_is_better: bool = False

    def worsening(self, before: float, now: float) -> float:
        """How many times as bad a figure has become: above 1 is worse, whichever way that is.

        1 where nothing changed, of zeros too; infinite where it has become any times as bad.
        """
        above, below = (before, now) if self.higher_is_better else (now, before)
        if above == below:
            return 1.0
        return above / below if below else math.inf


SECONDS = Quantity("time", "s")
COUNTS = tuple(
    Quantity(name, unit, exact=True)
    for name, unit in (
        ("wave_instructions", "1"),
        ("mfma", "1"),
        ("bytes", "B"),
        ("lds_bytes", "B"),
        ("vgpr", "1"),
        ("vgpr_spill", "1"),
        ("scratch_bytes", "B"),
        ("lds_allocated", "B"),
    )
)
"""``bytes`` and ``lds_bytes``: moved in global memory and LDS, read and written; ``lds_allocated``: of a workgroup."""
RATIO = Quantity("ratio", "1")
"""Of a pair measured in one run: slow path over fast path."""
TOKEN_RATE = Quantity("tokens per second", "tok/s", higher_is_better=True)


@dataclass(frozen=True)
class Place:
    """Where something was measured. Figures of two places are never compared as if they were of one."""

    runtime: str
    """``cpu``, ``hip``, ``cuda``, ``emulate``, ``compile`` or ``server``."""
    arch: str = ""
    device: str = ""
    """The driver's name of the device; of a CPU its model; empty for emulated devices."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of torch, triton, sglang, amd-aiter, ROCm, the driver: what is installed, by distribution."""

    def without_versions(self) -> tuple[str, str, str]:
        """The part of the key that an upgrade does not change."""
        return self.runtime, self.arch, self.device


def version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """``triton 3.9.0 -> 3.10.0`` for each distribution that differs, in the order of their names."""
    names = sorted(before.keys() | after.keys())
    pairs = [(name, before.get(name, "absent"), after.get(name, "absent")) for name in names]
    return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


@dataclass(frozen=True)
class Measurement:
    """Figures of one quantity of one case.

    Raises:
        BadMeasurement: there is no figure, one is not finite or is negative, or an exact quantity has several.
    """

    case: str
    """``mla_decode/aiter/heads=12/keys=1024``: operator, provider and what distinguishes the case, in this order."""
    quantity: Quantity
    values: tuple[float, ...]
    """Of repeats, in the order in which they were taken; one where exact."""
    place: Place
    notes: tuple[str, ...] = ()
    """What a reader must know: throttled, clocks unknown, cold caches."""

    def __post_init__(self) -> None:
        if not self.values:
            raise BadMeasurement(f"{self.case}: {self.quantity.name} has no figure")
        bad = [value for value in self.values if not math.isfinite(value) or value < 0]
        if bad:
            raise BadMeasurement(f"{self.case}: {self.quantity.name} = {bad[0]}: figures are finite and not negative")
        if self.quantity.exact and len(self.values) != 1:
            raise BadMeasurement(f"{self.case}: {self.quantity.name} is exact and has {len(self.values)} figures")

    @property
    def median(self) -> float:
        """Of the figures."""
        return statistics.median(self.values)

    @property
    def key(self) -> tuple[str, str, tuple[str, str, str]]:
        """Case, quantity and place without versions: what a history is of."""
        return self.case, self.quantity.name, self.place.without_versions()


@dataclass(frozen=True)
class Ruling:
    """What the gate says of one comparison.

    ``effect`` is candidate over baseline for quantities where lower is better, and baseline over candidate otherwise,
    so that above 1 is always worse.
    """

    case: str
    quantity: str
    outcome: Outcome
    effect: float
    low: float
    """Of the interval of the effect."""
    high: float
    confidence: float
    """Of the interval, both sides together; 1 for exact figures."""
    tolerance: float
    """A relative effect that is let pass: 0.02 is 2 %."""
    reason: str
    """One sentence with figures: why this outcome and no other."""
    against: str = "pair"
    """``pair``, ``baseline``, ``anchor``, or ``missing baseline`` where there should be one and is none."""


def gravest(outcomes: Sequence[Outcome]) -> Outcome:
    """The one that decides the exit status; ``pass`` where there is none."""
    return max(outcomes, key=GRAVITY.index, default="pass")


def to_json(measurements: Sequence[Measurement]) -> str:
    """A document that :func:`from_json` reads."""
    return json.dumps({"schema": 1, "measurements": [asdict(one) for one in measurements]}, indent=1, allow_nan=False)


def from_json(text: str) -> tuple[Measurement, ...]:
    """Measurements of a document.

    Raises:
        BadMeasurement: it is no such document; the message says where.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadMeasurement(f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise BadMeasurement('no document of measurements: {"schema": 1, "measurements": [...]} is read')
    return tuple(_measurement(number, one) for number, one in enumerate(document.get("measurements", ())))


def _measurement(number: int, fields: Any) -> Measurement:
    try:
        return Measurement(
            case=str(fields["case"]),
            quantity=Quantity(**fields["quantity"]),
            values=tuple(float(value) for value in fields["values"]),
            place=Place(**fields["place"]),
            notes=tuple(str(note) for note in fields.get("notes", ())),
        )
    except BadMeasurement as error:
        raise BadMeasurement(f"measurement {number}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMeasurement(f"measurement {number}: {error!r}") from None
