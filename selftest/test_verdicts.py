from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from waveproof.reports.verdicts import BadRecords, Failure, Record, RuleFigure, Verdict, read_records, write_records
from waveproof.selftest.example_records import TIE_FAILURE, example_records, passing


def test_a_run_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    write_records(path, example_records())
    assert tuple(read_records(path)) == example_records()


def test_infinities_and_nan_survive_as_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    figures = tuple(RuleFigure(rule="r", figure=value, bound=math.inf) for value in (math.inf, -math.inf, math.nan))
    failure = Failure(rule="r", message="m", figure=math.nan, bound=math.inf)
    write_records(path, [passing(verdict=Verdict.FAIL, figures=figures, failure=failure)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    (record,) = read_records(path)
    assert record.figures[0].figure == math.inf
    assert record.figures[1].figure == -math.inf
    assert math.isnan(record.figures[2].figure)
    assert record.failure is not None
    assert math.isnan(record.failure.figure)
    assert record.failure.bound == math.inf


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT])
def test_red_says_what_is_wrong(verdict: Verdict) -> None:
    assert verdict.red
    with pytest.raises(ValidationError, match="needs a failure"):
        passing(verdict=verdict)
    assert passing(verdict=verdict, failure=TIE_FAILURE).failure == TIE_FAILURE


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.INCONCLUSIVE, Verdict.WAIVED])
def test_what_is_not_judged_says_why(verdict: Verdict) -> None:
    assert not verdict.red
    with pytest.raises(ValidationError, match="needs a reason"):
        passing(verdict=verdict)
    assert passing(verdict=verdict, reason="no AMD GPU").reason == "no AMD GPU"


def test_a_pass_has_no_failure() -> None:
    with pytest.raises(ValidationError, match="cannot have a failure"):
        passing(failure=TIE_FAILURE)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"verdict": "skipped"}, "verdict"),
        ({"colour": "red"}, "colour"),
        ({"figures": [{"rule": "r", "figure": "many", "bound": 1}]}, "figures.0.figure"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, change: dict[str, object], where: str) -> None:
    path = tmp_path / "results.jsonl"
    good = passing().model_dump_json()
    path.write_text(f"{good}\n\n{json.dumps({**json.loads(good), **change})}\n", encoding="utf-8")
    with pytest.raises(BadRecords, match=rf"^results\.jsonl:3: {where}"):
        tuple(read_records(path))


def test_what_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(BadRecords, match=r"^results\.jsonl:1: record: "):
        tuple(read_records(path))


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_records(path, [passing()])

    def broken() -> Iterator[Record]:
        yield from example_records()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, broken())
    assert tuple(read_records(path)) == (passing(),)


def test_worst_is_the_figure_nearest_to_or_furthest_beyond_its_bound() -> None:
    near, far, beyond, none = (
        RuleFigure(rule="near", figure=0.9, bound=1),
        RuleFigure(rule="far", figure=5, bound=100),
        RuleFigure(rule="beyond", figure=1, bound=0, holds=False),
        RuleFigure(rule="no measure", figure=0, bound=0),
    )
    assert passing(figures=(none, far, near)).worst == near
    assert passing(figures=(near, beyond, far)).worst == beyond
    assert passing(figures=(none,)).worst is None
