"""Latent attention, absorbed and per head, on paged caches, held to its contract.

The contract and its sources: ``kernels/operators/mla.py``; the error model: ``golden/judges/mla.py``. What is shipped
as machine code runs in milliseconds on the emulated device and is judged on drawn batches; what takes seconds there, or
in the interpreter, is judged on chosen ones (``pace``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.strategies.mla import (
    KINDS,
    AttentionCase,
    MergeCase,
    attention_cases,
    dtype_pairs,
    fitted,
    merge_cases,
)
from waveproof.fixtures.strategies.mla_calls import (
    codes_call,
    moved_to_the_end,
    one_query_calls,
    other_pages,
    parts_of,
    permuted_heads,
    pool_of_nan,
    shared_prefix,
    with_future,
    with_other_heads,
    with_scaled_latents,
)
from waveproof.golden.judges.mla_relations import judge_codes, judge_exact_multiple, judge_parts
from waveproof.golden.judges.relations import judge_answered_or_refused, judge_same_rows
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import EIGHT_BIT

pytestmark = [pytest.mark.rocm, pytest.mark.one_arch]

DECODE, ABSORBED, EXTEND, PREFILL = "mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill"
PAGED = (DECODE, ABSORBED)
CACHED = (DECODE, ABSORBED, EXTEND)
ALL = (DECODE, ABSORBED, EXTEND, PREFILL)
MERGE = "merge_state"


def chosen(bench: Bench, case: AttentionCase, repeats: int = 1) -> Call:
    """The call of a case within what the implementation declares."""
    return fitted(case, bench.subject).call(bench.operator, repeats)


# Against float64 ------------------------------------------------------------------------------------------------------


@pytest.mark.operator(*PAGED, pace="fast")
@given(data=st.data())
def test_paged_attention_matches_float64(bench: Bench, data: st.DataObject) -> None:
    queries = 17 if bench.operator == DECODE else 40
    case = data.draw(attention_cases(bench.subject, queries=queries))
    bench.conforms(case.call(bench.operator))


@pytest.mark.operator(EXTEND, PREFILL, pace="fast")
@given(data=st.data())
def test_prompt_attention_matches_float64(bench: Bench, data: st.DataObject) -> None:
    case = data.draw(attention_cases(bench.subject, longest=100, queries=70))
    causal = bench.operator == EXTEND or data.draw(st.booleans())
    bench.conforms(replace(case, causal=causal).call(bench.operator))


SLOW, BROAD = pytest.mark.slow, pytest.mark.broad
QUICK_KINDS = ("spotlight", "newest", "low")
SAMPLES = [
    pytest.param(AttentionCase(12, ((1, 33), (1, 70)), "spotlight"), id="12 heads"),
    pytest.param(AttentionCase(12, ((1, 97), (1, 160)), "spotlight"), id="12 heads, longer", marks=SLOW),
    pytest.param(AttentionCase(16, ((2, 33), (1, 64), (3, 5)), "newest", 16, garbage="nan"), id="16 heads", marks=SLOW),
    pytest.param(
        AttentionCase(16, ((1, 40), (1, 131)), "offset", kv_dtype="float8_e4m3fn"), id="8-bit cache", marks=SLOW
    ),
    pytest.param(
        AttentionCase(12, ((1, 1), (2, 70)), "offset", dtype="float16", layout="strided"), id="float16", marks=BROAD
    ),
    pytest.param(AttentionCase(12, ((4, 66),), "large"), id="overflow", marks=BROAD),
]


@pytest.mark.operator(*ALL, pace="slow", runtimes=("emulate",))
@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_matches_float64(bench: Bench, sample: AttentionCase, seed: int) -> None:
    bench.conforms(chosen(bench, replace(sample, seed=seed)))


@pytest.mark.operator(*ALL, pace="slow", runtimes=("interpret",))
@pytest.mark.parametrize("heads", [pytest.param(12, marks=SLOW), 2])
def test_interpreted_sample_matches_float64(bench: Bench, heads: int, seed: int) -> None:
    # A grid of the interpreter is walked program by program: two heads where each is one.
    bench.conforms(chosen(bench, AttentionCase(heads, ((1, 70), (1, 3)), "spotlight", 16, seed=seed)))


@pytest.mark.slow
@pytest.mark.operator(DECODE, pace="slow", runtimes=("interpret",))
def test_interpreted_decode_of_16_heads(bench: Bench, seed: int) -> None:
    bench.conforms(chosen(bench, AttentionCase(16, ((1, 70), (1, 3)), "spotlight", 16, seed=seed)))


@pytest.mark.operator(*ALL, pace="fast")
@pytest.mark.parametrize("kind", [kind if kind in QUICK_KINDS else pytest.param(kind, marks=SLOW) for kind in KINDS])
def test_kind_of_attention(bench: Bench, kind: str, seed: int) -> None:
    bench.conforms(chosen(bench, AttentionCase(12, ((1, 131), (4, 65), (2, 2)), kind, 16, seed=seed), repeats=2))


@pytest.mark.operator(*ALL, pace="fast")
def test_declared_dtypes(bench: Bench, seed: int) -> None:
    for pair in dtype_pairs(bench.subject):
        dtype, _, kv_dtype = pair.partition("/")
        case = AttentionCase(16, ((1, 90), (3, 40)), "flat", dtype=dtype, kv_dtype=kv_dtype, seed=seed)
        bench.conforms(chosen(bench, case))


FAST_RUNTIMES = ("cpu", "hip", "cuda")
"""Where a context of thousands of tokens takes no time."""


@pytest.mark.operator(*ALL, pace="fast")
def test_block_multiples(bench: Bench, seed: int) -> None:
    # The first keys are what a loop that ends a block early, or begins one late, loses.
    lengths = [base + step for base in (16, 32, 64, 128, 256) for step in (-1, 0, 1)]
    bench.conforms(chosen(bench, AttentionCase(16, tuple((1, n) for n in lengths), "oldest", seed=seed)))


@pytest.mark.operator(*ALL, pace="fast")
def test_many_requests(bench: Bench, seed: int) -> None:
    heads = 4 if bench.operator == PREFILL else 16
    requests = tuple((1, 1 + 7 * request % 50) for request in range(70))
    bench.conforms(chosen(bench, AttentionCase(heads, requests, "spotlight", 16, seed=seed)))


@pytest.mark.operator(ABSORBED, EXTEND, PREFILL, runtimes=FAST_RUNTIMES)
@pytest.mark.parametrize("kind", ["newest", "oldest", "noise"])
def test_long_prompts(bench: Bench, kind: str, seed: int) -> None:
    # Second and later tiles of queries, prefixes that end where tiles do, and a long one.
    prefix = {ABSORBED: (16, 64, 128, 600), EXTEND: (7, 64, 128, 4200), PREFILL: (16, 64, 128, 200)}[bench.operator]
    queries = (16, 64, 128, 1 if bench.operator == EXTEND else 130)
    requests = tuple(zip(queries, prefix, strict=True))
    bench.conforms(chosen(bench, AttentionCase(2, requests, kind, causal=kind != "noise", seed=seed)))


@pytest.mark.operator(DECODE, runtimes=FAST_RUNTIMES)
def test_middle_contexts(bench: Bench, seed: int) -> None:
    requests = ((1, 517), (1, 1025), (2, 2048), (1, 4097), (1, 9001))
    bench.conforms(chosen(bench, AttentionCase(4, requests, "spotlight", 16, seed=seed)))


@pytest.mark.operator(DECODE, runtimes=FAST_RUNTIMES)
@pytest.mark.parametrize("kind", ["offset", "spotlight", "newest", "oldest"])
@pytest.mark.parametrize("queries", [1, 2])
def test_long_context(bench: Bench, kind: str, queries: int, seed: int) -> None:
    # At 8,192 tokens a dropped page weighs 1e-3 on noise: the judge of whole heads and the lit pages find it.
    bench.conforms(chosen(bench, AttentionCase(12, ((queries, 8192),), kind, 16, seed=seed)))


@pytest.mark.slow
@pytest.mark.operator(DECODE, pace="fast", runtimes=("emulate",))
def test_long_context_emulated(bench: Bench, seed: int) -> None:
    bench.conforms(chosen(bench, AttentionCase(12, ((1, 8192),), "spotlight", seed=seed)))


# Which keys a query sees ----------------------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.operator(*CACHED)
def test_short_requests(bench: Bench, seed: int) -> None:
    bench.conforms(chosen(bench, AttentionCase(16, ((3, 4), (1, 1), (1, 64), (2, 65)), "newest", 16, seed=seed)))


@pytest.mark.broad
@pytest.mark.operator(EXTEND)
def test_request_without_prefix(bench: Bench, seed: int) -> None:
    bench.conforms(chosen(bench, AttentionCase(4, ((5, 0), (3, 20), (1, 0)), "offset", 16, seed=seed), repeats=2))


@pytest.mark.broad
@pytest.mark.operator(PREFILL)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
def test_keys_before_the_queries(bench: Bench, causal: bool, seed: int) -> None:
    # With more keys than queries the mask is aligned to the last key, bottom-right (AMD-Ecosystem/flashinfer#296).
    case = AttentionCase(2, ((2, 5), (3, 70), (17, 17)), "newest", causal=causal, seed=seed)
    bench.conforms(chosen(bench, case))


@pytest.mark.operator(*PAGED, pace="fast", needs=("several queries",))
def test_later_tokens_leave_earlier_queries_alone(bench: Bench, seed: int) -> None:
    call = chosen(bench, AttentionCase(16, ((4, 30), (2, 64)), "newest", seed=seed))
    changed, rows = with_future(call)
    first, second = bench.conforms(call), bench.conforms(changed)
    bench.hold(
        judge_same_rows(first, second, (rows, rows), (call, changed), "only tokens that they do not see changed")
    )


@pytest.mark.operator(DECODE, pace="fast", needs=("several queries", "pages of one token"))
def test_queries_at_once_are_queries_one_by_one(bench: Bench, seed: int) -> None:
    together = chosen(bench, AttentionCase(16, ((4, 40), (2, 65)), "newest", 1, seed=seed))
    bench.conforms(together)
    for call in one_query_calls(together):
        bench.conforms(call)


# Heads ----------------------------------------------------------------------------------------------------------------

FILLINGS = ("inf", "huge", "noise", "repeat", "tile")


@pytest.mark.broad
@pytest.mark.operator(*PAGED)
def test_heads_of_nan_change_nothing(bench: Bench, seed: int) -> None:
    other_heads_change_nothing(bench, "nan", seed)


@pytest.mark.operator(*PAGED, pace="fast")
@pytest.mark.parametrize("filling", [FILLINGS[0], *(pytest.param(filling, marks=SLOW) for filling in FILLINGS[1:])])
def test_other_heads_change_nothing(bench: Bench, filling: str, seed: int) -> None:
    other_heads_change_nothing(bench, filling, seed)


def other_heads_change_nothing(bench: Bench, filling: str, seed: int) -> None:
    """What 12 heads are padded with must not matter to them: neither the noise of a stale buffer nor NaN."""
    call = chosen(bench, AttentionCase(16, ((2, 37), (1, 50)), "spotlight", seed=seed))
    real = call.tensor("q").shape[1] * 3 // 4
    zero, other = (with_other_heads(call, real, name) for name in ("zero", filling))
    first, second = bench.result(zero), bench.result(other)
    heads = tuple(range(real))
    because = f"heads {real} and up hold {filling} where they held zeros"
    bench.hold(judge_same_rows(first, second, (heads, heads), (zero, other), because, axis=1))


@pytest.mark.operator(*ALL, pace="fast")
def test_order_of_heads(bench: Bench, seed: int) -> None:
    call = chosen(bench, AttentionCase(16, ((1, 37), (3, 50)), "spotlight", seed=seed))
    turned, order = permuted_heads(call)
    first, second = bench.conforms(call), bench.conforms(turned)
    if bench.subject.implementation.heads_apart:
        heads = tuple(range(len(order)))
        because = "the same heads in another order"
        bench.hold(judge_same_rows(first, second, (order, heads), (call, turned), because, axis=1))


# Requests and pages ---------------------------------------------------------------------------------------------------


@pytest.mark.operator(*CACHED, pace="fast")
def test_order_of_pages(bench: Bench, seed: int) -> None:
    # The same tokens on other pages of the pool, with other garbage around them.
    call = chosen(bench, AttentionCase(16, ((1, 70), (2, 33)), "spotlight", 16, seed=seed))
    moved = other_pages(call)
    first, second = bench.conforms(call), bench.conforms(moved)
    rows = tuple(range(len(first)))
    bench.hold(judge_same_rows(first, second, (rows, rows), (call, moved), "the same tokens on other pages"))


@pytest.mark.operator(*CACHED, pace="fast")
def test_shared_pages(bench: Bench, seed: int) -> None:
    # Requests with a prefix in common own its pages together.
    bench.conforms(shared_prefix(chosen(bench, AttentionCase(16, ((1, 96), (1, 96)), "spotlight", 16, seed=seed))))


@pytest.mark.broad
@pytest.mark.operator(*CACHED)
def test_pool_of_nan(bench: Bench, seed: int) -> None:
    # What a request does not own may hold anything: 0 * NaN is NaN, so it has to be left out, not multiplied by zero.
    call = chosen(bench, AttentionCase(16, ((1, 37), (1, 130)), "offset", 16, seed=seed))
    dirty = pool_of_nan(call)
    first, second = bench.conforms(call), bench.conforms(dirty)
    rows = tuple(range(len(first)))
    because = "unused pages and the rest of last pages hold NaN"
    bench.hold(judge_same_rows(first, second, (rows, rows), (call, dirty), because))


@pytest.mark.operator(DECODE, runtimes=("hip", "cuda"))
@pytest.mark.bigmem
def test_pages_at_the_end_of_a_huge_pool(bench: Bench, seed: int) -> None:
    bench.conforms(moved_to_the_end(chosen(bench, AttentionCase(16, ((1, 70),), "spotlight", seed=seed))))


@pytest.mark.operator(*CACHED, pace="fast")
def test_pages_beyond_16_bit_indices(bench: Bench, seed: int) -> None:
    call = chosen(bench, AttentionCase(16, ((1, 40),), "spotlight", seed=seed))
    bench.conforms(moved_to_the_end(call, 70_000))


@pytest.mark.operator(*CACHED, runtimes=("cpu", "emulate"))
@pytest.mark.slow
def test_pages_beyond_32_bit_offsets(bench: Bench, seed: int) -> None:
    # The pool is 4 million tokens of which nothing but the request's own is ever touched.
    call = moved_to_the_end(chosen(bench, AttentionCase(16, ((1, 40),), "spotlight", seed=seed)))
    outcome = bench.run(call)
    bench.hold(judge_answered_or_refused(outcome.error, call))
    if outcome.error is None:
        bench.conforms(call)


# Splits, scales, codes ------------------------------------------------------------------------------------------------


@pytest.mark.operator(DECODE, pace="fast", needs=("lse", "pages of one token"))
@pytest.mark.parametrize("cut", [1, 16, 63, 64, 65, 99])
def test_parts_of_the_context_merge_to_the_whole(bench: Bench, cut: int, seed: int) -> None:
    # With an LSE in base 2 a short suffix gets a fifth of its weight (sgl-project/sglang#40903).
    whole = chosen(bench, AttentionCase(16, ((1, 100),), "spotlight", 1, seed=seed))
    calls = parts_of(whole, cut)
    bench.hold(judge_parts([bench.all_conform(call) for call in calls], bench.all_conform(whole), whole, bench.variant))


@pytest.mark.broad
@pytest.mark.operator(*CACHED)
@pytest.mark.parametrize("exponent", [2, pytest.param(16, marks=SLOW), pytest.param(-16, marks=SLOW)])
def test_scale_of_keys_is_scale_of_scores(bench: Bench, exponent: int, seed: int) -> None:
    # Latents times a power of two and sm_scale by it are the same scores, and as many times the output, to the bit.
    factor = 2.0**exponent
    call = chosen(bench, AttentionCase(16, ((1, 40), (1, 65)), "noise", seed=seed))
    scaled = with_scaled_latents(call, factor)
    first, second = bench.results(call), bench.results(scaled)
    bench.hold(judge_exact_multiple(first, second, factor, (call, scaled)))


@pytest.mark.broad
@pytest.mark.operator(DECODE, needs=("8-bit cache",))
def test_every_code_of_an_8_bit_cache(bench: Bench) -> None:
    # One token is its own average: all 256 codes come out as what they stand for (e4m3fn and e4m3fnuz differ by 2).
    for pair in dtype_pairs(bench.subject):
        q, _, kv = pair.partition("/")
        if kv in EIGHT_BIT:
            call = codes_call(fitted(AttentionCase(16, ((1, 1),), dtype=q, kv_dtype=kv), bench.subject))
            bench.hold(judge_codes(bench.result(call), call))


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.operator(*ALL)
def test_repeats_itself(bench: Bench, seed: int) -> None:
    # Fresh memory holds another pattern on each call: what nobody wrote shows as a difference.
    bench.conforms(
        chosen(bench, AttentionCase(16, ((1, 40), (2, 3)), "spotlight", layout="strided", seed=seed), repeats=3)
    )


# Merging ------------------------------------------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.operator(MERGE)
@given(case=merge_cases())
def test_merge_matches_float64(bench: Bench, case: MergeCase) -> None:
    bench.conforms(case.call())


@pytest.mark.broad
@pytest.mark.operator(MERGE)
@pytest.mark.parametrize("leftovers", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("empty", ["a", "b", "ab"])
def test_merge_with_empty_side(bench: Bench, empty: str, leftovers: float, seed: int) -> None:
    # exp(-inf) * NaN is NaN: an empty side has to be left out, not weighed with zero (vllm-project/vllm#57094).
    bench.conforms(MergeCase(5, 12, empty=empty, leftovers=leftovers, seed=seed).call(repeats=2))


@pytest.mark.broad
@pytest.mark.operator(MERGE)
def test_merge_of_many_states(bench: Bench, seed: int) -> None:
    bench.conforms(MergeCase(70, 128, 64, seed=seed).call())


@pytest.mark.broad
@pytest.mark.operator(MERGE)
def test_order_of_sides(bench: Bench, seed: int) -> None:
    call = MergeCase(5, 12, difference=1.5, seed=seed).call()
    turned = call.with_arguments(
        **{f"{n}_{b}": call.arguments[f"{n}_{a}"] for n in ("out", "lse") for a, b in ("ab", "ba")}
    )
    bench.conforms(call)
    bench.conforms(turned)


@pytest.mark.broad
@pytest.mark.operator(MERGE)
def test_strided_states(bench: Bench, seed: int) -> None:
    bench.conforms(MergeCase(5, 12, strided="b", seed=seed).call())
