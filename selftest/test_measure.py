"""Pairs: who is first, what is refused, what the table shows. Device code runs on a GPU that only counts time."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import pytest
import torch

from waveproof.fixtures.products import UnknownProduct
from waveproof.kernels.operators.contract import Call
from waveproof.perf import device_timing
from waveproof.perf.device_timing import DeviceClock, HostClock, NotCapturable
from waveproof.perf.instruments import Instruments, WrongClock, calls_per_sample, instruments_for
from waveproof.perf.measure import BadPlan, BadSamples, PairedSamples, PairPlan, measure_pair
from waveproof.perf.records import Place
from waveproof.perf.timing_refusals import Compiled, DegenerateInputs, refuse_degenerate
from waveproof.selftest.pretended_events import COLD, PretendedGPU, instruments, quiet

DEVICE = PairPlan(pairs=40, clock="device")
HOST = Instruments(HostClock(), quiet)


def timed(plan: PairPlan = DEVICE, gpu: PretendedGPU | None = None, candidate: float = 1.2e-3) -> PairedSamples:
    """A candidate against a baseline of one millisecond, on the pretended GPU."""
    gpu = gpu or PretendedGPU()
    tools = instruments(gpu, plan.graph, plan.caches == "cold")
    return measure_pair(gpu.kernel("candidate", candidate), gpu.kernel("baseline", 1e-3), plan, instruments=tools)


class TestOrder:
    def test_a_coin_says_who_is_first(self) -> None:
        """What is recorded is what ran: the log of the device has the same order."""
        gpu = PretendedGPU()
        samples = timed(gpu=gpu)
        ran = gpu.log[-80:]
        assert [first == "candidate" for first in ran[::2]] == list(samples.candidate_first)
        assert all({one, other} == {"candidate", "baseline"} for one, other in zip(ran[::2], ran[1::2], strict=True))

    def test_the_coin_is_fair_and_seeded(self) -> None:
        """800 coins: 400 within 5 standard errors (71); no seed gives another's order."""
        orders = [timed(PairPlan(pairs=40, clock="device", seed=seed)).candidate_first for seed in range(20)]
        assert orders[3] == timed(PairPlan(pairs=40, clock="device", seed=3)).candidate_first
        assert len(set(orders)) == 20
        assert abs(sum(map(sum, orders)) - 400) <= 71

    def test_drift_cancels_in_pairs(self) -> None:
        """Each kernel is 1 % slower than the one before, 2.2 times in all: medians of sides would depend on luck."""
        samples = timed(gpu=PretendedGPU(drift=1.01), candidate=1e-3)
        assert max(samples.candidate) > 2 * min(samples.candidate)
        assert set(round(abs(value), 9) for value in samples.log_ratios) == {round(abs(samples.log_ratios[0]), 9)}
        signs = [value > 0 for value in samples.log_ratios]
        assert signs == [not first for first in samples.candidate_first], "the second of a pair is the slower one"

    def test_looks_stop_when_enough(self) -> None:
        seen: list[int] = []

        def enough(samples: PairedSamples) -> bool:
            seen.append(len(samples))
            return len(samples) >= 20

        gpu = PretendedGPU()
        plan = PairPlan(pairs=80, looks=(10, 20, 40), clock="device")
        sides = gpu.kernel("a", 1e-3), gpu.kernel("b", 1e-3)
        samples = measure_pair(*sides, plan, enough=enough, instruments=instruments(gpu))
        assert (len(samples), seen) == (20, [10, 20])
        assert samples.candidate_first == timed(PairPlan(pairs=20, clock="device")).candidate_first

    @pytest.mark.parametrize(("candidate", "calls"), [(0.45e-3, (3, 3)), (0.02e-3, (30, 3))])
    def test_sides_that_are_much_alike_have_as_many_calls(self, candidate: float, calls: tuple[int, int]) -> None:
        """Half a millisecond is due and a fifth more: two calls of 450 us, three of 210 us."""
        gpu = PretendedGPU()
        sides = gpu.kernel("candidate", candidate), gpu.kernel("baseline", 0.21e-3)
        samples = measure_pair(*sides, replace(DEVICE, pairs=2), instruments=instruments(gpu))
        assert samples.calls == calls
        assert samples.candidate == pytest.approx([candidate] * 2)
        assert samples.resolution == pytest.approx(device_timing.EVENT_RESOLUTION / 3)


