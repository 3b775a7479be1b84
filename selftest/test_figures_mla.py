"""The figures on latent attention on trial: what is counted and compared, and that nothing wrong is."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from waveproof.fixtures.strategies.mla import SPARE_PAGES
from waveproof.golden.references.mla import reference
from waveproof.kernels.providers.registry import Subject, builtin_implementations
from waveproof.kernels.runtimes.catalogue import why_unavailable
from waveproof.kernels.runtimes.memory import Incident
from waveproof.kernels.runtimes.process import Outcome, Worker
from waveproof.perf import figures_mla, tables_mla
from waveproof.perf.attention_phases import PHASES, Candidate, Phase, takers
from waveproof.perf.figures_mla import Compiled, Executed, Figures, Work, WrongResult
from waveproof.perf.kernel_code import Code, compiled_code, mnemonics, shipped_code
from waveproof.reports.cli import app

ARCH = "gfx950"
DECODE, VERIFY, PREFILL = PHASES
LAUNCH: dict[str, Any] = {
    "kernel": "some_kernel",
    "workgroups": 3,
    "wave_instructions": 800,
    "mfma": 80,
    "multiply_adds": 4096 * 80,
    "bytes_read": 4000,
    "bytes_written": 400,
    "lds_bytes_read": 200,
    "lds_bytes_written": 100,
}


def candidate(phase: Phase, provider: str) -> Candidate:
    return next(one for one in phase.candidates if one.provider == provider)


def subject(phase: Phase, provider: str, runtime: str = "emulate") -> Subject:
    operator = candidate(phase, provider).operator
    (found,) = (one for one in builtin_implementations() if (one.operator, one.provider) == (operator, provider))
    return Subject(found, runtime, ARCH)


def executed(phase: Phase, provider: str, heads: int, scale: float, keys: int = 96, copied: float = 0.0) -> Executed:
    work = Work(*(scale * factor for factor in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)))
    return Executed(
        subject(phase, provider), phase, 1, heads, keys, ("some_kernel",), 1, replace(work, copied=copied), 0.25
    )


class TestWhatIsCounted:
    @pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
    def test_what_the_definition_needs(self, phase: Phase) -> None:
        """Pairs of a query and a key, counted one by one; 576 products of a score, 512 of an output."""
        keys = 40
        pairs = sum(key <= query + keys - phase.queries for query in range(phase.queries) for key in range(keys))
        assert phase.needed(5, keys) == 5 * pairs * (576 + 512)

    @pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
    def test_all_operators_of_a_phase_are_asked_the_same(self, phase: Phase) -> None:
        """As many queries on as many keys, whether the new tokens are in the cache or beside it."""
        for one in phase.candidates:
            arguments = phase.case(one, 12, 40).call(one.operator).arguments
            pages, last = arguments["kv_indices"], arguments["kv_last_page_len"]
            assert isinstance(pages, torch.Tensor)
            assert isinstance(last, torch.Tensor)
            new = arguments.get("kv_new", pages[:0])
            for tensor, length in (("q", phase.queries), ("kv_cache", len(pages) + SPARE_PAGES)):
                assert len(arguments[tensor]) == length  # type: ignore[arg-type]
            cached = (len(pages) - 1) * one.page_size + int(last)
            assert cached + len(new) == 40  # type: ignore[arg-type]

    def test_launches_are_summed_and_shared_by_queries(self) -> None:
        work = figures_mla.work_of([LAUNCH, {**LAUNCH, "mfma": 0}], 4, copied=88)
        assert work == Work(400.0, 20.0, 2 * 4096 * 20.0, 2000.0, 200.0, 100.0, 50.0, 22.0)
        assert (work.bytes, work.lds_bytes) == (2222.0, 150.0)

    def test_copies_of_padding(self) -> None:
        """12 heads of 576 read and written, 4 written; 12 of 512 read and written: bf16. The fill reads its zero."""
        assert figures_mla.copies(3, 12) == pytest.approx(3 * 2 * (28 * 576 + 24 * 512), abs=2)

    def test_difference(self) -> None:
        short, long = executed(DECODE, "sglang", 12, 1.0).work, executed(DECODE, "sglang", 12, 3.0, copied=5.0).work
        assert long - short == replace(executed(DECODE, "sglang", 12, 2.0).work, copied=5.0)


class TestWhoIsMeasured:
    @staticmethod
    def providers(phase: Phase, heads: int, runtime: str = "emulate") -> list[str]:
        return [one.provider for one, _ in takers(phase, heads, runtime, ARCH)]

    def test_padded_or_native(self) -> None:
        for phase in PHASES:
            assert {"waveproof", "aiter", "aiter_sparse"} & {*self.providers(phase, 12)} == {"waveproof"}
            assert {"waveproof", "aiter", "aiter_sparse"} & {*self.providers(phase, 16)} == {"aiter", "aiter_sparse"}

    def test_generic(self) -> None:
        assert self.providers(DECODE, 12)[1:] == ["sglang", "aiter_triton"]
        assert self.providers(VERIFY, 12)[1:] == ["sglang_verify", "sglang_verify_shared", "aiter_triton"]
        assert self.providers(PREFILL, 12)[1:] == ["sglang", "aiter_triton"]

    def test_assembly_is_not_compiled(self) -> None:
        for phase in PHASES:
            assert not {"waveproof", "aiter"} & {*self.providers(phase, 16, "compile")}

    def test_what_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("waveproof.kernels.providers.registry.installed", lambda package: False)
        found, notes = figures_mla.figures_at("compile", ARCH, 96, False)
        assert found == []
        missing = "sglang, triton not installed (decode of 12 heads, decode of 16 heads)"
        assert f"mla_decode-sglang-compile-gfx950: {missing}" in notes
        taken = [takers(phase, heads, "compile", ARCH) for phase in PHASES for heads in (12, 16)]
        assert len(notes) == len({subject.id for found in taken for _, subject in found})


class TestComparisons:
    def test_ratios(self) -> None:
        calls = [
            executed(PREFILL, "waveproof", 12, 1.0, copied=90.0),
            executed(PREFILL, "waveproof", 12, 3.0, keys=512, copied=90.0),
            executed(PREFILL, "waveproof", 12, 5.0, keys=1024, copied=90.0),
            executed(PREFILL, "sglang", 12, 2.0),
            executed(PREFILL, "sglang", 12, 10.0, keys=512),
            executed(PREFILL, "sglang", 12, 18.0, keys=1024),
            executed(PREFILL, "sglang", 16, 7.0),
        ]
        (one,) = figures_mla.comparisons(calls, 96)
        assert (one.generic, one.padded) == (calls[3], calls[0])
        # The copies stand on the padded side, and further keys add none.
        assert one.whole == {
            "wave_instructions": 2.0, "mfma": 2.0, "multiply_adds": 2.0, "bytes": 1.0, "lds_bytes": 2.0
        }  # fmt: skip
        assert one.further == dict.fromkeys(figures_mla.MEASURES, 4.0)

    @pytest.mark.parametrize("missing", [("waveproof", 1024), ("waveproof", 2048), ("sglang", 1024), ("sglang", 2048)])
    def test_nothing_is_said_of_further_keys_without_all_four(self, missing: tuple[str, int]) -> None:
        calls = [
            executed(DECODE, provider, 12, keys / 96, keys=keys)
            for provider in ("waveproof", "sglang")
            for keys in (96, *DECODE.long)
            if (provider, keys) != missing
        ]
        (one,) = figures_mla.comparisons(calls, 96)
        assert one.whole["mfma"] == 1.0
        assert one.further is None

    def test_nothing_to_compare_with(self) -> None:
        assert not list(figures_mla.comparisons([executed(DECODE, "sglang", 12, 1.0)], 96))
        assert not list(figures_mla.paddings([executed(DECODE, "waveproof", 12, 1.0)]))
        other = executed(VERIFY, "aiter", 16, 1.0)
        assert not list(figures_mla.paddings([executed(DECODE, "waveproof", 12, 1.0), other]))

    def test_no_ratio_to_nothing(self) -> None:
        work = executed(DECODE, "sglang", 12, 1.0).work
        assert figures_mla.ratios(work, replace(work, mfma=0.0))["mfma"] is None

    def test_the_overhead_of_padding(self) -> None:
        """The same work for 12 heads as for 16: a third more for each that is needed."""
        (one,) = figures_mla.paddings(
            [executed(DECODE, "aiter", 16, 1.0), executed(DECODE, "waveproof", 12, 1.0, copied=7.0)]
        )
        assert one.overhead == pytest.approx(16 / 12)
        assert one.same == dict.fromkeys(figures_mla.MEASURES, 1.0)


class _Answering(Worker):
    """A worker that gives one answer, whatever it is asked."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("emulate", ARCH)
        self.outcome = outcome

    def call(self, *_: object) -> Outcome:
        return self.outcome


