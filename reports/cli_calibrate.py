"""``waveproof perf calibrate``: by how much a case differs from itself on this machine, and so what is let pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.perf.calibration import Calibration
    from waveproof.reports.sections import Section

UNAVAILABLE = 3
"""Exit status where there is no such device, or not every case could be calibrated."""


def calibrate_here(
    runtime: Annotated[str, typer.Option(help="cpu, hip or cuda.")] = "cpu",
    runs: Annotated[int, typer.Option(min=10, help="A/A runs of each case, each in a process of its own.")] = 20,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="Thresholds; those of other machines in it stay.")
    ] = Path("perf-thresholds.json"),
) -> None:
    """Time each case against itself, and write what tolerance its gate needs on this machine.

    'pytest perf -m rocm --perf-thresholds=FILE' and 'waveproof perf nightly --thresholds FILE' read the file. Exit
    status 3 where a case could not be calibrated: a package is missing, or the machine is too loud.
    """
    from contextlib import closing

    from waveproof.perf.calibration import PAIRS_OF_A_RUN, calibration, timed_cases
    from waveproof.perf.gpu_day_station import ChildStation, DeviceMissing
    from waveproof.perf.thresholds import key_of, load_thresholds, save_thresholds
    from waveproof.reports.sections import print_sections

    output.parent.mkdir(parents=True, exist_ok=True)  # before minutes of measuring, not after
    kept = load_thresholds(output) if output.exists() else {}
    cases = timed_cases(runtime)
    try:
        found = calibration(
            lambda: closing(ChildStation(runtime, PAIRS_OF_A_RUN)),
            cases,
            runs,
            lambda run: typer.echo(f"run {run} of {runs}, {len(cases)} cases", err=True),
        )
    except DeviceMissing as error:
        typer.echo(f"waveproof: calibrate: {error}", err=True)
        raise typer.Exit(UNAVAILABLE) from None
    fresh = {key_of(case, found.place): one for case, one in found.thresholds.items()}
    save_thresholds(output, {**kept, **fresh})
    print_sections([thresholds_section(found)], wide_console())
    typer.echo(f"{output}: {len(fresh)} calibrated, {len(kept.keys() - fresh.keys())} more kept")
    raise typer.Exit(UNAVAILABLE if found.refused else 0)


def thresholds_section(found: Calibration) -> Section:
    """Noise, tolerance and pairs needed, by case; what could not be calibrated is a warning."""
    from waveproof.perf.thresholds import CONFIDENCE, CONTENT, PAIRS_TRIED, key_of
    from waveproof.reports.sections import Section, Table

    rows = tuple(
        (
            case,
            str(one.runs),
            f"{one.noise:.2%}",
            f"{one.tolerance:.2%}",
            str(one.pairs_for_5_percent or "-"),
        )
        for case, one in found.thresholds.items()
    )
    table = Table(
        "A case against itself",
        ("case", "A/A runs", "noise", "tolerance", "pairs for +5 %"),
        rows,
        f"noise: of a pair's ratio within a run. tolerance: {CONTENT:.0%} of all A/A runs differ by less, with "
        f"{CONFIDENCE:.0%} confidence. -: {PAIRS_TRIED[-1]} pairs do not find +5 %.",
        (1, 2, 3, 4),
    )
    _, place = key_of("", found.place)
    warnings = tuple(f"{case}: not calibrated: {why}" for case, why in found.refused.items())
    return Section("Thresholds", f"On {' '.join(filter(None, place))}.", (table,), (), warnings)
