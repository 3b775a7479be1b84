"""Pairs that are timed: on the CPU here, and on a GPU the fast paths against what they replace, kernels proven by name.

The CPU's times say nothing of a GPU. They show that the way of measuring tells what differs from what does not: an
implementation against itself raises no alarm, and a fifth more work is found.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from waveproof.fixtures.inspection import Inspection, unavailable
from waveproof.fixtures.products import product_named
from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.fixtures.strategies.renorm import make_rows
from waveproof.golden.judges.tolerance import judge_distribution
from waveproof.golden.references.renorm import reference
from waveproof.kernels.own.padded_heads import padded
from waveproof.kernels.providers import pytorch_mla
from waveproof.perf.calibration import eased, top_k_alone
from waveproof.perf.gate import judge_pairs, judge_ratio
from waveproof.perf.gpu_day import Result, run_trial
from waveproof.perf.gpu_day_plan import HEADS, renorm_call, trials_for
from waveproof.perf.gpu_day_station import ChildStation, DeviceMissing
from waveproof.perf.gpu_day_terms import Trial
from waveproof.perf.measure import PairedSamples, PairPlan, measure_pair
from waveproof.perf.night import Night
from waveproof.perf.records import Place, Ruling
from waveproof.perf.renorm_forms import by_sort, by_topk
from waveproof.reports.sections import Section
from waveproof.reports.speed_picture import measured_series, roofline_section, speed_over_context

pytestmark = [pytest.mark.rocm, pytest.mark.perf]

ROWS, VOCABULARY, TOP_K = 2, 151_936, 50
SLOWER = 1.2
LOOKS = (20, 40, 80)
TRIAL_SECONDS = 60.0
HERE = Place("cpu", versions={"torch": torch.__version__})


@pytest.fixture(scope="module")
def probs() -> torch.Tensor:
    """float32[2, 151936]: softmax rows."""
    return make_rows(["softmax"] * ROWS, VOCABULARY, 0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """A second thread would wait for a core that other processes hold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def coins() -> int:
    """A seed that is new each night; measurements name it. An order that is always the same is no chance."""
    return secrets.randbits(32)


def changed(
    candidate: Callable[[], object],
    baseline: Callable[[], object],
    probs: torch.Tensor,
    night: Night,
    inspection: Inspection,
) -> Ruling:
    """What the gate says of two ways, by samples of two milliseconds; looked at as often as the gate looks."""
    case = top_k_alone(len(probs)).case
    tolerance = night.tolerance(case, HERE)

    def decided(samples: PairedSamples) -> bool:
        return ruled(samples).outcome in ("regress", "improve")

    def ruled(samples: PairedSamples) -> Ruling:
        return judge_pairs(samples, case, tolerance, looks=LOOKS)

    plan = PairPlan(pairs=LOOKS[-1], looks=LOOKS[:-1], seed=coins(), sample_seconds=2e-3)
    inspection.note(f"coins: seed {plan.seed}")
    return ruled(measure_pair(candidate, baseline, plan, (probs,), enough=decided))


@pytest.mark.usefixtures("one_thread")
def test_an_implementation_differs_not_from_itself(probs: torch.Tensor, night: Night, inspection: Inspection) -> None:
    """A/A control: an alarm here has a chance of 0.001, whatever else this machine does."""
    ruling = changed(partial(by_topk, probs, TOP_K), partial(by_topk, probs, TOP_K), probs, night, inspection)
    inspection.looked_at += 1
    inspection.note(ruling.reason)
    assert ruling.outcome in ("pass", "inconclusive"), ruling.reason


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("how", ["work", "sleep"])
def test_a_fifth_more_is_found(how: str, probs: torch.Tensor, night: Night, inspection: Inspection) -> None:
    """Six rows instead of five, or a pause of a fifth of the time; where this machine is too loud, inconclusive."""
    five = probs[:1].expand(5, -1).contiguous()
    candidate: Callable[[], object]
    if how == "work":
        candidate = partial(by_topk, probs[:1].expand(6, -1).contiguous(), TOP_K)
    else:
        start = time.perf_counter()
        for _ in range(5):
            by_topk(five, TOP_K)
        pause = (SLOWER - 1) * (time.perf_counter() - start) / 5

        def candidate() -> None:
            by_topk(five, TOP_K)
            until = time.perf_counter() + pause
            while time.perf_counter() < until:  # time.sleep would give the core away
                pass

    ruling = changed(candidate, partial(by_topk, five, TOP_K), five, night, inspection)
    inspection.looked_at += 1
    inspection.note(ruling.reason)
    assert ruling.outcome in ("regress", "inconclusive"), ruling.reason
    if ruling.outcome == "inconclusive":
        night.rule(ruling)


@pytest.mark.usefixtures("one_thread")
def test_topk_is_faster_than_a_full_sort_on_the_cpu(probs: torch.Tensor, night: Night, inspection: Inspection) -> None:
    """Both are right, on rows without ties at the boundary; five times as fast at least."""
    call = renorm_call("top_k_renorm_prob", ROWS, VOCABULARY)
    limit = call.tensor("top_k")
    expected = reference(call, "threshold")
    for form in (by_topk, by_sort):
        inspection.hold_all(judge_distribution(form(call.tensor("probs"), limit), expected, call))
    plan = PairPlan(pairs=20, seed=coins())
    samples = measure_pair(partial(by_topk, probs, limit), partial(by_sort, probs, limit), plan, (probs,))
    case = f"rows={ROWS}/vocabulary={VOCABULARY}"
    for measured in samples.measurements(f"top_k_renorm_prob/topk/{case}", f"top_k_renorm_prob/sort/{case}", HERE):
        night.measure(measured)
    night.rule(judge_ratio(samples, f"top_k_renorm_prob/topk over sort/{case}", 5.0))


