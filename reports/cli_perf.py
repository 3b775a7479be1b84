"""``waveproof perf``: measure every night, gate, remember, and show.

The commands of other parts of this room are registered here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waveproof.reports import (
    cli_calibrate,
    cli_counts,
    cli_gate_quality,
    cli_gpu_day,
    cli_perf_history,
    cli_perf_ledger,
    cli_perf_page,
)
from waveproof.reports.console import wide_console

app = typer.Typer(
    no_args_is_help=True, help="Performance that gates: measure, compare with signed baselines, remember."
)
app.add_typer(cli_perf_history.app, name="history")
app.add_typer(cli_perf_ledger.app, name="ledger")
app.command()(cli_counts.counts)
app.command("gpu-day")(cli_gpu_day.gpu_day)
app.command()(cli_perf_page.page)
app.command()(cli_gate_quality.quality)
app.command("calibrate")(cli_calibrate.calibrate_here)

RECENT = 7
"""Runs in which a change for the worse is news, and of which each figure must be measured again."""


@app.command()
def nightly(
    tests: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PYTEST...]", help="More arguments of pytest, after --.")
    ] = None,
    history: Annotated[
        Path, typer.Option(metavar="FILE.db", help="History that the run is added to; made if there is none.")
    ] = cli_perf_history.DEFAULT,
    results: Annotated[
        Path, typer.Option(metavar="FILE.json", help="All measurements and rulings, to accept figures from.")
    ] = Path("perf-results.json"),
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write everything as an HTML page.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Another than the suite's, with its signers beside it.")
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="What waveproof perf calibrate wrote on this machine.")
    ] = None,
    history_gates: Annotated[
        bool, typer.Option("--history-gates", help=f"A change for the worse within the last {RECENT} runs is red.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Cases that are not expected: removed, or not chosen by PYTEST. * is any characters.",
        ),
    ] = None,
    forgetful: Annotated[
        bool, typer.Option("--forgetful", help="The ledger may lack lines that the history remembers: an older commit.")
    ] = False,
) -> None:
    """Run the performance tests, gate what they measure, and show it against the history.

    Exit status 0: all pass. 1: something regressed, or a test failed otherwise. 3: nothing worse than inconclusive,
    which includes that nothing was judged, or not all that recent nights measured or the ledger has. 4: a baseline is
    stale, or a figure is better than its baseline: sign a new entry (waveproof perf ledger accept). 2: not run to the
    end, or ledger or history cannot be trusted.
    """
    import json

    from waveproof.perf.history import History
    from waveproof.perf.ledger import LEDGER, Ledger
    from waveproof.perf.run_files import runs_of
    from waveproof.reports.history_sections import courses
    from waveproof.reports.nightly import brief, conclusion, measure, night_sections, not_measured, steps, write_page
    from waveproof.reports.sections import print_sections

    path = (ledger or LEDGER).resolve()
    path.open("rb").close()  # without it, every figure would be taken for a new one
    with History(history) as past:  # before an hour of measuring, not after
        remembered = "" if forgetful else past.ledger_head()
        expected = past.expected(RECENT)
    signed = Ledger.load(path, remembered=remembered)
    calibrated = [f"--perf-thresholds={thresholds.resolve()}"] if thresholds else []
    status, benchmarks = measure(results.resolve(), path, [*calibrated, *(tests or [])])
    document = json.loads(results.read_text(encoding="utf-8"))
    (run,) = runs_of(document)
    with History(history) as past:
        past.add((run, *benchmarks))
        found = courses(past, dict.fromkeys(one.key for each in (run, *benchmarks) for one in each.measurements))
        missing = not_measured(run, expected, signed, without or ())
        sections = night_sections(document, run, found, signed, missing)
        if page is not None:
            write_page(page, sections, run, past, found, signed)
    print_sections(brief(sections), wide_console(220))
    for file in filter(None, (results, history, page)):
        typer.echo(f"{file}")
    worse = [one for one in found if one.recently_worse(RECENT)]
    ends, why = conclusion(document, run, status, worse, history_gates, missing)
    typer.echo(f"exit status {ends}: {why}")
    for line in steps(run, results, path):
        typer.echo(line)
    raise typer.Exit(ends)
