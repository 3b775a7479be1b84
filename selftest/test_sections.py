"""Tables on narrow terminals: a number is whole, or it is not there."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from waveproof.fixtures.products import product_named
from waveproof.perf.memory_fit import Demand, fit, model_named
from waveproof.perf.published_results import case_study
from waveproof.reports.economics_report import break_even_section, fits_section, rates_section
from waveproof.reports.sections import Section, Table, print_sections


def _printed(section: Section, width: int) -> str:
    file = io.StringIO()
    print_sections([section], Console(width=width, file=file))
    return file.getvalue()


def _fits() -> Section:
    model, demand = model_named("Kimi-K3"), Demand(8, 10**6)
    return fits_section(model, {"8xB300": demand}, [("8 x B300", fit(model, product_named("B300"), demand))])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("make", [_fits, lambda: rates_section(case_study()), lambda: break_even_section(case_study())])
def test_numbers_are_never_cut(make: Callable[[], Section], width: int) -> None:
    section = make()
    told = _printed(section, width)
    words = {word.strip() for line in told.splitlines() for word in line.split("│")}
    for table in section.tables:
        assert {row[number] for number in table.numeric for row in table.rows} <= words
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= width


def test_texts_fold_and_nothing_is_lost() -> None:
    long = "a_name_of_more_than_twenty_four_characters"
    told = _printed(Section("S", tables=(Table("T", ("case", "n"), ((long, "12,345"),), "N", (1,)),)), 30)
    cells = [line.split("│")[1].strip() for line in told.splitlines() if line.startswith("│")]
    assert "".join(cells) == long
    assert "12,345" in told


def test_a_table_with_room_is_one_part() -> None:
    told = _printed(rates_section(case_study()), 180)
    assert "tok/s per stream" in told
    assert "(continued)" not in told
    narrow = _printed(rates_section(case_study()), 60)
    assert narrow.count("(continued)") == 1
    assert narrow.count("every paid hour") == 1
