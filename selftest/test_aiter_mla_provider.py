"""Provider ``aiter`` of family ``mla`` in the suite's own worker processes, one for each architecture.

What AITER refuses or answers wrongly within what it accepts is held here too, so that a corrected release shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.golden.judges.conformance import judge_outputs
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.registry import operator_named
from waveproof.kernels.providers import aiter_mla, aiter_triton_mla, padded_mla
from waveproof.kernels.providers.registry import Implementation, Subject, builtin_implementations
from waveproof.kernels.runtimes.process import Outcome, WorkerPool

ARCHES = (pytest.param("gfx942", marks=pytest.mark.slow), "gfx950")
IMPLEMENTATIONS = {
    (one.provider, one.operator): one
    for one in (*aiter_mla.IMPLEMENTATIONS, *aiter_triton_mla.IMPLEMENTATIONS, *padded_mla.IMPLEMENTATIONS)
}
DECODE, PREFILL = "mla_decode", "mla_prefill_absorbed"
MERGE = "_fwd_kernel_stage2_asm"
FP8 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool()
    yield workers
    workers.close()


def run(pool: WorkerPool, implementation: Implementation, arch: str, call: Call) -> Outcome:
    if not implementation.external:
        implementation = replace(implementation, provider="aiter")  # providers of one name share a process
    subject = Subject(implementation, "emulate", arch)
    reason = subject.why_unavailable()
    if reason:
        pytest.skip(reason)
    return pool.call(subject, call, 120.0, 2)


def kernels(outcome: Outcome) -> list[str]:
    return [launch["kernel"] for launch in outcome.launches]


def holds(pool: WorkerPool, provider: str, operator: str, arch: str, case: AttentionCase) -> Outcome:
    """Run twice, on memory with different leftovers, and judge everything."""
    implementation = IMPLEMENTATIONS[provider, operator]
    call = case.call(operator, repeats=2)
    outcome = run(pool, implementation, arch, call)
    assert outcome.error is None, outcome.error
    assert not outcome.incidents
    assert len(outcome.outputs) == 1
    broken = [one for one in judge_outputs(outcome.outputs, call, implementation.variant) if not one.holds]
    assert not broken, broken[0].message
    return outcome


def refusal(pool: WorkerPool, provider: str, operator: str, arch: str, case: AttentionCase) -> tuple[str, str]:
    outcome = run(pool, IMPLEMENTATIONS[provider, operator], arch, case.call(operator))
    assert outcome.error is not None
    assert not outcome.launches
    known = ("AssertionError", "RuntimeError", "ValueError")
    return next(base for base in outcome.error["bases"] if base in known), outcome.error["message"]


@pytest.mark.parametrize("arch", ARCHES)
def test_native_heads(pool: WorkerPool, arch: str) -> None:
    """Ragged queries and KV; assembly kernels are among the launches, by their code object, with their counts."""
    outcome = holds(pool, "aiter", DECODE, arch, AttentionCase(16, ((3, 75), (1, 20), (5, 5)), "newest"))
    assert kernels(outcome) == ["mla_a16w16_qh16_m32x4_n16x1_coex0_mask1.co", MERGE]
    stage, merge = outcome.launches
    assert stage["arch"] == arch
    assert stage["num_warps"] == 4
    assert stage["mfma"] > 0
    assert merge["mfma"] == 0
    outcome = holds(pool, "aiter", PREFILL, arch, AttentionCase(16, ((9, 53), (17, 17))))
    assert kernels(outcome) == ["mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co"]


@pytest.mark.parametrize("arch", ARCHES)
def test_padded_heads(pool: WorkerPool, arch: str) -> None:
    for queries, stage in ((1, "mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co"), (4, None)):
        case = AttentionCase(12, ((queries, 75), (queries, 20), (queries, 130)), "spotlight")
        outcome = holds(pool, "waveproof", DECODE, arch, case)
        assert kernels(outcome) == [stage or "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1.co", MERGE]
    holds(pool, "waveproof", PREFILL, arch, AttentionCase(12, ((9, 53), (1, 20))))
    # More than 16 heads: the object for 128, or sixteen at a time where it would not be causal.
    outcome = holds(pool, "waveproof", DECODE, arch, AttentionCase(20, ((1, 40), (1, 7))))
    assert kernels(outcome) == ["mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co", MERGE]
    outcome = holds(pool, "waveproof", DECODE, arch, AttentionCase(20, ((2, 40), (1, 7)), "newest"))
    assert kernels(outcome) == ["mla_a16w16_qh16_m16x4_n16x1_coex0_mask1.co", MERGE] * 2


@pytest.mark.parametrize("arch", ARCHES)
def test_fp8(pool: WorkerPool, arch: str) -> None:
    case = AttentionCase(16, ((2, 40), (2, 64)), dtype=FP8[arch])
    outcome = holds(pool, "aiter_fp8", DECODE, arch, case)
    assert kernels(outcome) == ["mla_a8w8_qh16_qseqlen2_gqaratio16.co"]


def test_refusals_are_aiters(pool: WorkerPool) -> None:
    twelve, half = AttentionCase(12, ((1, 20),)), AttentionCase(16, ((1, 20),), dtype="float16")
    said = [
        refusal(pool, "aiter", operator, "gfx950", case) for case in (twelve, half) for operator in (DECODE, PREFILL)
    ]
    assert said == [
        ("AssertionError", "nhead=12 not supported"),
        ("RuntimeError", "mla_prefill_asm_fwd:only support num_q_heads/num_kv_heads==16 or 128 for now"),
        (
            "RuntimeError",
            "mla_decode_stage1_asm_fwd: unsupport current data type or shape. please refer to asm_mla.cu",
        ),
        ("RuntimeError", "mla_prefill_asm_fwd: unsupport current Q_type:Half"),
    ]
    many = AttentionCase(129, ((1, 20),))
    assert refusal(pool, "waveproof", DECODE, "gfx950", many) == (
        "ValueError",
        "q has 129 heads: 128 are the most that can be padded to",
    )


def attention_with_lse(  # loaded by the worker, as a user's implementation
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """AITER's decode of one query a request, or its prefill of more, with the LSE that they return."""
    from aiter.mla import mla_decode_fwd, mla_prefill_fwd

    out = q.new_empty((*q.shape[:2], 512))
    longest = int(qo_indptr.diff().max())
    function = mla_decode_fwd if longest == 1 else mla_prefill_fwd
    arguments = (q, kv_cache, out, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, longest)
    _, lse = function(*arguments, sm_scale=sm_scale)
    return out, lse.reshape(q.shape[:2])


