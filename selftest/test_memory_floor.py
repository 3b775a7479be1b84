"""The floor of a call's time: bytes counted by hand, and each level of a memory."""

from __future__ import annotations

import pytest
import torch

from waveproof.fixtures.products import product_named
from waveproof.fixtures.strategies.mla import AttentionCase, MergeCase
from waveproof.fixtures.strategies.renorm import Case
from waveproof.golden.judges.memory_floor import LeastBytes, NoFloor, judge_not_faster, least_bytes, least_seconds
from waveproof.kernels.operators.contract import Call


def test_bytes_of_a_decode() -> None:
    call = AttentionCase(16, ((1, 40), (2, 9)), "flat", 16).call("mla_decode")
    q, rows, out = 3 * 16 * 576 * 2, (40 + 9) * 576 * 2, 3 * 16 * 512 * 2
    assert least_bytes(call) == LeastBytes(q + rows, out)


def test_shared_pages_count_once_and_requests_without_queries_not() -> None:
    call = AttentionCase(2, ((1, 32), (1, 32)), "flat", 16).call("mla_decode")
    pages = call.tensor("kv_indices").clone()
    pages[2:] = pages[:2]
    shared = least_bytes(call.with_arguments(kv_indices=pages)).read
    assert least_bytes(call).read - shared == 32 * 576 * 2
    idle = call.with_arguments(qo_indptr=torch.tensor([0, 2, 2], dtype=torch.int32))
    assert least_bytes(call).read - least_bytes(idle).read == 32 * 576 * 2


def test_bytes_of_other_operators() -> None:
    prefill = AttentionCase(2, ((3, 7),), "flat").call("mla_prefill")
    assert least_bytes(prefill) == LeastBytes(3 * 2 * 192 * 2 + 7 * 2 * (192 + 128) * 2, 3 * 2 * 128 * 2)
    extend = AttentionCase(2, ((3, 7),), "flat").call("mla_extend")
    assert least_bytes(extend) == LeastBytes(3 * 2 * 576 * 2 + (7 + 3) * 576 * 2, 3 * 2 * 512 * 2)
    assert least_bytes(Case(33, ("softmax",) * 2, (5,)).call("top_k_renorm_prob")) == LeastBytes(264, 264)
    merge = MergeCase(2, 4, 16).call()
    lse = merge.tensor("lse_a").clone()
    lse[0, 0] = -torch.inf
    assert least_bytes(merge) == LeastBytes(2 * (8 * 4 + 8 * 16 * 2), 8 * 16 * 2)
    assert least_bytes(merge).read - least_bytes(merge.with_arguments(lse_a=lse)).read == 16 * 2
    with pytest.raises(NoFloor, match="chain_verify"):
        least_bytes(Call("chain_verify", {}))


@pytest.mark.parametrize(
    ("read", "cold", "micros", "level"),
    [
        (20_000_000, False, 20 / 51.6096, "L2"),
        (200_000_000, False, (200 - 33.554432) / 17.2, "Infinity Cache"),
        (2_000_000_000, False, (2000 - 33.554432 - 268.435456) / 5.3, "HBM"),
        (20_000_000, True, 20 / 5.3, "HBM"),
    ],
)
def test_floor_of_each_level(read: int, cold: bool, micros: float, level: str) -> None:
    seconds, name = least_seconds(LeastBytes(read, 0), product_named("MI300X"), cold)
    assert (seconds * 1e6, name) == (pytest.approx(micros), level)


def test_level_without_a_peak_bounds_nothing() -> None:
    seconds, name = least_seconds(LeastBytes(200_000_000, 0), product_named("MI355X"))
    assert (seconds, name) == (pytest.approx(200e6 / 58.9824e12), "L2")
    assert least_seconds(LeastBytes(20_000_000, 0), product_named("H200"))[0] == 0.0


def test_too_fast_is_a_fault() -> None:
    product, moved = product_named("MI300X"), LeastBytes(5_300_000_000, 0)
    assert judge_not_faster(1001e-6, moved, product, cold=True).holds
    judgement = judge_not_faster(900e-6, moved, product, cold=True)
    assert not judgement.holds
    assert judgement.severity == pytest.approx(1000 / 900, rel=1e-3)
    assert "5.89 TB/s" in judgement.message
    assert not judge_not_faster(float("nan"), moved, product).holds
