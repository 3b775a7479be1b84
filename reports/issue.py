"""Bug reports: all failures of one cause as one Markdown file, ready to be pasted into an upstream tracker.

It is written for a maintainer of the failing kernel who has two minutes and has never heard of this suite: what is
wrong in the title, the smallest input, expected against got, who shows it and who does not, the machine, a script.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.registry import operator_named
from waveproof.reports.environment import environment_lines, scrub
from waveproof.reports.literals import numbers_in, tensor_literal
from waveproof.reports.repro import Repro
from waveproof.reports.verdicts import Record, Verdict

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
class Finding:
    """One failed case, with what is needed to tell somebody else."""

    record: Record
    judgement: Judgement
    repro: Repro | None = None

    @property
    def cause(self) -> tuple[str, str, str]:
        """Operator, provider and rule: findings that agree in these are one bug."""
        return self.record.operator, self.record.provider, self.judgement.rule

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that show it."""
        return self.judgement.demonstration.calls if self.judgement.demonstration is not None else ()

    @property
    def weight(self) -> tuple[bool, int]:
        """Orders findings by how well they explain: a confirmed script first, then the smallest input."""
        confirmed = self.repro is not None and self.repro.confirmed is True
        return not confirmed, sum(map(numbers_in, self.calls)) if self.calls else 1 << 62


@dataclass(frozen=True)
class Row:
    """One line of the table of who shows the fault."""

    machine: str
    shapes: str
    dtypes: str
    result: str


def report_id(cause: tuple[str, str, str]) -> str:
    """Eight hexadecimal digits that stand for a cause, the same in every run."""
    return hashlib.sha256("\0".join(cause).encode()).hexdigest()[:8]


def write_report(failures: Sequence[Finding], directory: Path, others: Iterable[Record] = ()) -> list[Path]:
    """Write one ``report_<id>.md`` for each cause and return the paths, in order of first appearance.

    Args:
        failures: findings of a run, of any number of causes.
        directory: made if it is not there.
        others: further records of the run; those that passed the same checks on the same implementation are listed as
            not showing the fault.
    """
    others = tuple(others)
    causes: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in failures:
        causes.setdefault(finding.cause, []).append(finding)
    paths = []
    for cause, findings in causes.items():
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"report_{report_id(cause)}.md"
        path.write_text(report(findings, others), encoding="utf-8")
        paths.append(path)
    return paths


def report(findings: Sequence[Finding], others: Sequence[Record] = ()) -> str:
    """The report on one cause, as Markdown."""
    best = min(findings, key=lambda finding: finding.weight)
    record, judgement = best.record, best.judgement
    operator = operator_named(record.operator)
    script = best.repro.path.read_text(encoding="utf-8") if best.repro is not None and best.repro.path else ""
    context = {
        "title": title(best),
        "operator": operator.name,
        "origin": scrub(record.origin) or record.provider,
        "contract": prose(operator.summary),
        "variant": prose(_VARIANTS.get(record.variant, "")),
        "source": prose(operator.source),
        "message": prose(judgement.message),
        "inputs": fence("\n".join(_input_lines(best)), "python"),
        "where": f"[{', '.join(map(str, judgement.index))}]" if judgement.index is not None else "",
        "expected": cell(judgement.expected),
        "got": cell(judgement.got),
        "figure": _measured(judgement),
        "bound": f"{judgement.bound:.3g} {judgement.unit}".strip(),
        "derivation": prose(judgement.derivation),
        "rows": table_rows(findings, others),
        "environment": environment_lines(record.versions),
        "repro": best.repro,
        "script": fence(scrub(script), "python"),
        "folded": script.count("\n") > LONG_LINES,
        "output": fence(scrub(best.repro.output if best.repro is not None else ""), "text"),
        "case": scrub(record.id),
    }
    text = _render(context)
    if len(text) > TRACKER_LIMIT:
        text = _render({**context, "script": "", "output": fence(context["output"][-2000:], "text")})
    return text


def _render(context: dict[str, object]) -> str:
    return re.sub(r"\n{3,}", "\n\n", _TEMPLATES.get_template("report.md.j2").render(context))


