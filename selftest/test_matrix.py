from __future__ import annotations

import math
import re

import pytest

from waveproof.reports.matrix import render_matrix
from waveproof.reports.summary import (
    Cell,
    Column,
    Row,
    absences,
    against_bound,
    failure_causes,
    in_short,
    number,
    tabulate,
    totals,
    waivers_used,
    worst_figure,
)
from waveproof.reports.verdicts import RuleFigure, Verdict
from waveproof.selftest.example_records import (
    NO_AMD,
    TIE_FAILURE,
    WAIVER_ID,
    WAIVER_REASON,
    example_records,
    failing,
    passing,
)


def figure(value: float, bound: float = 1.0, rule: str = "r") -> RuleFigure:
    return RuleFigure(rule=rule, figure=value, bound=bound, holds=value <= bound)


def printed(width: int = 120, records: tuple = example_records(), **options: str) -> str:
    return render_matrix(records, width, colour=False, **options)


# Arrangement


def test_every_case_of_a_subject_is_in_its_cell_and_none_elsewhere() -> None:
    records = example_records()
    matrix = tabulate(records)
    placed = [record.id for cell in matrix.cells.values() for record in cell.records]
    assert sorted(placed) == sorted(record.id for record in records if record.operator)
    cell = matrix.cells[Row("top_k_renorm_prob", "sglang", "threshold"), Column("interpret")]
    assert cell.counts == {Verdict.PASS: 7, Verdict.WAIVED: 2, Verdict.FAIL: 3}
    assert cell.red


def test_columns_stand_in_the_order_of_the_runtimes() -> None:
    shuffled = [*reversed(example_records()), passing(runtime="fpga")]
    titles = [column.title for column in tabulate(shuffled).columns]
    assert titles == ["cpu", "interpret", "compile gfx942", "compile gfx950", "hip", "cuda", "fpga"]


def test_the_order_of_the_records_does_not_matter() -> None:
    assert printed(records=tuple(reversed(example_records()))) == printed()


def test_a_gpu_that_was_not_opened_is_no_column_of_its_own() -> None:
    ran = passing(runtime="hip", arch="gfx942:sramecc+:xnack-")
    absent = passing(provider="aiter", runtime="hip", verdict=Verdict.UNAVAILABLE, reason="aiter not installed")
    assert tabulate([ran, absent]).columns == (Column("hip", "gfx942"),)
    other = passing(runtime="hip", arch="gfx950")
    assert len(tabulate([ran, absent, other]).columns) == 3


def test_failures_of_one_cause_are_one_entry_that_shows_the_confirmed_repro() -> None:
    causes = failure_causes(example_records())
    assert [(cause.provider, cause.rule, len(cause.records)) for cause in causes] == [
        ("sglang", "kept set", 3),
        ("waveproof", "kept values", 1),
        ("torch", "survives", 1),
    ]
    assert causes[0].failure == TIE_FAILURE


def test_one_cause_names_every_place_where_it_shows() -> None:
    red = [failing(id=f"x::{n}", runtime="compile", arch=arch) for n, arch in enumerate(("gfx950", "gfx942"))]
    (cause,) = failure_causes([*red, failing(id="x::2")])
    assert cause.places == ("cpu", "compile gfx942", "compile gfx950")


def test_waivers_and_absences_are_grouped() -> None:
    (use,) = waivers_used(example_records())
    assert (use.waiver, use.reason, len(use.records)) == (WAIVER_ID, WAIVER_REASON, 2)
    missing = absences(example_records())
    assert [absence.verdict for absence in missing] == [Verdict.INCONCLUSIVE, *[Verdict.UNAVAILABLE] * 3]
    (no_amd,) = (absence for absence in missing if absence.reason == NO_AMD)
    operators = ("top_k_renorm_prob", "top_p_renorm_prob", "target_probs")
    assert no_amd.groups == (("hip", ("sglang", "torch", "waveproof"), operators),)


# Figures


def test_a_broken_rule_is_worse_than_any_that_holds_and_nan_worse_than_any_number() -> None:
    broken = RuleFigure(rule="broken", figure=2, bound=10, holds=False)
    nan = RuleFigure(rule="nan", figure=math.nan, bound=1, holds=False)
    assert worst_figure([passing(figures=(figure(0.9), broken))]) == broken
    assert worst_figure([passing(figures=(nan, figure(50)))]) is nan
    assert worst_figure([passing(figures=(figure(50), nan))]) is nan
    assert worst_figure([passing(figures=(figure(0, 0),))]) is None


