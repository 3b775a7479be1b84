"""``waveproof perf counts``: the pair of 12 heads in exact counts, without a device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import progress_bar, wide_console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def counts(
    arch: Annotated[list[str] | None, typer.Option(help="gfx942 or gfx950 (default); may be given again.")] = None,
    guards: Annotated[bool, typer.Option(help="Whether fast and slow paths of other operators are run too.")] = True,
    output: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="JSON with every measurement.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Counts over KV length.")] = None,
) -> None:
    """Padded assembly against generic Triton for 12 heads: instructions, MFMA and bytes a token, growth exponents.

    Needs no GPU; counts are exact and are no times. A minute on two cores. Exit status 1 where a growth is superlinear,
    a fast path is none or a result is wrong, 2 where nothing could be counted, 3 where some of it could not.
    """
    from waveproof.kernels.runtimes.catalogue import ARCHES
    from waveproof.perf.counts import Found, count_all, in_workers
    from waveproof.perf.growth_ladders import LADDERS, every_case, judge_ladder
    from waveproof.perf.pairs import PAIRS, guard, judge_guarded
    from waveproof.perf.records import to_json
    from waveproof.reports.counts_tables import section
    from waveproof.reports.growth_picture import growth_picture
    from waveproof.reports.sections import print_sections

    arches = tuple(dict.fromkeys(arch or ["gfx950"]))
    for name in arches:
        if name not in ARCHES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(ARCHES)}", param_hint="--arch")
    if picture is not None and len(arches) > 1:
        raise typer.BadParameter("a picture is of one architecture", param_hint="--picture")
    sections, measurements, broken, absent, cases = [], [], False, 0, every_case()
    pairs = PAIRS if guards else ()
    with progress_bar() as progress:
        for name in arches:
            task = progress.add_task(f"counting on {name}", total=len(cases) + len(pairs))
            done = partial(_advance, progress, task)
            found = count_all(cases, (name,), done=done)
            groups = [("emulate", name, pairs[::2]), ("emulate", name, pairs[1::2])]
            guarded, missing = in_workers(groups, guard, lambda pair: pair.name, done)
            guarded.sort(key=lambda one: PAIRS.index(one.pair))
            found = Found(found.counted, (*found.missing, *missing))
            counted = {one.case: one for one in found.counted}
            complete = [ladder for ladder in LADDERS if all(case.name in counted for case in ladder.cases)]
            judged = [one for ladder in complete for one in judge_ladder(ladder, counted)]
            judged += [one for pair in guarded for one in judge_guarded(pair)]
            absent += len(found.missing)
            broken |= any(not one.holds for one in judged) or any(one.fault for one in found.missing)
            drawn = (growth_picture(name, counted),) if picture is not None and counted else ()
            if picture is not None and drawn:
                picture.write_bytes(drawn[0].png)
            sections.append(section(name, counted, guarded, found.missing, drawn))
            measurements += [one for call in found.counted for one in call.measurements()]
            measurements += [pair.measurement() for pair in guarded]
    print_sections(sections, wide_console())
    if output is not None:
        output.write_text(to_json(measurements) + "\n", encoding="utf-8")
    if not measurements:
        typer.echo("waveproof: nothing could be counted here", err=True)
    raise typer.Exit(exit_status(broken, len(measurements), absent))


def exit_status(broken: bool, measured: int, missing: int) -> int:
    """Of the command, as its help says.

    Args:
        broken: whether a rule is, or a call that could run is wrong.
        measured: how many measurements there are.
        missing: how many calls could not be counted.
    """
    if broken:
        return 1
    if not measured:
        return 2
    return 3 if missing else 0


def _advance(progress: Progress, task: TaskID, name: str) -> None:
    """One call is over."""
    progress.advance(task)
