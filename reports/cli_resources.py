"""``waveproof resources``: what upstream Triton kernels take from the device, against the reviewed baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import progress_bar, wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.resources.budgets import Budget, Change, Compilation, Difference, Kernel
    from waveproof.fixtures.resources.cases import LaunchCase


class NothingToDo(ValueError):
    """No launch case fits, or a reason says nothing; the message says what would."""


def resources(
    arch: Annotated[str, typer.Option(metavar="GFX", help="gfx942 or gfx950; both if not given.")] = "",
    kernel: Annotated[
        str, typer.Option(metavar="GLOB", help="Launch cases, or upstream FILE:FUNCTION; quote the pattern.")
    ] = "*",
    accept: Annotated[
        str | None, typer.Option(metavar="REASON", help="Write what is found into the baseline, with this reason.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", "-o", help="JSON file with every figure.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Another baseline than the one that comes along.")] = None,
) -> None:
    """Compile upstream Triton kernels as their own host code launches them, and compare with the baseline.

    No GPU. Exit status 1 where a kernel takes more than budgeted, breaks a rule without a reviewed exception, no
    longer compiles, or the baseline is stale. B: bytes; V/S: vector and scalar registers. Half a minute on two
    cores with Triton's cache warm, a minute without.
    """
    from waveproof.fixtures.resources.budgets import BASELINE, load_baseline, without_launcher
    from waveproof.fixtures.resources.cases import chosen
    from waveproof.kernels.runtimes.catalogue import ARCHES

    if arch not in ("", *ARCHES):
        raise NothingToDo(f"--arch {arch}: known are {', '.join(ARCHES)}")
    if accept is not None and len(accept.split()) < 2:
        raise NothingToDo(f"--accept {accept!r}: a reason has a few words")
    pairs = chosen(kernel, arch)
    if not pairs:
        raise NothingToDo(f"--kernel {kernel!r} fits no launch case; try '*mla*' or '*/extend_attention.py:*'")
    path = baseline or BASELINE
    if baseline is not None and accept is None and not baseline.is_file():
        raise NothingToDo(f"--baseline {baseline.name}: there is no such file; --accept writes one")
    rows = load_baseline(path)
    everything, notes = compile_all(pairs)
    absent = [one for one in everything if without_launcher(one, rows)]
    notes += [f"{one.case}: {one.package} {one.version} has no such launcher: {one.absent}" for one in absent]
    results = [one for one in everything if one not in absent]
    console = wide_console(200)
    console.print(table(results, rows))
    if accept is not None:
        _accept(results, rows, accept, path)
        rows = load_baseline(path)
    failed = _report(results, rows, console)
    for note in notes:
        console.print(f"- {note}", markup=False, highlight=False)
    if output is not None:
        output.write_text(document(results, rows), encoding="utf-8")
        typer.echo(f"{output}: {len(results)} launch cases with their architecture")
    if not results:
        raise NothingToDo("nothing could be compiled here")
    raise typer.Exit(1 if failed else 0)


def compile_all(pairs: Sequence[tuple[LaunchCase, str]]) -> tuple[list[Compilation], list[str]]:
    """All cases, two processes at a time, with a progress bar on stderr; and what was not available."""
    from concurrent.futures import ThreadPoolExecutor

    from waveproof.fixtures.resources.budgets import Compilation
    from waveproof.fixtures.resources.process import compiled

    groups: dict[tuple[str, str], list[tuple[LaunchCase, str]]] = {}
    for case, arch in pairs:
        groups.setdefault((case.package, arch), []).append((case, arch))
    with progress_bar() as progress, ThreadPoolExecutor(2) as pool:
        task = progress.add_task("compiling", total=len(pairs))

        def collect(group: Sequence[tuple[LaunchCase, str]]) -> list[Compilation | str]:
            found = []
            for one in compiled(group):
                name = f"{one.arch} {one.case}" if isinstance(one, Compilation) else "compiling"
                progress.update(task, advance=1, description=name)
                found.append(one)
            return found

        everything = [one for found in pool.map(collect, groups.values()) for one in found]
    results = [one for one in everything if isinstance(one, Compilation)]
    return results, list(dict.fromkeys(one for one in everything if isinstance(one, str)))


def _accept(results: Sequence[Compilation], rows: Sequence[Budget], reason: str, path: Path) -> None:
    from importlib import metadata

    from waveproof.fixtures.resources.budgets import accepted, save_baseline
    from waveproof.fixtures.resources.judging import broken_rules

    broken = {key: rules for one in results for key, rules in broken_rules(one).items()}
    provenance = f"waveproof {metadata.version('waveproof')}, torch {metadata.version('torch')}"
    save_baseline(accepted(results, rows, reason, provenance, broken), path)
    typer.echo(f"accepted {len(results)} launch cases into {path.name}")


def _report(results: Sequence[Compilation], rows: Sequence[Budget], console: Any) -> bool:
    """Print what is not in order and say whether anything is not."""
    from waveproof.fixtures.resources.budgets import differences, nearest
    from waveproof.fixtures.resources.judging import CURRENT, judge, unneeded

    found = [difference for one in results for difference in (*differences(one, rows), *unneeded(one, rows))]
    for against in dict.fromkeys(nearest(one, rows)[1] for one in results):
        if against:
            console.print(against, style="yellow", highlight=False)
    if found:
        console.print(difference_table(found))
    broken = [judgement for one in results for judgement in judge(one, rows) if not judgement.holds]
    for judgement in broken:
        if judgement.rule != CURRENT:
            console.print(f"FAILS {judgement.rule}: {judgement.message}", markup=False, highlight=False, style="red")
    if stale := [one for one in found if one.stale]:
        console.print(
            f"baseline is stale: accept with: waveproof resources --accept REASON ({len(stale)} differences, "
            "none of them worse)", markup=False, highlight=False, style="yellow",
        )  # fmt: skip
    kernels = sum(len(one.kernels) for one in results)
    verdict = f"{len(broken)} rules broken" if broken else "all within budget"
    arches = " and ".join(sorted({one.arch for one in results}))
    here = {(one.case, one.arch, one.version, one.triton) for one in results}
    known = sum(len(row.known) for row in rows if (row.case, row.arch, row.version, row.triton) in here)
    console.print(
        f"{len({one.case for one in results})} launch cases on {arches}, {len(results)} compilations, "
        f"{kernels} kernels: {verdict}, {known} known exceptions",
        highlight=False,
    )
    return bool(broken)


HEADS = (
    "warps/stages",
    "VGPR/AGPR",
    "SGPR",
    "spills V/S",
    "scratch B",
    "LDS B",
    "MFMA",
    "waves/SIMD",
    "waves/CU",
    "code B",
)


def table(results: Sequence[Compilation], rows: Sequence[Budget]) -> Any:
    """A row for each kernel: what it takes, and whether that is as budgeted."""
    from rich.table import Column, Table
    from rich.text import Text

    from waveproof.fixtures.resources.budgets import differences, last_line, nearest

    figures = [Column(name, justify="right", no_wrap=True) for name in HEADS]
    made = Table(
        Column("launch case", no_wrap=True), Column("kernel", overflow="fold"), Column("arch", no_wrap=True), *figures,
        Column("budget", overflow="fold"), title="Triton kernels as their own host code launches them",
        title_justify="left", pad_edge=False,
    )  # fmt: skip
    for one in sorted(results, key=lambda one: (one.package != "sglang", one.case, one.arch)):
        found = {difference.kernel: difference for difference in differences(one, rows)}
        known = {row.kernel: ", ".join(row.known) for row in nearest(one, rows)[0]}
        for kernel in one.kernels:
            verdict, style = _verdict(found.get(kernel.name), known.get(kernel.name, ""))
            cells = [Text(text, style if loud else "") for text, loud in _cells(kernel)]
            made.add_row(Text(one.case), Text(kernel.name), one.arch, *cells, Text(verdict, style))
        if one.fault:
            verdict, style = _verdict(found.get(""), known.get("", ""))
            verdict = verdict if known.get("") else "fails"
            kind = one.fault.partition(":")[0]
            fault = f"{kind}: {last_line(one.fault).removeprefix(f'{kind}: ')}"
            made.add_row(Text(one.case), Text(fault, "red"), one.arch, *[""] * len(HEADS), Text(verdict, "red"))
    return made


def _cells(kernel: Kernel) -> list[tuple[str, bool]]:
    """Texts in the order of :data:`HEADS`, each with whether it is one that a good kernel has none of."""
    taken = kernel.figures
    return [
        (f"{taken.num_warps}/{taken.num_stages}", False),
        (f"{taken.vgpr}/{taken.agpr}", False),
        (str(taken.sgpr), False),
        (f"{taken.vgpr_spill}/{taken.sgpr_spill}", taken.vgpr_spill > 0),
        (str(taken.scratch_bytes), taken.scratch_bytes > 0),
        (str(taken.lds_bytes), False),
        (str(taken.mfma), False),
        (str(taken.waves_per_simd), False),
        (str(taken.waves_per_cu), False),
        (str(taken.code_bytes), False),
    ]


def _verdict(difference: Difference | None, known: str) -> tuple[str, str]:
    """Words and colour."""
    if difference is None:
        return (f"known: {known}", "yellow") if known else ("as budgeted", "green")
    if difference.worse:
        return "WORSE", "bold red"
    return ("no row" if difference.kind == "new" else "changed"), "yellow"


def difference_table(found: Sequence[Difference]) -> Any:
    """A row for each figure that is not as budgeted; worse ones say so in words too."""
    from rich.table import Column, Table
    from rich.text import Text

    made = Table(
        Column("launch case", no_wrap=True), Column("kernel", overflow="fold"), Column("arch", no_wrap=True),
        Column("figure", no_wrap=True), Column("budget", justify="right"), Column("now", justify="right"),
        Column("change", justify="right", no_wrap=True), Column("", no_wrap=True),
        title="Not as budgeted", title_justify="left",
    )  # fmt: skip
    for one in found:
        place = (Text(one.case), Text(one.kernel or "(the case)"), Text(one.arch))
        if one.kind != "changed":
            words = {"new": "no row", "gone": "not launched any more", "tolerated": "exception without need"}
            made.add_row(*place, "", "", "", "", Text(words[one.kind], "yellow"))
        for change in one.changes:
            word, style = _direction(change)
            made.add_row(*place, change.name, str(change.old), Text(str(change.new), style),
                         Text(change.signed, style), Text(word, style))  # fmt: skip
            place = (Text(""), Text(""), Text(""))
    return made


def _direction(change: Change) -> tuple[str, str]:
    if change.worse:
        return "WORSE", "bold red"
    return ("better", "green") if change.better else ("changed", "yellow")


def document(results: Sequence[Compilation], rows: Sequence[Budget]) -> str:
    """JSON: ``cases`` with figures, faults and the rules on each."""
    import dataclasses
    import json

    from waveproof.fixtures.resources.judging import judge

    shown = ("rule", "holds", "figure", "bound", "derivation", "message")
    entries = []
    for one in results:
        rules = [{name: getattr(judgement, name) for name in shown} for judgement in judge(one, rows)]
        entries.append({**dataclasses.asdict(one), "rules": rules})
    return json.dumps({"schema": 1, "cases": entries}, indent=1, allow_nan=False) + "\n"
