"""Counts, growth and the fallback guard on trial, without a kernel: what is told, what is let pass, what is refused."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from waveproof.golden.judges import launched
from waveproof.golden.references.mla import reference
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import builtin_implementations
from waveproof.kernels.runtimes.process import Crashed, Outcome, Unavailable, Unsuitable, Worker
from waveproof.perf import counts, growth, growth_ladders, pairs
from waveproof.perf.counted_cases import CASES, attention
from waveproof.perf.counts import CountCase, Counted, Launch, NotCounted
from waveproof.perf.figures_renorm import WrongResult
from waveproof.perf.host_traffic import operations, with_traffic
from waveproof.perf.records import BadMeasurement, Place, from_json, to_json
from waveproof.reports import counts_tables
from waveproof.reports.cli_counts import exit_status
from waveproof.reports.growth_picture import growth_picture
from waveproof.selftest.mutants.counts import DECODE, FAST, GENERIC, KEYS, SLOW, counted, counts_of, guarded

LAUNCH: dict[str, Any] = {
    "kernel": "some_kernel", "workgroups": 3, "wave_instructions": 800, "mfma": 80, "multiply_adds": 4096 * 80,
    "bytes_read": 4000, "bytes_written": 400, "lds_bytes_read": 200, "lds_bytes_written": 100,
}  # fmt: skip


@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are told by their suffix and not looked up in what is installed: that takes a second."""

    def recorded(launches: Sequence[dict[str, str]]) -> list[launched.Ran]:
        plain = [one["kernel"].removesuffix(".co") for one in launches]
        return [
            launched.Ran(one["kernel"], "asm" if one["kernel"].endswith(".co") else "triton", plain=name)
            for one, name in zip(launches, plain, strict=True)
        ]

    monkeypatch.setattr(pairs, "shipped_kernels", dict)
    monkeypatch.setattr(counts, "recorded", recorded)


