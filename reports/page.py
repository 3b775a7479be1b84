"""A run as one HTML file: no request leaves it, and it reads without JavaScript, in light and dark, in print.

Everything in a record is somebody's text, so the template escapes all of it, and the only links are https URLs in
reasons and the names of repro files beside the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import jinja2

from waveproof.reports import summary
from waveproof.reports.section_html import environment, shown_sections
from waveproof.reports.sections import Section
from waveproof.reports.summary import Column, Row
from waveproof.reports.verdicts import Record, RuleFigure, Verdict

SYMBOLS = {
    Verdict.PASS: "✓",
    Verdict.WAIVED: "≈",
    Verdict.INCONCLUSIVE: "?",
    Verdict.UNAVAILABLE: "–",
    Verdict.FAIL: "✗",
    Verdict.CRASH: "!",
    Verdict.TIMEOUT: "◷",
}
"""Beside each colour, for readers who cannot tell the colours apart."""

RESOURCES = {
    "vgpr": "VGPR",
    "agpr": "of which AGPR",
    "sgpr": "SGPR",
    "vgpr_spill": "VGPR spills",
    "sgpr_spill": "SGPR spills",
    "scratch_bytes": "scratch B",
    "lds_bytes": "LDS B",
    "mfma": "MFMA",
    "waves_per_simd": "waves per SIMD",
}
"""Keys of a record's resources (``kernels/runtimes/amdgcn_resources.py``) and their headings."""

COSTLY = ("vgpr_spill", "sgpr_spill", "scratch_bytes")
"""Resources that a kernel should not take at all: memory traffic that its source does not ask for."""

_FILE_NAME = re.compile(r"[\w-][\w.=+-]*")


def render_page(records: Iterable[Record], when: datetime | None = None, sections: Iterable[Section] = ()) -> str:
    """The page as text.

    Args:
        records: of the run.
        when: the time of the run, now if it is not given.
        sections: what the run measured besides, shown below the matrix and the failures.

    Raises:
        BadPicture: a picture of a section is no PNG.
    """
    records = tuple(records)
    matrix = summary.tabulate(records)
    rows: dict[str, list[Row]] = {}
    for row in matrix.rows:
        rows.setdefault(row.operator, []).append(row)
    return _template().render(
        records=records,
        when=(when or datetime.now(timezone.utc)).astimezone(timezone.utc),
        commits=summary.one_of_each(record.commit for record in records),
        versions=merged_versions(records),
        totals=summary.totals(records),
        red=sum(record.verdict.red for record in records),
        judged=sum(record.verdict not in summary.ABSENT for record in records),
        calls=sum(record.calls for record in records),
        matrix=matrix,
        rows=rows,
        other_checks=summary.other_checks(records),
        causes=summary.failure_causes(records),
        waivers=summary.waivers_used(records),
        absences=summary.absences(records),
        resources=resource_rows(records),
        anchors={id(record): f"case-{number}" for number, record in enumerate(records, 1)},
        verdicts=[verdict for verdict in summary.COUNT_ORDER],
        sections=shown_sections(sections),
    )


def merged_versions(records: Iterable[Record]) -> dict[str, str]:
    """Version of each distribution; where records disagree all of them, since then the run was not of one piece."""
    found: dict[str, list[str]] = {}
    for record in records:
        for name, version in record.versions.items():
            found.setdefault(name, []).append(version)
    return {name: " and ".join(summary.one_of_each(versions)) for name, versions in found.items()}


def resource_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One entry a kernel, arch and set of figures: ``kernel``, ``arch``, ``provider``, ``operator`` and RESOURCES."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for record in records:
        for resource in record.resources:
            entry = {
                "operator": record.operator,
                "provider": record.provider,
                "kernel": str(resource.get("kernel", "")),
                "arch": str(resource.get("arch") or record.arch),
                **{key: resource.get(key) for key in RESOURCES},
            }
            found.setdefault(tuple(entry.values()), entry)
    return sorted(found.values(), key=lambda entry: tuple(map(str, list(entry.values())[:4])))


def filled(figure: RuleFigure) -> int:
    """Per cent of its bound that a figure takes up, at most 100."""
    return round(100 * min(summary.severity(figure), 1.0))


def beside_the_page(name: str) -> bool:
    """Whether it is a plain file name, which can be linked; anything else could lead a reader elsewhere."""
    return _FILE_NAME.fullmatch(name) is not None


def terms(row: Row, column: Column) -> str:
    """What to search the cases for to see those of one cell."""
    return " ".join(part for part in (row.operator, row.provider, column.runtime, column.arch) if part)


def subject(record: Record) -> Sequence[str]:
    """Operator, provider and where it ran, as far as it has them."""
    return [part for part in (record.operator, record.provider, summary.column_of(record).title) if part]


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    made = environment()
    made.globals.update(
        symbols=SYMBOLS,
        headings=RESOURCES,
        costly=COSTLY,
        against_bound=summary.against_bound,
        word=summary.word,
        number=summary.number,
        worst_figure=summary.worst_figure,
        filled=filled,
        beside_the_page=beside_the_page,
        terms=terms,
        subject=subject,
        id=id,
    )
    return made.get_template("page.html.j2")
