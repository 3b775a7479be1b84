"""Performance sections as one HTML file: no request leaves it, and it reads without JavaScript, in light, dark, print.

Texts of sections come from results, ledgers and upstream packages, so the templates escape all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from waveproof.reports.section_html import outcome_amounts, section_environment, shown_sections
from waveproof.reports.sections import Section


def render_perf_page(
    sections: Sequence[Section],
    title: str,
    when: datetime | None = None,
    versions: Mapping[str, str] | None = None,
) -> str:
    """The page as text.

    Args:
        sections: in the order in which they are shown; their warnings are gathered before all of them too.
        title: of the page.
        when: the time of the run, now if it is not given.
        versions: of packages and devices, shown in the head.

    Raises:
        BadPicture: a picture is no PNG.
    """
    prepared = shown_sections(sections)
    return (
        section_environment()
        .get_template("perf.html.j2")
        .render(
            title=title,
            when=(when or datetime.now(timezone.utc)).astimezone(timezone.utc),
            versions=dict(versions or {}),
            sections=prepared,
            amounts=outcome_amounts(prepared),
            warnings=sum(len(section.warnings) for section in prepared),
        )
    )


def write_perf_page(
    file: Path,
    sections: Sequence[Section],
    title: str,
    when: datetime | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write the page of :func:`render_perf_page` into a file, whose folder is made.

    Raises:
        BadPicture: a picture is no PNG.
    """
    text = render_perf_page(sections, title, when, versions)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
