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
    from waveproof.reports.sections import Section

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
        typer.echo(f"waveproof: gpu-day: {error}", err=True)
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

    rows, until = [], 0.0
    reasons: dict[str, list[int]] = {}
    for number, trial in enumerate(trials, 1):
        missing = [why for one in (trial.fast, trial.slow) for why in _missing(one.subject, runtime)]
        for why in missing:
            reasons.setdefault(why, []).append(number)
        until += trial.least_seconds
        fits = "unavailable" if missing else "fits" if until <= budget else "only if others leave time"
        rows.append(
            (
                str(number),
                trial.fast.subject.implementation.operator,
                trial.name,
                *(_side(one.subject.implementation.provider, one.expected) for one in (trial.fast, trial.slow)),
                ", ".join(way.name for way in trial.ways),
                f"{trial.at_least:g}" if trial.at_least else "-",
                f"{trial.least_seconds:.0f}",
                f"{until:.0f}",
                fits,
            )
        )
    columns = ("", "operator", "work", "fast side", "slow side", "ways", "asked", "needs s", "until s", "")
    note = "needs: an estimate, imports and compiling included. asked: times as fast. Each side: provider, its kernels."
    table = Table(f"Plan for {runtime}, {budget:.0f} s", columns, tuple(rows), note, numeric=(0, 6, 7, 8))
    lead = "Nothing was run."
    if runtime == "cuda":
        lead += f" Timing takes {TIMED_SHARE:.0%} of the budget at most; goldens are captured in what is left."
    told = (f"{why} (trials {', '.join(map(str, dict.fromkeys(numbers)))})" for why, numbers in reasons.items())
    return Section("GPU day", lead, (table,), (), tuple(told))


def _side(provider: str, kernels: Sequence[str]) -> str:
    return f"{provider}: {', '.join(one for one in kernels if not one.endswith('?')) or 'torch operations'}"


def _missing(subject: Subject, runtime: str) -> list[str]:
    """Why a side cannot run here: all reasons at once, so that one visit to the machine mends them."""
    from waveproof.kernels.runtimes.catalogue import installed, why_unavailable

    implementation = subject.implementation
    reasons = [why_unavailable(runtime)] if runtime in implementation.runtimes else []
    if not reasons:
        reasons = [f"{subject.id}: offers {', '.join(implementation.runtimes)}, not {runtime}"]
    reasons += [f"{package} is not installed" for package in implementation.packages if not installed(package)]
    return [reason for reason in reasons if reason]


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
