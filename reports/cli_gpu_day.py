"""``waveproof perf gpu-day``: what is to be measured on a GPU that is there for minutes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.kernels.providers.registry import Subject
    from waveproof.perf.gpu_day import Day, Result, State
    from waveproof.perf.gpu_day_terms import Trial
    from waveproof.reports.sections import Section, Table

UNAVAILABLE = 3
"""Exit status where there is no such GPU: nothing was found out, as with any other inconclusive result."""

TIMED_SHARE = 0.5
"""Of the budget, for timing, where goldens are captured too; what it leaves is theirs."""

GOLDENS = "goldens"
"""Name of the capture among the trials."""

LEAST_TIMED = 0.1
"""Seconds that are given to the trials where starting the device took all: they are named as not begun."""

LEAST_CAPTURE = 10.0
"""Seconds under which no capture is begun."""

MOST_PRINTED = 4000
"""Characters of a capture's output that are kept: its end."""


def gpu_day(
    runtime: Annotated[str, typer.Option(help="hip, cuda, or cpu for a rehearsal of the steps.")] = "hip",
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="Nothing is begun that does not fit.")] = 600.0,
    output: Annotated[
        Path | None, typer.Option("--json", "-o", dir_okay=False, help="Results; gpu-day-RUNTIME.json if not given.")
    ] = None,
    page: Annotated[Path | None, typer.Option(dir_okay=False, help="The same as an HTML page with pictures.")] = None,
    goldens: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="cuda: store for captured goldens; goldens-cuda if not given."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what is unavailable, and end.")
    ] = False,
) -> None:
    """Judge, prove and time pairs of fast and slow kernels within a budget of minutes, the most important first.

    Of each pair both results are held to float64, both kernels are proven from a profiler's trace, and both are timed
    by device events and by graph replay, with caches warm and cold, beside the roofline's floor. With cuda, goldens
    are captured in the time that is left. Results are written after each pair, in a form that 'waveproof perf history
    import' takes.

    Exit status 0 where all holds; 1 for a wrong result, a fallback, a time below the floor or a fast path that is the
    slower one; 3 where something could not be seen: no such GPU, a missing package, too little time.
    """
    from dataclasses import replace
    from time import monotonic

    from waveproof.perf.gpu_day import BadBudget, Day, run_day
    from waveproof.perf.gpu_day_plan import trials_for
    from waveproof.perf.gpu_day_station import ChildStation, DeviceMissing
    from waveproof.perf.records import EXIT_STATUS
    from waveproof.reports.perf_page import write_perf_page
    from waveproof.reports.sections import print_sections
    from waveproof.reports.speed_picture import day_sections

    if not 0 < budget < float("inf"):
        raise BadBudget(f"--budget {budget:g}: seconds, more than 0 and finite")
    trials = trials_for(runtime)
    console = wide_console()
    if dry_run:
        print_sections([plan_section(trials, runtime, budget)], console)
        return
    file = output or Path(f"gpu-day-{runtime}.json")
    end = monotonic() + budget
    try:
        station = ChildStation(runtime)
    except DeviceMissing as error:
        for reason in dict.fromkeys((*lacking(runtime), str(error))):
            typer.echo(f"waveproof: gpu-day: {reason}", err=True)
        raise typer.Exit(UNAVAILABLE) from None

    def keep(day: Day) -> None:
        write(file, day)
        last = day.results[-1]
        told = "; ".join((*last.reasons, *last.notes))
        typer.echo(f"{last.outcome:12} {last.trial} {last.spent:.1f} s{': ' + told[:300] if told else ''}")

    started = Day(station.place, budget, (), station.notes)
    write(file, started)
    try:
        timed = budget * (TIMED_SHARE if runtime == "cuda" else 1.0) - (budget - (end - monotonic()))
        day = run_day(trials, station, max(timed, LEAST_TIMED), keep, day=started)
    finally:
        station.close()
    if runtime == "cuda":
        captured = capture_goldens(goldens or Path("goldens-cuda"), end - monotonic())
        typer.echo("\n".join((f"{captured.outcome:12} {GOLDENS}", *captured.reasons, *captured.notes)))
        day = replace(day, results=(*day.results, captured))
    sections = day_sections(day)
    write(file, day, sections)
    print_sections(sections, console)
    typer.echo(f"results: {file}; waveproof perf history import {file}")
    if page is not None:
        write_perf_page(page, sections, f"GPU day, {runtime}", versions=day.place.versions)
        typer.echo(f"page: {page}")
    raise typer.Exit(EXIT_STATUS[day.outcome])


def write(file: Path, day: Day, sections: Sequence[Section] = ()) -> None:
    """All that was found so far, in one step: a file that is cut off would lose what was there before."""
    from waveproof.perf.gpu_day import document

    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(document(day, sections), encoding="utf-8")
    os.replace(fresh, file)


