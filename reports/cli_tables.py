"""``waveproof tables``: rows of AITER's tuned tables and code-object lists that can never do what they are for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from waveproof.fixtures.tables.baseline import Baseline, Comparison, Known
    from waveproof.fixtures.tables.finding import Finding
    from waveproof.fixtures.tables.lint import Result


def tables(
    target: Annotated[
        str, typer.Argument(metavar="[aiter|DIR]", help="The installed AITER, or a folder with one: a checkout.")
    ] = "aiter",
    rule: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this rule; may be repeated.")] = None,
    output: Annotated[
        Path | None, typer.Option("--json", "-o", metavar="FILE", help="JSON file with each finding.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Reviewed findings; the suite's own for `aiter`, none for DIR.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Write the findings to the baseline; notes by hand.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Print reviewed findings too.")] = False,
) -> None:
    """Find rows that no device can reach, kernels and code objects that do not exist, and shapes without a row.

    Nothing of AITER is imported or run; no GPU. Exit status 1 where there is a finding that is not in the baseline,
    or where one that was reviewed in these versions is not found any more.
    """
    from waveproof.fixtures.baselines import BadBaseline
    from waveproof.fixtures.tables.baseline import Baseline, compare, read_baseline, shipped_baseline
    from waveproof.fixtures.tables.lint import RULES, lint, rule_named
    from waveproof.fixtures.tables.lint import target as tree_of

    rules = tuple(rule_named(name) for name in rule) if rule else RULES
    tree, sglang = tree_of(target)
    results = lint(tree, sglang, rules)
    path = baseline or (shipped_baseline() if target == "aiter" else None)
    if baseline is not None and not accept and not baseline.is_file():
        raise BadBaseline(f"--baseline {baseline.name}: there is no such file; --accept writes one")
    known = read_baseline(path) if path else Baseline({}, {})
    findings = [one for result in results for one in result.findings]
    names = [one.name for one in rules]
    if accept:
        _accept(path, findings, known, names, target == "aiter")
        return
    compared = compare(findings, known, names)
    console = wide_console()
    console.print(overview(results, compared))
    groups = (*compared.new, *(compared.known if every else ()))
    if groups:
        console.print(details(groups, {key for key, _ in compared.new}))
    for gone in compared.gone:
        note = f"- no longer found, {path.name if path else ''}: {gone.rule}: {gone.file}: {gone.reason}"
        console.print(note, markup=False, highlight=False)
    if output is not None:
        output.write_text(document(results, compared, tree.version), encoding="utf-8")
        typer.echo(f"{output}: {len(findings)} findings")
    seconds = sum(one.seconds for one in results)
    new = sum(len(found) for _, found in compared.new)
    hint = "" if every or not compared.known else "; --all prints the reviewed ones with their notes"
    typer.echo(f"{len(findings)} findings by {len(rules)} rules in {seconds:.1f} s, {new} of them not reviewed{hint}")
    blind = compared.gone if known.of_this_installation else ()
    if blind:
        typer.echo(f"{len(blind)} reviewed kinds are not found in the versions that they were reviewed in: look why")
    raise typer.Exit(1 if compared.new or blind else 0)


def _accept(
    path: Path | None, findings: Sequence[Finding], known: Baseline, names: Sequence[str], of_installed: bool
) -> None:
    from waveproof.fixtures.tables.baseline import accepted
    from waveproof.fixtures.tables.baseline import document as text_of
    from waveproof.kernels.runtimes.catalogue import version_of

    if path is None:
        typer.echo("waveproof: --accept needs --baseline FILE where a folder is looked at", err=True)
        raise typer.Exit(2)
    versions = dict(known.versions)
    if of_installed:
        versions |= {package: version_of(package) for package in ("amd-aiter", "sglang")}
        versions = {package: version for package, version in versions.items() if version}
    entries = accepted(findings, known, names)
    path.write_text(text_of(entries, versions), encoding="utf-8")
    bare = sum(not one.note for one in entries)
    typer.echo(f"{path}: {len(entries)} kinds of findings, {bare} without a note")


def overview(results: Sequence[Result], compared: Comparison) -> Table:
    """A row for each rule: what must hold, how much was looked at, findings, seconds."""
    from rich.table import Column, Table
    from rich.text import Text

    new = [one for _, found in compared.new for one in found]
    made = Table(
        "rule", Column("must hold", overflow="fold", ratio=1), Column("looked at", justify="right"),
        Column("errors", justify="right"), Column("warnings", justify="right"), Column("new", justify="right"),
        Column("seconds", justify="right"),
        title="Tables and code objects of AITER, and what sglang copies of them", title_justify="left",
    )  # fmt: skip
    for one in results:
        errors = sum(found.severity == "error" for found in one.findings)
        fresh = sum(found.rule == one.rule.name for found in new)
        counts = (str(one.looked_at), str(errors), str(len(one.findings) - errors))
        shown = Text(str(fresh), "bold red" if fresh else "green")
        made.add_row(one.rule.name, Text(one.rule.statement), *counts, shown, f"{one.seconds:.2f}")
    return made


def details(groups: Sequence[tuple[Known, tuple[Finding, ...]]], new: Collection[Known]) -> Table:
    """A row for each kind of finding in a file, with one example, errors first."""
    from rich.table import Column, Table
    from rich.text import Text

    made = Table(
        "rule", Column("n", justify="right"), Column("what is wrong", overflow="fold", ratio=2),
        Column("where, first", overflow="fold", ratio=2),
        Column("what stands there, and why it matters", overflow="fold", ratio=4),
        show_lines=True,
    )  # fmt: skip
    for known, found in sorted(groups, key=lambda one: (one[1][0].severity, one[0].key)):
        one = found[0]
        style = "" if known not in new else "bold red" if one.severity == "error" else "yellow"
        note = f"\nreviewed: {known.note}" if known.note and known not in new else ""
        why = Text("\n".join(filter(None, (one.value, one.detail))) + note)
        made.add_row(known.rule, str(len(found)), Text(known.reason, style), Text(one.place), why)
    return made


def document(results: Sequence[Result], compared: Comparison, version: str) -> str:
    """JSON: ``rules`` with what each looked at, ``findings`` with each row, whether it is new, and ``gone``."""
    import dataclasses
    import json

    new = {one for _, found in compared.new for one in found}
    whole = {
        "schema": 1,
        "aiter": version,
        "rules": [
            {"name": one.rule.name, "statement": one.rule.statement, "source": one.rule.source,
             "looked_at": one.looked_at, "findings": len(one.findings), "seconds": round(one.seconds, 3)}
            for one in results
        ],
        "findings": [
            {**dataclasses.asdict(one), "new": one in new} for result in results for one in result.findings
        ],
        "gone": [dataclasses.asdict(one) for one in compared.gone],
    }  # fmt: skip
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
