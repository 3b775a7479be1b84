"""Reports of serving measurements: what is refused, where a prefill ends, speculation on against off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from waveproof.golden.judges.acceptance import Acceptance
from waveproof.perf.records import from_json
from waveproof.perf.serving import load
from waveproof.perf.serving_figures import figures
from waveproof.perf.serving_plan import Prompts, prefill_plan
from waveproof.perf.serving_speculation import NotComparable, speed_ups
from waveproof.reports.cli_serving import app
from waveproof.reports.serving_report import REFUSED, serving_sections
from waveproof.selftest.serving_records import (
    TARGET,
    failed,
    records,
    requests,
    small_plan,
    write_plan,
    write_point,
)


@pytest.fixture
def refused_run(tmp_path: Path) -> Path:
    """A sweep of which the second point is refused."""
    plan = small_plan((1, 2), seed=2)
    write_plan(tmp_path / "run", plan)
    good, bad = plan.points
    counted = {"drafts": 10.0, "drafted": 20.0, "accepted": 12.0, "per_position": [8.0, 4.0], "mean_length": None}
    write_point(tmp_path / "run", good, records(good), acceptance=counted)
    write_point(tmp_path / "run", bad, records(bad, spoil=lambda number, one: failed(one) if number == 4 else one))
    return tmp_path / "run"


def test_refused_points_are_shown_and_not_counted(refused_run: Path) -> None:
    result = load(refused_run)
    head, refused = serving_sections(result)
    (first, second) = head.tables[0].rows
    assert first[:2] == ("1", "reported")
    assert first[-1] == "2.20"
    assert second[:2] == ("2", REFUSED)
    assert second[3:] == ("-",) * 8
    assert "not counted, since refused: 2" in head.lead
    assert "fails from request 5 of 6" in refused.warnings[0]
    whole = repr((head.lead, head.warnings, refused.warnings, refused.tables))
    assert whole.count("scheduler hit an exception") == 1, "what the server says is said once"
    assert refused.tables[0].rows[0][-1] == "first request 5"
    assert head.pictures[0].png.startswith(b"\x89PNG")
    assert all("concurrency=1" in one.case for one in result.measurements())


def too_long(number: int, one: Any) -> Any:
    return failed(one, 400)


def some_too_long(number: int, one: Any) -> Any:
    return failed(one, 400) if number else one


@pytest.mark.parametrize(
    ("spoils", "status", "limit"),
    [
        ((None, None, too_long), 0, 64),
        ((None, too_long), 0, 32),
        ((too_long,), 4, None),
        ((None, lambda number, one: failed(one)), 4, None),
        ((None, some_too_long), 4, None),
        ((None, None), 4, None),
        ((None, None, None), 0, None),
    ],
    ids=["last", "middle", "none-fits", "server-error", "not-all", "interrupted", "all-fit"],
)
def test_prefill_ends_where_prompts_are_too_long(
    tmp_path: Path, spoils: Sequence[Any], status: int, limit: int | None
) -> None:
    plan = prefill_plan(TARGET, (16, 32, 64), prompts=Prompts((1024, 4096)))
    folder = write_plan(tmp_path / "run", plan)
    for point, spoil in zip(plan.points, spoils, strict=False):
        write_point(folder, point, records(point, ttft=point.shapes[0].prompt / 100, spoil=spoil))
    result = load(folder)
    assert (result.exit_status, result.limit and result.limit.point.shapes[0].prompt) == (status, limit)
    sections = serving_sections(result, pictures=False)
    said = f"Prompts of {limit} tokens are too long for it: 400 Internal Server Error scheduler hit an exception"
    assert (said in sections[0].lead) == (limit is not None)
    if limit:
        assert len(sections) == 1
        assert not any("not complete" in one or "not measured" in one for one in sections[0].warnings)


def test_report_writes_page_and_measurements(refused_run: Path, tmp_path: Path) -> None:
    page, measured = tmp_path / "page.html", tmp_path / "m.json"
    found = CliRunner().invoke(app, ["report", str(refused_run), "--page", str(page), "--json", str(measured)])
    assert found.exit_code == 4, found.output
    assert REFUSED in found.output
    assert "Refused points" in page.read_text(encoding="utf-8")
    assert len(from_json(measured.read_text(encoding="utf-8"))) == 4


def test_speculation_is_compared_only_where_it_is_on(refused_run: Path) -> None:
    on = load(refused_run)
    (one, _) = on.points
    plain = replace(one, facts=replace(one.facts, acceptance=Acceptance()))
    slower = replace(plain, figures=figures(requests(one.point, gap=0.02), 1))
    (found,) = speed_ups(on, replace(on, points=(slower,)))
    assert (found.per_stream, found.acceptance_length) == (pytest.approx(2.0), pytest.approx(2.2))
    with pytest.raises(NotComparable, match="without speculation verified drafts"):
        speed_ups(on, on)
    idle = replace(one, facts=replace(one.facts, acceptance=Acceptance(drafts=0.0)))
    with pytest.raises(NotComparable, match="verified no draft"):
        speed_ups(replace(on, points=(idle,)), replace(on, points=(slower,)))
    with pytest.raises(NotComparable, match="seed was 2, is 3"):
        speed_ups(replace(on, plan=replace(on.plan, seed=3)), on)
