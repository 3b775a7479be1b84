"""``waveproof startup``: what a server's log says that was chosen, what fell back, and whether that was to be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.servers.startup import Startup


def startup(
    log: Annotated[
        str, typer.Argument(metavar="[LOGFILE|-]", help="Log of sglang or vLLM; - reads it from stdin.")
    ] = "",
    base_url: Annotated[str, typer.Option(metavar="URL", help="Running server to ask, with the log or without.")] = "",
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="aiter, no-fallback, graph, kv-scales, or a choice: attention=aiter, speculative=EAGLE, moe=...; "
            "may be repeated.",
        ),
    ] = None,
    api_key_env: Annotated[str, typer.Option(metavar="VAR", help="Environment variable that holds the API key.")] = "",
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="JSON file with the result.")
    ] = None,
) -> None:
    """List the backends that a server chose, with the lines that say so, and the lines that mean a fallback.

    Reads plain logs, coloured ones, JSON ones and those of many ranks at once, without keeping them in memory. Only
    lines whose message begins as upstream's own logging call does are taken: a prompt cannot be mistaken for one.

    Exit status: 0 as required (a fallback fails with --require no-fallback only), 1 something required is not so or the
    server raised an exception, 3 inconclusive (never said to be ready, or no choice is stated), 2 the command was given
    wrongly.
    """
    from waveproof.fixtures.servers.startup_required import judged, overall, requirement
    from waveproof.reports.startup_report import EXIT_CODES, choices, closing_lines, document, findings

    requirements = [requirement(text) for text in require or ()]
    if not log and not base_url:
        raise typer.BadParameter("give a log file, - for stdin, or --base-url", param_hint="LOGFILE")
    found = _found(log, base_url, api_key_env)
    outcomes = judged(found, requirements)
    console = wide_console(160)
    if found.statements:
        console.print(choices(found))
    if found.of("error") or found.of("fallback"):
        console.print(findings(found))
    for line, colour in closing_lines(found, outcomes):
        console.print(line, style=colour or None, markup=False, highlight=False)
    if json_output is not None:
        import json

        json_output.write_text(json.dumps(document(found, outcomes), indent=1) + "\n", encoding="utf-8")
        typer.echo(f"{json_output}: {len(found.statements)} choices, {len(found.findings)} findings", err=True)
    raise typer.Exit(EXIT_CODES[overall(outcomes)])


def _found(log: str, base_url: str, api_key_env: str) -> Startup:
    """Read the log, ask the server, or both."""
    from waveproof.fixtures.servers.startup import read_startup
    from waveproof.fixtures.servers.startup_info import read_info

    told = read_info(base_url, api_key_env) if base_url else None
    if not log:
        assert told is not None, "one of them is given"
        return told
    if log == "-":
        read = read_startup(sys.stdin.buffer)
    else:
        with Path(log).open("rb") as stream:
            read = read_startup(stream)
    return read.with_info(told) if told is not None else read
