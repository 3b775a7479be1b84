"""``waveproof dispatch``: which MLA kernel AITER chooses, with which words it refuses, and whether that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.cli_heads import Arches
from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.dispatch.confirm import Confirmation
    from waveproof.fixtures.dispatch.oracle import Answer, Question
    from waveproof.golden.judges.judgement import Judgement


def dispatch(
    arch: Annotated[Arches, typer.Option(help="Architecture.")] = Arches.BOTH,
    heads: Annotated[str, typer.Option(metavar="RANGES", help="Head counts, as in 1-128 or 8,12,16-20.")] = "1-128",
    queries: Annotated[str, typer.Option(metavar="RANGES", help="Queries of a request, within 1-8.")] = "1-8",
    check: Annotated[bool, typer.Option("--check", help="Compare with the reviewed answers and rulings.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Write all answers and rulings as reviewed.")] = False,
    confirm: Annotated[bool, typer.Option("--confirm", help="Run a sample on the emulated device.")] = False,
    output: Annotated[Path | None, typer.Option("--json", "-o", help="JSON file with each answer.")] = None,
) -> None:
    """Ask the installed AITER's dispatcher about every number of heads and queries: its kernel, or its words.

    Decode, persistent or not, and absorbed prefill, of bf16, fp8 and bf16 on an fp8 cache; no GPU, nothing runs. With
    --check, what comes out otherwise than reviewed is printed and the exit status is 1.
    """
    import time

    from waveproof.fixtures.dispatch.oracle import ask, every_question
    from waveproof.fixtures.dispatch.rulings import pairing
    from waveproof.fixtures.head_counts import parse_heads
    from waveproof.fixtures.sglang_head_rule import SglangRuleNotFound

    if check and accept:
        raise typer.BadParameter("what --accept writes is what --check compares with: give one of them")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"{output}: there is no folder {output.parent}", param_hint="--json")
    arches = [one.value for one in (Arches.GFX942, Arches.GFX950) if arch in (one, Arches.BOTH)]
    began = time.monotonic()
    answers = ask(every_question(arches, parse_heads(heads), _parse_queries(queries)))
    seconds = time.monotonic() - began
    console = wide_console()
    console.print(table(answers))
    for line in counts(answers, seconds):
        console.print(f"- {line}", markup=False, highlight=False)
    try:
        notes = pairing()
    except SglangRuleNotFound as error:
        notes = (str(error),)
    for note in notes:
        console.print(f"- {note}", markup=False, highlight=False)
    broken = []
    confirmed: list[Confirmation] = []
    if confirm:
        confirmed, judgement = _confirm(answers, console)
        broken += [judgement] if not judgement.holds else []
    if accept:
        _accept()
    elif check:
        broken += _broken(arches)
    for judgement in broken:
        console.print(f"{judgement.rule}: {judgement.message}", markup=False, highlight=False, style="red")
    if check and not broken:
        console.print("answers and rulings are as reviewed", style="green")
    if output is not None:
        output.write_text(document(answers, confirmed), encoding="utf-8")
        typer.echo(f"{output}: {len(answers)} answers")
    if broken:
        raise typer.Exit(1)


def _parse_queries(text: str) -> tuple[int, ...]:
    """Numbers of queries.

    Raises:
        HeadsNotUnderstood: not of the form, or outside of 1 to 8.
    """
    from waveproof.fixtures.dispatch.oracle import MOST_QUERIES
    from waveproof.fixtures.head_counts import HeadsNotUnderstood, parse_heads

    try:
        lengths = parse_heads(text)
    except HeadsNotUnderstood:
        lengths = ()
    if not lengths or lengths[-1] > MOST_QUERIES:
        raise HeadsNotUnderstood(f"--queries {text!r}: is no list of numbers or ranges within 1-{MOST_QUERIES}")
    return lengths


def table(answers: Mapping[Question, Answer]) -> Any:
    """The compact table: consecutive heads and queries with the same answer in a row."""
    from rich.table import Column, Table
    from rich.text import Text

    made = Table(
        Column("arch", no_wrap=True), Column("call", no_wrap=True), Column("q / cache", no_wrap=True),
        Column("queries", no_wrap=True), Column("heads", overflow="fold", max_width=30),
        Column("answer (H heads, Q queries)", overflow="fold"),
        title="AITER's MLA dispatcher", title_justify="left",
    )  # fmt: skip
    groups: dict[tuple[str, str, str], list[Answer]] = {}
    for question, answer in answers.items():
        call = "prefill" if question.prefill else "persistent" if question.persistent else "decode"
        groups.setdefault((question.arch, call, f"{question.q_dtype} / {question.kv_dtype}"), []).append(answer)
    done: list[tuple[tuple[str, str], list[tuple[str, str, str, str]]]] = []
    by_section: dict[int, list[str]] = {}
    for (arch, call, dtypes), group in groups.items():
        section = ((call, dtypes), _rows(group))
        if section not in done:
            done.append(section)
        by_section.setdefault(done.index(section), []).append(arch)
    order = sorted(by_section, key=lambda number: done[number][0])
    for number in order:
        (call, dtypes), rows = done[number]
        for text, style, lengths, counts in rows:
            made.add_row(" ".join(by_section[number]), call, dtypes, lengths, counts, Text(text, style))
        made.add_section()
    return made


def _rows(group: Sequence[Answer]) -> list[tuple[str, str, str, str]]:
    """Answer, colour, queries and heads of each row."""
    from waveproof.fixtures.dispatch.known_faults import known_fault
    from waveproof.fixtures.dispatch.snapshot import lengths_by_heads, outcome
    from waveproof.fixtures.head_counts import ranges

    cells: dict[tuple[str, str], dict[int, list[int]]] = {}
    for answer in sorted(group, key=lambda one: (one.question.query_length, one.question.heads)):
        question, fault = answer.question, known_fault(answer)
        # The grid grows with heads and queries; it is in the JSON.
        text = answer.code_object + (
            f", folded to {question.heads // answer.folded} heads" if answer.folded > 1 else ""
        )
        text = f"{text}: WRONG, {fault}" if fault else text
        style = "bold red" if fault else "green"
        if not answer.accepted:
            # Of a single call upstream's words stand as they are, with the line.
            said = f"refused by {answer.at or answer.refused_by}: {answer.refusal}"
            text, style = said if len(group) == 1 else outcome(answer), ""
            text += f" (and by {', '.join(answer.also_refused_by)})" if answer.also_refused_by else ""
        cells.setdefault((text, style), {}).setdefault(question.query_length, []).append(question.heads)
    rows = []
    for (text, style), by_length in cells.items():
        by_heads = lengths_by_heads(by_length)
        rows += [(text, style, ranges(lengths), ranges(heads)) for heads, lengths in by_heads.items()]
    return rows


def counts(answers: Mapping[Question, Answer], seconds: float) -> list[str]:
    """How many questions of which kind, and how many were accepted."""
    decode = [one for question, one in answers.items() if not question.prefill]
    prefill = [one for question, one in answers.items() if question.prefill]
    lines = [f"{len(decode)} calls of decode and {len(prefill)} of prefill asked in {seconds:.1f} s"]
    for label, group in (("decode", decode), ("prefill", prefill)):
        by_gate = Counter(answer.refused_by or "accepted" for answer in group)
        told = (
            f"accepted {count}" if gate == "accepted" else f"{gate} refuses {count}" for gate, count in by_gate.items()
        )
        lines.append(f"{label}: {', '.join(sorted(told))}")
    return lines


def _confirm(answers: Mapping[Question, Answer], console: Any) -> tuple[list[Confirmation], Judgement]:
    import time

    from waveproof.fixtures.dispatch.confirm import confirm, counted, judge_agreement, sample

    began = time.monotonic()
    confirmed = confirm(sample(answers))
    seconds = time.monotonic() - began
    console.print(f"- {len(confirmed)} of these calls run on the emulated device in {seconds:.0f} s:", markup=False)
    for label, count in counted(confirmed).items():
        console.print(f"    {label}: {count}", markup=False, highlight=False)
    for one in confirmed:
        if one.verdict not in ("right", "refused alike"):
            console.print(f"    {one}", markup=False, highlight=False)
    return confirmed, judge_agreement(confirmed)


def _broken(arches: Sequence[str]) -> list[Judgement]:
    from waveproof.fixtures.dispatch.snapshot import compare, load, take

    return [one for one in compare(load(), take(arches)) if not one.holds]


def _accept() -> None:
    """Write the baseline, and print what it changes."""
    from waveproof.fixtures.baselines import BadBaseline
    from waveproof.fixtures.dispatch.snapshot import BASELINE, compare, dumped, load, take

    now = take()
    try:
        changed = [one.message for one in compare(load(), now) if not one.holds]
    except BadBaseline as bad:
        changed = [str(bad)]
    BASELINE.write_text(dumped(now), encoding="utf-8")
    for text in changed or ["no answer and no ruling changed"]:
        typer.echo(text)
    typer.echo(f"{BASELINE.name} written: AITER {now.aiter}, sglang {now.sglang}")


def document(answers: Mapping[Question, Answer], confirmed: Sequence[Confirmation]) -> str:
    """JSON: ``answers`` with one entry for each call, ``confirmed`` with what ran."""
    import dataclasses
    import json

    from waveproof.kernels.runtimes.emulate.host_build import aiter_installation

    entries = [dataclasses.asdict(answer) for answer in answers.values()]
    ran = [
        {"call": str(one.answer.question), "verdict": one.verdict, "text": one.text, "kernels": one.kernels}
        for one in confirmed
    ]
    whole = {"schema": 1, "aiter": aiter_installation().version, "answers": entries, "confirmed": ran}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"