class TestNothingWrongIsMeasured:
    @pytest.fixture
    def right(self) -> Outcome:
        attended = reference(VERIFY.case(candidate(VERIFY, "sglang_verify"), 12, 40).call("mla_decode"))
        outputs = attended.output.bfloat16(), attended.lse.float()
        outcome = Outcome(outputs, None, (), (LAUNCH,), 0.0)
        one = self.measured(outcome)
        assert one.work == figures_mla.work_of([LAUNCH], VERIFY.queries)
        assert (one.kernels, one.workgroups) == (("some_kernel",), 3)
        assert 0 < one.severity <= 1
        return outcome

    @staticmethod
    def measured(outcome: Outcome) -> Executed:
        worker, provider = _Answering(outcome), "sglang_verify"
        return figures_mla.executed_by(worker, subject(VERIFY, provider), VERIFY, candidate(VERIFY, provider), 12, 40)

    WRONG: ClassVar[dict[str, tuple[str, Callable[[Outcome], Outcome]]]] = {
        "zeros": (
            "of 24576 elements",
            lambda right: replace(right, outputs=(torch.zeros_like(right.outputs[0]), right.outputs[1])),
        ),
        "dead head": (
            "of 24576 elements",
            lambda right: replace(right, outputs=(_without_head(right.outputs[0]), right.outputs[1])),
        ),
        "LSE to base 2": (
            "48 of 48 elements",
            lambda right: replace(right, outputs=(right.outputs[0], right.outputs[1] * 1.4427)),
        ),
        "no LSE": ("returned nothing", lambda right: replace(right, outputs=right.outputs[:1])),
        "float32": (
            "returned float32",
            lambda right: replace(right, outputs=(right.outputs[0].float(), right.outputs[1])),
        ),
        "raised": (
            "raised OSError: planted",
            lambda right: replace(right, error={"type": "OSError", "message": "planted"}),
        ),
        "damage": (
            "out-of-bounds: planted",
            lambda right: replace(right, incidents=(Incident("out-of-bounds", "allocation 0", -1, "planted"),)),
        ),
        "no launch": ("launched no kernel", lambda right: replace(right, launches=())),
    }

    @pytest.mark.parametrize("fault", WRONG)
    def test_on_the_emulated_device(self, right: Outcome, fault: str) -> None:
        message, plant = self.WRONG[fault]
        with pytest.raises(WrongResult, match=message):
            self.measured(plant(right))

    def test_in_the_compiler(self) -> None:
        nothing = Outcome((), None, (), (), 0.0)
        with pytest.raises(WrongResult, match="launched no kernel"):
            figures_mla.compiled_for(
                _Answering(nothing), subject(DECODE, "sglang", "compile"), DECODE, candidate(DECODE, "sglang"), 12, 40
            )


