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


@app.command()
def oracle(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 172_032,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 12,
    rows: Annotated[int, typer.Option(min=1, help="Queries that are looked at.")] = 64,
) -> None:
    """Seconds and memory of the float64 oracle of latent attention, beside torch's own attention in float32.

    Exits with 1 where a second method finds the oracle off by more than its stated error.
    """
    from rich.console import Console
    from rich.table import Table

    from waveproof.perf.oracle_mla import Problem, compare

    exact, rough = compare(Problem(tokens, heads, rows))
    table = Table(title=f"{rows} queries x {heads} heads on {tokens:,} latents")
    for column in ("", "seconds", "peak memory", "distance"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row(
        "oracle, float64",
        f"{exact.seconds:.1f}",
        f"{exact.peak_bytes / 2**30:.2f} GiB",
        f"{exact.distance:.2g} of its stated error, to the second method",
    )
    table.add_row(
        "torch SDPA, float32",
        f"{rough.seconds:.1f}",
        f"{rough.peak_bytes / 2**30:.2f} GiB",
        f"{rough.distance:.2g} to the oracle",
    )
    Console().print(table)
    typer.echo(f"ratio of seconds: {exact.seconds / rough.seconds:.1f}")
    if exact.distance > 1.0:
        typer.echo("waveproof: the oracle is off by more than it states", err=True)
        raise typer.Exit(1)


@app.command()
def mla(
    arch: Annotated[list[str] | None, typer.Option(help="gfx942 or gfx950 (default); may be given again.")] = None,
    keys: Annotated[int, typer.Option(min=32, help="Keys of the request, its 1 to 32 new tokens among them.")] = 96,
    further: Annotated[bool, typer.Option(help="Whether 12 heads are called at long contexts as well.")] = True,
) -> None:
    """What 12 heads cost in generic Triton attention and in AITER's assembly on padded heads: exact counts, no times.

    Needs no GPU. Only kernels that are right count. Exits with 1 where none could be executed.
    """
    from rich.console import Console

    from waveproof.kernels.runtimes.catalogue import ARCHES
    from waveproof.perf.figures_mla import measure
    from waveproof.perf.tables_mla import tables

    arches = tuple(dict.fromkeys(arch or ["gfx950"]))
    for name in arches:
        if name not in ARCHES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(ARCHES)}", param_hint="--arch")
    measured = measure(arches, keys, further)
    console = Console()
    for table in tables(measured):
        console.print(table)
    for note in measured.notes:
        typer.echo(f"not measured: {note}")
    if not measured.executed:
        typer.echo("waveproof: no kernel could be executed", err=True)
        raise typer.Exit(1)


@app.command()
def law(
    cases: Annotated[int, typer.Option(min=11, help="Drawn rows whose law is read, of all kinds in turn.")] = 200,
    runtime: Annotated[str, typer.Option(help="emulate, interpret or a GPU's.")] = "emulate",
    arch: Annotated[str, typer.Option(help="gfx942 or gfx950, where the runtime has a choice.")] = "gfx950",
) -> None:
    """Total variation between sglang's chain sampler and the closed form, read off its coins, with its bound.

    A bias of 1e-4 is then planted in front of the same kernel. Exits with 1 where a step lies elsewhere than due, or
    the bias is missed in a case.
    """
    from rich.console import Console

    from waveproof.perf.figures_law import table, timed

    figures, seconds = timed(cases, runtime, arch if runtime == "emulate" else "")
    Console().print(table(figures, seconds))
    if any(not one.due.holds or one.caught < one.with_choice for one in figures):
        typer.echo("waveproof: a law is not the due one, or the bias was missed", err=True)
        raise typer.Exit(1)


@app.command()
def evidence(
    runs: Annotated[int, typer.Option(min=100, help="Of each sampling judge, right and wrong.")] = 1000,
    streams: Annotated[int, typer.Option(min=8, help="Right streams of the anytime-valid test.")] = 2000,
) -> None:
    """False alarms and power of the sampling judges, and tokens that the anytime-valid test needs for each fault."""
    from rich.console import Console

    from waveproof.selftest.judge_figures import measure
    from waveproof.selftest.judge_tables import tables

    measured = measure(runs, streams)
    console = Console()
    for table in tables(measured):
        console.print(table)