class TestHost:
    def test_no_sample_is_shorter_than_its_call(self) -> None:
        """Sleeps of 4 and 4.8 ms; what a sleep lasts beyond is the machine's."""
        plan = PairPlan(pairs=20, warmup=1)
        samples = measure_pair(partial(time.sleep, 4.8e-3), partial(time.sleep, 4e-3), plan, instruments=HOST)
        assert all(value > 4.7e-3 for value in samples.candidate)
        assert all(value > 3.9e-3 for value in samples.baseline)
        assert (samples.clock, samples.calls) == ("time.perf_counter", (1, 1))
        assert "no data was looked at" in samples.notes[0]

    def test_short_calls_are_repeated(self) -> None:
        """The figure is of one call however many a sample holds."""
        clock = HostClock()
        calls = (partial(sum, range(100)),)
        number = calls_per_sample(clock, calls, 1000 * clock.resolution(), 100_000)
        assert number > 5
        samples = measure_pair(calls[0], partial(sum, range(1000)), PairPlan(pairs=5), instruments=HOST)
        assert samples.calls[0] > samples.calls[1] >= 1
        assert median(samples.candidate) < 1e-4
        assert median(samples.ratios) < 0.7

    def test_too_few_calls_are_told(self) -> None:
        samples = measure_pair(int, int, PairPlan(pairs=3, most_calls=1), instruments=HOST)
        assert any("times the clock's resolution, not 1000" in note for note in samples.notes)

    def test_inputs_take_turns(self) -> None:
        seen: list[int] = []
        side = [partial(seen.append, number) for number in range(3)]
        measure_pair(side, partial(time.sleep, 1e-3), PairPlan(pairs=2, warmup=1, most_calls=7), instruments=HOST)
        first = seen[-7:]
        assert [(one + 1) % 3 for one in first[:-1]] == first[1:]

    def test_the_collector_does_not_run(self) -> None:
        import gc

        states: list[bool] = []
        measure_pair(lambda: states.append(gc.isenabled()), int, PairPlan(pairs=2, most_calls=1), instruments=HOST)
        assert not any(states[-2:])
        assert gc.isenabled()


