"""The roofline: peaks by two ways, FLOP by brute force, and times that no device can have."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch

from waveproof.fixtures.products import PRODUCTS, Product, product_named
from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.golden.judges import memory_floor
from waveproof.kernels.operators.contract import Call
from waveproof.perf import roofline
from waveproof.perf.attention_phases import PHASES
from waveproof.perf.roofline import MATRIX, NOT_FASTER, PEAKS, NoPeak

MI300X, MI355X, H200 = product_named("MI300X"), product_named("MI355X"), product_named("H200")


@pytest.mark.parametrize("peak", [one for one in PEAKS if one.per_clock], ids=lambda one: str(one.product))
def test_a_published_peak_is_what_the_units_can_do(peak: roofline.Peak) -> None:
    """By the architecture's own figures; one with sparsity would be found."""
    product = product_named(peak.product)
    judgements = roofline.judge_peak(peak, product)
    assert len([one for one in judgements if one.rule == roofline.TWO_WAYS]) == len(roofline.PRECISIONS)
    assert [one.message for one in judgements if not one.holds] == []
    for precision in ("bfloat16", "fp8"):
        figure = peak.flop_per_second[precision]
        assert figure is not None
        for wrong in (2 * figure, figure / 2, None):
            sparse = replace(peak, flop_per_second={**peak.flop_per_second, precision: wrong})
            broken = [one for one in roofline.judge_peak(sparse, product) if not one.holds]
            assert [precision in one.message for one in broken if one.rule == roofline.TWO_WAYS] == [True]


@pytest.mark.parametrize("peak", roofline.PEAKS, ids=lambda peak: peak.product)
def test_a_row_that_is_doubled_as_a_whole_stands_out(peak: roofline.Peak) -> None:
    """FLOP for each byte of HBM, in 16 bits: 185 to 315. Twice or half of any is outside."""
    if (balance := roofline.ridge(product_named(peak.product), "bfloat16")) is not None:
        assert 180 < balance < 330
        assert not 180 < 2 * balance < 330
        assert not 180 < balance / 2 < 330


def test_every_product_has_a_row_with_a_source() -> None:
    """And no row is of a product that does not exist."""
    assert [one.product for one in PEAKS] == [one.name for one in PRODUCTS]
    assert all(len(one.source) > 20 and set(one.flop_per_second) == set(roofline.PRECISIONS) for one in PEAKS)


def test_what_no_source_has_is_none() -> None:
    """And then arithmetic sets no floor, whatever is multiplied."""
    assert roofline.peak_of("MI308X", "bfloat16") is None
    assert roofline.peak_of("MI300X", "mxfp4") is None
    assert roofline.peak_of("a product of tomorrow", "fp8") is None
    least = roofline.floor(_prefill(64, 512), product_named("MI308X"))
    assert least.matrix_seconds is None
    assert least.by != MATRIX
    with pytest.raises(NoPeak, match="no precision 'int8'; there are: bfloat16"):
        roofline.peak_of("MI300X", "int8")


def test_hopper_may_clock_higher_than_its_data_sheet_counts() -> None:
    """So that a floor goes by what cannot be exceeded and not by what is advertised."""
    published, fastest = roofline.peak_of("H200", "bfloat16"), roofline.fastest(H200, "bfloat16")
    assert published == 989.5e12
    assert fastest == pytest.approx(132 * 4096 * 1.98e9)
    assert roofline.fastest(MI355X, "bfloat16") == pytest.approx(2516.6e12, rel=1e-4)


