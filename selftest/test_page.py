from __future__ import annotations

import math
import re
from datetime import datetime, timezone

import pytest

from waveproof.reports.page import beside_the_page, merged_versions, render_page, resource_rows
from waveproof.reports.verdicts import RuleFigure, Verdict
from waveproof.selftest.example_records import TIE_FAILURE, VERSIONS, example_records, failing, passing
from waveproof.selftest.page_reader import Reader

WHEN = datetime(2026, 10, 1, 9, 30, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(example_records(), WHEN)


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_it_is_well_formed(reader: Reader) -> None:
    assert reader.open == []
    assert len(set(reader.attributes("id"))) == len(reader.attributes("id"))


def test_nothing_is_requested_from_anywhere(page: str, reader: Reader) -> None:
    assert not reader.attributes("src")
    assert not {"img", "iframe", "object", "embed", "base"} & {tag for tag, _ in reader.tags}
    assert [attributes["href"] for tag, attributes in reader.tags if tag == "link"] == ["data:,"]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", page)
    assert any("default-src 'none'" in content for content in reader.attributes("content"))


def test_every_link_within_the_page_leads_somewhere(reader: Reader) -> None:
    inside = {link[1:] for link in reader.attributes("href") if link.startswith("#")}
    assert {"matrix", "failures", "waived", "not-judged", "resources", "cases"} <= inside
    assert inside <= set(reader.attributes("id"))


def test_head_says_what_when_and_with_which_versions(reader: Reader) -> None:
    assert "5 of 85 judged cases are red" in reader.text
    assert "2026-10-01 09:30 UTC" in reader.text
    assert "commit 4f0c2a9d1be7" in reader.text
    for name, version in VERSIONS.items():
        assert f"{name} {version}" in reader.text


def test_every_case_is_listed_without_javascript(reader: Reader) -> None:
    rows = [attributes for tag, attributes in reader.tags if tag == "tr" and "data-verdict" in attributes]
    assert [row["data-verdict"] for row in rows] == [record.verdict.value for record in example_records()]
    assert not any("hidden" in row for row in rows)
    for record in example_records():
        assert record.id in reader.text


def test_a_failure_shows_all_its_evidence(reader: Reader) -> None:
    failure = TIE_FAILURE
    for evidence in (failure.message, failure.expected, failure.got, failure.call, failure.derivation, "[0, 17]"):
        assert evidence in reader.text
    assert "1 tokens, 0 allowed" in reader.text
    assert failure.repro in reader.attributes("href")


def test_colour_is_never_alone(page: str) -> None:
    chips = re.findall(r'<span class="chip (\w+)"><span aria-hidden="true">(.)</span>\s+\d*\s*(\w+)</span>', page)
    assert len(chips) == page.count('class="chip ')
    assert {name for name, _, _ in chips} == {record.verdict.value for record in example_records()}
    assert all(name == told.lower() for name, _, told in chips)
    assert len({symbol for _, symbol, _ in chips}) == len({name for name, _, _ in chips})


def test_spills_and_scratch_stand_out(page: str) -> None:
    assert page.count('class="number costs"') == 2


def test_text_from_records_stays_text() -> None:
    evil = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
    failure = TIE_FAILURE.model_copy(
        update=dict.fromkeys(("rule", "message", "derivation", "expected", "got", "call", "unit"), evil)
    )
    record = failing(
        failure,
        id=evil,
        provider=evil,
        operator=evil,
        variant=evil,
        origin=evil,
        commit=evil,
        versions={evil: evil},
        figures=(RuleFigure(rule=evil, figure=1, bound=0, holds=False),),
        resources=({"kernel": evil, "vgpr": evil},),
    )
    waived = failing(verdict=Verdict.WAIVED, waiver=evil, reason=evil)
    absent = passing(verdict=Verdict.UNAVAILABLE, reason=evil)
    hostile = Reader(render_page([record, waived, absent], WHEN))
    assert hostile.open == []
    assert [tag for tag, _ in hostile.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in hostile.tags}
    assert not hostile.attributes("onerror")
    assert hostile.text.count(evil) >= 15


@pytest.mark.parametrize("name", ["javascript:alert(1)", "https://example.org/x.py", "../x.py", "/etc/passwd", ".x"])
def test_only_a_file_beside_the_page_is_linked(name: str) -> None:
    assert not beside_the_page(name)
    page = Reader(render_page([failing(TIE_FAILURE.model_copy(update={"repro": name}))], WHEN))
    assert name not in page.attributes("href")
    assert name in page.text


def test_links_in_reasons_can_be_followed_and_take_nothing_along() -> None:
    reason = "Known upstream. (https://github.com/sgl-project/sglang/issues/1)"
    page = Reader(render_page([failing(verdict=Verdict.WAIVED, waiver="w", reason=reason)], WHEN))
    (link, *_) = (attributes for _, attributes in page.tags if (attributes.get("href") or "").startswith("https:"))
    assert link["href"] == "https://github.com/sgl-project/sglang/issues/1"
    assert "noreferrer" in (link["rel"] or "")


def test_a_script_in_a_reason_is_no_link() -> None:
    page = Reader(render_page([failing(verdict=Verdict.WAIVED, waiver="w", reason="See javascript:alert(1) x")], WHEN))
    assert not any("javascript" in link for link in page.attributes("href"))


def test_versions_that_differ_within_a_run_are_all_shown() -> None:
    records = [passing(versions={"torch": version}) for version in ("2.13.0", "2.12.1", "2.13.0")]
    assert merged_versions(records) == {"torch": "2.13.0 and 2.12.1"}


def test_a_kernel_compiled_in_several_cases_is_one_row_unless_its_figures_differ() -> None:
    resource = {"kernel": "k", "vgpr": 18}
    same = [passing(f"x::{n}", runtime="compile", arch="gfx942", resources=(resource,)) for n in range(3)]
    (row,) = resource_rows(same)
    assert (row["kernel"], row["arch"], row["vgpr"], row["lds_bytes"]) == ("k", "gfx942", 18, None)
    other = passing(runtime="compile", arch="gfx942", resources=({**resource, "vgpr": 20},))
    assert len(resource_rows([*same, other])) == 2


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ((), "Nothing was judged"),
        ((passing(verdict=Verdict.UNAVAILABLE, reason="no AMD GPU"),), "Nothing was judged"),
        ((passing(),), "The one judged case conforms"),
        (
            (passing(), failing(verdict=Verdict.WAIVED, reason="known", waiver="w")),
            "1 of 2 judged cases conform, 1 waived",
        ),
        ((failing(),), "1 of 1 judged case is red"),
        ((failing(figures=(RuleFigure(rule="r", figure=math.nan, bound=1, holds=False),)),), "NaN measured"),
    ],
)
def test_the_verdict_of_the_run_stands_on_top(records: tuple, told: str) -> None:
    page = Reader(render_page(records, WHEN))
    assert page.open == []
    assert told in page.text