class TestDevice:
    def test_events_time_the_device(self) -> None:
        samples = timed()
        assert samples.candidate == pytest.approx([1.2e-3] * 40)
        assert samples.baseline == pytest.approx([1e-3] * 40)
        assert samples.clock == "device events"

    def test_calls_are_repeated_until_the_events_tell_them(self) -> None:
        """Half a microsecond's resolution a thousand times over: 0.5 ms, of kernels of 10 us."""
        gpu = PretendedGPU()
        clock = DeviceClock(gpu)
        assert 50 <= calls_per_sample(clock, [gpu.kernel("k", 1e-5)], 1000 * clock.resolution(), 10**6) <= 65

    def test_a_graph_holds_all_calls_of_a_sample(self) -> None:
        gpu = PretendedGPU()
        plan = PairPlan(pairs=10, clock="device", graph=True)
        samples = timed(plan, gpu, candidate=1e-5)
        launched = gpu.launches
        assert samples.calls[0] >= 50
        assert samples.candidate == pytest.approx([1e-5] * 10)
        assert samples.clock == "device events, graph replay"
        assert gpu.replays > 20
        timed(PairPlan(pairs=20, clock="device", graph=True), again := PretendedGPU(), candidate=1e-5)
        assert again.launches == launched, "replays launch nothing, however many pairs"

    def test_a_graph_goes_round_all_inputs(self) -> None:
        """Two calls would do, but three inputs are to be read."""
        gpu = PretendedGPU()
        side = [gpu.kernel(str(number), 4e-4) for number in range(3)]
        plan = PairPlan(pairs=4, clock="device", graph=True)
        samples = measure_pair(side, gpu.kernel("b", 1e-3), plan, instruments=instruments(gpu, graph=True))
        assert samples.calls[0] == 3

    def test_what_cannot_be_captured(self) -> None:
        gpu = PretendedGPU()
        plan = PairPlan(pairs=4, clock="device", graph=True)
        for side, reason in ((gpu.synchronize, "not permitted"), (int, "Graph is empty")):
            with pytest.raises(NotCapturable, match=reason):
                measure_pair(side, gpu.kernel("b", 1e-3), plan, instruments=instruments(gpu, graph=True))

    def test_launches_are_not_taken_for_kernels(self) -> None:
        """The device has done in a nanosecond what the host took some microseconds to launch."""
        gpu = PretendedGPU()
        plan = PairPlan(pairs=4, clock="device", most_calls=1)
        samples = measure_pair(gpu.kernel("a", 1e-9), gpu.kernel("b", 1e-9), plan, instruments=instruments(gpu))
        assert any("these are times of launches" in note for note in samples.notes)
        assert not any("launches" in note for note in timed().notes)

    @pytest.mark.parametrize(("clock", "place"), [("host", "meta"), ("device", "cpu")])
    def test_clocks_are_not_mixed(self, clock: Literal["host", "device"], place: str) -> None:
        plan = PairPlan(pairs=1, clock=clock)
        with pytest.raises(WrongClock, match=place):
            measure_pair(int, int, plan, [torch.empty(8, device=place)], instruments=HOST)

    def test_without_a_gpu(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has one")
        with pytest.raises(WrongClock, match="no GPU"):
            measure_pair(int, int, PairPlan(clock="device"))


class TestCaches:
    def test_cold_is_cold_in_each_sample(self) -> None:
        """The flush stands before each sample's kernel, and is no part of its time."""
        gpu = PretendedGPU()
        samples = timed(PairPlan(pairs=10, clock="device", caches="cold"), gpu)
        assert samples.baseline == pytest.approx([COLD * 1e-3] * 10)
        assert samples.candidate == pytest.approx([COLD * 1.2e-3] * 10)
        assert gpu.log[-40::2] == ["flush"] * 20
        assert "cold: pretended" in samples.notes
        assert timed().baseline == pytest.approx([1e-3] * 40), "and warm otherwise"

    def test_no_inputs_come_twice_after_a_flush(self) -> None:
        gpu = PretendedGPU()
        side = [gpu.kernel(str(number), 1e-5) for number in range(4)]
        plan = PairPlan(pairs=4, clock="device", caches="cold")
        samples = measure_pair(side, gpu.kernel("b", 1e-3), plan, instruments=instruments(gpu, cold=True))
        assert samples.calls == (4, 1)
        assert samples.candidate == pytest.approx([COLD * 1e-5] * 4)

    def test_the_flush_is_larger_than_the_caches(self, tmp_path: Path) -> None:
        """Of an MI300X 288 MiB, from the table of products; of a CPU what its files say, each cache once."""
        flush = device_timing.device_flush("AMD Instinct MI300X", "meta")
        assert flush.caches_bytes == 288 << 20
        assert flush.buffer.nbytes >= 2 * flush.caches_bytes
        with pytest.raises(UnknownProduct):
            device_timing.device_flush("Radeon VII", "meta")
        cpu = min(os.sched_getaffinity(0))
        for number, (kind, size) in enumerate((("Data", "32K"), ("Instruction", "32K"), ("Unified", "1M"))):
            index = tmp_path / f"cpu{cpu}" / "cache" / f"index{number}"
            index.mkdir(parents=True)
            for name, text in (("type", kind), ("level", "1"), ("shared_cpu_list", str(cpu)), ("size", size)):
                (index / name).write_text(f"{text}\n")
        assert device_timing.cpu_caches_bytes(tmp_path) == (32 << 10) + (1 << 20)
        known, unknown = device_timing.host_flush(tmp_path), device_timing.host_flush(tmp_path / "none")
        assert "perhaps" in unknown.note
        assert "perhaps" not in known.note
        known()
        assert (known.runs, int(known.buffer.min())) == (1, 1)

    def test_copies_have_their_own_memory_and_the_same_layout(self) -> None:
        pool = torch.arange(200.0)
        view, other = pool.as_strided((4, 5), (1, 7), 3), pool[100:]
        call = Call("operator", {"a": view, "b": other, "k": 3, "c": torch.zeros(1).expand(9)})
        first, second = device_timing.copies_of(call, 2)
        a, b, c = (second.tensor(name) for name in "abc")
        assert first is call
        assert torch.equal(a, view)
        assert a.stride() == view.stride()
        assert a.storage_offset() == 3
        assert c.stride() == (0,)
        assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != pool.untyped_storage().data_ptr()
        assert device_timing.footprint(call) == 804
        assert device_timing.copies_beyond(8000, call) == 11
        with pytest.raises(ValueError, match="no data"):
            device_timing.copies_beyond(8000, Call("operator", {"k": 3}))
        sides = device_timing.rotating(lambda a, b, k, c: float(a.sum()) + k, (first, second))
        assert [side() for side in sides] == [float(view.sum()) + 3] * 2


def nth_time(number: int, what: Callable[[], None], call: Callable[[], object]) -> Callable[[], object]:
    """A side that does something besides at its n-th call."""
    calls = iter(range(1, 1_000_000))

    def side() -> object:
        if next(calls) == number:
            what()
        return call()

    return side


def triton_compiles() -> None:
    from triton import knobs

    listener = knobs.compilation.listener
    if listener is not None:
        listener(src=types.SimpleNamespace(name="renorm_kernel"), cache_hit=False)


def compiler_starts() -> None:
    sys.audit("subprocess.Popen", "hipcc", ["hipcc", "-c", "module.hip"], None, None)


class TestRefusals:
    plan = PairPlan(pairs=5, warmup=2, clock="device", most_calls=1)

    @pytest.mark.parametrize(
        ("what", "told"), [(triton_compiles, "Triton compiled renorm_kernel"), (compiler_starts, "started hipcc -c")]
    )
    def test_a_timed_call_must_not_compile(self, what: Callable[[], None], told: str) -> None:
        """The sixth call: two warm up, one more does before the pairs; with ``most_calls`` nothing is calibrated."""
        if what is triton_compiles:
            pytest.importorskip("triton")
        gpu = PretendedGPU()
        slow = nth_time(6, what, gpu.kernel("a", 1e-3))
        with pytest.raises(Compiled, match=f"candidate, pair 3: {told}"):
            measure_pair(slow, gpu.kernel("b", 1e-3), self.plan, instruments=instruments(gpu))

    def test_warming_up_may_compile(self) -> None:
        gpu = PretendedGPU()
        for number in (1, 2, 3):
            side = nth_time(number, compiler_starts, gpu.kernel("a", 1e-3))
            measure_pair(side, gpu.kernel("b", 1e-3), self.plan, instruments=instruments(gpu))

    def test_torch_compile_is_heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counters = types.SimpleNamespace(counters={"stats": {"unique_graphs": 7}})
        monkeypatch.setitem(sys.modules, "torch._dynamo.utils", counters)
        gpu = PretendedGPU()
        side = nth_time(5, lambda: counters.counters["stats"].update(unique_graphs=9), gpu.kernel("a", 1e-3))
        with pytest.raises(Compiled, match=r"torch.compile built 2 graph"):
            measure_pair(gpu.kernel("b", 1e-3), side, self.plan, instruments=instruments(gpu))

    def test_builds_beside_it_are_noted(self, tmp_path: Path) -> None:
        """A file in a compile cache need not be this process's: noted, not refused."""
        tools = Instruments(HostClock(), quiet, None, (tmp_path,))
        side = nth_time(4, lambda: (tmp_path / "kernel.co").touch(), int)
        samples = measure_pair(side, int, self.host(), instruments=tools)
        assert any("1 files of compile caches changed" in note for note in samples.notes)

    @staticmethod
    def host() -> PairPlan:
        return PairPlan(pairs=3, warmup=1, most_calls=1)

    @pytest.mark.parametrize(
        "data",
        [
            torch.zeros(64, 64),
            torch.full((64, 64), 0.5, dtype=torch.bfloat16),
            torch.zeros(8192, dtype=torch.uint8),
            torch.zeros(8192).to(torch.float8_e4m3fn),
            torch.full((2048,), float("nan")),
            torch.zeros(1).expand(1 << 40),
            torch.cat([torch.zeros(9500), torch.randn(500, generator=torch.Generator().manual_seed(0))]),
        ],
        ids=["zeros", "constant", "uint8", "fp8", "nan", "expanded", "nearly"],
    )
    def test_constant_data(self, data: torch.Tensor) -> None:
        with pytest.raises(DegenerateInputs, match="input 1,"):
            measure_pair(int, int, self.host(), [torch.ones(3), data], instruments=HOST)

    def test_data_that_serves(self) -> None:
        """Random, half zeros after a renorm, indices all equal, parameters all equal."""
        random_data = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
        lengths = torch.full((2048,), 64, dtype=torch.int32)
        assert refuse_degenerate([random_data, random_data.relu(), lengths, torch.full((8,), 0.9)]) == 2
        samples = measure_pair(int, int, self.host(), [random_data], instruments=HOST)
        assert not any("inputs" in note for note in samples.notes)

    def test_bad_plans_and_samples(self) -> None:
        for wrong in ({"pairs": 0}, {"looks": (20, 10)}, {"looks": (90,)}, {"graph": True}, {"clock": "sun"},
                      {"sample_seconds": float("nan")}, {"warmup": 0}):  # fmt: skip
            with pytest.raises(BadPlan, match="="):
                PairPlan(**wrong)
        with pytest.raises(BadPlan, match="no call"):
            measure_pair((), int, PairPlan(), instruments=HOST)
        wrong_figures: tuple[tuple[tuple[float, ...], tuple[float, ...], tuple[bool, ...]], ...] = (
            ((), (), ()),
            ((1.0,), (1.0, 2.0), (True,)),
            ((0.0,), (1.0,), (True,)),
            ((1.0,), (float("inf"),), (False,)),
        )
        for candidate, baseline, coins in wrong_figures:
            with pytest.raises(BadSamples):
                PairedSamples(candidate, baseline, coins, 0)


class TestSamples:
    samples = PairedSamples(
        (2.0, 3.0, 4.0), (1.0, 6.0, 4.0), (True, False, True), 7, ("warm",), "device events", (3, 1)
    )

    def test_figures(self) -> None:
        assert self.samples.ratios == (2.0, 0.5, 1.0)
        assert self.samples.log_ratios == pytest.approx((0.693147, -0.693147, 0.0), abs=1e-6)
        assert self.samples.first(2) == PairedSamples((2.0, 3.0), (1.0, 6.0), (True, False), 7, ("warm",),
                                                      "device events", (3, 1))  # fmt: skip

    def test_there_and_back(self) -> None:
        assert PairedSamples.read(json.loads(json.dumps(self.samples.told()))) == self.samples
        with pytest.raises(BadSamples, match="colour"):
            PairedSamples.read({**self.samples.told(), "colour": 1})

    def test_as_measurements(self) -> None:
        candidate, baseline = self.samples.measurements("new", "old", Place("hip", "gfx950"))
        assert (candidate.case, candidate.values, baseline.values) == ("new", (2.0, 3.0, 4.0), (1.0, 6.0, 4.0))
        assert candidate.notes == ("warm", "clock: device events", "coins: seed 7")
        assert not candidate.quantity.higher_is_better


def test_of_this_machine() -> None:
    """The instruments of the host, cold caches included."""
    tools = instruments_for("host", cold=True)
    assert tools.flush is not None
    assert tools.flush.buffer.nbytes >= 2 * tools.flush.caches_bytes
    assert tools.driver().cpus > 0
    assert tools.build_caches
    assert 0 < tools.clock.resolution() < 1e-4
