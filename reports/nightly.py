"""A night of measuring: the tests in a process of their own, what they left, and what the night comes to."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from waveproof.perf.history import History, Key
from waveproof.perf.ledger import LEDGER, Ledger
from waveproof.perf.records import EXIT_STATUS, GRAVITY, gravest
from waveproof.perf.run_files import Run, read_runs
from waveproof.reports.history_sections import (
    Course,
    changes_section,
    drift_section,
    gravest_outcomes,
    matching,
    pictures_of,
    worth_a_picture,
)
from waveproof.reports.perf_page import write_perf_page
from waveproof.reports.perf_sections import (
    figures_section,
    history_section,
    left_sections,
    rulings_section,
    versions_of,
)
from waveproof.reports.sections import Section, Table


class NotMeasured(RuntimeError):
    """The tests did not come to an end; the message holds pytest's exit status."""


def measure(results: Path, ledger: Path, arguments: Sequence[str]) -> tuple[int, tuple[Run, ...]]:
    """Run the tests in a process of their own; pytest's exit status, and what pytest-benchmark measured besides.

    Raises:
        NotMeasured: pytest was interrupted, broke down, did not understand its arguments or found no test.
    """
    results.unlink(missing_ok=True)
    root = LEDGER.parents[2]
    with tempfile.TemporaryDirectory() as folder:
        timed = Path(folder, "benchmarks.json")
        command = [sys.executable, "-m", "pytest", "perf", "-m", "rocm", f"--perf-results={results}"]
        command += [f"--benchmark-json={timed}", *([f"--perf-ledger={ledger}"] if ledger != LEDGER.resolve() else [])]
        status = subprocess.run([*command, *arguments], cwd=root, check=False).returncode
        if status not in (0, 1) or not results.exists():
            raise NotMeasured(f"pytest ended with exit status {status}: nothing is gated")
        saved = timed.exists() and timed.stat().st_size
        return status, read_runs(timed) if saved else ()


def not_measured(run: Run, earlier: Sequence[Key], ledger: Ledger, without: Sequence[str] = ()) -> list[Key]:
    """What a night should have measured and has not: a test that was skipped or is gone guards nothing.

    Expected is what recent nights measured, and what the ledger has a baseline of on a runtime and arch that was
    measured tonight. Devices may differ: the next runner's CPU is another model.

    Args:
        run: tonight's.
        earlier: keys of recent nights.
        ledger: with the baselines.
        without: patterns of cases that are not expected.
    """
    tonight = {_wherever(one.key) for one in run.measurements}
    places = {places for _, _, places in tonight}
    signed = {entry.measurement.key for entry in ledger.entries}
    expected = {*map(_wherever, earlier), *(key for key in map(_wherever, signed) if key[2] in places)}
    left_out = {key for pattern in without for key in matching(pattern, "", expected)}
    return sorted(expected - tonight - left_out)


def _wherever(key: Key) -> Key:
    case, quantity, (runtime, arch, _) = key
    return case, quantity, (runtime, arch, "")


def night_sections(
    document: Mapping[str, Any], run: Run, found: Sequence[Course], ledger: Ledger, missing: Sequence[Key] = ()
) -> list[Section]:
    """What the gate said and what is missing, what the tests left to be read, change points and drift."""
    left = left_sections(document)
    lost = [_missing_section(missing)] if missing else []
    return [rulings_section(run), *lost, *left, changes_section(found), drift_section(found, ledger)]


def _missing_section(missing: Sequence[Key]) -> Section:
    rows = tuple((case, quantity, " ".join(place).strip()) for case, quantity, place in missing)
    return Section(
        "Not measured tonight",
        "Recent nights measured these, or the ledger has baselines of them. Where a case was removed or is not meant "
        "to run here, say so with --without 'CASE'.",
        (Table("", ("case", "quantity", "place"), rows),),
        warnings=(f"{len(missing)} figures are missing, so that tonight's rulings say nothing of them.",),
    )


def brief(sections: Sequence[Section]) -> list[Section]:
    """For a terminal: without rows that say that all is well, of which a night has hundreds; the page has them."""
    return [replace(section, tables=tuple(map(_odd_rows, section.tables))) for section in sections]


def _odd_rows(table: Table) -> Table:
    usual = {"outcome": "pass", "since then": "+0 %"}
    at = next((number for number, column in enumerate(table.columns) if column in usual), None)
    if at is None:
        return table
    rows = tuple(row for row in table.rows if row[at] != usual[table.columns[at]])
    left_out = f" Left out: {len(table.rows) - len(rows)} rows with {usual[table.columns[at]]}."
    return replace(table, rows=rows, note=f"{table.note}{left_out}" if len(rows) < len(table.rows) else table.note)


def write_page(
    page: Path, sections: Sequence[Section], run: Run, past: History, found: Sequence[Course], ledger: Ledger
) -> None:
    """The same with pictures, every figure and the whole history."""
    pictures = pictures_of(worth_a_picture(found, gravest_outcomes(run.rulings)), ledger)
    everything = [*sections, figures_section(run), history_section(past, pictures)]
    write_perf_page(page, everything, "Nightly performance", run.when, versions_of([run]))


def conclusion(
    document: Mapping[str, Any],
    run: Run,
    status: int,
    worse: Sequence[Course],
    history_gates: bool,
    missing: Sequence[Key] = (),
) -> tuple[int, str]:
    """The command's exit status and why.

    Args:
        document: what the tests wrote: which test each ruling is of, verdicts, tests that failed otherwise.
        run: its rulings; those of waived tests do not count.
        status: pytest's.
        worse: figures that changed for the worse lately.
        history_gates: whether these count.
        missing: what should have been measured and was not.
    """
    verdicts, tests = document.get("verdicts", {}), document.get("tests_of_rulings", ())
    outcomes = [one.outcome for test, one in zip(tests, run.rulings, strict=True) if verdicts.get(test) != "waived"]
    told = ", ".join(f"{outcomes.count(one)} {one}" for one in reversed(GRAVITY) if one in outcomes)
    ends = EXIT_STATUS[gravest(outcomes)]
    if not run.rulings:
        ends, told = EXIT_STATUS["inconclusive"], "nothing was judged"
    if missing:
        ends, told = ends or EXIT_STATUS["inconclusive"], f"{told}; {len(missing)} figures were not measured"
    if broken := document.get("broken", ()):
        ends, told = 1, f"{told}; failed otherwise: {', '.join(broken)}"
    if history_gates and worse:
        ends, told = 1, f"{told}; worse lately: {', '.join(' '.join(one.key[:2]) for one in worse)}"
    if status and not ends:
        ends, told = 1, f"{told}; pytest ended with {status}"
    return ends, told