class TestGrowth:
    @given(
        constant=st.integers(0, 10**9), work=st.integers(1, 10**6), tile=st.integers(1, 64),
        first=st.integers(65, 300), shift=st.integers(0, 63),
    )  # fmt: skip
    def test_steps_of_tiles_are_let_pass(self, constant: int, work: int, tile: int, first: int, shift: int) -> None:
        """Wherever the borders of tiles lie, whatever the constant."""
        sizes = [first * 2**step for step in range(5)]
        grown = [constant + work * ((size + shift + tile - 1) // tile) for size in sizes]
        assert growth.judge_linear(sizes, grown, tile).holds

    @given(constant=st.integers(0, 10**9), work=st.integers(0, 10**6), square=st.integers(1, 10**6))
    def test_any_square_is_told_on_whole_tiles(self, constant: int, work: int, square: int) -> None:
        """Down to one instruction for a pair of keys."""
        assert not growth.judge_linear(KEYS, [constant + work * n + square * n * n for n in KEYS]).holds

    def test_the_message(self) -> None:
        judgement = growth.judge_linear(KEYS, counts_of(lambda n: n * n), where="decode, bytes")
        assert judgement.message == (
            "decode, bytes: 512 to 1,024 adds 786,432, 64 to 128 added 12,288: at most 8 times as much is linear"
        )
        assert judgement.figure == 8.0

    @pytest.mark.parametrize("power", [0.5, 1.0, 1.5, 2.0])
    def test_exponents_leave_the_constant_out(self, power: float) -> None:
        grown = counts_of(lambda n: 10**7 + 1000 * n**power)
        assert growth.exponent(KEYS, grown) == pytest.approx(power, abs=1e-3)
        fitted = growth.fit(KEYS, grown)
        assert (fitted.exponent, fitted.constant) == (pytest.approx(power, abs=1e-2), pytest.approx(1e7, rel=1e-2))
        assert fitted.worst < 1e-3

    def test_nothing_grows(self) -> None:
        assert growth.exponent(KEYS, [7] * 5) == 0.0
        assert growth.exponent(KEYS, [7, 7, 7, 7, 8]) == float("inf")

    def test_what_a_ladder_can_tell(self) -> None:
        """Every judged ladder tells n log n; a tile as wide as the first step would hide even a square."""
        exact = growth.power(KEYS)
        assert (exact.bound, exact.quadratic) == (pytest.approx(1.0), pytest.approx(2.0))
        assert exact.n_log_n == pytest.approx(1.153, abs=1e-3)  # log2(512 (9 + 2) / (64 (6 + 2))) / 3
        assert all(growth.power(ladder.sizes).tells_n_log_n for ladder in growth_ladders.LADDERS)
        rough = growth.power(KEYS, 32)
        assert (rough.tells_n_log_n, rough.tells_quadratic) == (False, True)
        assert not growth.power(KEYS, 64).tells_quadratic

    @pytest.mark.parametrize(
        ("sizes", "grown", "tile"),
        [((1, 2), (1, 2), 0), ((1, 2, 2), (1, 2, 3), 0), (KEYS, (1, 2), 0), (KEYS, KEYS, 512)],
    )
    def test_what_cannot_be_judged(self, sizes: Sequence[int], grown: Sequence[int], tile: int) -> None:
        with pytest.raises(growth.TooFewSizes):
            growth.judge_linear(sizes, grown, tile)

    def test_what_a_ladder_adds(self) -> None:
        """One exact figure a quantity: pages that are skipped at the last size are an improvement that is not one."""
        ladder = growth_ladders.LADDERS[0]
        found = {
            case.name: Counted(case.name, (Launch("k", {"bytes": 10 * size}),), Place("emulate", "gfx950"))
            for size, case in zip(ladder.sizes, ladder.cases, strict=True)
        }
        added = {one.quantity.name: one for one in growth_ladders.added(ladder, found)}
        assert added["bytes"].values == (10.0 * (ladder.sizes[-1] - ladder.sizes[0]),)
        assert added["bytes"].case == "growth/decode/waveproof/keys 4,096-16,384"
        assert added["mfma"].values == (0.0,)

    def test_no_exponent_without_a_common_ratio(self) -> None:
        with pytest.raises(growth.TooFewSizes, match="common ratio"):
            growth.exponent((1, 2, 3), (1, 2, 3))
        with pytest.raises(growth.TooFewSizes, match="4 rising sizes"):
            growth.fit((1, 2, 4), (1, 2, 4))


class _Answering(Worker):
    """Gives one answer, or raises it."""

    def __init__(self, answer: Outcome | Exception, runtime: str = "emulate") -> None:
        super().__init__(runtime, "gfx950")
        self.answer = answer

    def call(self, *_: object) -> Outcome:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def pair_of(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """An implementation with two results."""
    return x @ x, 1


def report(*names: str) -> torch.Tensor:
    """Of a watched call: what torch did."""
    said = [{"name": name, "bytes_read": 8, "bytes_written": 2} for name in names]
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


def outcome_of(call: Call, factor: float = 1.0, **changes: Any) -> Outcome:
    attended = reference(call)
    outputs = (attended.output * factor).bfloat16(), attended.lse.float(), report("sub", "set_")
    return Outcome(
        **{"outputs": outputs, "error": None, "incidents": (), "launches": (LAUNCH,), "seconds": 0.0} | changes
    )


class TestCounts:
    case = attention("mla_decode", "sglang", 1, keys=24)

    def test_a_right_call(self) -> None:
        found = counts.count(_Answering(outcome_of(self.case.make())), self.case)
        totals = {name: found.total(name) for name in counts.EXECUTED}
        assert totals == {"wave_instructions": 800, "mfma": 80, "bytes": 4400, "lds_bytes": 300}
        assert (found.kernels, found.workgroups, found.torch_bytes) == (("some_kernel",), 3, None)
        assert 0 < found.severity <= 1
        assert {"torch", "triton", "sglang", "amd-aiter"} == found.place.versions.keys()

    def test_copies_of_padding_are_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(counts, "copies", lambda queries, heads: 1000 * queries + heads)
        case = attention("mla_decode", "waveproof", 1, keys=24)
        outcome = outcome_of(case.make())
        outputs = outcome.outputs[0], outcome.outputs[-1]
        found = counts.count(_Answering(Outcome(outputs, None, (), (LAUNCH,), 0.0)), case)
        assert found.total("bytes") == 4400 + 1012

    def test_what_torch_computes_is_named(self) -> None:
        """A product of matrices on the host has no launch; it is a fallback all the same."""
        outcome = outcome_of(self.case.make())
        outputs = *outcome.outputs[:2], report("bmm", "sub", "_softmax", "bmm")
        found = counts.count(_Answering(Outcome(outputs, None, (), (LAUNCH,), 0.0)), self.case)
        assert found.torch_roles == ("matmul", "softmax")
        assert [one.kind for one in found.ran[-2:]] == ["torch", "torch"]

    def test_a_stand_in_is_watched_itself(self) -> None:
        """And not the provider that it stands in for; of several results, all."""
        stand_in = replace(builtin_implementations()[0], load=f"{__name__}:{pair_of.__name__}")
        location = with_traffic(stand_in).load
        module, _, name = location.rpartition(":")
        one, two, said = getattr(importlib.import_module(module), name)(torch.ones(2, 2))
        assert (one.sum(), two) == (8, 1)
        assert [(done.name, done.role) for done in operations(said) if done.role] == [("mm", "matmul")]

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"factor": 1.5}, "allowed"),
            ({"launches": ()}, "launched no kernel"),
            ({"outputs": (report(),)}, "no output|nothing|missing"),
            ({"error": {"type": "ValueError", "message": "no"}}, "raised ValueError: no"),
        ],
    )
    def test_nothing_wrong_is_counted(self, changes: dict[str, Any], why: str) -> None:
        with pytest.raises(WrongResult, match=why):
            counts.count(_Answering(outcome_of(self.case.make(), **changes)), self.case)

    @pytest.mark.parametrize(
        "answer",
        [
            Outcome((), {"type": "ModuleNotFoundError", "message": "No module named 'no_such_package'"}, (), (), 0.0),
            Unsuitable("importing sglang_mla failed: ModuleNotFoundError: No module named 'no_such_package.sub'"),
        ],
        ids=["at-a-call", "at-its-import"],
    )
    def test_a_package_that_is_missing_is_named_once_and_for_all(self, answer: Outcome | Exception) -> None:
        """And not what a package that is imported by half says from then on."""
        worker = _Answering(answer)
        with pytest.raises(Unavailable, match="needs the package no_such_package, which is not installed") as first:
            counts.count(worker, self.case)
        assert first.value in worker.refusals.values()

    def test_a_module_that_an_installed_package_lacks_is_a_fault(self) -> None:
        error = {"type": "ModuleNotFoundError", "message": "No module named 'pytest.no_such_module'"}
        with pytest.raises(WrongResult, match="no_such_module"):
            counts.count(_Answering(Outcome((), error, (), (), 0.0)), self.case)

    def test_what_was_compiled(self) -> None:
        names = ("vgpr", "vgpr_spill", "scratch_bytes", "lds_bytes")
        launch = {"kernel": "k", "resources": dict(zip(names, (96, 0, 0, 512), strict=True))}
        found = counts.count(_Answering(Outcome((), None, (), (launch,), 0.0), "compile"), self.case)
        figures = {one.quantity.name: one.values[0] for one in found.measurements()}
        assert figures == {"launches": 1, "vgpr": 96, "vgpr_spill": 0, "scratch_bytes": 0, "lds_allocated": 512}

    def test_measurements(self) -> None:
        """Exact, by launch, readable again; what is 0 too, so that its baseline is asked for."""
        found = counted(DECODE, (10, 0))
        measured = tuple(found.measurements())
        assert [(one.case, one.quantity.name, one.values) for one in measured] == [
            ("mla_decode", "launches", (2,)),
            (f"mla_decode/1:{DECODE[0]}", "wave_instructions", (10.0,)),
            (f"mla_decode/2:{DECODE[1]}", "wave_instructions", (0.0,)),
        ]
        assert all(one.quantity.exact for one in measured)
        assert from_json(to_json(measured)) == measured
        with pytest.raises(BadMeasurement):
            tuple(Counted("case", (Launch("k", {"mfma": -1}),), Place("emulate")).measurements())

    def test_what_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody = CountCase("mla_decode", "nobody", "x", self.case.make)
        monkeypatch.setattr(counts, "Worker", lambda *_: _Answering(Crashed("its process ended")))
        seen: list[str] = []
        found = counts.count_all([nobody, self.case], ("gfx950",), done=seen.append)
        assert not found.counted
        assert sorted(seen) == sorted([nobody.name, self.case.name])
        assert {(str(one), one.fault) for one in found.missing} == {
            (f"{nobody.name} on emulate gfx950: nobody has no mla_decode on emulate", False),
            (f"{self.case.name} on emulate gfx950: its process ended", True),
        }

    def test_every_operator_with_machine_code_is_counted(self) -> None:
        assert len({case.name for case in CASES}) == len(CASES)
        emulated = {one.operator for one in builtin_implementations() if "emulate" in one.runtimes}
        assert emulated == {case.operator for case in CASES}


