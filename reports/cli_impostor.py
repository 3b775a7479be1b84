"""``waveproof impostor``: does sglang's verification of draft tokens sample on AMD GPUs, release by release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from waveproof.fixtures.eagle_draws import Draws
    from waveproof.fixtures.greedy_impostor import Release, Verdict

_STYLES = {"samples": "green", "undecided": "yellow"}


def impostor(
    trees: Annotated[
        list[Path] | None,
        typer.Argument(help="Wheels or unpacked sources of sglang releases; the installed one where none is given."),
    ] = None,
) -> None:
    """Print which verifiers of sglang answer every temperature with the argmax on HIP.

    A release is only read, never imported: the branch that each verifier takes for a request above temperature 0, with
    and without rejection sampling. Of the installed one `eagle_sample` is run too: 64 draws on two equal logits.
    """
    from rich.console import Console

    from waveproof.fixtures.greedy_impostor import NoSource, installed, verdict_of

    console = Console()
    try:
        releases = [verdict_of(tree) for tree in trees or [installed()]]
    except NoSource as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    console.print(table(releases))
    for note in notes(releases):
        console.print(f"- {note}", markup=False, highlight=False)
    if not trees:
        for note in _observed():
            console.print(f"- {note}", markup=False, highlight=False)


def table(releases: Sequence[Release]) -> Any:
    """A row for each verifier of each release."""
    from rich.table import Column, Table
    from rich.text import Text

    columns = ("sglang", "verifier", "rejection sampling", "on HIP above temperature 0", "where", "why")
    printed = Table(*(Column(name, overflow="fold") for name in columns))
    for release in releases:
        shown = release.version
        for verdict in release.verdicts:
            outcome = Text(verdict.outcome, style=_STYLES.get(verdict.outcome, "red"))
            switch = {True: "on", False: "off", None: "-"}[verdict.rejection_sampling]
            verifier = verdict.verifier.rpartition(":")[2]
            printed.add_row(shown, verifier, switch, outcome, verdict.where.removeprefix("sglang/"), _why(verdict))
            shown = ""
        printed.add_section()
    return printed


def _why(verdict: Verdict) -> str:
    return "; ".join([verdict.reason, *(f"unless line {one}" for one in verdict.unless)])


def notes(releases: Sequence[Release]) -> list[str]:
    """Where a release switches rejection sampling on by itself."""
    return [
        f"sglang {release.version} switches rejection sampling on where {release.switched_on}"
        for release in releases
        if release.switched_on
    ]


def _observed() -> list[str]:
    """What the installed ``eagle_sample`` did, without and with rejection sampling."""
    from waveproof.fixtures.eagle_draws import draws
    from waveproof.kernels.runtimes.process import Crashed, TimedOut, Unavailable

    try:
        return [_counted(seen) for seen in draws()]
    except (Unavailable, Crashed, TimedOut, RuntimeError) as error:
        return [f"eagle_sample was not run here: {error}"]


def _counted(seen: Draws) -> str:
    counts = ", ".join(f"token {token} {count} times" for token, count in sorted(seen.counts.items()))
    how = f"eagle_sample run here {'with' if seen.rejection_sampling else 'without'} rejection sampling"
    verdict = "greedy" if seen.greedy else "samples"
    return f"{how}, two equal logits, temperature {seen.temperature:g}: {counts}: {verdict}"
