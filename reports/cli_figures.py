"""``waveproof figures``: measure on this machine what the suite claims about kernels, and print it."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Figures on kernels, measured when asked for.")


@app.callback()
def figures() -> None:
    """Keep ``figures`` a group: with one command alone typer would drop the command's name."""


@app.command()
def renorm(
    vocab_size: Annotated[int, typer.Option(min=1, help="V of every call.")] = 151_936,
    rows: Annotated[int, typer.Option(min=2, help="Rows of what is compiled and timed.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each form is timed; 6 at least.")] = 6,
) -> None:
    """Launches, memory traffic, registers and CPU times of the renorm kernels: ours, sglang's and plain torch.

    Needs no GPU and says nothing of time on one. Exits with 1 where no kernel could be looked at.
    """
    from rich.console import Console

    from waveproof.perf.figures_renorm import measure
    from waveproof.perf.tables_renorm import tables

    measured = measure(vocab_size, rows, repeats)
    console = Console()
    for table in tables(measured):
        console.print(table)
    for note in measured.notes:
        typer.echo(f"not measured: {note}")
    if not measured.compiled and not any(one.kernels for one in measured.traffic):
        typer.echo("waveproof: no kernel could be looked at", err=True)
        raise typer.Exit(1)