class TestGuard:
    @pytest.mark.parametrize("number", [0, 4, 7, 10], ids=lambda number: pairs.PAIRS[number].name)
    def test_pairs_are_of_the_same_requests(self, number: int) -> None:
        """The same tensors, in the form that each side takes."""
        fast, slow = pairs.PAIRS[number].make_fast(), pairs.PAIRS[number].make_slow()
        name = next(name for name in ("q", "probs", "target_logits") if name in fast.arguments)
        assert torch.equal(fast.tensor(name), slow.tensor(name))

    def test_pairs_say_what_proves_them(self) -> None:
        for pair in pairs.PAIRS:
            assert all("emulate" in one.runtimes for one in pair.implementations())
            assert launched.expectation(pair.fast_kernels).runs
            assert launched.expectation(pair.slow_kernels).runs

    def test_names_are_of_one_pair(self) -> None:
        assert len({pair.name for pair in pairs.PAIRS}) == len(pairs.PAIRS)

    def test_ruling_and_ratio(self) -> None:
        one = guarded(DECODE, FAST)
        assert one.ratio() == pytest.approx(sum(SLOW) / sum(FAST))
        measured = one.measurement()
        assert measured.quantity.exact
        assert measured.quantity.higher_is_better
        assert one.ratio("mfma") == 0.0

    def test_a_fallback_is_said_in_one_sentence(self, no_names: None) -> None:
        ruling = pairs.ruling(guarded(GENERIC, SLOW))
        assert (ruling.outcome, ruling.effect) == ("regress", 1.0)
        assert f"{launched.RAN}: " in ruling.reason
        assert "31,478 wave_instructions against 31,478 of the slow path: 1 times" in ruling.reason


