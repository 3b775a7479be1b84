"""The figures on trial: what is counted, what an interval covers, and that nothing wrong is measured."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from waveproof.golden.judges.tolerance import judge_distribution
from waveproof.golden.references.renorm import reference
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.memory import Incident
from waveproof.kernels.runtimes.process import Outcome, Worker
from waveproof.perf import figures_renorm, host_traffic, measure, renorm_forms, tables_renorm
from waveproof.perf.figures_renorm import Figures, WrongResult
from waveproof.perf.intervals import TooFewRepeats, median_interval
from waveproof.reports.cli import app

V = 300
ROWS = 2


@pytest.fixture(scope="module")
def figures() -> Figures:
    if find_spec("triton") is None or find_spec("sglang") is None:
        pytest.skip("triton and sglang are not both installed")
    return figures_renorm.measure(V, ROWS, 6)


class TestIntervals:
    def test_known_order_statistics(self) -> None:
        """Six values: 1 - 2/2^6. Nine: the second of each end, 1 - 2 (1 + 9)/2^9 = 0.961; the third would be 0.82."""
        six = median_interval([3, 1, 2, 6, 5, 4])
        assert (six.median, six.low, six.high, six.coverage) == (3.5, 1, 6, 1 - 2 / 64)
        nine = median_interval(range(9))
        assert (nine.median, nine.low, nine.high) == (4, 1, 7)
        assert nine.coverage == pytest.approx(1 - 20 / 512)

    def test_it_covers_as_often_as_it_says(self) -> None:
        """10,000 samples of a skewed law; six standard errors of 0.961 are 0.012."""
        samples = torch.empty(10_000, 9).exponential_(generator=torch.Generator().manual_seed(0))
        intervals = [median_interval(sample) for sample in samples.tolist()]
        covered = sum(one.low <= 0.693147 <= one.high for one in intervals) / len(intervals)
        assert covered == pytest.approx(1 - 20 / 512, abs=0.012)

    def test_too_few(self) -> None:
        with pytest.raises(TooFewRepeats, match="5 repeats"):
            median_interval([1.0] * 5)

    def test_forms_take_turns(self) -> None:
        order: list[str] = []
        forms: dict[str, Callable[[], object]] = {name: partial(order.append, name) for name in "abc"}
        seconds = measure.interleaved_seconds(forms, 3)
        assert "".join(order) == "abc" + "abc" + "bca" + "cab"
        assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 3}

    def test_ratios_are_paired(self) -> None:
        assert measure.paired_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


class TestHostTraffic:
    @staticmethod
    def seen(run: Callable[[torch.Tensor], object]) -> list[tuple[str, int, int]]:
        probs = torch.rand(2, 100)
        with host_traffic.HostTraffic() as traffic:
            run(probs)
        return [(one.name, one.bytes_read, one.bytes_written) for one in traffic.operations]

    @pytest.mark.parametrize(
        ("run", "expected"),
        [
            (lambda x: x.sum(1), [("sum", 800, 8)]),
            (lambda x: torch.sort(x, -1), [("sort", 800, 800 + 1600)]),
            (lambda x: x.mul_(2.0), [("mul_", 800, 800)]),
            (lambda x: x.copy_(x[0].clone()), [("clone", 400, 400), ("copy_", 400, 800)]),
            (lambda x: x.zero_(), [("zero_", 0, 800)]),
            (lambda x: x / x.sum(1, keepdim=True).expand(2, 100), [("sum", 800, 8), ("div", 808, 800)]),
            (lambda x: x.gather(1, torch.tensor([[3], [5]])), [("gather", 8 + 16, 8)]),
            (
                lambda x: torch.searchsorted(x, torch.zeros(2, 1)),
                [("zeros", 0, 8), ("searchsorted", 2 * 7 * 4 + 8, 16)],
            ),
            (lambda x: torch.empty_like(x).view(-1)[3:], []),
        ],
    )
    def test_bytes(self, run: Callable[[torch.Tensor], object], expected: list[tuple[str, int, int]]) -> None:
        seen = [one for one in self.seen(run) if one[0] not in ("lift_fresh", "_to_copy", "detach")]
        assert seen == expected

    def test_an_unknown_name_is_none(self) -> None:
        assert getattr(host_traffic, "nobody.top_k_renorm_prob", None) is None


@pytest.mark.parametrize("top_k", [5, torch.tensor([1, 300, 7, 64])], ids=["one", "per row"])
def test_the_forms_conform(top_k: int | torch.Tensor) -> None:
    probs = torch.softmax(2 * torch.randn(4, V, generator=torch.Generator().manual_seed(1)), -1)
    call = Call("top_k_renorm_prob", {"probs": probs, "top_k": top_k})
    for name, form in renorm_forms.FORMS.items():
        for judgement in judge_distribution(form(probs, top_k), reference(call, "threshold"), call):
            assert judgement.holds, (name, judgement)


class TestMeasured:
    def test_nothing_is_missing(self, figures: Figures) -> None:
        assert figures.notes == ()
        assert len(figures.traffic) == 6 * len(figures_renorm.KINDS)
        assert len(figures.timings) == 6

    def test_our_kernel(self, figures: Figures) -> None:
        """At V = 300 a lane has one column, so the survey settles every row: two reads and a write, and the limit."""
        ours = self.of("waveproof", figures.traffic)
        assert len(ours) == 2 * len(figures_renorm.KINDS)
        for one in ours:
            assert one.kernels == ("renorm_kernel",)
            assert one.kernel_bytes == (2 * 4 * V + 4, 4 * V), one
            assert one.host_bytes == (0, 0)

    def test_sglangs_kernels(self, figures: Figures) -> None:
        """One chunk: the row and a pivot in, the row and a partial sum out; then the row with its sum in, and out."""
        for one in self.of("sglang", figures.traffic):
            assert one.kernels == ("_mask_and_partial_sum_kernel", "_normalize_kernel")
            assert one.kernel_bytes == (4 * V + 4 + 8 * V, 4 * V + 4 + 4 * V)
            sort = [operation for operation in one.host if operation.name == "sort"]
            assert sort == [host_traffic.Operation("sort", 4 * V, 12 * V)]

    def test_plain_torch(self, figures: Figures) -> None:
        for one in self.of("torch", figures.traffic):
            assert one.kernels == ()
            assert one.kernel_bytes == (0, 0)
            assert {"sort", "topk"} & {operation.name for operation in one.host}

    def test_all_see_the_same_rows(self, figures: Figures) -> None:
        kept: dict[tuple[str, str], set[int]] = {}
        for one in figures.traffic:
            kept.setdefault((one.subject.implementation.operator, one.kind), set()).add(one.kept)
        assert kept.pop(("top_k_renorm_prob", "quantised")).pop() >= figures_renorm.TOP_K
        assert all(len(counts) == 1 for counts in kept.values()), kept

    def test_compiled(self, figures: Figures) -> None:
        for arch in ARCHES:
            there = [one for one in figures.compiled if one.subject.arch == arch]
            ours = self.of("waveproof", there)
            assert [(one.kernel, one.grid) for one in ours] == [("renorm_kernel", (ROWS, 1, 1))] * 2
            assert len(self.of("sglang", there)) == 4
            assert all(one.resources.vgpr > 0 and one.resources.vgpr_spill == 0 for one in there)

    def test_tables_hold_every_figure(self, figures: Figures) -> None:
        console = Console(width=240, record=True, file=io.StringIO())
        for table in tables_renorm.tables(figures):
            console.print(table)
        text = console.export_text()
        for one in figures.compiled:
            assert one.kernel in text
        for timing in figures.timings:
            assert f"{timing.seconds.median * 1e3:.1f}" in text
        lines = [line for line in text.splitlines() if "waveproof" in line and "renorm_kernel" not in line]
        assert all(" 8.0 " in line and " 4.0 " in line for line in lines), lines

    @staticmethod
    def of(provider: str, figures: Any) -> list[Any]:
        return [one for one in figures if one.subject.implementation.provider == provider]


class _Answering(Worker):
    """A worker that gives one answer, whatever it is asked."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("interpret", "")
        self.outcome = outcome

    def call(self, *_: object) -> Outcome:
        return self.outcome


