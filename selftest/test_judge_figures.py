"""The figures on the sampling judges on trial: nothing measured is missing from the tables."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from waveproof.selftest import judge_figures, judge_tables
from waveproof.selftest.faulty_decoders import faulty, make_world
from waveproof.selftest.judge_figures import RIGHT, VIEWS, Figures


@pytest.fixture(scope="module")
def figures() -> Figures:
    return judge_figures.measure(runs=20, streams=20, tokens=40, repeats=3, horizon=40)


def test_nothing_is_missing(figures: Figures) -> None:
    faults = list(faulty(make_world(2, 8, 1)))
    assert [(one.fault, one.view) for one in figures.detections] == [(f, v.name) for v in VIEWS for f in faults]
    assert [one.configuration for one in figures.rights] == list(RIGHT)
    assert sum(one.streams for one in figures.rights) == 20
    assert len(figures.judges) == 5
    assert 0.5 < figures.accepted < 0.9


def test_found_and_never(figures: Figures) -> None:
    """Within 40 tokens the coarsest faults are found, the finest are not."""
    by_fault = judge_figures.by_fault(figures.detections)
    assert all(one.median is not None and one.bettor for one in by_fault["greedy impostor"])
    assert all(one.found == 0 and one.median is None for one in by_fault["always accepted where p/q >= 0.9"])


def test_tables_hold_every_figure(figures: Figures) -> None:
    console = Console(width=260, record=True, file=io.StringIO())
    for table in judge_tables.tables(figures):
        console.print(table)
    lines = console.export_text().splitlines()
    for judge in figures.judges:
        (line,) = [line for line in lines if judge.sample in line]
        assert f"{judge.detectable:.4f}" in line
        assert f"<= {judge.allowed}" in line
    for right in figures.rights:
        (line,) = [line for line in lines if right.configuration in line]
        assert f"{10.0**right.highest:.3g}" in line
    assert any(line.split()[:2] == ["all", "20"] for line in lines)
    for fault, seen in judge_figures.by_fault(figures.detections).items():
        (line,) = [line for line in lines if line.strip().startswith(fault)]
        assert line.count("never in 40") == sum(one.found == 0 for one in seen)
        assert all(f"{one.median:,.0f}" in line for one in seen if one.median is not None)
