"""``waveproof perf quality``: how good the gate is on traces with and without a change, and others beside it."""

from __future__ import annotations

from typing import Annotated

import typer


def quality(
    comparisons: Annotated[int, typer.Option(min=100, help="Comparisons without a change, of each kind.")] = 2000,
    trace: Annotated[str, typer.Option(help="Only this kind of trace.")] = "",
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Figures as JSON on stdout instead of tables.")] = False,
) -> None:
    """False alarms and +5 % found: our gate, pytest-benchmark's compare-fail and Mann-Whitney on the same traces.

    Exit status 1 where the gate is not as required: 1 false alarm in 1,000 at most, 99 of 100 changes found.
    """
    from waveproof.perf.gate_quality import GATE, qualities
    from waveproof.perf.traces import TRACES, trace_of
    from waveproof.reports.console import wide_console
    from waveproof.reports.gate_quality_tables import quality_section
    from waveproof.reports.sections import print_sections

    try:
        chosen = (trace_of(trace),) if trace else TRACES
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--trace") from None
    found, seconds = qualities(comparisons, chosen, seed)
    if json_:
        import json
        from dataclasses import asdict

        rows = [{**asdict(one), "most_alarms": one.most_alarms, "least_found": one.least_found} for one in found]
        typer.echo(json.dumps({"schema": 1, "seed": seed, "seconds": round(seconds, 1), "rows": rows}, indent=1))
    else:
        print_sections([quality_section(found, seconds)], wide_console(220))
    raise typer.Exit(0 if all(one.holds for one in found if one.method == GATE.name) else 1)
