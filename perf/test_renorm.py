"""What the ``renorm`` kernels cost: times of the torch forms on the CPU, and counts that need no clock.

The counts guard what :mod:`waveproof.kernels.own.renorm` says of itself. Nothing here is a time on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from waveproof.fixtures.inspection import unavailable
from waveproof.fixtures.strategies.renorm import make_rows
from waveproof.kernels.providers.registry import Subject
from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.process import Worker
from waveproof.perf.figures_renorm import SEED, compiled_for, renorm_subjects, traffic_of
from waveproof.perf.renorm_forms import FORMS

pytestmark = [pytest.mark.rocm, pytest.mark.perf]

BENCHMARK_ROWS = 8
SERVED_VOCABULARY = 151_936
"""Qwen 2.5 and 3, ``config.json``."""

LANES_COVER = 4096
"""The largest vocabulary of which each lane sees one column, so that no lane can hold four kept values."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("per_row", [False, True], ids=["one-k", "k-per-row"])
def test_top_k_on_the_cpu(benchmark: BenchmarkFixture, form: str, per_row: bool) -> None:
    """The torch provider, and what it is to be compared with; each result keeps as many values as were asked for."""
    probs = make_rows(["softmax"] * BENCHMARK_ROWS, SERVED_VOCABULARY, SEED)
    limit = torch.arange(1, 100, 99 // BENCHMARK_ROWS)[:BENCHMARK_ROWS] if per_row else 50
    renormed = benchmark.pedantic(FORMS[form], (probs, limit), rounds=5, warmup_rounds=1)
    kept = (renormed > 0).sum(-1)
    assert torch.equal(kept, torch.as_tensor(limit).expand(BENCHMARK_ROWS))


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Worker]:
    """One process for all that is interpreted."""
    worker = Worker("interpret", "")
    yield worker
    worker.close()


def subject_of(provider: str, operator: str, runtime: str, arch: str = "") -> Subject:
    """The subject, or a skip that says why it cannot run here."""
    (subject,) = (
        subject
        for subject in renorm_subjects(runtime, arch)
        if (subject.implementation.provider, subject.implementation.operator) == (provider, operator)
    )
    if reason := subject.why_unavailable():
        unavailable(reason)
    return subject


def most_reads(kept: int) -> int:
    """Reads that :mod:`waveproof.kernels.own.renorm`, "Reads of the row", promises where so many values are kept."""
    from waveproof.kernels.own.renorm import MAX_READS

    if kept < 10_000:
        return 4
    return 7 if kept < 100_000 else MAX_READS


@pytest.mark.parametrize("operator", ["top_k_renorm_prob", "top_p_renorm_prob"])
class TestTraffic:
    """Launches and bytes, counted in Triton's interpreter."""

    @pytest.mark.parametrize("kind", ["peaked", "softmax", "flat", "quantised"])
    def test_ours_is_one_launch_and_bounded_reads(self, interpreter: Worker, operator: str, kind: str) -> None:
        """And no torch operation, so no sort, besides the allocation of the output."""
        subject = subject_of("waveproof", operator, "interpret")
        moved = traffic_of(interpreter, subject, kind, SERVED_VOCABULARY)
        assert moved.kernels == ("renorm_kernel",)
        assert moved.host == ()
        assert 2 <= moved.reads_of_the_row < most_reads(moved.kept) + 0.01  # the limit is read too: 4 bytes
        assert moved.kernel_bytes[1] == 4 * SERVED_VOCABULARY

    @pytest.mark.parametrize("kind", ["peaked", "softmax", "flat", "quantised", "equal", "wide"])
    def test_ours_reads_twice_where_no_lane_holds_four(self, interpreter: Worker, operator: str, kind: str) -> None:
        """A lane has one column here, so the survey settles every row."""
        moved = traffic_of(interpreter, subject_of("waveproof", operator, "interpret"), kind, LANES_COVER)
        assert round(moved.reads_of_the_row, 2) == 2.0

    def test_sglangs_is_two_launches_after_a_sort(self, interpreter: Worker, operator: str) -> None:
        """So that a figure on our kernel is compared with what upstream does today."""
        moved = traffic_of(interpreter, subject_of("sglang", operator, "interpret"), "softmax", SERVED_VOCABULARY)
        assert moved.kernels == ("_mask_and_partial_sum_kernel", "_normalize_kernel")
        assert "sort" in {operation.name for operation in moved.host}


@pytest.fixture(scope="module")
def compilers() -> Iterator[dict[str, Worker]]:
    """One process for each architecture."""
    workers = {arch: Worker("compile", arch) for arch in ARCHES}
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("operator", ["top_k_renorm_prob", "top_p_renorm_prob"])
def test_ours_spills_nothing(compilers: dict[str, Worker], operator: str, arch: str) -> None:
    """One launch, registers only, and few enough that all waves of a workgroup fit on a compute unit's four SIMDs."""
    subject = subject_of("waveproof", operator, "compile", arch)
    (kernel,) = compiled_for(compilers[arch], subject, SERVED_VOCABULARY, 64)
    assert (kernel.kernel, kernel.grid) == ("renorm_kernel", (64, 1, 1))
    taken = kernel.resources
    assert (taken.vgpr_spill, taken.sgpr_spill, taken.scratch_bytes) == (0, 0, 0)
    assert 4 * taken.waves_per_simd >= kernel.num_warps