@pytest.mark.slow
def test_returned_lse_is_memory_that_nobody_wrote(pool: WorkerPool) -> None:
    """Why the adapters give none: both functions return the poison of a fresh allocation."""
    load = f"{__file__}:{attention_with_lse.__name__}"
    brought = replace(IMPLEMENTATIONS["aiter", DECODE], load=load, omits=())
    for queries in (1, 3):
        outcome = run(pool, brought, "gfx950", AttentionCase(16, ((queries, 70), (queries, 20))).call(DECODE))
        assert outcome.error is None, outcome.error
        out, lse = outcome.outputs
        assert out.isfinite().all()
        assert (lse.view(torch.int32) == -1).all(), queries


@pytest.mark.parametrize(("heads", "queries", "kv"), [(128, 1, (20, 100)), (16, 2, (20, 300))])
def test_merge_of_fp8_reads_splits_that_nobody_wrote(
    pool: WorkerPool, heads: int, queries: int, kv: tuple[int, int]
) -> None:
    """The merge counts splits by 16 tokens (``get_mgc`` of aiter/mla.py), the fp8 objects deal out more at a time.

    So a request that is much shorter than the average of its batch gets splits without tokens merged.
    """
    case = AttentionCase(heads, tuple((queries, tokens) for tokens in kv), dtype=FP8["gfx950"])
    outcome = run(pool, IMPLEMENTATIONS["aiter_fp8", DECODE], "gfx950", case.call(DECODE))
    assert outcome.error is None, outcome.error
    short, long = outcome.outputs[0].split(queries)
    assert short.isnan().any()
    assert long.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["aiter_triton", "aiter_sparse"])
def test_triton_kernels(pool: WorkerPool, provider: str) -> None:
    implementation = IMPLEMENTATIONS[provider, DECODE]
    heads = implementation.heads[0] if implementation.heads else 12
    outcome = holds(pool, provider, DECODE, "gfx950", AttentionCase(heads, ((1, 40), (1, 7)), page_size=1))
    assert outcome.launches


@pytest.mark.slow
def test_sparse_kernel_leaves_what_16_does_not_divide(pool: WorkerPool) -> None:
    """12 heads: its grid is empty, nothing runs and nothing is said; the output is what the memory held."""
    case = AttentionCase(12, ((1, 20),), page_size=16)
    outcome = run(pool, IMPLEMENTATIONS["aiter_sparse", DECODE], "gfx950", case.call(DECODE))
    assert outcome.error is None, outcome.error
    assert not outcome.launches
    assert outcome.outputs[0].isnan().all()


def test_no_two_subjects_share_an_id() -> None:
    places = [(one.provider, one.operator, runtime) for one in builtin_implementations() for runtime in one.runtimes]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("one", IMPLEMENTATIONS.values(), ids=lambda one: f"{one.provider}-{one.operator}")
def test_declarations(one: Implementation) -> None:
    """Adapters take the operator's arguments; only what may be left out is; variants exist."""
    module, _, name = one.load.rpartition(":")
    provider = {m.__name__: m for m in (aiter_mla, aiter_triton_mla, padded_mla)}[module]
    contract = operator_named(one.operator)
    contract.check_arity(getattr(provider, name))
    assert set(one.omits) <= {result.name for result in contract.returns if result.optional}
    assert one.variant in contract.variants
