"""``waveproof heads``: which numbers of attention heads AITER's MLA takes, and which answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import progress_bar, wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.head_counts import Cell


class Arches(str, Enum):
    """What is asked."""

    BOTH = "both"
    GFX942 = "gfx942"
    GFX950 = "gfx950"


def heads(
    arch: Annotated[Arches, typer.Option(help="Architecture.")] = Arches.BOTH,
    heads: Annotated[str, typer.Option(metavar="RANGES", help="Head counts, as in 1-128 or 8,12,16-20.")] = "1-128",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file with each cell.")] = None,
) -> None:
    """Print for each number of heads whether the installed AITER takes it, refuses it, answers wrongly or needs pads.

    bf16 and fp8, decode, speculative verify and absorbed prefill: asked of AITER's host code and run on the emulated
    device, no GPU. Takes two minutes for all head counts on two idle cores.
    """
    from waveproof.fixtures.head_count_process import upstream_notes
    from waveproof.fixtures.head_counts import parse_heads

    arches = [one.value for one in (Arches.GFX942, Arches.GFX950) if arch in (one, Arches.BOTH)]
    cells, notes = _collect(arches, parse_heads(heads))
    notes = [*notes, *upstream_notes()]
    console = wide_console()
    console.print(table(cells))
    for note in notes:
        console.print(f"- {note}", markup=False, highlight=False)
    if output is not None:
        output.write_text(document(cells, notes), encoding="utf-8")
        typer.echo(f"{output}: {len(cells)} cells")


def _collect(arches: Sequence[str], counts: Sequence[int]) -> tuple[list[Cell], list[str]]:
    """Cells and notes of all architectures, a process each, with a progress bar on stderr."""
    from concurrent.futures import ThreadPoolExecutor

    from waveproof.fixtures.head_count_process import SECTIONS, Note, cells_of
    from waveproof.fixtures.head_counts import Cell

    with progress_bar() as progress, ThreadPoolExecutor() as pool:

        def collect(arch: str) -> list[Cell | Note]:
            task = progress.add_task(arch, total=len(counts) * len(SECTIONS))
            found: list[Cell | Note] = []
            for one in cells_of(arch, counts):
                found.append(one)
                if isinstance(one, Cell):
                    progress.update(task, advance=1, description=f"{arch} {one.dtype} {one.phase}")
            return found

        everything = [one for found in pool.map(collect, arches) for one in found]
    cells = [one for one in everything if isinstance(one, Cell)]
    return cells, [one.text for one in everything if isinstance(one, Note)]


def table(cells: Sequence[Cell]) -> Any:
    """The compact table: consecutive head counts of one verdict in a row."""
    from rich.table import Column, Table
    from rich.text import Text

    from waveproof.fixtures.head_counts import rows

    colours = {"native": "green", "padded": "yellow", "refused": "", "wrong": "bold red"}
    made = Table(
        Column("dtype", no_wrap=True), Column("phase", no_wrap=True), Column("arch", no_wrap=True),
        Column("heads", no_wrap=True, justify="right"), Column("AITER", overflow="fold", max_width=24),
        Column("reason (H: number of heads)", overflow="fold", ratio=3), Column("sglang", overflow="fold", ratio=2),
        title="Attention heads of AITER's MLA", title_justify="left",
    )  # fmt: skip
    before: tuple[str, str] | None = None
    for row in rows(cells):
        if before not in (None, (row.dtype, row.phase)):
            made.add_section()
        before = row.dtype, row.phase
        texts = (row.dtype, row.phase, "\n".join(row.arches), row.range)
        made.add_row(*map(Text, texts), Text(row.how, colours[row.verdict]), Text(row.reason), Text(row.sglang))
    return made


def document(cells: Sequence[Cell], notes: Sequence[str]) -> str:
    """JSON: ``cells`` with one entry for each architecture, dtype, phase and number of heads, and ``notes``."""
    import dataclasses
    import json

    from waveproof.kernels.runtimes.emulate.host_build import aiter_installation

    entries = [dataclasses.asdict(cell) for cell in cells]
    whole = {"schema": 1, "aiter": aiter_installation().version, "notes": list(notes), "cells": entries}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"