def _without_head(output: torch.Tensor) -> torch.Tensor:
    output = output.clone()
    output[:, 11] = 0.0
    return output


CODE = Code("some_kernel", 128, 64, 5, 16, 4096, 9, 4)


class TestCode:
    def test_of_a_compiled_launch(self) -> None:
        resources = {one.name: getattr(CODE, one.name) for one in fields(Code) if one.name != "kernel"}
        assert compiled_code({"kernel": "some_kernel", "resources": {**resources, "sgpr": 1}}) == CODE

    def test_triton_kernels_are_not_shipped(self) -> None:
        assert shipped_code(ARCH, "_fwd_kernel_stage2_asm") is None

    @pytest.mark.skipif(bool(why_unavailable("emulate")), reason="nothing decodes machine code here")
    def test_words_that_are_no_instructions_are_passed_over(self) -> None:
        from waveproof.kernels.runtimes.emulate.loader import CodeObject

        # s_nop, a word of no format, s_endpgm
        text = b"".join(word.to_bytes(4, "little") for word in (0xBF800000, 0xFFFFFFFF, 0xBF810000))
        assert mnemonics(CodeObject(ARCH, text, (0, len(text)), {})) == ["S_NOP", "S_ENDPGM"]

    @pytest.mark.skipif(bool(why_unavailable("emulate")), reason="nothing knows matrix instructions here")
    def test_multiply_adds(self) -> None:
        """Rows x columns x depth, as the mnemonic spells them."""
        from waveproof.kernels.runtimes.emulate.isa import mfma

        assert mfma.multiply_adds("V_MFMA_F32_32X32X8_BF16") == 32 * 32 * 8
        assert mfma.multiply_adds("V_MFMA_SCALE_F32_16X16X128_F8F6F4") == 16 * 16 * 128
        assert mfma.multiply_adds("V_FMA_F32") == 0


