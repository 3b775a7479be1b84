"""Bug reports: all failures of one cause as one Markdown file, ready to be pasted into an upstream tracker.

It is written for a maintainer of the failing kernel who has two minutes and has never heard of this suite: what is
wrong in the title, the smallest input, expected against got, who shows it and who does not, the machine, a script.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import jinja2

from waveproof.kernels.operators.registry import operator_named
from waveproof.reports.environment import environment_lines, scrub
from waveproof.reports.verdicts import Failure, Record, Verdict

LONG_LINES = 60
"""A script with more lines than this is folded away."""

TRACKER_LIMIT = 60_000
"""Characters that a report may have: GitHub takes 65,536."""

_MACHINES = {
    "cpu": "CPU tensors",
    "interpret": "Triton interpreter (`TRITON_INTERPRET=1`) on a CPU",
    "compile": "Triton's AMD compiler, ahead of time",
    "emulate": "compiled code on an emulated GPU",
    "hip": "AMD GPU",
    "cuda": "NVIDIA GPU",
}

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)


@dataclass(frozen=True)
class Script:
    """A minimal repro as it lies in a folder."""

    name: str
    text: str
    printed: str
    data: str

    @property
    def packages(self) -> list[str]:
        """What it needs."""
        found = re.search(r"^for package in \((.*?)\):$", self.text, re.MULTILINE)
        names = re.findall(r'"([^"]+)"', found.group(1)) if found else []
        return [*names, "waveproof"] if "from waveproof" in self.text and "waveproof" not in names else names

    @property
    def inputs(self) -> str:
        """The lines that make its input, without the functions around them."""
        bodies = re.findall(
            r"^def (?:first|second)_input\(\):\n.*\n((?:    .*\n)*?)    return ", self.text, re.MULTILINE
        )
        text = "\n".join(re.sub(r"^    ", "", body, flags=re.MULTILINE).rstrip() for body in bodies)
        return text.replace(".as_subclass(OnDevice)", "").replace(".to(DEVICE)", "")


@dataclass(frozen=True)
class Row:
    """One line of the table of who shows the fault."""

    machine: str
    case: str
    """The test's own parameters, without those that name implementation and machine."""
    shapes: str
    dtypes: str
    result: str


Cause = tuple[str, str, str]
"""Operator, provider and rule: records that agree in these report one bug."""


def report_id(cause: Cause) -> str:
    """Eight hexadecimal digits that stand for a cause, the same in every run."""
    return hashlib.sha256("\0".join(cause).encode()).hexdigest()[:8]


def write_reports(failures: Sequence[Record], records: Sequence[Record], directory: Path) -> list[Path]:
    """Write one ``report_<id>.md`` for each cause and return the paths, in order of first appearance.

    Args:
        failures: records with a failure, of any number of causes.
        records: all of the run; those that passed the same checks on the same implementation are listed as not showing
            the fault.
        directory: where the repros of these failures lie; made if it is not there.

    """
    causes: dict[Cause, list[Record]] = {}
    for record in failures:
        if record.failure is not None:
            causes.setdefault((record.operator, record.provider, record.failure.rule), []).append(record)
    paths = []
    for cause, failed in causes.items():
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"report_{report_id(cause)}.md"
        path.write_text(report(failed, records, directory), encoding="utf-8")
        paths.append(path)
    return paths


def report(failed: Sequence[Record], records: Sequence[Record], directory: Path) -> str:
    """The report on one cause, as Markdown; every record in ``failed`` has a failure."""
    scripts = {record.failure.repro: read_script(directory, record.failure) for record in failed if record.failure}
    record = min(failed, key=lambda record: _weight(record, scripts))
    failure, operator = _failure(record), operator_named(record.operator)
    script = scripts[failure.repro]
    context = {
        "title": title(record, {record.arch for record in failed}),
        "operator": operator.name,
        "origin": scrub(record.origin) or record.provider,
        "contract": prose(operator.summary),
        "variant": _VARIANTS.get(record.variant, ""),
        "source": prose(operator.source),
        "message": prose(textwrap.shorten(failure.message, 500, placeholder=" ...")).rstrip("."),
        "inputs": fence(_input_lines(record, script), "python"),
        "where": f"[{', '.join(map(str, failure.index))}]" if failure.index is not None else "",
        "expected": cell(failure.expected),
        "got": cell(failure.got),
        "measured": cell(f"{failure.figure:.3g} {failure.unit}") if _has_measure(failure) else "",
        "bound": cell(f"{failure.bound:.3g} {failure.unit}"),
        "derivation": prose(failure.derivation).rstrip("."),
        "rows": table_rows(failed, records),
        "resources": [{key: cell(str(value)) for key, value in kernel.items()} for kernel in record.resources],
        "environment": {label: prose(value) for label, value in environment_lines(record.versions).items()},
        "script": script,
        "packages": ", ".join(f"`{name}`" for name in script.packages) if script else "",
        "confirmed": failure.repro_confirmed,
        "folded": script is not None and script.text.count("\n") > LONG_LINES,
        "printed": fence(script.printed, "text") if script else "",
        "command": f"python -m pytest {shlex.quote(scrub(record.id))}",
        "case": scrub(record.id),
        "script_here": _SCRIPT_HERE,
    }
    text = re.sub(r"\n{3,}", "\n\n", _TEMPLATES.get_template("report.md.j2").render(context))
    # Put in last: blank lines within it are its own.
    block = fence(script.text, "python") if script else ""
    if len(text) + len(block) > TRACKER_LIMIT:
        block = "(too long for this page: attached)"
    return text.replace(_SCRIPT_HERE, block)


