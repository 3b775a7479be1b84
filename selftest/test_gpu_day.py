"""The day on a GPU on trial, with a pretended device: order, budget, what is not timed, what an abort leaves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from waveproof.golden.judges import launched, memory_floor
from waveproof.perf import gpu_day_station
from waveproof.perf.gpu_day import BadBudget, Day, Result, document, run_day, run_trial
from waveproof.perf.gpu_day_plan import NoTrials, sides, trials_for
from waveproof.perf.gpu_day_terms import OutOfTime, Trial, TrialEnded
from waveproof.perf.pairs import PAIRS
from waveproof.perf.records import EXIT_STATUS, from_json
from waveproof.perf.run_files import runs_of
from waveproof.reports import cli_gpu_day
from waveproof.reports.speed_picture import FloorPoint, NothingToDraw, Point, day_sections, speed_over_context
from waveproof.selftest.pretended_station import (
    CRASH,
    FAST,
    NO_GRAPH,
    SECONDS,
    SLOW,
    PretendedStation,
    known_names,
    trial,
)
from waveproof.selftest.recorded_traces import GENERIC, SORT


@pytest.fixture(autouse=True)
def names_of_the_traces() -> Iterator[None]:
    """The kernels of the traces are those that are installed."""
    with known_names():
        yield


STEPS = ["open", *["results"] * 2, *["kernels"] * 2, *["pairs"] * 3, *["results"] * 2]


def run(station: PretendedStation, seconds: float = 100.0, **how: object) -> Result:
    """One trial."""
    return run_trial(trial(**how), station, seconds, station.clock)  # type: ignore[arg-type]


def day_of(station: PretendedStation, trials: list[Trial], budget: float = 1000.0) -> tuple[Day, list[Day]]:
    """The day, and what was kept after each trial."""
    kept: list[Day] = []
    return run_day(trials, station, budget, kept.append, station.clock), kept


def doubled(who: str, turns: Callable[[int], bool] = lambda turn: True) -> PretendedStation:
    """A device on which a provider's values are twice what they should be, at some of its turns."""

    def spoil(name: str, turn: int, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(2 * one for one in given) if name == who and turns(turn) else given

    return PretendedStation(spoil=spoil)


class TestTrial:
    def test_takes_all_steps_in_order(self) -> None:
        station = PretendedStation()
        result = run(station)
        assert station.steps == STEPS
        assert (result.state, result.outcome, result.reasons) == ("measured", "pass", ())
        cases = [one.case for one in result.measurements]
        ways = ("cold", "warm", "graph")
        pairs = ((FAST, SLOW), (SLOW, FAST))
        assert cases == [f"mla_decode/{who}/decode/against={other}/{way}" for way in ways for who, other in pairs]
        assert all("clock: pretended events" in one.notes for one in result.measurements)
        assert [(one.outcome, round(1 / one.effect, 1)) for one in result.rulings] == [("pass", 2.5)] * 3

    def test_times_stand_beside_the_floor(self) -> None:
        """Cold by the HBM; 345,600 bytes of cache, 13,824 of queries and 12,288 of output."""
        cold = run(PretendedStation()).reached[0]
        assert cold.floor is not None
        assert cold.floor.bytes == 300 * 1152 + 12 * 576 * 2 + 12 * 512 * 2
        assert cold.share == pytest.approx(cold.floor.seconds / 20e-6, rel=0.02)
        unknown = run(PretendedStation(device=""))
        assert unknown.state == "measured"
        assert {one.share for one in unknown.reached} == {None}

    @pytest.mark.parametrize("who", [FAST, SLOW])
    def test_what_is_wrong_is_not_timed(self, who: str) -> None:
        station = doubled(who)
        result = run(station)
        assert (result.state, result.outcome) == ("red", "regress")
        assert result.rules
        assert station.steps == ["open", "results", "results"]
        assert not result.measurements

    def test_what_becomes_wrong_while_timed_is_red(self) -> None:
        result = run(doubled(FAST, lambda turn: turn > 0))
        assert (result.state, len(result.reasons) > 0) == ("red", True)

    @pytest.mark.parametrize(
        ("kernels", "rule"),
        [((GENERIC, "_fwd_kernel_stage2"), launched.RAN), ((), launched.SEEN), ((SORT,), launched.ALONE)],
    )
    def test_a_fallback_under_the_fast_name_is_red(self, kernels: tuple[str, ...], rule: str) -> None:
        station = PretendedStation()
        station.kernels_of = {**station.kernels_of, FAST: kernels}
        result = run(station)
        assert result.state == "red"
        assert rule in result.rules
        assert "pairs" not in station.steps

    @pytest.mark.parametrize("who", [FAST, SLOW])
    def test_below_the_floor_is_red_and_kept_by_nobody(self, who: str) -> None:
        """45 ns are the least; the clock's ticks allow 20."""
        result = run(PretendedStation(seconds_of={**SECONDS, who: 15e-9}))
        assert (result.state, result.rules) == ("red", (memory_floor.RULE,))
        assert "needs 0.0449 us" in result.reasons[0]
        assert not [one for one in result.measurements if one.case.endswith("cold")]

    def test_slower_than_the_slow_side_is_a_regress(self) -> None:
        result = run(PretendedStation(seconds_of={FAST: 60e-6, SLOW: 50e-6}))
        assert (result.state, result.outcome) == ("measured", "regress")
        assert len(result.measurements) == 6

    def test_nothing_asked_nothing_ruled(self) -> None:
        result = run(PretendedStation(seconds_of={FAST: 60e-6, SLOW: 50e-6}), at_least=0.0)
        assert (result.outcome, result.rulings) == ("pass", ())

    def test_a_way_that_cannot_be_had_is_noted(self) -> None:
        result = run(PretendedStation(fails={"graph": NO_GRAPH}))
        assert (result.state, len(result.measurements)) == ("measured", 4)
        assert result.notes == ("graph: not timed: NotCapturable: the host waits for the device",)
        nothing = run(PretendedStation(fails={"pairs": NO_GRAPH}))
        assert nothing.state == "unavailable"

    @pytest.mark.parametrize("step", ["open", "results", "kernels", "pairs"])
    def test_a_crash_is_red(self, step: str) -> None:
        result = run(PretendedStation(fails={step: CRASH}))
        assert (result.state, result.reasons) == ("red", (str(CRASH),))

    @pytest.mark.parametrize("step", ["open", "kernels"])
    def test_what_nobody_expected_ends_its_trial_and_not_the_day(self, step: str) -> None:
        station = PretendedStation(fails={step: ValueError("no range of mla_decode in the trace")})
        day, kept = day_of(station, [trial("a"), trial("b")])
        assert [one.state for one in day.results] == ["red", "red"]
        assert day.results[0].reasons == ("ValueError: no range of mla_decode in the trace",)
        assert len(kept) == 2

    def test_a_missing_side_starts_nothing(self) -> None:
        station = PretendedStation(missing={FAST: "aiter not installed"})
        result = run(station)
        assert (result.state, result.outcome, station.steps) == ("unavailable", "inconclusive", [])
        assert result.reasons == ("mla_decode-waveproof-hip: aiter not installed",)

    def test_two_calls_of_one_implementation_have_two_names(self) -> None:
        one = trial()
        same = replace(one, slow=replace(one.fast))
        assert same.case(same.fast, same.ways[0]) == "mla_decode/waveproof/decode/against=waveproof/fast/cold"
        assert same.case(same.slow, same.ways[0]) == "mla_decode/waveproof/decode/against=waveproof/slow/cold"


class TestBudget:
    def test_trials_run_in_order_while_they_fit(self) -> None:
        """Ten steps of a second each; the third is estimated at more than is left, the fourth is not."""
        station = PretendedStation()
        trials = [trial("a"), trial("b"), trial("c", least_seconds=30.0), trial("d")]
        day, _ = day_of(station, trials, 45.0)
        assert [one.state for one in day.results] == ["measured", "measured", "no time", "measured"]
        assert station.now <= 45.0
        assert day.results[2].reasons == ("25 s were left of 45, and it needs about 30",)
        assert day.outcome == "inconclusive"

    def test_one_that_hangs_leaves_the_others_their_time(self) -> None:
        station = PretendedStation(step_seconds=1e9)
        day, _ = day_of(station, [trial("a"), trial("b"), trial("c")], 90.0)
        assert [one.state for one in day.results] == ["no time"] * 3
        assert station.granted == [pytest.approx(30.0)] * 3
        assert station.now == pytest.approx(90.0)
        assert "no answer after 30 s" in day.results[0].reasons[0]

    def test_a_larger_share_is_more_time(self) -> None:
        station = PretendedStation(step_seconds=1e9)
        day_of(station, [trial("a", share=2.0), trial("b")], 90.0)
        assert station.granted == [pytest.approx(60.0), pytest.approx(30.0)]

    def test_no_step_is_given_more_than_is_left(self) -> None:
        station = PretendedStation()
        day_of(station, [trial("a")], 12.0)
        assert station.granted == [pytest.approx(12.0 - at) for at in range(10)]

    @pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
    def test_no_budget(self, budget: float) -> None:
        with pytest.raises(BadBudget, match="must be positive"):
            day_of(PretendedStation(), [trial()], budget)

    def test_nothing_measured_is_not_a_pass(self) -> None:
        assert day_of(PretendedStation(), [], 10.0)[0].outcome == "inconclusive"
        assert EXIT_STATUS[day_of(PretendedStation(missing={SLOW: "gone"}), [trial()])[0].outcome] == 3

    def test_the_gravest_decides(self) -> None:
        """A crash among trials that pass."""
        station = PretendedStation()
        trials = [trial("a"), replace(trial("b"), fast=replace(trial().fast, runs_as=("asm:another_*",)))]
        assert EXIT_STATUS[day_of(station, trials)[0].outcome] == 1


class TestResults:
    def test_an_abort_loses_the_trial_that_runs_and_no_other(self, tmp_path: Path) -> None:
        file = tmp_path / "day.json"
        station = PretendedStation()

        def keep(day: Day) -> None:
            cli_gpu_day.write(file, day)
            station.fails = {"results": KeyboardInterrupt()}  # type: ignore[dict-item]

        with pytest.raises(KeyboardInterrupt):
            run_day([trial("a"), trial("b")], station, 100.0, keep, station.clock)
        assert {one.case.split("/")[2] for one in from_json(file.read_text())} == {"a"}
        assert [path.name for path in tmp_path.iterdir()] == ["day.json"]

    def test_the_document_is_a_run(self) -> None:
        """Measurements and rulings arrive where the history reads them; one that has none too."""
        import json

        day, kept = day_of(PretendedStation(), [trial("a"), trial("b", keys=600)])
        assert len(kept) == 2
        sections = day_sections(day)
        (read,) = runs_of(json.loads(document(day, sections)))
        assert read.measurements == day.measurements
        assert len(read.rulings) == 6
        assert runs_of(json.loads(document(Day(day.place, 1.0))))[0].measurements == ()

    def test_sections_say_what_was_not_seen(self) -> None:
        station = PretendedStation(missing={FAST: "aiter not installed"})
        (section,) = day_sections(day_of(station, [trial("a")])[0])
        assert section.warnings == ("a: mla_decode-waveproof-hip: aiter not installed",)
        assert not section.pictures

    def test_ratios_are_slow_over_fast(self) -> None:
        day, _ = day_of(PretendedStation(), [trial("a", at_least=2.0), trial("b", at_least=0.0)])
        rows = day_sections(day)[0].tables[0].rows
        assert [float(row[2]) for row in rows] == pytest.approx([2.5] * 6, rel=0.01)
        assert {row[4] for row in rows} == {"2", "-"}


class TestPlan:
    def test_every_pair_is_timed_on_hip(self) -> None:
        timed = {sides(one) for one in trials_for("hip")}
        assert {(one.operator, one.fast, one.slow) for one in PAIRS} <= timed

    @pytest.mark.parametrize("runtime", ["hip", "cuda"])
    def test_ten_minutes_are_enough_by_estimate(self, runtime: str) -> None:
        trials = trials_for(runtime)
        share = cli_gpu_day.TIMED_SHARE if runtime == "cuda" else 1.0
        assert sum(one.least_seconds for one in trials) <= 600.0 * share
        names = [one.case(side, way) for one in trials for side in (one.fast, one.slow) for way in one.ways]
        assert len(set(names)) == len(names)
        assert all(one.fast.expected and one.fast.subject.runtime == runtime for one in trials)

    def test_the_plan_names_what_is_missing(self) -> None:
        """Whatever is installed here: there is no such runtime for this side."""
        wrong = replace(trial(), fast=replace(trial().fast, subject=replace(trial().fast.subject, runtime="cuda")))
        section = cli_gpu_day.plan_section([wrong, trial()], "cuda", 10.0)
        assert any("offers emulate, hip, not cuda (trial 1)" in one for one in section.warnings)
        plan = section.tables[0]
        assert plan.rows[0][-1] == "unavailable" or plan.note.endswith("here, all: unavailable.")

    @pytest.mark.parametrize("runtime", ["hip", "cuda"])
    def test_trials_of_the_plan_can_be_told_apart(self, runtime: str) -> None:
        plan, kernels = cli_gpu_day.plan_section(trials_for(runtime), runtime, 600.0).tables
        assert len({row[1:5] for row in plan.rows}) == len(plan.rows)
        assert all(len(row) == len(plan.columns) for row in plan.rows)
        assert "timed, all: cold, warm, graph." in plan.note
        assert len(set(kernels.rows)) == len(kernels.rows)

    def test_context_is_told_first(self) -> None:
        assert cli_gpu_day.work_in_words("decode/heads=12/keys=16384") == "decode: KV 16,384, heads 12"
        assert cli_gpu_day.work_in_words("rows=8/form=sparse") == "rows 8, form sparse"

    def test_reasons_name_their_trials(self) -> None:
        """What this torch is not built for is told beside the missing node, in the plan as on the day."""
        both = cli_gpu_day.plan_section(trials_for("hip"), "hip", 600.0).warnings
        assert all(any(why in one for one in both) for why in cli_gpu_day.lacking("hip"))
        assert not cli_gpu_day.lacking("cpu")

    def test_unknown_runtime(self) -> None:
        with pytest.raises(NoTrials, match="there are for: hip, cuda, cpu"):
            trials_for("vulkan")

    def test_without_the_gpu_the_command_says_why(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(runtime: str) -> None:
            raise gpu_day_station.DeviceMissing("torch is built without GPU support")

        monkeypatch.setattr(gpu_day_station, "ChildStation", refuse)
        with pytest.raises(typer.Exit) as ended:
            cli_gpu_day.gpu_day("hip", 10.0)
        assert ended.value.exit_code == 3
        assert "torch is built without GPU support" in capsys.readouterr().err


class TestGoldens:
    @pytest.mark.parametrize(
        ("status", "state", "exit_status"), [(0, "measured", 0), (1, "unavailable", 3), (-11, "red", 1)]
    )
    def test_how_a_capture_ends(
        self, status: int, state: str, exit_status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(arguments: list[str], **how: object) -> subprocess.CompletedProcess[str]:
            assert arguments[3:] == ["golden", "capture", "--runtime", "cuda", "--out", str(tmp_path)]
            assert how["timeout"] == 60.0
            return subprocess.CompletedProcess(arguments, status, "torch merge_state: 3 stored\n", "")

        monkeypatch.setattr(subprocess, "run", run)
        result = cli_gpu_day.capture_goldens(tmp_path, 60.0)
        assert (result.state, EXIT_STATUS[result.outcome]) == (state, exit_status)
        assert result.notes == ("torch merge_state: 3 stored",)

    def test_a_capture_that_is_cut_off_keeps_its_words(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def run(arguments: list[str], **how: object) -> None:
            raise subprocess.TimeoutExpired(arguments, 60.0, b"torch merge_state: 3 stored\n")

        monkeypatch.setattr(subprocess, "run", run)
        result = cli_gpu_day.capture_goldens(tmp_path, 60.0)
        assert (result.state, result.notes) == ("no time", ("torch merge_state: 3 stored",))
        assert "take it up again with: waveproof golden capture --runtime cuda --out" in result.reasons[0]

    def test_no_time_no_capture(self, tmp_path: Path) -> None:
        result = cli_gpu_day.capture_goldens(tmp_path, 0.5)
        assert (result.state, result.reasons) == ("no time", ("0 s were left: nothing was captured",))


class TestPicture:
    POINTS = (Point("fast", 1024, 2e-5, 1e-5, 3e-5), Point("fast", 4096, 5e-5, 5e-5, 5e-5))

    def test_says_where_its_points_come_from(self) -> None:
        floor = [FloorPoint(1024, 1e-6, "HBM"), FloorPoint(4096, 2.5e-5, "HBM")]
        picture = speed_over_context(self.POINTS, floor, "Composed, not measured.")
        assert picture.png[:4] == b"\x89PNG"
        assert "50% of the floor's speed" in picture.caption
        assert picture.caption.endswith("Composed, not measured.")

    @pytest.mark.parametrize(
        ("points", "source", "words"),
        [
            (POINTS, " ", "says where its points come from"),
            (POINTS[:1], "x", "two are the fewest"),
            ((*POINTS, Point("fast", 8192, 0.0, 0.0, 0.0)), "x", "must be positive"),
        ],
    )
    def test_refuses_what_shows_nothing(self, points: tuple[Point, ...], source: str, words: str) -> None:
        with pytest.raises(NothingToDraw, match=words):
            speed_over_context(points, (), source)


def test_a_crash_is_not_a_shortage_of_time() -> None:
    """So that one cannot pass for the other where states are chosen by class."""
    assert not issubclass(OutOfTime, TrialEnded)
    assert not issubclass(TrialEnded, OutOfTime)