@pytest.fixture
def figures() -> Figures:
    calls = (
        executed(DECODE, "waveproof", 12, 1.0, copied=123.0),
        executed(DECODE, "waveproof", 12, 2.0, keys=1024),
        executed(DECODE, "waveproof", 12, 3.0, keys=2048),
        executed(DECODE, "aiter", 16, 1.0),
        executed(DECODE, "sglang", 12, 2.0),
        executed(DECODE, "sglang", 12, 9.0, keys=1024),
        executed(DECODE, "sglang", 12, 16.0, keys=2048),
    )
    compiled = tuple(Compiled(one.subject, DECODE, one.page_size, one.heads, CODE) for one in calls)
    return Figures((ARCH,), 96, calls, compiled, ("one of them: planted",))


def test_tables_hold_every_figure(figures: Figures) -> None:
    console = Console(width=240, record=True, file=io.StringIO())
    for table in tables_mla.tables(figures):
        console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()]
    taken = ["128", "64", "5", "16", "4,096", "9", "4"]
    assert ["sglang", "some_kernel", "decode", "12", *taken] in rows
    counted = ["1", "1", "20", "40", "60", "0.00", "80", "100", "0", "120", "140", "0.25"]
    assert ["decode,", "1", "12", "sglang", *counted] in rows
    assert ["decode", "sglang", "all", "96", "keys", "2.00", "2.00", "2.00", "0.85", "2.00", "1.33"] in rows
    assert ["further", "keys,", "1,024", "to", "2,048", *["7.00"] * 5] in rows
    assert sum(row[:3] == ["decode,", "1", "12"] for row in rows) == 2, "a longer call is no row of its own"


class TestCommand:
    @staticmethod
    def run(*arguments: str) -> Any:
        environment = {"COLUMNS": "220", "NO_COLOR": "1"}
        return CliRunner().invoke(app, ["figures", "mla", *arguments], env=environment)

    def test_an_unknown_arch_is_refused_at_once(self) -> None:
        result = self.run("--arch", "gfx90a")
        assert result.exit_code == 2
        assert "gfx90a" in result.stderr

    def test_tables_and_notes_are_shown(self, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[object, ...]] = []

        def measured(*of: object) -> Figures:
            asked.append(of)
            return figures

        monkeypatch.setattr(figures_mla, "measure", measured)
        result = self.run("--arch", "gfx942", "--arch", ARCH, "--arch", ARCH, "--keys", "64", "--no-further")
        assert result.exit_code == 0, result.output
        assert self.run().exit_code == 0
        assert asked == [(("gfx942", ARCH), 64, False), ((ARCH,), 96, True)]
        for words in ("12 heads in generic Triton", "12 heads padded to 16", "not measured: one of them: planted"):
            assert words in result.output

    def test_where_no_kernel_could_be_executed(self, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures_mla, "measure", lambda *_: replace(figures, executed=()))
        result = self.run()
        assert result.exit_code == 1, result.output
        assert "no kernel could be executed" in result.stderr


@pytest.fixture
def worker() -> Iterator[Worker]:
    if reason := subject(DECODE, "aiter").why_unavailable():
        pytest.skip(reason)
    worker = Worker("emulate", ARCH)
    yield worker
    worker.close()


class TestEmulated:
    def test_twelve_padded_heads_cost_what_sixteen_do(self, worker: Worker) -> None:
        """The same code objects, launches and counts; the object's registers and MFMA are read from what is shipped."""
        padded, native = (
            figures_mla.executed_by(worker, subject(DECODE, provider), DECODE, candidate(DECODE, provider), heads, 40)
            for provider, heads in (("waveproof", 12), ("aiter", 16))
        )
        (one,) = figures_mla.paddings([padded, native])
        assert one.same == dict.fromkeys(figures_mla.MEASURES, 1.0)
        assert one.overhead == pytest.approx(16 / 12)
        assert padded.kernels == native.kernels
        assert padded.work.copied > 0 == native.work.copied
        assert native.of_needed >= 1, "fewer multiply-adds than the definition has"
        (shipped,) = figures_mla.shipped_of([native])
        assert shipped.code.kernel in native.kernels
        assert (shipped.code.vgpr_spill, shipped.code.scratch_bytes) == (None, 0)
        assert 0 < shipped.code.agpr < shipped.code.vgpr <= 512
        assert shipped.code.mfma > 0