def read_script(directory: Path, failure: Failure) -> Script | None:
    """The failure's minimal repro, None where there is none."""
    path = directory / failure.repro
    if not failure.repro or not path.is_file():
        return None
    printed, data = path.with_suffix(".txt"), path.with_suffix(".safetensors")
    return Script(
        path.name,
        path.read_text(encoding="utf-8"),
        scrub(printed.read_text(encoding="utf-8")) if printed.is_file() else "",
        data.name if data.is_file() else "",
    )


def _failure(record: Record) -> Failure:
    assert record.failure is not None
    return record.failure


def _weight(record: Record, scripts: dict[str, Script | None]) -> tuple[bool, bool, int]:
    """Orders records by how well they explain: a confirmed script, made from that record, the smallest input."""
    failure = _failure(record)
    script = scripts[failure.repro]
    shapes = re.findall(r"\[(\d+(?:, \d+)*)\]", failure.call)
    size = sum(prod(map(int, shape.split(", "))) for shape in shapes)
    # The script's heading is wrapped, and has no double quotes.
    name = "".join(scrub(record.id).replace('"', "'").split())
    made_from_it = script is not None and name in "".join(script.text.split())
    return failure.repro_confirmed is not True, not made_from_it, size


_SCRIPT_HERE = "\0script\0"


_VARIANTS = {
    "threshold": "Ties: every value that equals the boundary value is kept.",
    "exact-k": "Ties: exactly k values are kept, among equals those of the lowest index.",
    "any-k": "Ties: exactly k values are kept, any of those that are equal.",
    "exact-p": "Ties: as few values as the mass needs are kept, among equals those of the lowest index.",
}


def title(record: Record, arches: set[str]) -> str:
    """One sentence: operator and implementation, what is wrong, and the GPU where only one kind shows it."""
    failure = _failure(record)
    text = " ".join(scrub(failure.message or f"{failure.rule} does not hold").split()).rstrip(".")
    short = re.split(r"(?<=\w)[;:.] ", text)[0]
    where = f" on {record.arch}" if len(arches) == 1 and record.arch and record.arch not in short else ""
    words = f"{record.operator} ({record.provider}): {short}{where}"
    return prose(words if len(words) <= 140 else words[:139].rsplit(" ", 1)[0] + " ...")


def table_rows(failed: Sequence[Record], records: Sequence[Record]) -> list[Row]:
    """Who shows it, then who does not, each machine, shape and dtype once."""
    shown = [_row(record, _result(record)) for record in failed]
    checks = {(record.operator, record.provider, record.test) for record in failed}
    spared = [
        _row(record, "right")
        for record in records
        if record.verdict is Verdict.PASS and (record.operator, record.provider, record.test) in checks
    ]
    return list(dict.fromkeys([*shown, *spared]))


def _result(record: Record) -> str:
    failure = _failure(record)
    words = {Verdict.CRASH: "**crashes**", Verdict.TIMEOUT: "**hangs**"}
    if record.verdict in words:
        return words[record.verdict]
    return f"**wrong**, {cell(f'{failure.figure:.3g} {failure.unit}')}" if _has_measure(failure) else "**wrong**"


def _has_measure(failure: Failure) -> bool:
    return bool(failure.bound) or failure.figure not in (0.0, 1.0)


def _row(record: Record, result: str) -> Row:
    machine = _MACHINES.get(record.runtime, record.runtime)
    machine = f"{machine}, {record.arch}" if record.arch else machine
    return Row(machine, cell(_case(record)), cell(", ".join(record.shapes)), cell(", ".join(record.dtypes)), result)


def _case(record: Record) -> str:
    """What is left of the id's brackets: ``--1-scalar`` of ``[top_k_renorm_prob-sglang-interpret--1-scalar]``."""
    parameters = record.id.partition("[")[2].removesuffix("]")
    for part in (record.operator, record.provider, record.runtime, record.arch):
        parameters = parameters.removeprefix(part).removeprefix("-") if part else parameters
    return f"{record.test.removeprefix('test_')}[{parameters}]" if parameters else record.test.removeprefix("test_")


def _input_lines(record: Record, script: Script | None) -> str:
    """The input as the script makes it where that is short, else by shape and dtype."""
    inputs = script.inputs if script is not None else ""
    call = scrub(_failure(record).call)
    if not inputs or inputs.count("\n") > 30 or "STORED" in inputs:
        return call
    return f"{inputs}\n# {call}" if call else inputs


def prose(text: str) -> str:
    """One line of Markdown that says what the text says: no markup, no mention of an account, no secrets."""
    # "#12" would link to an issue; underscores within a word are left alone by GitHub's Markdown, stars are not.
    text = re.sub(r"(?<![\w/])#(?=\d)", "&#35;", " ".join(scrub(text).split()))
    for sign, instead in (("<", "&lt;"), ("@", "&#64;"), ("|", "&#124;"), ("`", "'"), ("*", "\\*")):
        text = text.replace(sign, instead)
    return text


def cell(text: str) -> str:
    """A table cell that holds the text as code."""
    text = " ".join(scrub(text).split()).replace("|", "\\|").replace("`", "'")
    return f"`{text}`" if text else ""


def fence(text: str, language: str) -> str:
    """A code block whose fence is longer than any within the text; empty for an empty text."""
    if not text.strip():
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text.rstrip()}\n{marks}"
