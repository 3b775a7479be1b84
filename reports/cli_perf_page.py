"""``waveproof perf page``: results of performance tests and their history as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waveproof.perf.run_files import Run
    from waveproof.reports.sections import Section


class NothingToShow(ValueError):
    """No file was given, or one that holds nothing; the message says which."""


def page(
    perf_results: Annotated[
        list[Path] | None,
        typer.Option("--perf-results", metavar="FILE.json", help="What pytest perf wrote; may be given several times."),
    ] = None,
    history: Annotated[Path | None, typer.Option(metavar="FILE.db", help="History of earlier runs.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Baselines in the pictures: another ledger than the suite's."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.html", help="Page to write.")] = Path(
        "perf.html"
    ),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Performance",
) -> None:
    """Write results and history as one HTML file, which requests nothing from anywhere and needs no JavaScript.

    Rulings come first, the gravest on top, then what the tests found and every figure, then how each came about over
    the runs of the history. Exit status 0 whatever they say: pytest and the gate decide.
    """
    import json

    from waveproof.perf.run_files import read_runs
    from waveproof.reports.perf_page import write_perf_page
    from waveproof.reports.perf_sections import left_sections, run_sections, versions_of

    if not perf_results and history is None:
        raise NothingToShow("nothing to show: give --perf-results FILE.json, --history FILE.db or both")
    if history is not None and not history.is_file():
        raise NothingToShow(f"--history {history.name}: there is no such file")
    runs: list[Run] = []
    sections: list[Section] = []
    for path in perf_results or ():
        found = sorted(read_runs(path), key=lambda run: run.when, reverse=True)
        left = left_sections(json.loads(path.read_text(encoding="utf-8")))
        for run in found:
            rulings, figures = run_sections(run)
            sections += [rulings, *left, figures]
        runs += found
    if history is not None:
        past_sections, past_runs = _of_history(history, ledger, runs)
        sections += past_sections
        runs = runs or past_runs[-1:]
    when = max((run.when for run in runs), default=None)
    write_perf_page(output, sections, title, when, versions_of(runs))
    typer.echo(f"{output}: {len(sections)} sections, {output.stat().st_size / 1024:,.0f} KiB")


def _of_history(history: Path, ledger: Path | None, runs: Sequence[Run]) -> tuple[list[Section], list[Run]]:
    """Change points, drift and courses, with pictures of what the runs' rulings or its changes make worth seeing."""
    from waveproof.perf.history import History
    from waveproof.perf.ledger import LEDGER, Ledger
    from waveproof.reports.history_sections import (
        changes_section,
        courses,
        drift_section,
        gravest_outcomes,
        pictures_of,
        worth_a_picture,
    )
    from waveproof.reports.perf_sections import history_section

    if ledger is not None and not ledger.is_file():
        raise NothingToShow(f"--ledger {ledger.name}: there is no such file")
    signed = Ledger.load(ledger or LEDGER)
    outcomes = gravest_outcomes(one for run in runs for one in run.rulings)
    with History(history) as past:
        found = courses(past)
        pictures = pictures_of(worth_a_picture(found, outcomes), signed)
        sections = [changes_section(found), drift_section(found, signed), history_section(past, pictures)]
        return sections, list(past.runs())
