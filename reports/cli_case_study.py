"""``waveproof emulate case-study`` and ``lds-order``: findings on AITER's shipped MLA, shown again on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.cli_emulate import Arch
from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.padded_heads import Finding


def case_study(
    arch: Annotated[Arch, typer.Option(help="Architecture.")] = Arch.GFX950,
    profile: Annotated[str, typer.Option(help="How many shapes: quick, default or nightly.")] = "default",
) -> None:
    """12 attention heads padded to the 16 that AITER takes: refusal, independence of the pads, accuracy; page sizes.

    AITER's shipped kernels run, launched by AITER's own host code. Exits with 1 if something is not as it should be.
    """
    from waveproof.fixtures.padded_heads import BATCHES, FILLINGS, REAL, host_answers, study
    from waveproof.fixtures.page_size import PAGE_SIZES, paged_decode
    from waveproof.kernels.runtimes.emulate.launch import Machine

    if profile not in BATCHES:
        raise typer.BadParameter(f"{profile!r} is none of {', '.join(BATCHES)}", param_hint="--profile")
    console = wide_console()
    answers = host_answers(arch.value)
    console.print(_table(
        f"1. What AITER's host code says ({arch.value})", ("entry point", "heads", "answer"),
        [(one.entry, str(one.heads), ("refused: " if one.refused else "launches ") + one.answer) for one in answers],
    ))  # fmt: skip
    findings = []
    for finding in study(arch.value, BATCHES[profile]):
        print(f"  {finding.batch.label}: {finding.seconds:.1f} s", file=sys.stderr)
        findings.append(finding)
    columns = (
        "batch",
        "kernels",
        "wave instructions",
        "pads matter",
        "max error / bound",
        "LSE error / bound",
        "12 heads",
    )
    console.print(_table(f"2. {REAL} real heads beside 4 pad heads", columns, [_row(finding) for finding in findings]))
    console.print(
        f"Pads hold {', '.join(FILLINGS)}. Bounds: golden/judges/mla.py. '12 heads': the kernel called without"
    )
    console.print("pads (s_MQA 12, which the host refuses) gives the same bits.")
    paged = [paged_decode(Machine(arch.value), size) for size in PAGE_SIZES]
    console.print(_table(
        "3. bf16 decode of 127 tokens in pages",
        ("page size", "host", "log2 passed", "max error / bound", "reads the first token of each page only"),
        [(str(one.page_size), "accepts" if one.accepted else "refuses", str(one.log2_page_size),
          f"{one.output.figure:.3g} / {one.output.bound:.2g} {'' if one.output.holds else 'WRONG'}",
          f"{'yes' if one.reads_first_tokens else 'no'} ({one.pages} of 127)") for one in paged],
    ))  # fmt: skip
    sound = all(not f.different and f.output.holds and (f.lse is None or f.lse.holds) for f in findings)
    sound = sound and all(f.unpadded is not False for f in findings)
    console.print(f"The {REAL} real heads are {'right whatever the pads hold' if sound else 'NOT right: see above'}.")
    raise typer.Exit(0 if sound else 1)


def _row(finding: Finding) -> tuple[str, ...]:
    output, lse = finding.output, finding.lse
    return (
        finding.batch.label,
        "\n".join(finding.kernels),
        f"{finding.wave_instructions:,}",
        ", ".join(finding.different) or "no bit",
        f"{output.figure:.2e} / {output.bound:.2e}" + ("" if output.holds else " WRONG"),
        "not written" if lse is None else f"{lse.figure:.1e} / {lse.bound:.1e}" + ("" if lse.holds else " WRONG"),
        {None: "", True: "same bits", False: "OTHER BITS"}[finding.unpadded],
    )


def lds_order(
    arch: Annotated[Arch, typer.Option(help="Architecture.")] = Arch.GFX950,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the report.")] = Path("waveproof-results"),
) -> None:
    """Run AITER's fp8 decode with its waves in different orders, show the race in LDS, and write a bug report.

    Exits with 1 if the order does not matter: then there is nothing to report.
    """
    from waveproof.fixtures import lds_order as study
    from waveproof.kernels.runtimes.emulate.host_build import aiter_installation
    from waveproof.reports.lds_order import conflicts, render

    console = wide_console()
    runs = list(study.in_orders(arch.value))
    mended = list(study.in_orders(arch.value, study.with_own_area))
    for title, found in (("as shipped", runs), (f"P moved to LDS byte {study.OWN_AREA:#x}", mended)):
        rows = [
            (one.order, f"{one.error:.3g}", f"{one.lse_error:.1g}", conflicts(one), "yes" if one.same_bits else "NO")
            for one in found
        ]
        columns = ("order of waves", "max error", "LSE error", "conflicting dword accesses", "bits of lockstep")
        console.print(_table(f"fp8 decode, {arch.value}, {title}", columns, rows))
    if all(one.same_bits and not one.conflicts for one in runs):
        console.print("no conflict and no dependence on the order")
        raise typer.Exit(1)
    pairs = next(one.report.pairs for one in runs if one.report.pairs)
    lines = study.disassembly(arch.value, study.FP8[arch.value], min(pairs, key=lambda p: abs(p.later - p.earlier)))
    for line in lines:
        console.print(line, highlight=False)
    shape = (study.KV_LENGTH, study.SPLITS)
    text = render(arch.value, aiter_installation().version, shape, runs, mended, lines, study.OWN_AREA)
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"aiter-mla-fp8-lds-{arch.value}.md"
    path.write_text(text, encoding="utf-8")
    console.print(f"report: {path}", highlight=False)


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(name, overflow="fold") for name in columns), title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
