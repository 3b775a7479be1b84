"""The history of runs: kept, moved, refused; change points, pictures, and what a night comes to."""

from __future__ import annotations

import json
import math
import random
import warnings
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.perf.change_points import change_points, find_steps, least_after, mann_whitney
from waveproof.perf.history import BadHistory, History, Point
from waveproof.perf.ledger import LEDGER, Ledger
from waveproof.perf.night import MISSING, closing, rule_on
from waveproof.perf.records import COUNTS, SECONDS, TOKEN_RATE, Measurement, Outcome, Place, Quantity, Ruling, to_json
from waveproof.perf.run_files import BadRun, Run, read_runs, results_text, runs_of
from waveproof.reports.cli_perf_history import MOST_DRAWN, TooMany, app
from waveproof.reports.history_picture import MOST_NAME, NoHistory, history_picture
from waveproof.reports.history_sections import Course, changes_section, courses, matching
from waveproof.reports.nightly import MOST_ROWS, brief, conclusion, night_sections, not_measured, steps
from waveproof.reports.perf_sections import history_section
from waveproof.selftest.mutants.ledger import ELSEWHERE, FIRST, HERE, books, count, course, noise, stepped

SAMPLES = Measurement("mla_decode/aiter", SECONDS, (1 / 3, 2e-3, 5e-324), Place("hip", "gfx950", "MI355X"), ("hot",))
STALE = Ruling("mla_decode/aiter", "time", "stale", 1.0, 0.0, math.inf, 0.0, 0.02, "no baseline")


def results(path: Path, *measured: Measurement, hour: int = 2) -> Path:
    path.write_text(results_text(measured, [STALE], FIRST.replace(hour=hour), "156e7f4d7912", "f" * 64, sections=[]))
    return path


def test_a_run_comes_back_with_every_sample(tmp_path: Path) -> None:
    (run,) = read_runs(results(tmp_path / "r.json", SAMPLES, count(8840.0)))
    with History(tmp_path / "h.db") as history:
        assert history.add([run]) == 1
        assert history.runs() == (run,)
        (point,) = history.series(SAMPLES.key)
        assert point.measurement == SAMPLES
        assert (point.when, point.commit) == (FIRST, "156e7f4d7912")
        assert history.ledger_head() == "f" * 64
    assert run.rulings == (STALE,)


def test_importing_twice_adds_nothing(tmp_path: Path) -> None:
    first, second = results(tmp_path / "a.json", SAMPLES), results(tmp_path / "b.json", SAMPLES, hour=3)
    with History(tmp_path / "h.db") as history:
        assert [history.add(read_runs(path)) for path in (first, first, second, second)] == [1, 0, 1, 0]
    (tmp_path / "bare.json").write_text(to_json([SAMPLES]))
    with History(tmp_path / "h.db") as history:
        early, late = (read_runs(tmp_path / "bare.json", FIRST.replace(hour=hour)) for hour in (4, 5))
        assert [history.add(early), history.add(late)] == [1, 0], "the file says no time of its own"


