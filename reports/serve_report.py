"""What a check of a served model came to: JSON for machines, a table for people. Names no host, path or key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from waveproof.golden.judges.served import Finding, Verdict
from waveproof.reports.verdicts import Figure

if TYPE_CHECKING:
    from rich.table import Table

    from waveproof.fixtures.servers.check import ServerRun
    from waveproof.fixtures.servers.plan import Plan

SCHEMA: Final = 1
"""Raised by one whenever a field changes its meaning or goes."""

EXIT_CODES: Final = {
    Verdict.FAITHFUL: 0,
    Verdict.UNFAITHFUL: 1,
    Verdict.INCONCLUSIVE: 3,
    Verdict.SERVER_FAULT: 4,
}
"""2 is a command that was given wrongly."""

_COLOURS = {
    Verdict.FAITHFUL: "green",
    Verdict.UNFAITHFUL: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.SERVER_FAULT: "bold magenta",
    Verdict.NOTE: "",
}


class CheckResult(BaseModel):
    """One check."""

    model_config = ConfigDict(extra="forbid")

    check: str
    verdict: Verdict
    evidence: str
    alpha: Figure | None = None
    """False-alarm rate that it was given."""
    p_value: Figure | None = None
    n: int = 0
    """Tokens, texts or requests that were judged."""
    figures: dict[str, Figure] = Field(default_factory=dict)

    @classmethod
    def of(cls, finding: Finding) -> CheckResult:
        """The same, as a record."""
        figures = {name: float(value) for name, value in finding.figures.items()}
        return cls(
            check=finding.check, verdict=finding.verdict, evidence=finding.evidence, alpha=finding.alpha,
            p_value=finding.p_value, n=finding.n, figures=figures,
        )  # fmt: skip


class ServeReport(BaseModel):
    """One run against one server, or two."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = SCHEMA
    verdict: Verdict
    model: str
    """As the server calls it; of a path only the last part."""
    engine: str = ""
    """What the server says that it is."""
    logprobs_are: str = ""
    """``raw``, ``processed`` or empty."""
    top_logprobs: int = 0
    alpha: float
    """False-alarm rate of the whole run."""
    seed: int
    tokens: int
    requests: int
    failed_requests: int
    seconds: float
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    checks: tuple[CheckResult, ...]

    @classmethod
    def of(cls, run: ServerRun, model: str, plan: Plan) -> ServeReport:
        """The report of a run of a plan against a model of that name."""
        manner = run.manner
        return cls(
            verdict=overall(run.findings, run.decisive),
            model=model_name(model),
            engine=manner.engine if manner else "",
            logprobs_are=manner.described.value if manner and manner.described else "",
            top_logprobs=manner.asked if manner else 0,
            alpha=plan.alpha,
            seed=plan.seed,
            tokens=run.tokens,
            requests=run.requests,
            failed_requests=run.failed,
            seconds=run.seconds,
            notes=manner.notes if manner else (),
            versions=_versions(),
            checks=tuple(CheckResult.of(finding) for finding in run.findings),
        )

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return EXIT_CODES[self.verdict]


def _versions() -> dict[str, str]:
    """Of what asked and judged, as far as installed packages tell."""
    found = {}
    for package in ("waveproof", "openai"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def model_name(name: str) -> str:
    """A model's name without the folders of a path on the server's disk."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith(("~", ".")) else name


def overall(findings: Iterable[Finding], decisive: Mapping[str, bool]) -> Verdict:
    """The verdict on a server.

    Args:
        findings: of all checks.
        decisive: names of the checks without which nothing is known; each must be faithful.
    """
    known = list(findings)
    verdicts = [finding.verdict for finding in known]
    for worst in (Verdict.UNFAITHFUL, Verdict.SERVER_FAULT):
        if worst in verdicts:
            return worst
    needed = {finding.check: finding.verdict for finding in known if decisive.get(finding.check)}
    missing = any(name not in needed for name, wanted in decisive.items() if wanted)
    if missing or any(verdict is not Verdict.FAITHFUL for verdict in needed.values()) or not needed:
        return Verdict.INCONCLUSIVE
    return Verdict.FAITHFUL


def render(report: ServeReport) -> Table:
    """The table of a report."""
    from rich.table import Column, Table
    from rich.text import Text

    title = f"{report.model}: {report.verdict.value}"
    made = Table(
        Column("check", overflow="fold", ratio=2),
        Column("verdict", no_wrap=True),
        Column("evidence", overflow="fold", ratio=5),
        Column("n", justify="right", no_wrap=True),
        Column("p-value", justify="right", no_wrap=True),
        Column("alpha", justify="right", no_wrap=True),
        title=Text(title, _COLOURS[report.verdict]), title_justify="left",
    )  # fmt: skip
    for one in report.checks:
        made.add_row(
            Text(one.check), Text(one.verdict.value, _COLOURS[one.verdict]), Text(one.evidence),
            str(one.n or ""), _short(one.p_value), _short(one.alpha),
        )  # fmt: skip
    return made


def closing_lines(report: ServeReport) -> list[str]:
    """What to say below the table."""
    engine = f"{report.engine or 'unnamed engine'}, {report.top_logprobs} logprobs a step"
    engine += f" ({report.logprobs_are})" if report.logprobs_are else ""
    spent = f"{report.tokens} tokens in {report.requests} requests ({report.failed_requests} failed)"
    told = f"{engine}; {spent}, {report.seconds:.1f} s; false alarms at most {report.alpha:g} in all"
    return [told, *report.notes]


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2g}" if math.isfinite(value) else str(value)
