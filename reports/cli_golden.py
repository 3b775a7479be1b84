"""``waveproof golden``: capture, verify, compare and list stored goldens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waveproof.golden.capture import Attempt, Source
    from waveproof.golden.cases import Case
    from waveproof.golden.store import GoldenStore

app = typer.Typer(no_args_is_help=True, help="Stored goldens: capture, verify, compare with float64, list.")

Directory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", exists=True, file_okay=False, help="A store; the one that comes with the suite if not given."
    ),
]


class EmptyStore(LookupError):
    """A store that holds nothing, where saying that all is well would be saying nothing."""


class UnknownProvider(LookupError):
    """No provider of that name offers the runtime."""


class UnknownFamily(LookupError):
    """No family of that name has cases that goldens are captured for."""


@app.command()
def capture(
    runtime: Annotated[str, typer.Option(help="Where implementations run: cpu, interpret, hip, cuda.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Store to add to; made if it does not exist.")],
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Only this provider; may be given again. float64 is the reference, offered with cpu."),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Only operators of this family, renorm or mla; may be given again.")
    ] = None,
    serving: Annotated[
        bool | None,
        typer.Option(
            "--serving/--small",
            help="With cases at V = 128,256 to 163,840 and on up to 1,000 cached tokens; default on hip and cuda only.",
        ),
    ] = None,
) -> None:
    """Capture goldens of every provider that this machine can run.

    Ids that the store holds are left alone, so a capture that was cut short can be taken up again. Exits with 1 where
    nothing was captured.
    """
    from waveproof.golden.capture import capture as capture_goldens
    from waveproof.golden.store import GoldenStore
    from waveproof.kernels.operators.registry import operator_named
    from waveproof.kernels.runtimes.process import WorkerPool

    cases = _cases(family or [], serving if serving is not None else runtime in ("hip", "cuda"))
    families = {operator_named(case.operator).family for case in cases}
    store, pool = GoldenStore(out), WorkerPool()
    attempts: list[Attempt] = []
    try:
        for source in _sources(runtime, pool, provider or []):
            if operator_named(source.operator).family not in families:
                continue
            tried = list(capture_goldens([source], store, cases))
            typer.echo(_source_line(source, tried))
            attempts += tried
    finally:
        pool.close()
    if all(attempt.result == "refused" for attempt in attempts):
        typer.echo("waveproof: nothing was captured", err=True)
        raise typer.Exit(1)


@app.command()
def verify(directory: Directory = None) -> None:
    """Hold every tensor file against the manifest; exits with 1 where anything is wrong."""
    store = _store(directory)
    problems = store.verify()
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    entries = store.entries()
    if not entries:
        raise EmptyStore(f"{store.root.name}/ holds no goldens: nothing was verified")
    typer.echo(f"{len(entries)} goldens, {sum(entry.size for entry in entries):,} bytes: all as the manifest says")


@app.command()
def diff(directory: Directory = None) -> None:
    """Show where stored goldens and float64 disagree; exits with 1 where any leaves its legal interval."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from waveproof.golden.compare import compare_store

    comparisons = list(compare_store(_store(directory)))
    if not comparisons:
        raise EmptyStore("the store holds no goldens: nothing was compared")
    table = Table(
        Column("golden", overflow="fold"),
        "rule",
        "index",
        "expected",
        "got",
        "what",
        title="disagreements with float64",
    )
    for comparison in comparisons:
        for item in comparison.disagreements:
            index = "" if item.index is None else f"[{', '.join(map(str, item.index))}]"
            cells = (comparison.golden.id, item.rule, index, item.expected, item.got, item.message)
            table.add_row(*map(Text, cells))
    if table.row_count:
        Console().print(table)
    summary = Table(
        "provider", "runtime", Column("operator", overflow="fold"), "goldens", "disagree", "worst error / bound"
    )
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at, comparison in enumerate(comparisons):
        golden = comparison.golden
        groups.setdefault((golden.provider, golden.provenance.runtime, golden.operator), []).append(at)
    for key, members in sorted(groups.items()):
        apart = sum(bool(comparisons[at].disagreements) for at in members)
        worst = max(comparisons[at].severity for at in members)
        summary.add_row(*map(Text, (*key, str(len(members)), str(apart), f"{worst:.3g}")))
    Console().print(summary)
    if table.row_count:
        raise typer.Exit(1)


@app.command(name="list")
def list_goldens(directory: Directory = None) -> None:
    """List what a store holds, by the manifest alone."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    entries = _store(directory).entries()
    table = Table(Column("golden", overflow="fold"), "library", "device", "captured", "bytes")
    for entry in entries:
        made = entry.golden.provenance
        cells = (entry.golden.id, f"{made.library} {made.version}", made.device, made.date, f"{entry.size:,}")
        table.add_row(*map(Text, cells))
    Console().print(table)
    typer.echo(f"{len(entries)} goldens")


def _store(directory: Path | None) -> GoldenStore:
    from waveproof.golden.store import COMMITTED, GoldenStore

    return GoldenStore(directory or COMMITTED)


def _cases(families: list[str], serving: bool) -> tuple[Case, ...]:
    """Cases of the named families, of all where none is named.

    Raises:
        UnknownFamily: names the families that have cases.
    """
    from waveproof.golden import mla_cases, renorm_cases

    lists = {"renorm": renorm_cases, "mla": mla_cases}
    for name in families:
        if name not in lists:
            raise UnknownFamily(f"no cases of family {name!r}; there are: {', '.join(lists)}")
    chosen = [cases for name, cases in lists.items() if not families or name in families]
    small = [case for cases in chosen for case in cases.small_cases()]
    return (*small, *(case for cases in chosen if serving for case in cases.serving_cases()))


def _sources(runtime: str, pool: object, providers: list[str]) -> list[Source]:
    """Sources on that runtime, narrowed to the named providers.

    Raises:
        UnknownProvider: a named one does not offer the runtime.
    """
    from waveproof.golden.capture import reference_sources
    from waveproof.kernels.providers.registry import builtin_implementations
    from waveproof.kernels.runtimes.process import WorkerPool
    from waveproof.reports.golden_sources import implementation_sources

    assert isinstance(pool, WorkerPool)
    sources = [*implementation_sources(runtime, builtin_implementations(), pool)]
    if runtime == "cpu":
        sources = [*reference_sources(), *sources]
    offered = {source.provider for source in sources}
    missing = sorted(set(providers) - offered)
    if missing:
        raise UnknownProvider(
            f"no provider {missing[0]!r} on runtime {runtime!r}; there are: {', '.join(sorted(offered))}"
        )
    return [source for source in sources if not providers or source.provider in providers]


def _source_line(source: Source, attempts: list[Attempt]) -> str:
    """One line on how a source fared, and one for each reason to refuse."""
    counts = Counter(attempt.result for attempt in attempts)
    reasons = Counter(attempt.reason for attempt in attempts if attempt.result == "refused")
    told = ", ".join(f"{counts[result]} {result}" for result in ("stored", "present", "refused") if counts[result])
    lines = [f"{source.provider} {source.operator} {source.variant}: {told or 'no case for it'}"]
    return "\n".join(lines + [f"    refused: {reason} ({count})" for reason, count in reasons.items()])