_VARIANTS = {
    "threshold": "Ties: every value that equals the boundary value is kept.",
    "exact-k": "Ties: exactly k values are kept, among equals those of the lowest index.",
    "exact-p": "Ties: as few values as the mass needs are kept, among equals those of the lowest index.",
}


def title(finding: Finding) -> str:
    """One sentence: the implementation, the operator, what is wrong, and the GPU where it was one."""
    record = finding.record
    text = " ".join(scrub(finding.judgement.message or f"{finding.judgement.rule} does not hold").split()).rstrip(".")
    short = re.split(r"(?<=\w)[;:.] ", text)[0]
    where = f" on {record.arch}" if record.arch and record.arch not in short else ""
    subject = f"{record.provider}: " if record.provider and record.provider not in record.operator else ""
    words = f"{subject}{record.operator}: {short}{where}"
    return prose(words if len(words) <= 140 else words[:139].rsplit(" ", 1)[0] + " ...")


def table_rows(findings: Sequence[Finding], others: Iterable[Record]) -> list[Row]:
    """Who shows it, then who does not, each machine, shape and dtype once."""
    shown = [_row(finding.record, _result(finding)) for finding in findings]
    checks = {(finding.record.operator, finding.record.provider, finding.record.test) for finding in findings}
    failing = {finding.record.id for finding in findings}
    spared = [
        _row(record, "right")
        for record in others
        if record.verdict is Verdict.PASS
        and (record.operator, record.provider, record.test) in checks
        and record.id not in failing
    ]
    return list(dict.fromkeys([*shown, *spared]))


def _result(finding: Finding) -> str:
    words = {"crash": "**crashes**", "timeout": "**hangs**"}
    return words.get(finding.record.verdict.value, f"**wrong** ({_measured(finding.judgement)})")


def _measured(judgement: Judgement) -> str:
    if not judgement.bound and judgement.figure in (0.0, 1.0):
        return cell(judgement.rule)
    return cell(f"{judgement.figure:.3g} {judgement.unit}")


def _row(record: Record, result: str) -> Row:
    machine = _MACHINES.get(record.runtime, record.runtime)
    machine = f"{machine}, {record.arch}" if record.arch else machine
    return Row(machine, cell(", ".join(record.shapes)), cell(", ".join(record.dtypes)), result)


def _input_lines(finding: Finding) -> list[str]:
    """The smallest input as Python where it is short, else by shape and dtype."""
    lines = []
    for number, call in enumerate(finding.calls):
        if len(finding.calls) > 1:
            lines.append(f"# {('first', 'second')[number] if number < 2 else 'a further'} call")
        for name, value in call.arguments.items():
            if value is None or isinstance(value, (int, float, str)):
                lines.append(f"{name} = {value!r}")
                continue
            text = tensor_literal(value, 64)
            text = None if text is not None and ("spread(" in text or ".view(" in text) else text
            shape = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            strides = "" if value.is_contiguous() else f", strides {list(value.stride())}"
            lines.append(f"{name} = {text}  # {shape}{strides}" if text else f"{name}: {shape}{strides}")
        if call.embedding is not None:
            lines.append(f"# {call.embedding.argument} is row {call.embedding.row} of {call.embedding.rows} rows")
    if finding.calls:
        lines.append(f"{finding.calls[-1].operator}({', '.join(finding.calls[-1].arguments)})")
    else:
        lines.append(scrub(finding.record.failure.call) if finding.record.failure is not None else "")
    return lines


def prose(text: str) -> str:
    """One line of Markdown that says what the text says: no markup, no mention of an account, no secrets."""
    text = " ".join(scrub(text).split())
    for sign, entity in (("<", "&lt;"), ("@", "&#64;"), ("|", "&#124;"), ("`", "'")):
        text = text.replace(sign, entity)
    # Underscores within a word are left alone by GitHub's Markdown, stars are not; "#12" would link to an issue.
    return re.sub(r"(?<![\w/])#(?=\d)", "&#35;", text.replace("*", "\\*"))


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
