"""``waveproof audit``: names that are used on one platform's path while they are unbound or None there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import progress_bar, wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.audit.audit import Audit
    from waveproof.fixtures.audit.findings import Certainty, Finding
    from waveproof.fixtures.audit.reviewed import Comparison

_STYLES = {"reachable": "bold red", "guarded": "yellow", "unknown": ""}


class Platform(str, Enum):
    """What the source is read for."""

    HIP = "hip"
    CUDA = "cuda"
    CPU = "cpu"
    XPU = "xpu"
    NPU = "npu"
    MUSA = "musa"


class CertaintyOption(str, Enum):
    """Which findings are shown."""

    REACHABLE = "reachable"
    GUARDED = "guarded"
    UNKNOWN = "unknown"


def audit(
    package: Annotated[str, typer.Argument(help="A folder, a wheel, or the name of an installed package.")],
    platform: Annotated[Platform, typer.Option(help="Platform that the source is read for.")] = Platform.HIP,
    certainty: Annotated[
        list[CertaintyOption] | None, typer.Option(help="Show findings of this certainty; may be repeated.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", "-o", help="JSON file with everything.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Reviewed findings (TOML); only others are shown, and only they fail.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Write the findings into the baseline.")] = False,
) -> None:
    """Find names that are used on a platform's path while they are unbound or None there; nothing is imported.

    Exit status 1 where a finding is reachable, or with a baseline where one is new.
    """
    from waveproof.fixtures.audit import reviewed
    from waveproof.fixtures.audit.audit import audit as audited

    if accept and baseline is None:
        raise typer.BadParameter("--accept writes into a --baseline", param_hint="--accept")
    made = _with_progress(audited, package, platform.value)
    console = wide_console()
    named = f"{made.source} {made.version}".strip()
    read = f"{made.files} files, {made.functions} functions, {made.seconds:.1f} s"
    console.print(f"{named} on {made.platform}: {read}", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(made))
    comparison = None
    if baseline is not None and not accept:
        comparison = reviewed.compared(made, reviewed.load(baseline))
    wanted = [one.value for one in certainty or ([] if comparison is not None else [CertaintyOption.REACHABLE])]
    for finding in shown(made, comparison, wanted):
        console.print(_told(finding), markup=False, highlight=False, soft_wrap=True)
    if comparison is None:
        console.print(_closing(made, wanted), markup=False, highlight=False)
    for note in _notes(made, comparison):
        console.print(f"- {note}", markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        output.write_text(document(made, comparison), encoding="utf-8")
        typer.echo(f"{output}: {len(made.findings)} findings")
    if accept:
        assert baseline is not None
        typer.echo(f"{baseline}: {reviewed.accept(made, baseline)} findings of {made.package} on {made.platform}")
        return
    bad = comparison.new if comparison is not None else made.of("reachable")
    raise typer.Exit(1 if bad else 0)


def summary(made: Audit) -> Any:
    """Findings by certainty and kind."""
    from rich.table import Column, Table
    from rich.text import Text

    kinds = sorted({one.kind for one in made.findings})
    table = Table("certainty", *(Column(kind, justify="right") for kind in kinds), Column("all", justify="right"))
    for certainty, count in made.counts.items():
        each = [sum(one.kind == kind for one in made.of(certainty)) for kind in kinds]
        table.add_row(Text(certainty, _STYLES[certainty]), *map(str, each), str(count))
    return table


def shown(made: Audit, comparison: Comparison | None, certainties: Sequence[str]) -> list[Finding]:
    """What is printed in full: with a baseline what is new, otherwise the certainties that are asked for."""
    findings = made.findings if comparison is None else comparison.new
    return [one for one in findings if not certainties or one.certainty in certainties]


def document(made: Audit, comparison: Comparison | None) -> str:
    """JSON: the audit, and the fingerprints that are new and stale where there is a baseline."""
    import dataclasses
    import json

    whole: dict[str, Any] = {"schema": 1, "counts": made.counts, **dataclasses.asdict(made)}
    if comparison is not None:
        whole["new"] = [list(one.fingerprint) for one in comparison.new]
        whole["stale"] = [list(one.fingerprint) for one in comparison.stale]
    return json.dumps(whole, indent=1) + "\n"


def _told(finding: Finding) -> str:
    inside = f" in {finding.function}" if finding.function else ""
    lines = [f"{finding.certainty}: {finding.where}: {finding.kind}: {finding.name}{inside}"]
    lines += [f"    bound at  {one}" for one in finding.bound]
    lines += [f"    {'path  ' if not number else '      '}    {step}" for number, step in enumerate(finding.path)]
    lines += [f"    {'if    ' if not number else '      '}    {one}" for number, one in enumerate(finding.here)]
    if len(finding.conditions) > len(finding.here):
        lines.append(f"              and {len(finding.conditions) - len(finding.here)} conditions on the way there")
    if finding.why:
        lines.append(f"    {finding.certainty}{' by' if finding.certainty == 'guarded' else ':'} {finding.why}")
    return "\n".join(lines) + "\n"


def _closing(made: Audit, shown: Sequence[str]) -> str:
    """What the counts mean, and how to see the findings that were not printed."""
    meant: dict[Certainty, str] = {
        "reachable": "certainly missing, and used by a call whose data lead there",
        "guarded": "missing, and used where a setting or an unseen caller leads there",
        "unknown": "perhaps missing, or in a function that nobody is seen to call",
    }
    counts = made.counts
    hidden = [name for name in meant if counts[name] and name not in shown]
    lines = [f"{name}: {meaning}" for name, meaning in meant.items()]
    lines += [f"--certainty {name} prints {counts[name]}" for name in hidden]
    end = "nothing is reachable: exit status 0" if not counts["reachable"] else "exit status 1"
    return "\n".join((*lines, end))


def _notes(made: Audit, comparison: Comparison | None) -> list[str]:
    notes = [f"not read: {one}" for one in made.unread]
    if comparison is not None:
        notes.append(f"{len(comparison.new)} new, {len(comparison.known)} reviewed, {len(comparison.stale)} stale")
        for one in comparison.stale:
            file, function, name, kind = one.fingerprint
            notes.append(f"stale: {file}: {kind}: {name}{f' in {function}' if function else ''}")
    return notes


def _with_progress(audited: Any, package: str, platform: str) -> Audit:
    """The audit, with a bar on stderr."""
    with progress_bar() as progress:
        task = progress.add_task("files", total=None)

        def tell(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of)

        made: Audit = audited(package, platform, progress=tell)
    return made
