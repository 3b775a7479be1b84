"""A night of measuring: the tests in a process of their own, what they left, and what the night comes to."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from waveproof.perf.history import History, Key
from waveproof.perf.ledger import LEDGER, SIGNERS_SHOWN, Ledger, signers_beside
from waveproof.perf.night import MISSING, accept_command
from waveproof.perf.records import EXIT_STATUS, gravest
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
    STALE_BY_REASON,
    figures_section,
    history_section,
    left_sections,
    rulings_section,
    shown_outcomes,
    versions_of,
)
from waveproof.reports.sections import Section, Table
from waveproof.reports.summary import count

USUAL = {"outcome": "pass", "since then": "+0 %"}
"""By column, what says that all is well."""

MOST_ROWS = 40
"""Of a table on a terminal."""


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
    places = {place for _, _, place in tonight}
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
        warnings=(f"Missing: {count(len(missing), 'figure')}, of which tonight's rulings say nothing.",),
    )


def brief(sections: Sequence[Section]) -> list[Section]:
    """For a terminal: without rows that say that all is well, or what a group says; the page has these hundreds."""
    return list(map(_brief, sections))


def _brief(section: Section) -> Section:
    grouped = any(table.title == STALE_BY_REASON for table in section.tables)
    tables, lead = [], section.lead
    for table in section.tables:
        rows, left_out = _odd_rows(table, grouped)
        if rows:
            note = " ".join(filter(None, (table.note, left_out)))
            tables.append(_without_empty_columns(replace(table, rows=rows, note=note)))
        else:
            lead = " ".join(filter(None, (lead, left_out)))
    return replace(section, lead=lead, tables=tuple(tables))


def _odd_rows(table: Table, grouped: bool) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Rows that are worth reading, at most so many, and what is said of the others."""
    at = {column: number for number, column in enumerate(table.columns)}
    left_out: Counter[str] = Counter()
    odd: list[tuple[str, ...]] = []
    for row in table.rows:
        if usual := [word for column, word in USUAL.items() if column in at and row[at[column]] == word]:
            left_out[f"with {usual[0]}"] += 1
        elif grouped and "effect" in at and not row[at["effect"]] and row[at["against"]] != MISSING:
            left_out["by reason above"] += 1
        elif len(odd) == MOST_ROWS:
            left_out[f"beyond {MOST_ROWS}, which --page shows"] += 1
        else:
            odd.append(row)
    told = ", ".join(f"{count(amount, 'row')} {why}" for why, amount in left_out.items())
    return tuple(odd), f"Left out: {told}." if told else ""


def _without_empty_columns(table: Table) -> Table:
    return table.of_columns([at for at in range(len(table.columns)) if any(row[at] for row in table.rows)])


def steps(run: Run, results: Path, ledger: Path) -> tuple[str, ...]:
    """How figures become baselines, where any of a night's are none yet."""
    if not any(one.outcome in ("stale", "improve") for one in run.rulings):
        return ()
    signers = SIGNERS_SHOWN if ledger.resolve() == LEDGER.resolve() else signers_beside(ledger)
    return (
        "To make these figures the baseline, the first two once and the last for each night that is right:",
        "  waveproof perf ledger key NAME --out FILE",
        f"  add the printed line to {signers}",
        f"  {accept_command('', results, ledger)}",
    )


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
    ends, told = EXIT_STATUS[gravest(outcomes)], shown_outcomes(outcomes)
    if not run.rulings:
        ends, told = EXIT_STATUS["inconclusive"], "nothing was judged"
    if missing:
        ends, told = ends or EXIT_STATUS["inconclusive"], f"{told}; {count(len(missing), 'figure')} not measured"
    if broken := document.get("broken", ()):
        ends, told = 1, f"{told}; failed otherwise: {', '.join(broken)}"
    if history_gates and worse:
        ends, told = 1, f"{told}; worse lately: {', '.join(' '.join(one.key[:2]) for one in worse)}"
    if status and not ends:
        ends, told = 1, f"{told}; pytest ended with {status}"
    return ends, told
