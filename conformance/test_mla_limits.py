"""Latent attention at the edges of what an implementation declares, and beyond: right, or refused by name.

Heads, queries, page sizes, dtypes, strides, batches. The contract: ``kernels/operators/mla.py``; what an implementation
declares: ``kernels/providers/registry.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.shapes.latent_attention import HEAD_COUNTS, SWEEP_HEADS, SWEEP_QUERY_LENGTHS
from waveproof.fixtures.strategies.mla import AttentionCase, fitted
from waveproof.fixtures.strategies.mla_calls import request_alone
from waveproof.golden.judges.relations import judge_answered_or_refused, judge_says_why

pytestmark = [pytest.mark.rocm, pytest.mark.one_arch]

DECODE, ABSORBED, EXTEND, PREFILL = "mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill"
PAGED, CACHED, ALL = (DECODE, ABSORBED), (DECODE, ABSORBED, EXTEND), (DECODE, ABSORBED, EXTEND, PREFILL)
SLOW = pytest.mark.slow
AS_MANY_AS_DRAFTED = 8
"""Queries of a request that current speculative decoders verify at once; waivers tell more of them apart."""
FEW = [n if n in (1, 2, 4, 8) else pytest.param(n, marks=SLOW) for n in range(1, AS_MANY_AS_DRAFTED + 1)]
LONGER = [pytest.param(n, marks=SLOW) if n > 9 else n for n in SWEEP_QUERY_LENGTHS if n > AS_MANY_AS_DRAFTED]
HEADS = [
    heads
    if heads in (5, 8, 12, 16, 24, 32, 64, 128)
    else pytest.param(heads, marks=SLOW if heads in (*HEAD_COUNTS, *range(1, 17), 127) else pytest.mark.nightly)
    for heads in SWEEP_HEADS
]
"""A few in the quick profile; what models come to and all that are padded to 16 in the default one; then all."""


def right_or_refused(bench: Bench, case: AttentionCase, *forced: str) -> None:
    """Hold a subject to a case in which the ``forced`` fields are as they are, whatever the implementation declares.

    What is declared is right. The rest is right all the same or refused by name: never a wrong answer (vllm#51011).
    """
    declared = fitted(case, bench.subject)
    asked = replace(declared, **{name: getattr(case, name) for name in forced})
    call = asked.call(bench.operator)
    if asked != declared:
        outcome = bench.run(call)
        bench.hold(judge_answered_or_refused(outcome.error, call))
        if outcome.error is not None:
            return
    bench.conforms(call)


@pytest.mark.operator(*PAGED, pace="fast")
@pytest.mark.parametrize("pair", ["float16/float16", "bfloat16/float8_e4m3fn", "bfloat16/float8_e4m3fnuz"])
def test_undeclared_dtype(bench: Bench, pair: str, seed: int) -> None:
    dtype, _, kv_dtype = pair.partition("/")
    case = AttentionCase(16, ((1, 90), (1, 40)), "offset", dtype=dtype, kv_dtype=kv_dtype, seed=seed)
    right_or_refused(bench, case, "dtype", "kv_dtype")


@pytest.mark.operator(DECODE, pace="fast")
@pytest.mark.parametrize("queries", FEW)
def test_length_of_verification(bench: Bench, queries: int, seed: int) -> None:
    case = AttentionCase(16, ((queries, 100), (queries, 33)), "newest", seed=seed)
    right_or_refused(bench, case, "requests")


@pytest.mark.operator(DECODE, pace="fast")
@pytest.mark.parametrize("queries", LONGER)
def test_longer_verification(bench: Bench, queries: int, seed: int) -> None:
    case = AttentionCase(16, ((queries, 100), (queries, 33)), "newest", seed=seed)
    right_or_refused(bench, case, "requests")


@pytest.mark.operator(*PAGED, pace="fast")
def test_refusal_of_twelve_heads(bench: Bench, seed: int) -> None:
    # Twelve heads are Kimi K3 at TP8: who cannot take them has to say so.
    declared = fitted(AttentionCase(12, ((1, 37),), seed=seed), bench.subject)
    call = replace(declared, heads=12).call(bench.operator)
    bench.hold(judge_says_why(bench.run(call).error, call))


@pytest.mark.operator(DECODE, pace="fast")
@pytest.mark.parametrize("heads", HEADS)
def test_number_of_heads(bench: Bench, heads: int, seed: int) -> None:
    case = AttentionCase(heads, ((1, 37), (1, 70)), "offset", seed=seed)
    right_or_refused(bench, case, "heads")


@pytest.mark.broad
@pytest.mark.operator(*CACHED)
@pytest.mark.parametrize("page_size", [16, 64, *(pytest.param(size, marks=SLOW) for size in (2, 32, 128, 256))])
def test_page_size(bench: Bench, page_size: int, seed: int) -> None:
    # Accepted and ignored, it is word salad, and fast (ROCm/aiter#2996).
    case = AttentionCase(16, ((1, 127), (1, 64), (1, 1)), "spotlight", page_size, seed=seed)
    right_or_refused(bench, case, "page_size")


@pytest.mark.broad
@pytest.mark.operator(*PAGED)
def test_ragged_queries(bench: Bench, seed: int) -> None:
    case = AttentionCase(16, ((2, 40), (1, 131), (2, 5)), "newest", seed=seed)
    right_or_refused(bench, case, "requests")


@pytest.mark.operator(*PAGED, pace="fast")
def test_ragged_context(bench: Bench, seed: int) -> None:
    # A short request beside a long one is split as the long one is.
    case = AttentionCase(16, ((2, 20), (2, 300)), "newest", seed=seed)
    right_or_refused(bench, case, "requests")


@pytest.mark.operator(*PAGED, PREFILL, pace="fast")
def test_strided_inputs(bench: Bench, seed: int) -> None:
    case = AttentionCase(16, ((1, 40), (1, 33)), "noise", layout="strided", seed=seed)
    right_or_refused(bench, case, "layout")


@pytest.mark.slow
@pytest.mark.operator(*ALL, pace="fast")
def test_request_alone_is_request_in_batch(bench: Bench, seed: int) -> None:
    requests = ((1, 40), (1, 131), (1, 7), (1, 260), (1, 64))
    case = AttentionCase(16, requests, "spotlight", 16, seed=seed)
    right_or_refused(bench, case, "requests")
    together = fitted(case, bench.subject).call(bench.operator)
    for request in range(len(together.tensor("qo_indptr")) - 1):
        bench.conforms(request_alone(together, request))


@pytest.mark.broad
@pytest.mark.operator(*PAGED)
def test_request_without_tokens(bench: Bench, seed: int) -> None:
    # A row that only fills a graph has no tokens: its own answer is 0 and -inf, and it spoils no other (vllm#57094).
    right_or_refused(bench, AttentionCase(16, ((1, 5), (1, 0), (1, 7)), "offset", seed=seed), "requests")


@pytest.mark.slow
@pytest.mark.operator(*PAGED, pace="fast")
@pytest.mark.parametrize("requests", [((1, 0), (1, 5)), ((1, 5), (1, 0)), ((1, 0),)], ids=["first", "last", "alone"])
def test_place_of_a_request_without_tokens(bench: Bench, requests: tuple[tuple[int, int], ...], seed: int) -> None:
    right_or_refused(bench, AttentionCase(16, requests, "offset", seed=seed), "requests")


@pytest.mark.operator(ABSORBED, EXTEND, PREFILL, runtimes=("cpu", "hip", "cuda"))
def test_128_heads(bench: Bench, seed: int) -> None:
    right_or_refused(bench, AttentionCase(128, ((1, 37), (2, 20)), "offset", seed=seed), "heads")


@pytest.mark.broad
@pytest.mark.operator(*PAGED)
def test_queries_before_the_first_token(bench: Bench, seed: int) -> None:
    right_or_refused(bench, AttentionCase(16, ((3, 1), (3, 20), (3, 2)), "offset", seed=seed), "requests")


@pytest.mark.broad
@pytest.mark.operator(PREFILL)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
def test_prompt_before_the_first_key(bench: Bench, causal: bool, seed: int) -> None:
    case = AttentionCase(4, ((3, 1), (2, 0), (2, 20)), "offset", causal=causal, seed=seed)
    right_or_refused(bench, case, "requests")