@pytest.mark.parametrize("requests", [((4, 9), (1, 3)), ((5, 3), (3, 0), (2, 2))])
@pytest.mark.parametrize("operator", ["mla_decode", "mla_prefill_absorbed", "mla_extend"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_latent_attention_counts_what_each_query_sees(
    operator: str, requests: tuple[tuple[int, int], ...], page_size: int
) -> None:
    """By a mask that is written out: bottom-right aligned; an extend's own tokens come after the cache."""
    call = AttentionCase(3, requests, page_size=page_size).call(operator)
    pairs = 0
    for queries, cached in requests:
        keys = cached + queries if operator == "mla_extend" else cached
        mask = torch.arange(keys)[None] <= torch.arange(queries)[:, None] + keys - queries
        pairs += int(mask.sum())
    assert roofline.needed_flop(call) == 2 * 3 * pairs * (576 + 512)


def test_attention_per_head_counts_scores_and_values() -> None:
    """192 and 128 wide; without a mask each query sees each key."""
    call = AttentionCase(2, ((3, 3),)).call("mla_prefill")
    assert roofline.needed_flop(call) == 2 * 2 * 6 * (192 + 128)
    assert roofline.needed_flop(call.with_arguments(causal=False)) == 2 * 2 * 9 * (192 + 128)


def test_phases_and_roofline_count_alike() -> None:
    """Each candidate of a phase does the same work, in its own form."""
    for phase in PHASES:
        for candidate in phase.candidates:
            call = phase.case(candidate, 2, 40).call(candidate.operator)
            assert roofline.needed_flop(call) == 2 * phase.needed(2, 40)


def test_renormalisation_multiplies_no_matrices() -> None:
    """Its floor is the memory's alone."""
    call = Call("top_k_renorm_prob", {"probs": torch.rand(2, 1000), "top_k": 50})
    least = roofline.floor(call, MI300X, cold=True)
    assert (least.flop, least.intensity, least.by, least.matrix_seconds) == (0, 0.0, "HBM", 0.0)
    assert least.seconds == pytest.approx(2 * 1000 * 4 / 5.3e12)
    assert [one.rule for one in roofline.judge_share(1e-6, call, MI300X)] == [memory_floor.RULE]


def test_what_is_not_counted_has_no_floor() -> None:
    """Rather than one of zero."""
    with pytest.raises(memory_floor.NoFloor, match="depends on its values"):
        roofline.floor(Call("chain_verify", {}), MI300X)


@functools.cache
def _prefill(queries: int, keys: int, heads: int = 128) -> Call:
    return AttentionCase(heads, ((queries, keys),)).call("mla_prefill_absorbed")


def test_a_decode_is_set_by_memory_and_a_prefill_by_the_matrix_cores() -> None:
    """Twelve heads read a key for 12 x 2,176 FLOP: 22 a byte, far from the ridge; 64 queries of 128 heads beyond it."""
    decode = roofline.floor(AttentionCase(12, ((1, 512),)).call("mla_decode"), MI355X, cold=True)
    prefill = roofline.floor(_prefill(64, 512), MI355X, cold=True)
    edge = roofline.ridge(MI355X, "bfloat16")
    assert edge is not None
    assert decode.by == "HBM"
    assert prefill.by == MATRIX
    assert decode.intensity < 24 < edge
    assert decode.intensity < prefill.intensity
    assert prefill.matrix_seconds == pytest.approx(prefill.flop / 2516.6e12, rel=1e-4)
    assert decode.share(2 * decode.seconds) == 0.5


def test_precision_is_that_of_the_narrowest_tensor() -> None:
    """An 8-bit cache allows 8-bit products, which are twice as fast."""
    narrow = AttentionCase(128, ((64, 512),), kv_dtype="float8_e4m3fn").call("mla_prefill_absorbed")
    assert roofline.precision_of(narrow) == "fp8"
    assert roofline.precision_of(_prefill(1, 4, 4)) == "bfloat16"
    assert roofline.precision_of(Call("pad_heads", {"heads": 4})) == "float32"
    wide, fast = roofline.floor(narrow, MI300X, "bfloat16"), roofline.floor(narrow, MI300X)
    assert wide.seconds == pytest.approx(2 * fast.seconds, rel=1e-3)


@pytest.mark.parametrize(("share", "holds"), [(0.5, True), (1.0, True), (1.02, False), (4.0, False)])
def test_faster_than_the_matrix_cores_is_refused(share: float, holds: bool) -> None:
    """With the FLOP, the rate that it would be, and the product's name."""
    call = _prefill(64, 512)
    least = roofline.floor(call, MI355X, cold=True)
    memory, matrix = roofline.judge_share(least.seconds / share, call, MI355X, cold=True, kernels=0, where="prefill")
    assert memory.holds == (least.memory_seconds <= least.seconds / share)
    assert (matrix.rule, matrix.holds) == (NOT_FASTER, holds)
    if not holds:
        assert "prefill: " in matrix.message
        assert "TFLOP/s, and MI355X needs" in matrix.message


@pytest.mark.parametrize("seconds", [0.0, math.nan, math.inf, -1.0])
def test_no_time_is_refused(seconds: float) -> None:
    """A clock that gave nothing is not a fast kernel."""
    judgements = roofline.judge_share(seconds, _prefill(64, 512), MI355X, kernels=0)
    assert not any(one.holds for one in judgements)


def test_a_partitioned_device_has_no_lower_floor() -> None:
    """Fewer units are slower: a floor of the whole product is still one."""
    half: Product = replace(MI300X, cu_num=152)
    assert roofline.fastest(half, "bfloat16") == roofline.peak_of("MI300X", "bfloat16")
