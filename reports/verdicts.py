"""One record a case: what ran, how it was judged, what came out. JSON, schema versioned, never pickle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

SCHEMA: Final = 1
"""Raised by one whenever a field changes its meaning or goes."""

Figure = Annotated[
    float,
    PlainSerializer(
        lambda value: value if math.isfinite(value) else str(value), return_type=float | str, when_used="json"
    ),
]
"""A float whose infinities and NaN survive JSON as strings."""

EngineVerdict = Literal["faithful", "unfaithful", "inconclusive"]
"""What a test comes to of what an engine generated, see ``golden/judges/generated.py``."""


class Verdict(str, Enum):
    """What a case came to. Only ``pass`` is a pass."""

    PASS = "pass"
    FAIL = "fail"
    WAIVED = "waived"
    UNAVAILABLE = "unavailable"
    INCONCLUSIVE = "inconclusive"
    CRASH = "crash"
    TIMEOUT = "timeout"

    @property
    def red(self) -> bool:
        """Whether it turns the run red."""
        return self in (Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT)


class RuleFigure(BaseModel):
    """The worst that one rule saw within a case."""

    model_config = ConfigDict(extra="forbid")

    rule: str
    figure: Figure
    bound: Figure
    unit: str = ""
    holds: bool = True
    applied: int = 1
    """How often the rule was applied within the case."""

    @property
    def severity(self) -> float:
        """The figure in units of its bound; infinite for NaN, and where nothing was allowed."""
        if math.isnan(self.figure):
            return math.inf
        if self.bound > 0:
            return self.figure / self.bound
        return math.inf if self.figure > 0 else 0.0


class Failure(BaseModel):
    """What is wrong, where the verdict is red or waived."""

    model_config = ConfigDict(extra="forbid")

    rule: str
    message: str
    figure: Figure = 0.0
    bound: Figure = 0.0
    unit: str = ""
    derivation: str = ""
    index: tuple[int, ...] | None = None
    expected: str = ""
    got: str = ""
    call: str = ""
    """The smallest input found, in one line."""
    repro: str = ""
    """File name of the minimal repro, empty where none could be written."""
    repro_confirmed: bool | None = None
    """Whether the repro failed in a clean process; None where it was not tried."""


class EngineRow(BaseModel):
    """One line of the end-to-end table: what an engine generated under one setting, and the test of it."""

    model_config = ConfigDict(extra="forbid")

    engine: str
    draft_kind: str
    n: int
    """Generations."""
    accepted_per_step: float
    rejected_per_step: float
    statistic: Figure
    """Infinite where what cannot occur did."""
    df: int
    p_value: float
    alpha: float
    detectable: float
    """Total variation that is found with ``power``."""
    power: float
    verdict: EngineVerdict
    expected: EngineVerdict
    seconds: float


class Record(BaseModel):
    """One case: one test on one subject."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = SCHEMA
    id: str
    """pytest node id, without the path of the checkout."""
    test: str
    """The test function's name."""
    verdict: Verdict
    operator: str = ""
    family: str = ""
    provider: str = ""
    variant: str = ""
    runtime: str = ""
    arch: str = ""
    origin: str = ""
    """Upstream file and function under test."""
    seed: int = 0
    profile: str = ""
    figures: tuple[RuleFigure, ...] = ()
    calls: int = 0
    """How often the implementation was called."""
    shapes: tuple[str, ...] = ()
    """Distinct shapes of the first tensor argument, at most a handful."""
    dtypes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    """Names of the kernels that ran or were compiled."""
    resources: tuple[dict[str, Any], ...] = ()
    """Registers, spills, LDS, scratch and MFMA count per kernel, where the runtime is ``compile``."""
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str = ""
    seconds: float = 0.0
    reason: str = ""
    """Why unavailable, inconclusive or waived."""
    waiver: str = ""
    """Id of the waiver that matched."""
    notes: tuple[str, ...] = ()
    """Observations that are no fault, for the summary."""
    engines: tuple[EngineRow, ...] = ()
    """Rows of the end-to-end table."""
    failure: Failure | None = None

    @model_validator(mode="after")
    def _fields_fit_verdict(self) -> Record:
        """A red or waived verdict says what is wrong; an absent one says why; a pass has judged something."""
        if self.verdict.red and self.failure is None:
            raise ValueError(f"verdict {self.verdict.value!r} needs a failure")
        if self.verdict in (Verdict.UNAVAILABLE, Verdict.INCONCLUSIVE, Verdict.WAIVED) and not self.reason:
            raise ValueError(f"verdict {self.verdict.value!r} needs a reason")
        if self.verdict is Verdict.PASS and self.failure is not None:
            raise ValueError("verdict 'pass' cannot have a failure")
        return self

    @property
    def worst(self) -> RuleFigure | None:
        """The figure closest to, or furthest beyond, its bound."""
        measured = [figure for figure in self.figures if figure.bound > 0 or figure.figure > 0]
        return max(measured, key=lambda figure: figure.severity, default=None)


class BadRecords(ValueError):
    """A results file that cannot be read; names file, line and rule."""


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write JSON lines, whole or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(record.model_dump_json() + "\n")
    temporary.replace(path)


def read_records(path: Path) -> Iterator[Record]:
    """Read JSON lines.

    Raises:
        BadRecords: a line is not a record of this schema.
    """
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                yield Record.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"])) or "record"
                raise BadRecords(f"{path.name}:{number}: {where}: {first['msg']}") from None