class TestReport:
    @pytest.fixture
    def synthetic(self) -> dict[str, Counted]:
        """Counts along straight lines, generic twice the padded ones."""
        found = {}
        for case in growth_ladders.every_case():
            sizes = dict(part.split("=") for part in case.label.split("/"))
            keys, batch = int(sizes["keys"]), int(sizes["batch"])
            each = batch * (1000 + 10 * keys) * (1 if case.provider == "waveproof" else 2)
            figures = dict.fromkeys((*counts.EXECUTED, "multiply_adds"), each)
            found[case.name] = Counted(case.name, (Launch("k", figures, batch),), Place("emulate", "gfx950"))
        return found

    def test_tables(self, synthetic: dict[str, Counted], no_names: None) -> None:
        section = counts_tables.section("gfx950", synthetic, [guarded(DECODE, FAST)])
        query, key, batch, grown, guards = section.tables
        assert query.rows[0][:5] == ("decode, 1", "64", "1,640", "3,280", "2.00")
        assert key.rows[0][:4] == ("decode, 1", "10", "20", "2.00")
        assert len(batch.rows) == 20
        assert {row[2] for row in grown.rows} <= {"1.000 / 1.000", "1.000 / -"}
        assert {row[-2] for row in grown.rows} == {counts_tables.UNJUDGED, "linear"}
        assert len({row[:2] for row in grown.rows}) == len(grown.rows), "nothing is both judged and not"
        assert guards.rows[0][-1] == "holds"
        assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)

    def test_superlinear_is_shown(self, synthetic: dict[str, Counted]) -> None:
        name = growth_ladders.LADDERS[0].cases[-1].name
        figures = {**synthetic[name].launches[0].figures, "bytes": 10**9}
        worse = {**synthetic, name: Counted(name, (Launch("k", figures),), Place("emulate", "gfx950"))}
        table = counts_tables.growth(worse)
        assert [row[0] for row in table.rows if row[-2] == "SUPERLINEAR"] == ["decode/waveproof"]

    def test_nothing_was_counted(self) -> None:
        section = counts_tables.section("gfx950", {})
        assert not any(table.rows for table in section.tables)

    def test_what_is_missing_is_said_once(self) -> None:
        """A package that is not there is one line, and each fault one of its own."""
        absent = [NotCounted(f"decode/{n}", "emulate", "gfx950", "sglang not installed", False) for n in range(3)]
        faults = [NotCounted(f"decode/{n}", "emulate", "gfx950", "crashed", True) for n in range(2)]
        section = counts_tables.section("gfx950", {}, missing=[*absent, *faults])
        assert section.warnings == (
            "not counted, sglang not installed: 3 calls, decode/0 among them",
            "decode/0 on emulate gfx950: crashed",
            "decode/1 on emulate gfx950: crashed",
        )

    @pytest.mark.parametrize(
        ("broken", "counted", "missing", "status"),
        [(False, 9, 0, 0), (False, 9, 1, 3), (True, 9, 1, 1), (False, 0, 9, 2), (True, 0, 9, 1)],
    )
    def test_exit_status(self, broken: bool, counted: int, missing: int, status: int) -> None:
        """What could not be counted is not green."""
        assert exit_status(broken, counted, missing) == status

    def test_picture(self, synthetic: dict[str, Counted]) -> None:
        picture = growth_picture("gfx950", synthetic)
        assert picture.png.startswith(b"\x89PNG")
        assert "decode, padded assembly, bytes: 1,640 to 11,240 a query token, exponent of increments 1.00" in (
            picture.caption
        )


def test_documents_hold_no_infinity() -> None:
    assert json.loads(to_json([guarded(DECODE, FAST).measurement()]))["schema"] == 1
