"""``waveproof emulate``: what the emulated AMD device can execute, how fast, and what a wave did."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.mla_objects import Reach
    from waveproof.kernels.runtimes.emulate.survey import Source

app = typer.Typer(no_args_is_help=True, help="The emulated AMD device (gfx942, gfx950).")


class Arch(str, Enum):
    """Emulated architectures."""

    GFX942 = "gfx942"
    GFX950 = "gfx950"


class Workload(str, Enum):
    """Launches that can be traced."""

    RENORM = "renorm"
    DECODE = "mla-decode"


class Upstream(str, Enum):
    """sglang's kernels: keys of :data:`waveproof.selftest.emulate.sglang_cases.CASES`."""

    RENORM = "renorm"
    CHAIN = "chain"
    BLOCK = "block"
    MERGE = "merge"
    DECODE = "decode"
    EXTEND = "extend"


@app.command()
def coverage(
    target: Annotated[
        str, typer.Argument(metavar="CODE_OBJECT|FOLDER|PACKAGE", help="File, folder, distribution or package.")
    ] = "amd-aiter",
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 2,
    objects: Annotated[bool, typer.Option("--objects", help="Also list each object that is not covered.")] = False,
) -> None:
    """Show which instructions of code objects the emulator can decode and execute, without running them."""
    from waveproof.kernels.runtimes.emulate.survey import locate

    if Path(target).is_file():
        _show_object(Path(target))
    else:
        _show_families(locate(target), processes, objects)


def _show_object(path: Path) -> None:
    from waveproof.kernels.runtimes.emulate.coverage import examine
    from waveproof.kernels.runtimes.emulate.loader import load
    from waveproof.kernels.runtimes.emulate.program import Program

    code = load(path.read_bytes(), path.name)
    found = examine(code)
    words = found.instructions + found.undecoded
    typer.echo(f"{path.name}: {code.arch}, {len(code.kernels)} kernels, {found.instructions} instructions")
    typer.echo(f"decoded {_percent(found.instructions, words)}, handled {_percent(found.handled, words)}")
    for mnemonic, count in found.unhandled.most_common():
        typer.echo(f"  {count:6} {mnemonic}: {found.reasons[mnemonic]}")
    if found.first is None:
        return
    typer.echo(f"first missing at .text+{found.first.address:#x}: {found.first.text} ({found.first.reason})")
    for line in Program(code).listing(found.first.address):
        typer.echo(f"  {line}")


def _show_families(source: Source, processes: int, objects: bool) -> None:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Column, Table

    from waveproof.kernels.runtimes.emulate.survey import by_family, survey

    examined = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{len(source.files)} code objects", total=len(source.files))
        for one in survey(source.files, processes):
            examined.append(one)
            progress.advance(task)
    right = [Column(n, justify="right") for n in ("objects", "covered", "instructions", "decoded %", "handled %")]
    table = Table(Column("family", no_wrap=True), "arch", *right)
    families = by_family(examined, source.root)
    for family in families:
        words = family.instructions + family.undecoded
        handled = family.instructions - family.unhandled.total()
        table.add_row(
            family.name, family.arch, str(family.objects), str(family.complete), f"{family.instructions:,}",
            _percent(family.instructions, words), _percent(handled, words),
        )  # fmt: skip
    Console().print(table)
    total, complete = sum(family.objects for family in families), sum(family.complete for family in families)
    typer.echo(f"{complete} of {total} code objects are covered completely")
    for family in families:
        if family.unhandled:
            missing = ", ".join(f"{name} {count}" for name, count in family.unhandled.most_common(6))
            typer.echo(f"missing in {family.name} ({family.arch}): {missing}")
    for item in examined:
        if item.coverage is None:
            typer.echo(f"not loaded: {item.path.relative_to(source.root)}: {item.refusal}")
        elif objects and item.coverage.first is not None:
            first = item.coverage.first
            where = f"{item.path.relative_to(source.root)}: .text+{first.address:#x}"
            typer.echo(f"{where}: {first.text} ({first.reason})")


def _percent(part: int, whole: int) -> str:
    """Percent with two decimals; never 100.00 where something is missing."""
    if part == whole:
        return "100"
    return f"{min(100.0 * part / max(1, whole), 99.99):.2f}"