def plan_section(trials: Sequence[Trial], runtime: str, budget: float) -> Section:
    """The plan: what runs against what, in which order, for how long by estimate, and what cannot run here and why."""
    from waveproof.reports.sections import Section, Table

    rows, until, here = [], 0.0, lacking(runtime)
    reasons: dict[str, list[int]] = {}
    for number, trial in enumerate(trials, 1):
        missing = [why for one in (trial.fast, trial.slow) for why in _missing(one.subject, runtime, here)]
        for why in dict.fromkeys(missing):
            reasons.setdefault(why, []).append(number)
        fast, slow = trial.fast.subject.implementation, trial.slow.subject.implementation
        until += trial.least_seconds
        fits = "unavailable" if missing else "fits" if until <= budget else "only if others leave time"
        rows.append(
            (
                str(number),
                fast.operator,
                work_in_words(trial.name),
                fast.provider,
                slow.provider if slow.operator == fast.operator else f"{slow.provider} {slow.operator}",
                f"{trial.at_least:g}" if trial.at_least else "-",
                f"{until:.0f}",
                ", ".join(way.name for way in trial.ways),
                fits,
            )
        )
    columns = ("trial", "operator", "work", "fast side", "slow side", "asked", "until s", "timed", "here")
    note = "asked: times as fast. until: by estimate, imports and compiling included."
    plan = Table(f"Plan for {runtime}, {budget:.0f} s", columns, tuple(rows), note, numeric=(0, 5, 6))
    tables = (equal_told_once(plan, ("timed", "here")), _kernels(trials))
    lead = "Nothing was run."
    if runtime == "cuda":
        lead += f" Timing takes {TIMED_SHARE:.0%} of the budget at most; goldens are captured in what is left."
    told = (f"{why} ({_which(numbers, len(trials))})" for why, numbers in reasons.items())
    return Section("GPU day", lead, tables, (), tuple(told))


def work_in_words(name: str) -> str:
    """``decode/heads=12/keys=16384`` as ``decode: KV 16,384, heads 12``: context first, for it tells trials apart."""
    words: list[str] = []
    sizes: list[str] = []
    for part in name.split("/"):
        what, equals, value = part.partition("=")
        if not equals:
            words.append(part)
        elif what == "keys":
            sizes.insert(0, f"KV {int(value):,}")
        else:
            sizes.append(f"{what} {int(value):,}" if value.isdecimal() else f"{what} {value}")
    return ": ".join(part for part in (" ".join(words), ", ".join(sizes)) if part)


def equal_told_once(table: Table, columns: Sequence[str]) -> Table:
    """Those of the columns that say the same in every row, in the note instead; they stand right of numeric ones."""
    from dataclasses import replace

    note = table.note
    for name in columns:
        at = table.columns.index(name)
        cells = {row[at] for row in table.rows}
        if len(cells) == 1:
            note += f" {name}, all: {cells.pop()}."
            rows = tuple(row[:at] + row[at + 1 :] for row in table.rows)
            table = replace(table, columns=table.columns[:at] + table.columns[at + 1 :], rows=rows)
    return replace(table, note=note)


def _kernels(trials: Sequence[Trial]) -> Table:
    from waveproof.reports.sections import Table

    rows = dict.fromkeys(
        (
            one.subject.implementation.operator,
            one.subject.implementation.provider,
            ", ".join(kernel for kernel in one.expected if not kernel.endswith("?")) or "torch operations",
        )
        for trial in trials
        for one in (trial.fast, trial.slow)
    )
    return Table("Kernels that a profiler's trace must show", ("operator", "side", "kernels"), tuple(rows))


def _which(numbers: Sequence[int], trials: int) -> str:
    if len(numbers) == trials > 1:
        return f"all {trials} trials"
    return f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def lacking(runtime: str) -> tuple[str, ...]:
    """What this machine lacks for a runtime: all of it, so that one visit mends it."""
    from waveproof.kernels.runtimes.catalogue import installed, why_unavailable

    reasons = [why_unavailable(runtime)]
    if runtime in ("hip", "cuda") and installed("torch"):
        from waveproof.kernels.runtimes.device import DeviceUnavailable, require_build

        try:
            require_build(runtime)
        except DeviceUnavailable as error:
            reasons.append(str(error))
    return tuple(reason for reason in reasons if reason)


def _missing(subject: Subject, runtime: str, here: Sequence[str]) -> list[str]:
    """Why a side cannot run here: all reasons at once, what lacks ``here`` for the runtime among them."""
    from waveproof.kernels.runtimes.catalogue import installed

    implementation = subject.implementation
    reasons = list(here)
    if runtime not in implementation.runtimes:
        reasons = [f"{subject.id}: offers {', '.join(implementation.runtimes)}, not {runtime}"]
    return reasons + [f"{package} is not installed" for package in implementation.packages if not installed(package)]


def capture_goldens(store: Path, seconds: float, runtime: str = "cuda") -> Result:
    """Capture goldens into a store, in a process that is ended when its time is spent; what it stored by then stays.

    Returns:
        ``measured`` where all was captured, ``no time`` where it was cut off or not begun, ``unavailable`` where it
        ended by itself with nothing captured, ``red`` where it died; its own words are the notes.
    """
    import subprocess

    from waveproof.perf.gpu_day import Result

    if seconds < LEAST_CAPTURE:
        return Result(GOLDENS, "no time", (f"{max(seconds, 0):.0f} s were left: nothing was captured",))
    arguments = ["golden", "capture", "--runtime", runtime, "--out", str(store)]
    # Its workers end with it (PR_SET_PDEATHSIG).
    boot = "import sys; from waveproof.reports.cli import app; app(sys.argv[1:])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", boot, *arguments], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        reason = f"ended after {seconds:.0f} s; take it up again with: waveproof {' '.join(arguments)}"
        return Result(GOLDENS, "no time", (reason,), notes=_lines(said), spent=seconds)
    notes = _lines(done.stdout + done.stderr)
    if done.returncode == 0:
        return Result(GOLDENS, "measured", notes=notes)
    state: State = "unavailable" if done.returncode == 1 else "red"
    return Result(GOLDENS, state, (f"waveproof {' '.join(arguments)} ended with {done.returncode}",), notes=notes)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in text[-MOST_PRINTED:].splitlines() if line.strip())