def test_a_waived_figure_does_not_stand_for_the_cases_that_passed() -> None:
    waived = failing(verdict=Verdict.WAIVED, reason="known", waiver="w", figures=(figure(9),))
    assert Cell((waived, passing(figures=(figure(0.25),)))).worst == figure(0.25)
    assert Cell((waived,)).worst == figure(9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-9, "<0.01"),
        (0.314, "0.31"),
        (0.999, "0.99"),
        (1, "1"),
        (1.0001, "1.01"),
        (3.1, "3.10"),
        (12.6, "13"),
        (31234, "3.1e4"),
        (math.inf, "inf"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_are_short_and_never_rounded_across_the_bound(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [
        (0.31, 1, "0.31 of bound"),
        (3, 0, "3, 0 allowed"),
        (math.nan, 1, "NaN measured"),
        (math.inf, 0, "inf measured"),
    ],
)
def test_figures_are_told_against_their_bound(value: float, bound: float, text: str) -> None:
    assert against_bound(figure(value, bound)) == text


def test_a_reason_in_short_is_its_first_clause() -> None:
    assert in_short("no AMD GPU: /dev/kfd does not exist") == "no AMD GPU"
    assert in_short("aiter not installed (python -m pip install amd-aiter)") == "aiter not installed"
    assert len(in_short("x" * 100)) == 28


# Print


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_line_is_wider_than_asked_but_those_that_hold_names_to_copy(width: int) -> None:
    for line in printed(width).splitlines():
        assert len(line) <= width or "conformance/" in line or "repro_" in line, line


@pytest.mark.parametrize("width", [60, 80, 120])
def test_everything_of_note_is_there_at_every_width(width: int) -> None:
    text = printed(width)
    words = " ".join(text.split())
    for expected in (
        "3 FAIL",
        "1 CRASH",
        "2 waived",
        "0.47 of bound",
        "3.10 of bound",
        "kept values",
        "sglang top_k_renorm_prob: kept set 3 cases on interpret",
        "repro_top_k_ties_sglang_interpret.py fails in a clean process",
        "did NOT fail in a clean process",
        WAIVER_ID,
        WAIVER_REASON,
        NO_AMD,
        "hip: sglang, torch, waveproof: all 3 operators",
        "hip: aiter: top_k_renorm_prob",
        "conformance/test_symbols.py 3 pass",
        f"{len(example_records())} cases:",
    ):
        assert expected in words, expected
    for verdict, amount in totals(example_records()).items():
        assert f"{amount} {verdict.value}" in words.lower()


def test_where_there_is_room_a_cell_says_why_nothing_ran() -> None:
    assert "no AMD GPU" in printed(120).partition("other checks")[0]
    assert "no AMD GPU" not in printed(80).partition("other checks")[0]


def test_six_columns_fit_into_80_characters_and_more_are_continued_below() -> None:
    header = re.compile(r"^ +cpu\b.*$", re.MULTILINE)
    assert header.findall(printed(80))[0].split() == ["cpu", "interpret", "compile", "compile", "hip", "cuda"]
    everywhere = tuple(
        passing(f"x::{n}", runtime=runtime, arch=arch)
        for n, (runtime, arch) in enumerate(
            (runtime, arch) for runtime in ("compile", "emulate", "hip") for arch in ("gfx942", "gfx950")
        )
    )
    text = printed(80, everywhere)
    assert text.count("top_k_renorm_prob (threshold)") == 2
    assert text.count("0.30 of bound") == 6


def test_a_variant_is_told_once_where_all_agree_and_by_each_where_they_differ() -> None:
    assert printed(80, (passing(), passing(provider="aiter"))).count("threshold") == 1
    assert printed(80, (passing(), passing(provider="aiter", variant="exact-k"))).count("threshold") == 1
    assert "exact-k" in printed(80, (passing(), passing(provider="aiter", variant="exact-k")))


def test_without_colour_there_is_no_escape_sequence_even_where_a_kernel_printed_one() -> None:
    noisy = failing(TIE_FAILURE.model_copy(update={"message": "\x1b[31mbad\x1b[0m\r\x07 luck", "repro": ""}))
    text = printed(records=(*example_records(), noisy))
    assert "\x1b" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert "bad luck" in printed(records=(noisy,))


def test_with_colour_it_is_the_same_text() -> None:
    coloured = render_matrix(example_records(), 120, colour=True)
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).split() == printed(120).split()


def test_an_ascii_stream_gets_ascii() -> None:
    assert printed(80, encoding="ascii").isascii()
    assert "─" in printed(80, encoding="UTF-8")


def test_brackets_in_ids_are_not_taken_for_markup() -> None:
    odd = "conformance/test_x.py::test_x[bold]"
    assert odd in printed(80, (failing(id=odd),))


def test_a_run_that_judged_nothing_says_so() -> None:
    assert "nothing was judged" in printed(80, ())
    assert "nothing was judged" in printed(80, (passing(verdict=Verdict.UNAVAILABLE, reason=NO_AMD),))
    assert "nothing was judged" not in printed(80)


@pytest.mark.parametrize("width", [0, 1, 20])
def test_no_width_breaks_it(width: int) -> None:
    assert "128 cases" in " ".join(printed(width).split())