class TestNothingWrongIsMeasured:
    @pytest.fixture
    def right(self) -> Outcome:
        subject = figures_renorm.renorm_subjects("interpret")[0]
        probs = figures_renorm.make_rows(["softmax"], V, figures_renorm.SEED)
        output = renorm_forms.by_topk(probs, figures_renorm.TOP_K)
        outcome = Outcome((output, torch.tensor(list(b"[]"), dtype=torch.uint8)), None, (), (), 0.0)
        assert figures_renorm.traffic_of(_Answering(outcome), subject, "softmax", V).kept == figures_renorm.TOP_K
        return outcome

    @pytest.mark.parametrize("fault", ["zeros", "raised", "damage"])
    def test_in_a_worker(self, right: Outcome, fault: str) -> None:
        subject = figures_renorm.renorm_subjects("interpret")[0]
        wrong = {
            "zeros": replace(right, outputs=(torch.zeros(1, V), right.outputs[1])),
            "raised": replace(right, error={"type": "OSError", "message": "planted"}),
            "damage": replace(right, incidents=(Incident("out-of-bounds", "allocation 0", -1, "planted"),)),
        }
        with pytest.raises(WrongResult, match=subject.id):
            figures_renorm.traffic_of(_Answering(wrong[fault]), subject, "softmax", V)

    def test_without_a_launch(self, right: Outcome) -> None:
        subject = figures_renorm.renorm_subjects("compile", "gfx942")[0]
        with pytest.raises(WrongResult, match="launched no kernel"):
            figures_renorm.compiled_for(_Answering(right), subject, V, ROWS)

    def test_a_timed_form(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures_renorm, "FORMS", {"identity": lambda probs, top_k: probs})
        with pytest.raises(WrongResult, match="identity with k = 50"):
            list(figures_renorm.time_forms(V, ROWS, 6))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waveproof.kernels.providers.registry.installed", lambda package: False)
    found, notes = figures_renorm.figures_at("compile", "gfx950", V, ROWS)
    assert found == []
    assert notes == [
        f"{operator}-{provider}-compile-gfx950: {missing} not installed"
        for operator in figures_renorm.OPERATORS
        for provider, missing in (("waveproof", "triton"), ("sglang", "sglang, triton"))
    ]