@app.command()
def speed(
    arch: Annotated[Arch, typer.Option(help="Architecture.")] = Arch.GFX950,
    runs: Annotated[int, typer.Option(min=1, help="Warm launches, of which the median counts.")] = 9,
) -> None:
    """Measure wave instructions per second on one core; exits with 1 if a target is missed."""
    import os

    # Before numpy and torch start their threads.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    from rich.console import Console
    from rich.table import Column, Table

    from waveproof.perf.emulator_speed import measure_decode, measure_renorm

    found = [*measure_decode(arch.value, runs), *measure_renorm(arch.value, runs)]
    right = [Column(n, justify="right") for n in ("workgroups", "instructions", "CPU ms", "per second", "target")]
    table = Table(Column("kernel", overflow="fold"), *right, title=f"wave instructions on one core, {arch.value}")
    for one in found:
        wanted = "" if one.least_rate is None else f"{one.least_rate:,.0f}"
        if one.most_seconds is not None:
            wanted += f", {1e3 * one.most_seconds:.0f} ms"
        told = {None: "", True: " met", False: " MISSED"}[one.met]
        table.add_row(
            one.kernel, str(one.workgroups), f"{one.wave_instructions:,}", f"{1e3 * one.seconds:.1f}",
            f"{one.rate:,.0f}", f"{wanted}{told}",
        )  # fmt: skip
    Console().print(table)
    if any(one.met is False for one in found):
        raise typer.Exit(1)


@app.command()
def trace(
    workload: Annotated[Workload, typer.Argument(help="What is launched.")],
    arch: Annotated[Arch, typer.Option(help="Architecture.")] = Arch.GFX950,
    kernel: Annotated[str, typer.Option(help="Name of the kernel, where the workload has several.")] = "",
    workgroup: Annotated[tuple[int, int, int], typer.Option(help="Id of the workgroup: x y z.")] = (0, 0, 0),
    wave: Annotated[int, typer.Option(min=0, help="Wave of the workgroup.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Instructions that are shown.")] = 200,
    watch: Annotated[bool, typer.Option("--watch", help="Also report reads of what nobody has written.")] = False,
) -> None:
    """Show what one wave did, instruction by instruction: registers that changed, EXEC, VCC and SCC."""
    from waveproof.kernels.runtimes.emulate.launch import Machine
    from waveproof.kernels.runtimes.emulate.trace import Trace
    from waveproof.kernels.runtimes.emulate.watch import Watch
    from waveproof.perf.emulator_speed import decode_launch, renorm_call

    record = Trace(workgroup, wave, limit, kernel or None)
    onlooker = Watch() if watch else None
    if workload is Workload.DECODE:
        decode_launch(Machine(arch.value, watch=onlooker, trace=record))()
    else:
        from waveproof.kernels.runtimes.emulate import triton_driver

        record.kernel = kernel or "_mask_and_partial_sum_kernel"
        call = renorm_call(arch.value)
        triton_driver.machine().trace, triton_driver.machine().watch = record, onlooker
        call()
    typer.echo(record.text() or f"nothing was traced: no kernel {kernel!r}, or no wave {wave} in {workgroup}")
    if onlooker is not None:
        typer.echo(onlooker.report() or "no read of anything undefined")


@app.command()
def sglang(
    arch: Annotated[list[Arch] | None, typer.Option(help="Architecture; may be repeated, both if not given.")] = None,
    kernel: Annotated[list[Upstream] | None, typer.Option(help="Only this; may be repeated.")] = None,
) -> None:
    """Run sglang's Triton kernels through their own launchers and judge each against float64.

    Exits with 1 if an error exceeds its bound.
    """
    from waveproof.selftest.emulate.sglang_cases import run

    chosen = [one.value for one in kernel or Upstream]
    found = {one.value: run(one.value, chosen) for one in arch or Arch}
    for name, answers in found.items():
        if "unavailable" in answers:
            typer.echo(f"cannot run on {name}: {answers['unavailable']}", err=True)
            raise typer.Exit(2)
    _show_upstream(found)
    if any(answer["of_bound"] > 1.0 for answers in found.values() for answer in answers.values()):
        raise typer.Exit(1)


