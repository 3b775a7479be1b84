"""``waveproof perf history``: what was measured before, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.perf.history import Key

app = typer.Typer(no_args_is_help=True, help="Runs of the performance tests over time, in one SQLite file.")

DEFAULT = Path("perf-history.db")
HistoryFile = Annotated[Path, typer.Option("--history", metavar="FILE.db", help="The history.")]
Existing = Annotated[
    Path, typer.Option("--history", metavar="FILE.db", exists=True, dir_okay=False, help="The history.")
]
Quantities = Annotated[str, typer.Option("--quantity", metavar="NAME", help="Only this quantity.")]


MOST_DRAWN = 50
"""Pictures without ``--all``."""


class TooMany(ValueError):
    """So many pictures that nobody meant them; the message says how many."""


class NoSuchCase(LookupError):
    """No key of the history fits; the message holds the pattern and what there is."""


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.json...",
            exists=True,
            dir_okay=False,
            help="Of pytest's --perf-results or --benchmark-json, of --json of perf gpu-day, perf counts or serving "
            "report, or of history export.",
        ),
    ],
    history: HistoryFile = DEFAULT,
    when: Annotated[
        datetime | None, typer.Option(help="UTC, of files that do not say; the file's own time if not given.")
    ] = None,
    commit: Annotated[str, typer.Option(help="Of files that do not say.")] = "",
) -> None:
    """Add runs to a history. What it has already is left out, so that importing twice adds nothing."""
    from waveproof.perf.history import History
    from waveproof.perf.run_files import read_runs
    from waveproof.reports.summary import count

    stated = when.replace(tzinfo=when.tzinfo or timezone.utc) if when else None
    runs = [(file, read_runs(file, stated, commit)) for file in files]
    with History(history) as past:
        for file, found in runs:
            typer.echo(f"{file.name}: {past.add(found)} of {count(len(found), 'run')} new")


@app.command()
def export(
    history: Existing = DEFAULT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; printed if not given.")] = None,
) -> None:
    """Write all runs with every sample as JSON, from which an equal history can be imported."""
    from waveproof.perf.history import History

    with History(history) as past:
        text = past.export()
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"{output}: {len(text.splitlines())} lines")


@app.command()
def show(
    case: Annotated[str, typer.Argument(metavar="PATTERN", help="Cases; * is any characters.")] = "*",
    quantity: Quantities = "",
    history: Existing = DEFAULT,
) -> None:
    """Print where each figure began and is now, and when it changed for good."""
    from waveproof.perf.history import History
    from waveproof.reports.history_sections import changes_section, courses
    from waveproof.reports.perf_sections import history_section
    from waveproof.reports.sections import print_sections

    with History(history) as past:
        chosen = _chosen(case, quantity, past.keys())
        found = courses(past, chosen)
        sections = [history_section(past, keys=chosen), *([changes_section(found)] if found else [])]
    print_sections(sections, wide_console(200))


@app.command()
def plot(
    case: Annotated[str, typer.Argument(metavar="PATTERN", help="Cases; * is any characters.")] = "*",
    quantity: Quantities = "",
    history: Existing = DEFAULT,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the PNGs.")] = Path(
        "perf-plots"
    ),
    ledger: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Another than the suite's.")] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Draw more than {MOST_DRAWN} pictures too.")] = False,
) -> None:
    """Draw each figure over time with its change points, anchor and baseline."""
    from waveproof.perf.history import History
    from waveproof.perf.ledger import LEDGER, Ledger
    from waveproof.reports.history_sections import courses, pictures_of

    with History(history) as past:
        chosen = _chosen(case, quantity, past.keys())
        if len(chosen) > MOST_DRAWN and not everything:
            told = f"more than {MOST_DRAWN}: narrow them with PATTERN or --quantity, or say --all"
            raise TooMany(f"{len(chosen)} figures would be drawn, {told}")
        found = courses(past, chosen)
    signed = Ledger.load(ledger or LEDGER)
    output.mkdir(parents=True, exist_ok=True)
    for picture in pictures_of(found, signed):
        file = output / f"{picture.name}.png"
        file.write_bytes(picture.png)
        typer.echo(f"{file}: {picture.caption}")


def _chosen(case: str, quantity: str, keys: Sequence[Key]) -> tuple[Key, ...]:
    from waveproof.reports.history_sections import matching
    from waveproof.reports.summary import count

    chosen = matching(case, quantity, keys)
    if keys and not chosen:
        wanted = " ".join(filter(None, (repr(case), quantity)))
        raise NoSuchCase(f"{wanted} fits none of {count(len(keys), 'figure')}, such as {keys[0][0]} {keys[0][1]}")
    return chosen