@pytest.mark.usefixtures("one_thread")
def test_speed_over_context_on_the_cpu(night: Night) -> None:
    """What padding 12 heads to 16 costs torch's decode on this CPU, and the floors of the same calls on GPUs."""
    contexts = (256, 1024, 4096)
    plain: Callable[..., Any] = pytorch_mla.mla_decode
    sixteen = padded(plain, (16,))
    taken: dict[str, list[tuple[float, tuple[float, ...]]]] = {"12 heads": [], "padded to 16": []}
    calls = []
    for keys in contexts:
        call = AttentionCase(HEADS, ((1, keys),)).call("mla_decode")
        arguments = tuple(call.arguments.values())
        inputs = (call.tensor("q"), call.tensor("kv_cache"))
        plan = PairPlan(pairs=12, seed=coins())
        samples = measure_pair(partial(sixteen, *arguments), partial(plain, *arguments), plan, inputs)
        for measured in samples.measurements(f"mla_decode/padded/keys={keys}", f"mla_decode/torch/keys={keys}", HERE):
            night.measure(measured)
        taken["padded to 16"].append((keys, samples.candidate))
        taken["12 heads"].append((keys, samples.baseline))
        calls.append((f"decode, 12 heads, {keys} keys", call))
    points = [point for name, series in taken.items() for point in measured_series(name, series)]
    source = f"Measured on this machine's CPU, torch {torch.__version__}, one thread: no time of a GPU, and no floor."
    picture = speed_over_context(points, (), source, "Torch's decode on the CPU", "decode-cpu")
    night.add_section(Section("Decode on the CPU", source, pictures=(picture,)))
    night.add_section(roofline_section(calls, [product_named(name) for name in ("MI300X", "MI355X", "H200")]))
    assert min(taken["12 heads"][-1][1]) > min(taken["12 heads"][0][1])


@pytest.fixture(scope="module")
def stations() -> Iterator[dict[str, ChildStation | DeviceMissing]]:
    """Those that were asked for, by runtime; a device that is missing is asked for once."""
    opened: dict[str, ChildStation | DeviceMissing] = {}
    yield opened
    for station in opened.values():
        if isinstance(station, ChildStation):
            station.close()


def result_of(
    trial: Trial, runtime: str, stations: dict[str, ChildStation | DeviceMissing], night: Night | None = None
) -> Result:
    """The trial on the runtime's device, or unavailable by name; eased by the night's tolerances."""
    if runtime not in stations:
        try:
            stations[runtime] = ChildStation(runtime)
        except DeviceMissing as error:
            stations[runtime] = error
    station = stations[runtime]
    if isinstance(station, DeviceMissing):
        unavailable(str(station))
    if night is not None and trial.at_least:
        place = station.place
        trial = eased(trial, lambda case: night.tolerance(case, place))
    result = run_trial(trial, station, TRIAL_SECONDS)
    if result.state == "unavailable":
        unavailable("; ".join(result.reasons))
    return result


@pytest.mark.parametrize(
    ("runtime", "trial"),
    [
        pytest.param(runtime, trial, id=f"{runtime}-{trial.case(trial.fast, trial.ways[0]).rpartition('/')[0]}")
        for runtime in ("cpu", "hip", "cuda")
        for trial in trials_for(runtime)
    ],
)
def test_fast_path_is_right_proven_and_faster(
    runtime: str,
    trial: Trial,
    stations: dict[str, ChildStation | DeviceMissing],
    night: Night,
    inspection: Inspection,
) -> None:
    """Results, kernels, times above the floor, ratio; on ``cpu`` a rehearsal without kernels and without a floor."""
    inspection.provider = trial.fast.subject.implementation.provider
    result = result_of(trial, runtime, stations, night)
    inspection.looked_at += 1
    for note in result.notes:
        inspection.note(note)
    assert result.state == "measured", "; ".join(result.reasons)
    for measured in result.measurements:
        night.measure(measured)
    for ruling in result.rulings:
        night.rule(ruling)


def test_a_side_that_dies_ends_its_trial_and_not_the_day(
    stations: dict[str, ChildStation | DeviceMissing], tmp_path: Path, inspection: Inspection
) -> None:
    """The process is replaced; a wrong side in it is not timed, and a right one is."""
    (right,) = trials_for("cpu")
    bad = tmp_path / "bad.py"
    bad.write_text("import os\ndef die(probs, top_k): os.abort()\ndef zero(probs, top_k): return probs * 0\n")

    def with_fast(function: str) -> Trial:
        implementation = replace(right.fast.subject.implementation, load=f"{bad}:{function}")
        return replace(
            right, fast=replace(right.fast, subject=replace(right.fast.subject, implementation=implementation))
        )

    died, wrong, after = (result_of(trial, "cpu", stations) for trial in (with_fast("die"), with_fast("zero"), right))
    inspection.looked_at += 3
    assert (died.state, died.measurements) == ("red", ())
    assert "signal SIGABRT" in died.reasons[0]
    assert (wrong.state, wrong.measurements) == ("red", ())
    assert "kept set" in wrong.rules
    assert after.state == "measured"