def test_an_export_makes_an_equal_history(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history, History(tmp_path / "other.db") as other:
        for number in range(5):
            place = HERE if number < 3 else ELSEWHERE
            run = read_runs(results(tmp_path / "r.json", SAMPLES, count(number, place=place), hour=number))
            history.add(run)
        (tmp_path / "export.json").write_text(history.export())
        assert other.add(read_runs(tmp_path / "export.json")) == 5
        assert other.runs() == history.runs()
        assert other.export() == history.export()
        assert other.keys() == history.keys()
        assert other.add(read_runs(tmp_path / "export.json")) == 0


def test_what_pytest_benchmark_writes(tmp_path: Path) -> None:
    document = {
        "datetime": "2026-11-30T12:00:00.5+00:00", "commit_info": {"id": "156e7f4d79120000"},
        "machine_info": {"node": "secret", "machine": "x86_64", "python_version": "3.11.7",
                         "cpu": {"brand_raw": "EPYC"}},
        "benchmarks": [{"fullname": "perf/test_renorm.py::test[a]", "stats": {"median": 2.0, "data": [1.0, 2.0, 3.0]}},
                       {"fullname": "perf/test_renorm.py::test[b]", "stats": {"median": 2.0}}],
    }  # fmt: skip
    (tmp_path / "benchmark.json").write_text(json.dumps(document))
    (run,) = read_runs(tmp_path / "benchmark.json")
    assert (run.source, run.commit, run.when.microsecond) == ("pytest-benchmark", "156e7f4d7912", 500_000)
    assert [one.values for one in run.measurements] == [(1.0, 2.0, 3.0), (2.0,)]
    assert run.measurements[1].notes == ("only the median",)
    assert run.measurements[0].place == Place("cpu", "x86_64", "EPYC", {"python": "3.11.7"})


def test_several_may_write(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as one, History(tmp_path / "h.db") as other:
        one.add([Run("1" * 16, FIRST, (SAMPLES,))])
        other.add([Run("2" * 16, FIRST, (SAMPLES,))])
        assert len(one.runs()) == len(other.runs()) == 2


def test_an_edited_copy_of_a_run_is_refused(tmp_path: Path) -> None:
    run = Run("0" * 16, FIRST.replace(microsecond=5), (count(8840.0),))
    with History(tmp_path / "h.db") as history:
        assert history.add([run, replace(run, id="1" * 16)]) == 1, "written anew, the same is the same"
        with pytest.raises(BadHistory, match="run 0000000000000000 is there with other contents"):
            history.add([replace(run, id="2" * 16, measurements=(count(8000.0),))])
        assert history.add([replace(run, id="3" * 16, source="pytest-benchmark")]) == 1


def test_a_refused_run_leaves_no_trace(tmp_path: Path) -> None:
    bad = Run("2" * 16, FIRST, (SAMPLES,), (replace(STALE, effect=math.nan),))
    with History(tmp_path / "h.db") as history:
        with pytest.raises(BadHistory, match="effect"):
            history.add([Run("1" * 16, FIRST, (SAMPLES,)), bad])
        assert history.runs() == ()


def test_files_that_are_no_runs(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"runs": 1, "schema": 2}', '{"benchmarks": [{}], "datetime": "2026-01-01"}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(BadRun, match=r"^x\.json: "):
            read_runs(tmp_path / "x.json")
    with pytest.raises(BadRun, match="when"):
        runs_of(json.loads(to_json([SAMPLES])))


@pytest.mark.parametrize(("size", "worse"), [(0.05, True), (-0.05, False)])
@pytest.mark.parametrize("quantity", [SECONDS, TOKEN_RATE])
def test_a_step_is_found_with_its_size(size: float, worse: bool, quantity: Quantity) -> None:
    (found,) = change_points(course(stepped(60, 40, size), quantity))
    due = math.exp(-size if quantity.higher_is_better else size)
    assert abs(found.index - 40) <= 1
    assert found.low <= due <= found.high
    assert found.high / found.low < 1.02
    assert found.worse == (worse != quantity.higher_is_better)


def test_two_steps() -> None:
    values = [
        value + (0.05 if number >= 30 else 0) - (0.1 if number >= 60 else 0) for number, value in enumerate(noise(90))
    ]
    assert [(round(one.index, -1), one.worse) for one in change_points(course(values))] == [(30, True), (60, False)]


def test_a_change_says_what_else_changed() -> None:
    points = [replace(point, measurement=replace(point.measurement, place=replace(
        point.measurement.place, versions={"triton": "3.9.0" if number < 40 else "3.10.0"},
    ))) for number, point in enumerate(course(stepped(60, 40, 0.2)))]  # fmt: skip
    (found,) = change_points(points)
    assert found.versions == ("triton 3.9.0 -> 3.10.0",)
    assert (found.before.commit, found.after.commit) == (f"{39:012x}", f"{40:012x}")
    (shown,) = changes_section([Course(SAMPLES.key, tuple(points), (found,))]).tables
    assert "triton 3.9.0 -> 3.10.0" in shown.rows[0]


def test_false_alarms_are_rare_whatever_the_law() -> None:
    """At alpha 0.01 one and a half of 150 are due; six are within four standard deviations of that."""
    drawn = random.Random(1)
    laws = (
        lambda: drawn.gauss(0, 0.01),
        lambda: 0.01 * drawn.gauss(0, 1) / math.sqrt(-math.log(1 - drawn.random())),  # Student's t, 2 degrees
        lambda: drawn.gauss(0, 0.01) + (0.2 if drawn.random() < 0.3 else 0),
    )
    alarms = sum(bool(find_steps([law() for _ in range(60)])) for law in laws for _ in range(50))
    assert alarms <= 6


def test_the_least_history() -> None:
    assert (least_after(8), least_after(10), least_after(20), least_after(40)) == (6, 5, 4, 3)
    least = least_after(1, balanced=True)
    assert least == 7
    sharp = [value + (5.0 if number >= least else 0) for number, value in enumerate(noise(2 * least))]
    assert [step.index for step in find_steps(sharp)] == [least]
    assert find_steps(sharp[1:]) == ()


def test_the_rank_test_agrees_with_scipys() -> None:
    from scipy.stats import mannwhitneyu

    for before, after in ((5, 7), (3, 12), (40, 6)):
        a, b = noise(before, before), stepped(after, 0, 0.01, after)
        assert mann_whitney(a, b) == pytest.approx(mannwhitneyu(a, b, method="exact").pvalue)
    assert mann_whitney([1.0] * 9, [1.0] * 9) == 1.0


def test_of_counts_every_change_is_one() -> None:
    points = course([0.0, 0.0, 1e-6, 1e-6, 0.0], COUNTS[0])
    assert [(one.index, one.low == one.high) for one in change_points(points)] == [(2, True), (4, True)]


def test_pictures_of_few_and_many_runs() -> None:
    for points in (course(noise(3)), course(stepped(300, 200, 0.1))):
        latest = points[-1].measurement
        picture = history_picture(points, change_points(points), latest, latest, 0.02)
        assert picture.png.startswith(b"\x89PNG")
        assert f"{len(points)} runs from 2026-01-01" in picture.caption
    assert "+10." in picture.caption
    with pytest.raises(NoHistory):
        history_picture([])


def test_cases_are_chosen_by_pattern() -> None:
    keys = [("a[0]/b", "time", ("cpu", "", "")), ("a0/b", "bytes", ("cpu", "", ""))]
    assert matching("a[0]*", "", keys) == (keys[0],)
    assert matching("*b", "bytes", keys) == (keys[1],)


def test_courses_of_a_history(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add(
            Run(f"{n:016x}", datetime(2026, 1, 1 + n, tzinfo=timezone.utc), (count(float(n > 5)),)) for n in range(9)
        )
        (found,) = courses(history)
    assert found.recently_worse(4)
    assert not found.recently_worse(2)


def night(outcomes: dict[str, Outcome], verdicts: dict[str, str] | None = None, broken: tuple[str, ...] = ()) -> int:
    """The exit status of a night with these outcomes by test."""
    rulings = tuple(replace(STALE, outcome=outcome) for outcome in outcomes.values())
    document = {"tests_of_rulings": list(outcomes), "verdicts": verdicts or {}, "broken": broken}
    return conclusion(document, Run("0" * 16, FIRST, (SAMPLES,), rulings), int(bool(broken)), [], False)[0]


def test_what_a_night_comes_to() -> None:
    assert night({"a": "pass"}) == 0
    assert night({"a": "pass", "b": "regress", "c": "stale"}) == 1
    assert night({"a": "inconclusive", "b": "pass"}) == 3
    assert night({"a": "improve"}) == 4
    assert night({"a": "stale"}) == 4
    assert night({"a": "stale"}, broken=("a",)) == 1, "what is not known yet does not hide a test that broke"
    assert night({}) == 3
    assert night({"a": "improve"}, broken=("b",)) == 1
    assert night({"a": "regress", "b": "pass"}, {"a": "waived"}) == 0


def test_what_was_not_measured_is_not_green(tmp_path: Path) -> None:
    passes = (replace(STALE, outcome="pass"),)
    full = Run("0" * 16, FIRST, (count(1.0), count(1.0, "other"), SAMPLES), passes)
    half = replace(full, id="1" * 16, measurements=(count(1.0),))
    with History(tmp_path / "h.db") as history:
        history.add([replace(full, id=f"{number:016x}") for number in range(4)])
        history.add([replace(full, id="a" * 16, measurements=(count(1.0, "of one day"),))])
        history.add([replace(full, id="b" * 16, measurements=(count(1.0, "not gated"),) * 2, rulings=())])
        earlier = history.expected(7)
    assert len(earlier) == 3
    assert not_measured(full, earlier, Ledger((), "")) == []
    missing = not_measured(half, earlier, Ledger((), ""))
    assert [key[:2] for key in missing] == [(SAMPLES.case, "time"), ("mla_decode/aiter/other", "wave_instructions")]
    assert not_measured(half, earlier, Ledger((), ""), ["*other", SAMPLES.case]) == []
    document = {"tests_of_rulings": ["a"]}
    assert conclusion(document, half, 0, [], False, missing)[0] == 3
    assert conclusion(document, half, 0, [], False)[0] == 0
    assert night_sections(document, half, (), Ledger((), ""), missing)[1].title == "Not measured tonight"


def test_what_the_ledger_has_of_a_place_is_expected_there() -> None:
    with books() as made:
        ledger = Ledger.load(made.path, made.signers)
    tonight = Run("0" * 16, FIRST, (count(8776.0),))
    assert [case for case, _, _ in not_measured(tonight, (), ledger)] == ["mla_decode/aiter/other"]
    elsewhere = replace(tonight, measurements=(count(8776.0, place=replace(HERE, arch="gfx942")),))
    assert not_measured(elsewhere, (), ledger) == [], "no machine is asked for another's figures"


def test_a_terminal_shows_what_is_not_well(tmp_path: Path) -> None:
    run = Run("0" * 16, FIRST, (SAMPLES,), (STALE, replace(STALE, outcome="pass")))
    full = night_sections({}, run, (), Ledger((), ""))
    (table,) = brief(full)[0].tables
    assert [row[0] for row in table.rows] == ["stale"]
    assert "Left out: 1 row with pass." in table.note
    assert "tolerance" not in table.columns, "nothing is in it"
    assert len(full[0].tables[0].rows) == 2
    well = brief(night_sections({}, replace(run, rulings=run.rulings[1:]), (), Ledger((), "")))
    assert well[0].tables == ()
    assert "Left out: 1 row with pass." in well[0].lead


def test_what_is_stale_for_one_reason_is_one_row() -> None:
    ledger, hops = Ledger((), ""), Place("compile", "gfx950")
    cases = [count(1.0, f"{number}", place) for place in (HERE, hops) for number in range(50)]
    rulings = [ruling for one in cases for ruling in rule_on(one, ledger)]
    late, missing = replace(STALE, outcome="regress", effect=2.0), replace(STALE, against=MISSING)
    run = Run("0" * 16, FIRST, tuple(cases), (*rulings, late, missing))
    section = brief(night_sections({}, run, (), ledger))[0]
    groups, rows = section.tables
    assert groups.rows == tuple(
        ("50", "1", f"no baseline for {place} gfx950 with these versions") for place in ("emulate", "compile")
    )
    assert [row[0] for row in rows.rows] == ["regress", "stale"], "what is worse or was forgotten is not grouped"
    assert section.warnings == ("The ledger is empty: nothing was held against a signed baseline.",)
    assert closing(rulings) == "100 without a baseline: green here, exit status 4 in waveproof perf nightly"
    assert closing([replace(STALE, outcome="pass")]) == "1 pass"
    assert closing([*rulings, late]).endswith("1 regress: red here, exit status 1 in waveproof perf nightly")
    told = steps(run, Path("r.json"), LEDGER.resolve())
    assert [line.split()[0] for line in told] == ["To", "waveproof", "add", "waveproof"]
    assert told[-1].strip() == "waveproof perf ledger accept r.json --reason '...' --key FILE"
    assert steps(replace(run, rulings=(replace(STALE, outcome="pass"),)), Path("r.json"), LEDGER) == ()


def test_a_table_of_hundreds_is_cut_on_a_terminal() -> None:
    ruled = tuple(replace(STALE, outcome="regress", effect=1.0 + number) for number in range(1, 301))
    (table,) = brief(night_sections({}, Run("0" * 16, FIRST, (SAMPLES,), ruled), (), Ledger((), "")))[0].tables
    assert len(table.rows) == MOST_ROWS
    assert f"Left out: {300 - MOST_ROWS} rows beyond" in table.note


def test_names_of_pictures_are_names_of_files(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = {history_picture(of_kernel(letter)).name for letter in "ab"}
    assert len(names) == 2, "told apart where they differ past the cut"
    assert {len(name) for name in names} == {MOST_NAME + 9}


def of_kernel(ending: str) -> list[Point]:
    points = course(noise(3))
    return [replace(one, measurement=replace(one.measurement, case=f"op/{'k' * 280}{ending}")) for one in points]


def test_hundreds_of_pictures_are_asked_for(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add([Run("0" * 16, FIRST, tuple(count(1.0, f"{number}") for number in range(MOST_DRAWN + 1)))])
    command = ["plot", "--history", str(tmp_path / "h.db"), "-o", str(tmp_path / "plots")]
    with pytest.raises(TooMany, match=r"51 figures would be drawn, .* --all"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert CliRunner().invoke(app, [*command, "*/7"], catch_exceptions=False).exit_code == 0
    assert [file.suffix for file in (tmp_path / "plots").iterdir()] == [".png"]


def test_a_night_and_its_benchmarks_are_one(tmp_path: Path) -> None:
    with History(tmp_path / "h.db") as history:
        history.add([Run("0" * 16, FIRST, (SAMPLES,)), Run("1" * 16, FIRST, (count(1.0),), source="pytest-benchmark")])
        assert history_section(history).lead == "1 run from 2026-01-01."
        (table,) = history_section(history, keys=[SAMPLES.key]).tables
    assert [row[0] for row in table.rows] == [SAMPLES.case]