class TestCommand:
    @staticmethod
    def run(*arguments: str) -> Any:
        environment = {"COLUMNS": "200", "NO_COLOR": "1"}
        return CliRunner().invoke(app, ["figures", "renorm", *arguments], env=environment)

    def test_too_few_repeats_are_refused_at_once(self) -> None:
        result = self.run("--repeats", "5")
        assert result.exit_code == 2
        assert "5 repeats" in result.stderr

    def test_where_no_kernel_could_be_looked_at(self, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
        torch_only = tuple(one for one in figures.traffic if not one.kernels)
        without = replace(figures, traffic=torch_only, compiled=(), notes=("all of it: planted",))
        monkeypatch.setattr(figures_renorm, "measure", lambda *_: without)
        result = self.run()
        assert result.exit_code == 1, result.output
        assert "not measured: all of it: planted" in result.output
        assert "no kernel could be looked at" in result.stderr

    def test_tables_are_shown(self, figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[int, int, int]] = []

        def measured(*sizes: int) -> Figures:
            asked.append(sizes)  # type: ignore[arg-type]
            return figures

        monkeypatch.setattr(figures_renorm, "measure", measured)
        result = self.run("--vocab-size", "300", "--rows", "2", "--repeats", "6")
        assert result.exit_code == 0, result.output
        assert asked == [(300, 2, 6)]
        for word in ("Bytes per element", "Compiled ahead of time", "On this CPU", "_normalize_kernel"):
            assert word in result.output
