"""``waveproof launched``: which kernels a recorded trace has, who made them, and whether they are the ones meant."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.launched.trace import Trace, Work
    from waveproof.fixtures.products import Product
    from waveproof.golden.judges.judgement import Judgement
    from waveproof.golden.judges.launched import Expectation


class BadOption(ValueError):
    """An option that cannot be meant; the message holds its value and what would be."""


class NothingStated(LookupError):
    """No implementation of that provider and operator states which kernels compute it."""


def launched(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            exists=True,
            dir_okay=False,
            help="torch.profiler's .json or .json.gz, or rocprofv3's .csv.",
        ),
    ],
    operator: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a record_function range, a pattern with * too; the whole trace where none is named."
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            help="Kernels that must run: asm, triton, 'asm:mla_dec_*'; with a ? at its end: may run beside them."
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(help="Expect the kernels that the suite knows of this provider, e.g. aiter, for --operator.")
    ] = "",
    product: Annotated[
        str, typer.Option(help="MI300X, MI355X, ...; not needed where the trace names its device.")
    ] = "",
    least_bytes: Annotated[
        float, typer.Option("--bytes", help="Bytes that each range must read at least: it cannot be faster than these.")
    ] = 0.0,
    cold: Annotated[bool, typer.Option("--cold", help="None of these bytes lies in a cache before the range.")] = False,
    repeats: Annotated[bool, typer.Option("--repeats", help="The ranges of one name are repeats of one call.")] = False,
    output: Annotated[Path | None, typer.Option("--json", "-o", help="JSON file with kernels and findings.")] = None,
) -> None:
    """Print which kernels ran in a profiler's trace, by maker, and prove that they are the ones that were meant.

    Exit status 1 where no kernel is on record, where the expected ones did not run in each range, where something else
    took part, where a range builds or loads a kernel, where launches have no kernel on record, or where the time is
    below the memory's floor.
    """
    import math

    from waveproof.fixtures.launched.judging import judge_works
    from waveproof.fixtures.launched.trace import read_trace
    from waveproof.fixtures.products import UnknownProduct, product_named, product_of
    from waveproof.golden.judges.launched import ALONE, INSTALLED, RAN, SEEN, expectation
    from waveproof.golden.judges.memory_floor import LeastBytes

    if not 0 <= least_bytes < math.inf:
        raise BadOption(f"--bytes {least_bytes:g}: a number of bytes from 0, 0 for none")
    found = read_trace(trace)
    device: Product | None = product_named(product) if product else None
    if found.device:
        with contextlib.suppress(UnknownProduct):
            recorded = product_of(found.device)
            if device not in (None, recorded):
                raise BadOption(f"--product {product}: the trace was recorded on {found.device}; leave it out")
            device = recorded
    if least_bytes and device is None:
        raise UnknownProduct(f"--bytes: the trace names no product that is known ({found.device!r}): give --product")
    groups: list[tuple[list[Work], Expectation | None]] = []
    for name in operator or [""]:
        stated = [*(expect or ()), *_stated(provider, name)]
        works = list(found.work(name)) if name else [found.whole]
        groups.append((works, expectation(stated) if stated else None))
    works = [work for group, _ in groups for work in group]
    console = wide_console(160)
    if any(work.kernels or work.copies for work in works):
        console.print(table(works, found))
    else:
        console.print(f"{found.source}: no kernel in {_ranges(len(works))}", markup=False, highlight=False)
    least = LeastBytes(int(least_bytes), 0) if least_bytes else None
    broken = [
        one for group, expected in groups for one in judge_works(group, expected, device, least, cold, repeats)
        if not one.holds
    ]  # fmt: skip
    for one in broken:
        console.print(f"FAULT  {one.message} (broken rule: {one.rule})", markup=False, highlight=False, style="red")
    other = any(one.rule in (SEEN, RAN, ALONE, INSTALLED) for one in broken)
    texts = list(dict.fromkeys(expected.text for _, expected in groups if expected is not None))
    if not texts:
        told = "nothing was expected: give --expect or --provider"
    else:
        told = f"expected {'; '.join(texts)}: {'not' if other else 'it is'} what ran in {_ranges(len(works))}"
        told += ", but see the fault above" if broken and not other else ""
    console.print(told, markup=False, highlight=False)
    if output is not None:
        output.write_text(document(found, works, broken), encoding="utf-8")
    if broken:
        raise typer.Exit(1)


def _stated(provider: str, operator: str) -> list[str]:
    """What the provider's implementation of this operator runs as.

    Raises:
        NothingStated: there is no such implementation, or it does not say.
    """
    from waveproof.kernels.providers.registry import builtin_implementations

    if not provider:
        return []
    stating = [one for one in builtin_implementations() if one.runs_as]
    known = [one for one in stating if one.provider == provider]
    if not known:
        names = ", ".join(dict.fromkeys(one.provider for one in stating))
        raise NothingStated(f"--provider {provider}: states no kernels; these do: {names}")
    chosen = [one for one in known if one.operator == operator]
    if not chosen:
        may = ", ".join(dict.fromkeys(one.operator for one in known))
        raise NothingStated(f"--provider {provider}: name one of its operators with --operator: {may}")
    return list(dict.fromkeys(text for one in chosen for text in one.runs_as))


def _ranges(count: int) -> str:
    return "1 range" if count == 1 else f"{count} ranges"


def table(works: Sequence[Work], trace: Trace) -> Any:
    """A row for each kernel: over all ranges its class, calls, time and share."""
    from rich.table import Column, Table
    from rich.text import Text

    from waveproof.fixtures.launched.trace import together

    ran = together(works).ran()
    total = sum(one.seconds for one in ran)
    made = Table(
        Column("class", no_wrap=True), Column("calls", justify="right"), Column("time us", justify="right"),
        Column("share", justify="right"), Column("kernel", overflow="ellipsis", no_wrap=True, ratio=1),
        title=f"{trace.source}{f', {trace.device}' if trace.device else ''}: {_ranges(len(works))}",
        title_justify="left",
    )  # fmt: skip
    colours = {"asm": "green", "torch": "yellow", "unknown": "magenta", "memory": "dim"}
    for one in ran:
        kind = f"{one.kind} {one.role}".strip()
        share = f"{one.seconds / total:.0%}" if total else "-"
        made.add_row(
            Text(kind, colours.get(one.kind, "")), str(one.calls), f"{one.seconds * 1e6:.1f}", share, Text(one.name)
        )
    return made


def document(trace: Trace, works: Sequence[Work], broken: Sequence[Judgement]) -> str:
    """JSON: ``ranges`` with their kernels, ``findings`` with rule and message."""
    import dataclasses
    import json

    ranges = [
        {"name": work.name, "seconds": work.busy_seconds, "kernels": [dataclasses.asdict(one) for one in work.ran()]}
        for work in works
    ]
    findings = [{"rule": one.rule, "message": one.message, "expected": one.expected, "got": one.got} for one in broken]
    whole = {"schema": 1, "trace": trace.source, "device": trace.device, "ranges": ranges, "findings": findings}
    return json.dumps(whole, indent=1) + "\n"
