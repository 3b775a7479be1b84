"""What a server's start came to: JSON for machines, two tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from waveproof.fixtures.servers.startup import Startup, Statement, speakers
from waveproof.fixtures.servers.startup_required import Outcome, Verdict, decided, overall
from waveproof.fixtures.servers.startup_rules import TOPICS

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA: Final = 1
"""Raised by one whenever a field changes its meaning or goes."""

EXIT_CODES: Final = {Verdict.KEPT: 0, Verdict.BROKEN: 1, Verdict.INCONCLUSIVE: 3}
"""2 is a command that was given wrongly."""

PHASES: Final = ("attention-prefill", "attention-decode", "attention-draft")
"""Topics of which silence says nothing, since another speaks for them."""

SHOWN: Final = 12
"""Shapes, files or exceptions of a finding that are shown to people; JSON has them all."""

_COLOURS: Final = {"error": "bold red", "fallback": "yellow", "info": ""}
_VERDICTS: Final = {Verdict.KEPT: "green", Verdict.BROKEN: "bold red", Verdict.INCONCLUSIVE: "yellow"}


def document(startup: Startup, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same as JSON: engine, choices, findings, outcomes, verdict."""
    return {
        "schema": SCHEMA,
        "verdict": overall(outcomes).value,
        "engine": startup.engine,
        "ready": _statement(startup.ready) if startup.ready else None,
        "lines": startup.lines,
        "starts": startup.starts,
        "choices": [_statement(one) for one in startup.statements],
        "findings": [
            {
                "rule": one.rule, "severity": one.severity, "count": one.count, "line": one.line, "text": one.text,
                "speakers": list(speakers(one)), "keys": one.distinct, "seconds": one.seconds,
                "means": one.means, "do": one.do,
            }
            for one in startup.findings
        ],
        "unknown": {"count": startup.unknown.count, "line": startup.unknown.line, "text": startup.unknown.text},
        "open_end": startup.open_end,
        "outcomes": [{"rule": one.rule, "verdict": one.verdict.value, "message": one.message} for one in outcomes],
    }  # fmt: skip


def _statement(statement: Statement) -> dict[str, Any]:
    return {
        "topic": statement.topic, "value": statement.value, "line": statement.line, "speaker": statement.speaker,
        "text": statement.text,
    }  # fmt: skip


def choices(startup: Startup) -> Table:
    """What was chosen, topic by topic, with the line that says so; ranks that agree are one row."""
    from rich.table import Column, Table
    from rich.text import Text

    made = Table(
        Column("topic", no_wrap=True), Column("choice", overflow="fold", max_width=30), Column("said at", no_wrap=True),
        Column("in these words", overflow="fold", ratio=1), title="Chosen", title_justify="left",
    )  # fmt: skip
    for topic in TOPICS:
        by_value: dict[str, list[Statement]] = {}
        told = startup.about(topic)
        # What is left open matters where nothing settles it.
        for statement in [one for one in told if decided(one)] or [one for one in told if topic not in PHASES]:
            by_value.setdefault(statement.value, []).append(statement)
        for value, same in by_value.items():
            ranks = f" and {len(same) - 1} more" if len(same) > 1 else ""
            colour = "bold red" if len(by_value) > 1 else ""
            made.add_row(Text(topic), Text(value, colour), Text(same[0].place + ranks), Text(_short(same[0].text, 90)))
    return made


def findings(startup: Startup) -> Table:
    """Errors and fallbacks, with how often, where first, what it means and what to do."""
    from rich.table import Column, Table
    from rich.text import Text

    made = Table(
        Column("rule", overflow="fold", max_width=26), Column("times", justify="right"), Column("first", no_wrap=True),
        Column("line, meaning, what to do", overflow="fold", ratio=1), title="Fallbacks and errors",
        title_justify="left", show_lines=True,
    )  # fmt: skip
    for one in startup.findings:
        if one.severity == "info":
            continue
        text = Text(_short(one.text, 160))
        text.append(f"\n{one.means}")
        if one.do:
            text.append(f"\n-> {one.do}", "cyan")
        if one.distinct and [*one.distinct] != [one.text]:
            text.append(f"\n{_listed(one.distinct)}", "dim")
        if one.seconds:
            text.append(f"\n{one.seconds:.0f} s in all", "dim")
        ranks = list(speakers(one))
        first = f"line {one.line}" + (f"\n{ranks[0]}" if len(ranks) == 1 else f"\n{len(ranks)} ranks" if ranks else "")
        made.add_row(Text(one.rule, _COLOURS[one.severity]), str(one.count), first, text)
    return made


def _listed(keys: dict[str, int]) -> str:
    shown = [f"{key} x{count}" if count > 1 else key for key, count in list(keys.items())[:SHOWN]]
    more = f", and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f"{len(keys)} kinds: {'; '.join(shown)}{more}" if len(keys) > 1 else shown[0]


def closing_lines(startup: Startup, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Lines below the tables with their colours: builds, lines that no rule knows, outcomes, the verdict."""
    built = {one.rule: one for one in startup.findings if one.severity == "info"}.get("aiter-built")
    if built is not None:
        modules = ", ".join([*built.distinct][:SHOWN])
        yield f"AITER compiled for {built.seconds:.0f} s before the server was ready: {modules}", ""
    if startup.starts > 1:
        yield f"{startup.starts} starts in this log; the last is the one above", ""
    if startup.unknown.count:
        one = startup.unknown
        yield (
            f"{one.count} lines speak of a fallback in words that no rule knows, first line {one.line}: {one.text}",
            "yellow",
        )
    for outcome in outcomes:
        yield f"{outcome.verdict.value:12} {outcome.rule}: {_short(outcome.message, 400)}", _VERDICTS[outcome.verdict]
    verdict = overall(outcomes)
    asked = any(outcome.rule == "no-fallback" for outcome in outcomes)
    passed = "; with --require no-fallback the fallbacks above fail" if not asked and startup.of("fallback") else ""
    yield f"{verdict.value:12} in all, exit status {EXIT_CODES[verdict]}{passed}", _VERDICTS[verdict]


def _short(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