def _show_upstream(found: dict[str, dict[str, Any]]) -> None:
    """Print ``{arch: {case: result}}`` of :mod:`waveproof.selftest.emulate.sglang_cases`, a row for each launch."""
    from importlib.metadata import version

    from rich.console import Console
    from rich.table import Column, Table

    names = ("wave instructions", "MFMA", "bytes read", "written", "error", "bound")
    right = [Column(name, justify="right") for name in names]
    title = f"sglang {version('sglang')}, Triton {version('triton')}, on the emulated device"
    table = Table(Column("case", no_wrap=True), Column("kernel", overflow="fold"), "arch", "grid", *right, title=title)
    findings: dict[str, list[str]] = {}
    for arch, answers in found.items():
        for case, answer in answers.items():
            for launch in answer["launches"]:
                judged = ("", "")
                if launch is answer["launches"][-1]:
                    told = "" if answer["of_bound"] <= 1.0 else " EXCEEDED"
                    judged = (f"{answer['error']:.3g}", f"{answer['bound']:.3g}{told}")
                table.add_row(
                    case, launch["kernel"], arch, "x".join(map(str, launch["grid"])),
                    f"{launch['wave_instructions']:,}", f"{launch['mfma']:,}", f"{launch['bytes_read']:,}",
                    f"{launch['bytes_written']:,}", *judged,
                )  # fmt: skip
            for text in answer.get("findings", ()):
                findings.setdefault(f"{case}: {text}", []).append(arch)
        table.add_section()
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    console.print(table)
    typer.echo("error and bound are those of the element that takes most of its bound; of chain and block: outputs")
    typer.echo("that differ, none of which may. Bytes are global memory as lanes access it.")
    for text, where in findings.items():
        typer.echo(f"finding: {text} ({', '.join(where)})")


@app.command()
def objects(
    arch: Annotated[list[Arch] | None, typer.Option(help="Architecture; may be repeated, both if not given.")] = None,
    run: Annotated[bool, typer.Option("--run/--ask", help="Run each object, or only ask what reaches it.")] = True,
) -> None:
    """Show what reaches each MLA object that AITER ships, and what it computes beside float64.

    Exits with 1 if a result is wrong that is not a known finding, or a known finding has become right.
    """
    import os

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from waveproof.fixtures.mla_objects import reach
    from waveproof.kernels.runtimes.emulate.host_build import HostBuildUnavailable

    chosen = [one.value for one in arch or Arch]
    try:
        reached = [reach(name) for name in chosen]
    except HostBuildUnavailable as error:
        typer.echo(f"cannot run: {error}", err=True)
        raise typer.Exit(2) from error
    for one in reached:
        _show_reach(one)
    if run and not all([_show_attempts(name) for name in chosen]):
        raise typer.Exit(1)


def _show_reach(found: Reach) -> None:
    from rich.table import Column, Table

    table = Table(Column("object", overflow="fold"), "reached by", title=f"MLA objects of AITER for {found.arch}")
    for name in found.objects:
        table.add_row(name, found.described(name))
    for name in found.unreached:
        table.add_row(name, "nothing asked for chooses it")
    wide_console(200).print(table)
    for text, count in found.refusals.most_common():
        typer.echo(f"refused {count} times: {text}")


def _show_attempts(arch: str) -> bool:
    """Whether all was as expected."""
    from rich.table import Column, Table

    from waveproof.fixtures.mla_findings import finding_of
    from waveproof.fixtures.mla_objects import attempt, forms_to_run

    right = [
        Column(n, justify="right") for n in ("parts", "instructions", "error", "of bound", "LSE of bound", "cosine")
    ]
    table = Table(Column("object", overflow="fold"), Column("call", overflow="fold"), *right, "", title=arch)
    findings: dict[str, set[str]] = {}
    expected = True
    for parts in (1, 2):
        for form in forms_to_run(arch):
            one = attempt(arch, form, parts=parts)
            known = finding_of(one)
            expected &= one.right == (known is None)
            verdict = "right" if one.right else "WRONG"
            if known is not None:
                verdict += " (known)" if not one.right else " (was known as wrong)"
                findings.setdefault(known, set()).add(one.code_object)
            lse = "" if one.lse_of_bound is None else f"{one.lse_of_bound:.2g}"
            table.add_row(
                one.code_object, str(form), str(parts), f"{one.wave_instructions:,}", f"{one.error:.3g}",
                f"{one.of_bound:.2g}", lse, f"{one.cosine:.6f}", f"{verdict} {one.failure}",
            )  # fmt: skip
    wide_console(200).print(table)
    for text, names in findings.items():
        typer.echo(f"finding: {', '.join(sorted(names))}: {text}")
    return expected
