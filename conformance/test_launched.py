"""Which kernels compute an operator: those that the implementation states, and no other in their place.

A silent fallback answers rightly and slowly, so no comparison of results finds it. On runtimes that record launches
the names alone are judged; on a GPU also that nothing was built while it was called, that the profiler has all
launches, and that the call took as long as its bytes take.
"""

from __future__ import annotations

import pytest

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.inspection import unavailable
from waveproof.fixtures.launched.names import shipped_kernels
from waveproof.fixtures.launched.proof import RuntimeMissing, judge_proof, prove
from waveproof.fixtures.launched.trace import recorded
from waveproof.fixtures.strategies.mla import AttentionCase, fitted
from waveproof.fixtures.strategies.smallest import smallest_call
from waveproof.golden.judges.launched import expectation, judge_ran
from waveproof.golden.judges.relations import judge_launched, judge_returned
from waveproof.kernels.operators.contract import Call

pytestmark = pytest.mark.rocm

OPERATORS = (
    "mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill", "merge_state", "top_k_renorm_prob",
    "top_p_renorm_prob", "target_probs", "chain_verify", "accept_sampling", "seeded_chain_verify",
    "tree_verify_greedy",
)  # fmt: skip


def hold_launches(bench: Bench) -> None:
    """One call, and what it launched, against what the implementation states."""
    implementation = bench.subject.implementation
    call = smallest_call(bench.subject, bench.path)
    outcome = bench.run(call)
    bench.hold(judge_returned(outcome.error, call))
    if not implementation.runs_as:
        if not implementation.launches:
            unavailable(f"{bench.subject.id} does not state which kernels compute it, and may have none")
        bench.hold(judge_launched(outcome.launches, call))
        return
    ran, stated = recorded(outcome.launches), expectation(implementation.runs_as)
    for judgement in judge_ran(ran, stated, bench.subject.arch, bool(shipped_kernels()), bench.id):
        bench.hold(judgement)


@pytest.mark.slow
@pytest.mark.operator("mla_decode", "mla_prefill_absorbed", pace="fast", runtimes=("emulate", "hip", "cuda"))
def test_assembly_runs_as_stated(bench: Bench) -> None:
    """AITER's code objects, called by AITER's host code: in milliseconds on the emulated device."""
    hold_launches(bench)


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.operator(*OPERATORS, pace="slow", runtimes=("interpret", "emulate"))
def test_kernels_run_as_stated(bench: Bench) -> None:
    """Triton kernels, launched by their own host code."""
    hold_launches(bench)


@pytest.mark.slow
@pytest.mark.operator(*OPERATORS, runtimes=("compile",))
def test_kernels_are_compiled_as_stated(bench: Bench) -> None:
    """Where nothing is executed: what the host code would launch."""
    hold_launches(bench)


@pytest.mark.slow
@pytest.mark.operator(*OPERATORS, runtimes=("hip", "cuda"))
def test_proof_on_a_gpu(bench: Bench) -> None:
    """After a warm-up, under the profiler, in a process of its own."""
    hold_proof(bench, smallest_call(bench.subject, bench.path))


@pytest.mark.slow
@pytest.mark.operator("mla_decode", runtimes=("hip", "cuda"))
def test_decode_reads_its_cache(bench: Bench, seed: int) -> None:
    """604 MB of 16-bit latents: more than all caches of a GPU hold, so that the rest has to come from HBM."""
    case = AttentionCase(16, ((1, 32_768),) * 16, "flat", seed=seed)
    hold_proof(bench, fitted(case, bench.subject).call(bench.operator))


def hold_proof(bench: Bench, call: Call) -> None:
    """All that can be proven of a call on a GPU."""
    if not bench.subject.implementation.runs_as:
        unavailable(f"{bench.subject.id} does not state which kernels compute it")
    try:
        proof = prove(bench.subject, call)
    except RuntimeMissing as error:
        unavailable(str(error))
    for judgement in judge_proof(proof):
        bench.hold(judgement)
