"""The page of performance results: form, safety, what each section says, and pictures that look alike everywhere."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from waveproof.fixtures.conclusion import Conclusion, finish, sections_of
from waveproof.perf.history import History
from waveproof.perf.records import COUNTS, SECONDS, TOKEN_RATE, Measurement, Place, Quantity, Ruling
from waveproof.perf.run_files import Run, results_text
from waveproof.reports import perf_sections
from waveproof.reports.cli_perf_page import NothingToShow, page
from waveproof.reports.page import render_page
from waveproof.reports.perf_page import render_perf_page
from waveproof.reports.picture_style import COLOURS, MARKERS, figure, line, plain_log, png_of, short_number, style
from waveproof.reports.section_html import LONG, OUTCOMES, RED, BadPicture
from waveproof.reports.sections import Picture, Section, Table, section_fields
from waveproof.selftest.example_records import example_records
from waveproof.selftest.page_reader import Reader

WHEN = datetime(2026, 11, 30, 3, 5, tzinfo=timezone.utc)
EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&"
PLACE = Place("hip", "gfx950", "AMD Instinct MI355X", {"torch": "2.13.0", "triton": "3.9.0"})


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG: length, kind, data and checksum, https://www.w3.org/TR/png-3/#5Chunk-layout."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# One white pixel of eight bits of grey.
PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"\x00\xff"))
    + chunk(b"IEND", b"")
)


def ruled(case: str, outcome: str, **changed: Any) -> Ruling:
    fields: dict[str, Any] = {
        "case": case, "quantity": "time", "outcome": outcome, "effect": 1.04, "low": 1.03, "high": 1.05,
        "confidence": 0.999, "tolerance": 0.02, "reason": "because", "against": "baseline",
    }  # fmt: skip
    return Ruling(**{**fields, **changed})


def timed(seconds: float, case: str = "mla_decode/aiter/heads=12/keys=1024", *notes: str) -> Measurement:
    return Measurement(case, SECONDS, (seconds, seconds * 1.01, seconds * 0.99, seconds, seconds), PLACE, notes)


def sections() -> list[Section]:
    rows = tuple((f"mla_decode/aiter/heads={number}", word, f"{number}.5") for number, word in enumerate(OUTCOMES))
    return [
        Section("Rulings", "One.\n\nTwo.", (Table("Pairs", ("case", "outcome", "effect"), rows, "A note.", (2,)),)),
        Section("Pictures", pictures=(Picture("pixel", PIXEL, "A white pixel: nothing else"),)),
        Section("Nothing here"),
        Section("Rulings", "The same title.", (Table("", ("a", "b"), ()),), warnings=("Two cases were throttled.",)),
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return render_perf_page(sections(), "Night", WHEN, {"torch": "2.13.0"})


@pytest.fixture(scope="module")
def reader(text: str) -> Reader:
    return Reader(text)


def test_it_is_well_formed(reader: Reader) -> None:
    assert reader.open == []
    assert len(set(reader.attributes("id"))) == len(reader.attributes("id"))


def test_nothing_is_requested_from_anywhere_and_nothing_is_run(text: str, reader: Reader) -> None:
    assert all(source.startswith("data:image/png;base64,") for source in reader.attributes("src"))
    assert [attributes["href"] for tag, attributes in reader.tags if tag == "link"] == ["data:,"]
    assert not {"script", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in reader.tags}
    assert not re.search(r"@import|url\(", text)
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in reader.attributes("content")


def test_the_head_says_what_when_and_with_which_versions(reader: Reader) -> None:
    assert "2026-11-30 03:05 UTC" in reader.text
    assert "torch 2.13.0" in reader.text
    assert "waveproof Night" in reader.text


def test_the_contents_lead_to_every_section(reader: Reader) -> None:
    inside = [link[1:] for link in reader.attributes("href") if link.startswith("#")]
    assert {f"section-{number}" for number in range(1, 5)} <= set(inside) <= set(reader.attributes("id"))


def test_warnings_come_before_all_sections_and_before_their_own(reader: Reader) -> None:
    warning, lead = "Two cases were throttled.", "The same title."
    places = [found.start() for found in re.finditer(re.escape(warning), reader.text)]
    assert len(places) == 2
    assert places[0] < reader.text.index("One.")
    assert reader.text.index("A note.") < places[1] < reader.text.index(lead)


def test_an_outcome_is_never_told_by_its_colour_alone(text: str) -> None:
    body = text[text.index("<main>") :]
    chips = re.findall(r'<span class="chip (\w+)"><span aria-hidden="true">(.)</span> (\w+)</span>', body)
    assert len(chips) == body.count('class="chip ')
    assert [(word, symbol, style) for style, symbol, word in chips] == [
        (word, symbol, style) for word, (symbol, style) in OUTCOMES.items()
    ]
    assert body.count('class="has-red"') == len(RED)


@pytest.mark.parametrize(
    ("cell", "word", "rest"),
    [
        ("regress", "regress", ""),
        ("REFUSED: arrivals lagged", "REFUSED", "arrivals lagged"),
        ("pass (exact)", "pass", "(exact)"),
        ("passes", "", "passes"),
        ("pass rate", "", "pass rate"),
        ("stale-bot", "", "stale-bot"),
        ("no regress", "", "no regress"),
    ],
)
def test_a_cell_is_an_outcome_only_where_it_begins_with_one(cell: str, word: str, rest: str) -> None:
    shown = Reader(render_perf_page([Section("s", tables=(Table("", ("a",), ((cell,),)),))], "t", WHEN))
    chips = [attributes for tag, attributes in shown.tags if (attributes.get("class") or "").startswith("chip ")]
    # One in the head, which counts, and one in the cell.
    assert len(chips) == (2 if word else 0)
    assert " ".join((word, rest)).strip() in shown.text


def test_numbers_stand_on_the_right(text: str) -> None:
    assert '<th scope="col" class="number">effect</th>' in text
    assert '<td class="number">0.5</td>' in text


def test_tables_scroll_in_boxes_of_their_own(text: str, reader: Reader) -> None:
    assert text.count('<div class="wide') == text.count("<table>") == 1
    table = Table("", ("a",), tuple((str(number),) for number in range(LONG + 1)))
    assert '<div class="wide long"' in render_perf_page([Section("s", tables=(table,))], "t", WHEN)


def test_rows_that_are_too_short_are_filled_up() -> None:
    shown = Reader(render_perf_page([Section("s", tables=(Table("", ("a", "b", "c"), (("1",),)),))], "t", WHEN))
    assert [tag for tag, _ in shown.tags].count("td") + [tag for tag, _ in shown.tags].count("th") == 6


def test_a_picture_says_what_it_shows(reader: Reader) -> None:
    (picture,) = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert picture["alt"] == "A white pixel: nothing else"
    assert picture["width"] == picture["height"] == "1"


@pytest.mark.parametrize("png", [b"<svg onload='alert(1)'/>", PIXEL[:-1], PIXEL[:8], b""])
def test_what_is_no_png_is_refused(png: bytes) -> None:
    with pytest.raises(BadPicture, match="'harm' is no PNG"):
        render_perf_page([Section("s", pictures=(Picture("harm", png, "c"),))], "t", WHEN)


def test_text_stays_text() -> None:
    section = Section(EVIL, EVIL, (Table(EVIL, (EVIL,), ((EVIL,), (f"{EVIL} https://a.b/",)), EVIL),), (), (EVIL,))
    pictured = Section("p", pictures=(Picture("p", PIXEL, EVIL),))
    page = render_perf_page([section, pictured], EVIL, WHEN, {EVIL: EVIL})
    for hostile in (Reader(page), Reader(render_page([], WHEN, [section, pictured]))):
        assert hostile.open == []
        assert [tag for tag, _ in hostile.tags].count("img") == 1
        assert not hostile.attributes("onerror")
        assert hostile.text.count(EVIL) >= 8
    assert "<script" not in page


def test_a_page_without_sections_is_one() -> None:
    assert "There are no sections." in Reader(render_perf_page([], "t", WHEN)).text


def test_the_page_of_a_run_shows_sections_below_the_matrix() -> None:
    plain, with_sections = render_page(example_records(), WHEN), render_page(example_records(), WHEN, sections())
    shown = Reader(with_sections)
    assert shown.open == []
    assert len(set(shown.attributes("id"))) == len(shown.attributes("id"))
    assert "section-1" not in plain
    ids = shown.attributes("id")
    assert ids.index("matrix") < ids.index("section-1") < ids.index("section-4") < ids.index("cases")


def finished(path: Path, *left: Section) -> tuple[Conclusion, int]:
    """The end of a session in which a room of tests left sections, and no case was judged."""
    config: Any = SimpleNamespace(
        stash=pytest.Stash(), option=SimpleNamespace(collectonly=False, results=None, page=path)
    )
    session: Any = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
    selection: Any = SimpleNamespace(require=())
    sections_of(config).extend(left)
    conclusion = Conclusion()
    finish(conclusion, session, selection)
    return conclusion, session.exitstatus


def test_what_tests_leave_is_on_the_page_of_their_session(tmp_path: Path) -> None:
    conclusion, status = finished(tmp_path / "run.html", *sections())
    assert status == 0
    assert not conclusion.faults
    assert "The same title." in Reader((tmp_path / "run.html").read_text()).text


def test_a_session_whose_picture_is_none_is_red(tmp_path: Path) -> None:
    conclusion, status = finished(tmp_path / "run.html", Section("s", pictures=(Picture("harm", b"GIF89a", "c"),)))
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "--page: picture 'harm' is no PNG" in conclusion.faults[0]


def run(when: datetime, seconds: float, *rulings: Ruling, ledger: str = "ab") -> Run:
    count = Measurement("renorm", COUNTS[0], (12_345_678.0,), PLACE)
    return Run(when.isoformat(), when, (timed(seconds, "mla", "throttled"), count), rulings, "4f0c2a9", ledger)


def test_rulings_are_shown_gravest_first() -> None:
    outcomes = ("pass", "stale", "regress", "inconclusive", "improve")
    section = perf_sections.rulings_section(run(WHEN, 1e-3, *(ruled(f"case {word}", word) for word in outcomes)))
    (table,) = section.tables
    assert [row[0] for row in table.rows] == ["regress", "stale", "improve", "inconclusive", "pass"]
    assert table.rows[0][4:7] == ("1.04", "1.03 to 1.05", "2 %")
    assert not section.warnings


def test_what_was_not_judged_is_said() -> None:
    assert "no rulings" in perf_sections.rulings_section(run(WHEN, 1e-3)).warnings[0]
    unheld = perf_sections.rulings_section(run(WHEN, 1e-3, ruled("a", "pass"), ledger=""))
    assert "no ledger" in unheld.warnings[0]


def test_figures_say_what_speaks_against_them() -> None:
    section = perf_sections.figures_section(run(WHEN, 1e-3))
    assert section.warnings == ("throttled (1 of 2 figures)",)
    coins = timed(1.0, "a", "coins: seed 7", "clock: perf_counter"), timed(1.0, "b", "coins: seed 8")
    unmarked = perf_sections.figures_section(replace(run(WHEN, 1e-3), measurements=coins))
    assert unmarked.warnings == (), "how it was measured says nothing against it"
    assert unmarked.lead == "Coins: seed 7, seed 8. Clock: perf_counter."
    assert [row[2] for row in section.tables[0].rows] == ["1 ms", "12,345,678"]


@pytest.mark.parametrize(
    ("old", "new", "quantity", "shown"),
    [
        (1.0, 1.05, SECONDS, "+5 %"),
        (1.0, 0.5, SECONDS, "-50 %"),
        (100.0, 50.0, TOKEN_RATE, "+100 %"),
        (3.0, 3.0, COUNTS[0], "0"),
        (0.0, 8.0, COUNTS[6], "from 0"),
    ],
)
def test_a_change_above_zero_is_for_the_worse(old: float, new: float, quantity: Quantity, shown: str) -> None:
    assert perf_sections.shown_change(old, new, quantity) == shown


def test_the_command_writes_results_and_history(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(page)
    results, past, output = tmp_path / "r.json", tmp_path / "h.db", tmp_path / "deep" / "p.html"
    earlier = datetime(2026, 11, 29, tzinfo=timezone.utc)
    with History(past) as history:
        history.add([run(earlier, 1e-3, ruled("mla", "pass")), run(WHEN, 1.1e-3, ruled("mla", "regress"))])
    left = [section_fields(section) for section in sections()]
    text = results_text((timed(1.1e-3),), (ruled("mla", "regress"),), WHEN, "4f0c2a9", "ab", sections=left)
    results.write_text(text)
    command = ["--perf-results", str(results), "--history", str(past), "-o", str(output)]
    told = CliRunner().invoke(app, command, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    shown = Reader(output.read_text())
    assert "2 runs from 2026-11-29 to 2026-11-30." in shown.text
    assert "2 regress" in shown.text
    assert "A white pixel: nothing else" in shown.text
    assert "1 ms 1 ms 1.1 ms +10 % +10 % hip gfx950 AMD Instinct MI355X" in shown.text
    assert "triton 3.9.0" in shown.text
    with pytest.raises(NothingToShow, match="give --perf-results"):
        CliRunner().invoke(app, [], catch_exceptions=False)
    with pytest.raises(NothingToShow, match="no such file"):
        CliRunner().invoke(app, ["--history", str(tmp_path / "none.db")], catch_exceptions=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (999, "999"), (1000, "1k"), (172_000, "172k"), (999_999, "1M"), (131_072, "128Ki"), (128_000, "128k"),
     (2.8e12, "2.8T"), (0.00123, "0.00123"), (float("nan"), "nan"), (float("inf"), "inf")],
)  # fmt: skip
def test_short_numbers(value: float, shown: str) -> None:
    assert short_number(value) == shown


def test_pictures_are_the_same_bytes_whatever_the_machine_has_set() -> None:
    matplotlib = pytest.importorskip("matplotlib")

    def drawn() -> bytes:
        with style():
            picture = figure(2, 1.5)
            axes = picture.subplots()
            axes.plot([1_000, 10_000, 172_000], [1, 2, 3], **line(1))
            plain_log(axes.xaxis, (1_000, 172_000))
            return png_of(picture)

    first = drawn()
    with matplotlib.rc_context({"font.size": 31.0, "lines.linewidth": 9.0}):
        assert drawn() == first
        assert matplotlib.rcParams["font.size"] == 31.0
    assert first.startswith(b"\x89PNG")
    assert not {b"tEXt", b"iTXt", b"tIME"} & {first[at : at + 4] for at in range(len(first) - 4)}


def test_log_axes_have_plain_labels() -> None:
    pytest.importorskip("matplotlib")
    with style():
        picture = figure(3, 2)
        axes = picture.subplots()
        axes.plot([1_000, 172_000], [1e-6, 1e-3])
        plain_log(axes.xaxis, (1_000, 172_000))
        plain_log(axes.yaxis, form=lambda value: f"{value:g} s")
        picture.draw_without_rendering()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1k", "172k"]
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert "1e-05 s" in [label.get_text() for label in axes.get_yticklabels()]


def test_no_two_lines_look_alike() -> None:
    looks: list[Mapping[str, object]] = [line(number) for number in range(len(COLOURS))]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(MARKERS)
