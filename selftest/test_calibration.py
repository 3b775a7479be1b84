"""Thresholds in use: which cases are calibrated, on which machine they hold, what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from waveproof.fixtures.inspection import Inspection
from waveproof.perf import thresholds
from waveproof.perf.calibration import alone, calibration, eased, timed_cases, top_k_alone
from waveproof.perf.conftest import _thresholds
from waveproof.perf.gpu_day_terms import COLD, WARM, TrialEnded, Way
from waveproof.perf.measure import PairedSamples
from waveproof.perf.night import TOLERANCE, Night
from waveproof.perf.records import Place
from waveproof.perf.thresholds import BadCalibration, Threshold, key_of, save_thresholds
from waveproof.reports.cli_calibrate import thresholds_section
from waveproof.reports.environment import processor
from waveproof.selftest.pretended_station import DEVICE, NO_GRAPH, SLOW, PretendedStation, trial

HERE = Place("hip", "gfx950", DEVICE)
CASES = alone(trial(ways=(COLD, WARM)))
QUIET = Threshold(0.011, 0.01, 20, 12)


@pytest.fixture(autouse=True)
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pairs find a change is not what is tried here, and takes a while."""
    monkeypatch.setattr(thresholds, "PAIRS_TRIED", (20,))


def test_each_run_has_a_station_of_its_own_and_each_case_one_run_in_it() -> None:
    stations: list[PretendedStation] = []

    def start() -> nullcontext[PretendedStation]:
        stations.append(PretendedStation())
        return nullcontext(stations[-1])

    found = calibration(start, CASES, 10)
    assert len(stations) == 10
    assert {tuple(one.steps) for one in stations} == {("open", "pairs") * 4}
    assert list(found.thresholds) == [
        f"mla_decode/{provider}/decode/{way}" for provider in ("waveproof", "sglang") for way in ("cold", "warm")
    ]
    assert {one.runs for one in found.thresholds.values()} == {10}
    assert not found.refused
    (table,) = thresholds_section(found).tables
    assert [row[1] for row in table.rows] == ["10"] * 4


def test_what_cannot_be_timed_is_named_and_the_rest_is_calibrated() -> None:
    station = PretendedStation(missing={SLOW: "not installed"}, fails={"cold": NO_GRAPH})
    found = calibration(lambda: nullcontext(station), CASES, 10)
    assert list(found.thresholds) == ["mla_decode/waveproof/decode/warm"]
    assert found.refused["mla_decode/sglang/decode/warm"] == "not installed"
    assert "NotCapturable" in found.refused["mla_decode/waveproof/decode/cold"]
    assert len(thresholds_section(found).warnings) == 3
    dead = PretendedStation(fails={"open": TrialEnded("open: signal SIGSEGV")})
    assert not calibration(lambda: nullcontext(dead), CASES, 10).thresholds
    assert dead.steps == ["open"] * 4, "a case that failed is not asked for again"


def test_too_few_runs_are_refused_before_anything_is_measured() -> None:
    station = PretendedStation()
    with pytest.raises(BadCalibration, match="9 A/A runs"):
        calibration(lambda: nullcontext(station), CASES, 9)
    assert not station.steps


def test_a_tolerance_that_would_hide_the_change_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout makes a side 10 % faster in one run and slower in the next."""
    turns = [0]

    def start() -> nullcontext[PretendedStation]:
        turns[0] += 1
        station, factor = PretendedStation(), 1.1 if turns[0] % 2 else 1 / 1.1
        like = station.pairs

        def apart(way: Way, seconds: float) -> PairedSamples:
            samples = like(way, seconds)
            return replace(samples, candidate=tuple(factor * one for one in samples.candidate))

        monkeypatch.setattr(station, "pairs", apart)
        return nullcontext(station)

    found = calibration(start, CASES[:1], 10)
    assert not found.thresholds
    assert "differs from itself by up to" in thresholds_section(found).warnings[0]


@pytest.mark.parametrize(
    ("place", "due"),
    [
        (HERE, 0.011),
        (replace(HERE, versions={"torch": "3.0"}), 0.011),
        (replace(HERE, device="AMD Instinct MI300X"), TOLERANCE),
        (replace(HERE, arch="gfx942"), TOLERANCE),
        (replace(HERE, runtime="cuda"), TOLERANCE),
    ],
)
def test_thresholds_hold_on_the_machine_that_they_are_of(place: Place, due: float) -> None:
    night = Night(inspection=Inspection(), thresholds={key_of("case", HERE): QUIET})
    assert night.tolerance("case", place) == due
    assert night.inspection is not None
    assert night.inspection.notes == ([] if due == 0.011 else [f"tolerance {TOLERANCE:.1%}: not calibrated here "
                                                               "(waveproof perf calibrate)"])  # fmt: skip
    assert night.tolerance("another case", place) == TOLERANCE


def test_a_cpu_is_known_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records name no machine, and two CPUs of one architecture are not alike."""
    assert key_of("case", Place("cpu")) == key_of("case", Place("cpu", device="cpu x86_64"))
    assert key_of("case", Place("cpu"))[1][2] == processor()
    before = Night(thresholds={key_of("case", Place("cpu")): QUIET})
    monkeypatch.setattr("waveproof.reports.environment.processor", lambda: "another, 8 logical cores")
    assert before.tolerance("case", Place("cpu")) == TOLERANCE


def test_a_session_refuses_a_file_that_holds_no_thresholds(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.json"
    assert _thresholds(None) == {}
    with pytest.raises(pytest.UsageError, match="No such file"):
        _thresholds(file)
    file.write_text("[]")
    with pytest.raises(pytest.UsageError, match="no thresholds"):
        _thresholds(file)
    save_thresholds(file, {key_of("case", HERE): QUIET})
    file.write_text(file.read_text().replace('"runs": 12', '"runs": 9'))
    with pytest.raises(pytest.UsageError, match="9 A/A runs"):
        _thresholds(file)


def test_what_is_asked_is_less_by_the_larger_tolerance() -> None:
    names = {one.case: 0.01 for one in CASES} | {"mla_decode/sglang/decode/warm": 0.25}
    assert eased(trial(ways=(COLD, WARM), at_least=2.0), names.__getitem__).at_least == 1.6


def test_what_the_tests_time_on_the_cpu_is_calibrated_there() -> None:
    cases = [one.case for one in timed_cases("cpu")]
    assert {top_k_alone(2).case, top_k_alone(5).case} <= set(cases)
    assert len(cases) == len(set(cases)) == 6
