"""What the performance tests share: the fixture ``night``, and the file that a session's figures go to."""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from waveproof.fixtures.conclusion import sections_of
from waveproof.fixtures.inspection import INSPECTION, Inspection
from waveproof.fixtures.plugin import RECORDER
from waveproof.perf.history import BadHistory, History
from waveproof.perf.ledger import LEDGER, BadLedger
from waveproof.perf.night import Night, accept_command, closing
from waveproof.perf.records import from_json
from waveproof.perf.run_files import results_text, ruling_of, runs_of
from waveproof.perf.signers import BadSigner
from waveproof.perf.thresholds import BadCalibration, Key, Threshold, load_thresholds
from waveproof.reports.sections import section_of

NIGHT = pytest.StashKey[Night]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this room, and gather what its tests leave."""
    config.addinivalue_line("markers", "perf: measures or counts what a kernel costs")
    option = config.option
    config.stash[NIGHT] = Night(option.perf_ledger or LEDGER, results=option.perf_results, strict=option.perf_strict)
    config.stash[NIGHT].thresholds = _thresholds(option.perf_thresholds)
    if not hasattr(config, "workerinput"):  # with pytest-xdist what workers leave comes with their reports
        _refuse(option, config.stash[NIGHT])
        config.pluginmanager.register(Gathering(config), "waveproof-perf")


def _thresholds(path: Path | None) -> dict[Key, Threshold]:
    """None were calibrated where no file is given.

    Raises:
        pytest.UsageError: it cannot be read.
    """
    try:
        return load_thresholds(path) if path else {}
    except OSError as error:
        raise pytest.UsageError(f"{error.filename}: {error.strerror}") from None
    except BadCalibration as error:
        raise pytest.UsageError(str(error)) from None


def _refuse(option: Any, night: Night) -> None:
    """What would be found out after an hour of measuring, when its results are written.

    Raises:
        pytest.UsageError: a file cannot be used.
    """
    try:
        if option.perf_ledger:
            option.perf_ledger.open("rb").close()  # without it, every figure would be taken for a new one
        if option.perf_history and not option.collectonly:
            History(option.perf_history).close()
        if option.perf_results or option.perf_history:
            _ = night.ledger
        if option.perf_results and not option.collectonly:
            option.perf_results.parent.mkdir(parents=True, exist_ok=True)
            option.perf_results.open("ab").close()
    except OSError as error:
        raise pytest.UsageError(f"{error.filename}: {error.strerror}") from None
    except (BadHistory, BadLedger, BadSigner) as error:
        raise pytest.UsageError(str(error)) from None


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that holds figures is a case of the suite: it gets an inspection, whether it asks for one or not."""
    names = getattr(item, "fixturenames", [])
    if "night" in names and "inspection" not in names:
        names.append("inspection")


@pytest.fixture(scope="session")
def night(pytestconfig: pytest.Config) -> Night:
    """Holds figures against their baselines, see :mod:`waveproof.perf.night`."""
    return pytestconfig.stash[NIGHT]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Fixtures may measure too."""
    night = item.config.stash[NIGHT]
    held = "night" in getattr(item, "fixturenames", ())
    night.inspection = item.stash.setdefault(INSPECTION, Inspection()) if held else None
    try:
        yield
    except BaseException:
        night.unsettled.clear()
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A test ends as its rulings have it, unless it ended otherwise before."""
    night = item.config.stash[NIGHT]
    try:
        yield
    except BaseException:
        night.unsettled.clear()
        raise
    night.settle()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """What a fixture finds while it ends."""
    yield
    item.config.stash[NIGHT].settle()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Everything that was left goes with the report, so that it arrives from another process too."""
    report = yield
    night = item.config.stash[NIGHT]
    if left := night.take():
        report.waveproof_perf = left  # type: ignore[attr-defined]
    if call.excinfo is not None and call.excinfo.value is night.raised:
        report.waveproof_perf_ruled = True  # type: ignore[attr-defined]
    return report


class Gathering:
    """Where the session is steered from: takes what the tests leave off their reports and writes it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.started = datetime.now(timezone.utc)
        self.left: list[dict[str, Any]] = []
        self.verdicts: dict[str, str] = {}
        self.broken: list[str] = []
        self.told: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take it off."""
        left = getattr(report, "waveproof_perf", ())
        self.left += [{**one, "test": report.nodeid} for one in left]
        sections_of(self.config).extend(section_of(one["section"]) for one in left if "section" in one)
        if verdict := (getattr(report, "waveproof", None) or {}).get("verdict"):
            self.verdicts[report.nodeid] = verdict
        if report.failed and not getattr(report, "waveproof_perf_ruled", False):
            self.broken.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the results and add them to the history."""
        results, history = self.config.option.perf_results, self.config.option.perf_history
        if self.config.option.collectonly or not (results or history):
            return
        text = self.text()
        if results:
            results.write_text(text, encoding="utf-8")
            self.told.append(f"{results}: {sum('measurement' in one for one in self.left)} measurements")
        if history:
            self.told.append(self._remember(text, history))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """How many rulings of each outcome, what they end with, how what is stale is accepted, what was written."""
        left = [one for one in self.left if "ruling" in one and self.verdicts.get(one["test"]) != "waived"]
        rulings = [ruling_of(one["ruling"]) for one in left]
        if rulings:
            option = self.config.option
            told = closing(rulings, option.perf_strict, bool(self.broken))
            terminalreporter.write_line(f"performance: {told}")
            if any(one.outcome == "stale" for one in rulings):
                accept = accept_command("", option.perf_results, option.perf_ledger or LEDGER)
                terminalreporter.write_line(f"performance: accept with: {accept}")
        for line in self.told:
            terminalreporter.write_line(line)

    def text(self) -> str:
        """The document of ``--perf-results``: besides the run, sections for the page and verdicts by test.

        Broken are tests that failed otherwise than by their rulings.
        """
        night, recorder = self.config.stash[NIGHT], self.config.stash.get(RECORDER, None)
        rulings = [one for one in self.left if "ruling" in one]
        return results_text(
            [measured for one in self.left if "measurement" in one for measured in from_json(one["measurement"])],
            [ruling_of(one["ruling"]) for one in rulings],
            self.started,
            recorder.commit if recorder is not None else "",
            night.ledger.head if night.ledger.entries else "",
            tests_of_rulings=[one["test"] for one in rulings],
            verdicts=self.verdicts,
            broken=self.broken,
            sections=[one["section"] for one in self.left if "section" in one],
        )

    def _remember(self, text: str, path: Path) -> str:
        with History(path) as history:
            added = history.add(runs_of(json.loads(text)))
        return f"{path}: {added} run added"
