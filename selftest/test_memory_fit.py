"""What fills a GPU's memory, and what published prefill figures imply: against figures by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from waveproof.fixtures.deployment.huggingface import ConfigInvalid
from waveproof.fixtures.products import product_named
from waveproof.fixtures.shapes.served_model import ModelUnknown
from waveproof.perf import claims
from waveproof.perf.memory_fit import GIB, Demand, DoesNotApply, fit, model_named, sglang_reserve


def test_weights_by_widths() -> None:
    # Public sizes: DeepSeek V3 671e9 parameters, Kimi K2 1.04e12, nearly all in fp8; Kimi K3 2.8e12 in mxfp4.
    assert model_named("DeepSeek-V3").weight_bytes_per_gpu(1) / 1e9 == pytest.approx(671, rel=0.01)
    assert model_named("Kimi-K2").weight_bytes_per_gpu(1) / 1e12 == pytest.approx(1.04, rel=0.02)
    assert model_named("Kimi-K3").weight_bytes_per_gpu(1) / 1e12 == pytest.approx(1.5, rel=0.05)


def test_a_split_model_is_more_than_its_parts() -> None:
    model = model_named("Kimi-K3")
    whole = model.weight_bytes_per_gpu(1)
    # On every rank: 92 projections to the experts' width and back, the routers, and 24 and 69 low-rank projections.
    every = 2 * (92 * (2 * 3584 * 7168 + 896 * 7168) + 24 * (1536 + 576) * 7168 + 69 * 128 * 7168)
    assert model.weight_bytes_per_gpu(8) == pytest.approx((whole - every) / 8 + every, abs=8)


def test_the_largest_pool_is_the_largest() -> None:
    model, gpu = model_named("Kimi-K3"), product_named("MI355X")
    demand = Demand(8, 1_000_000, requests=64, weight_bytes=15 * 10**11)
    most = fit(model, gpu, demand).largest_pool_tokens
    assert fit(model, gpu, replace(demand, pool_tokens=most)).fits
    assert not fit(model, gpu, replace(demand, pool_tokens=most + 1)).fits


def test_spreading_and_fp8_shrink_the_pool() -> None:
    model, gpu = model_named("Kimi-K3"), product_named("B300")
    demand = Demand(8, 1_000_000, weight_bytes=15 * 10**11)
    assert fit(model, gpu, replace(demand, pool_shards=8)).pool * 8 == fit(model, gpu, demand).pool
    assert fit(model, gpu, replace(demand, kv_dtype="fp8")).pool * 2 == fit(model, gpu, demand).pool


def test_verdicts_in_words() -> None:
    model, demand = model_named("Kimi-K3"), Demand(8, 10**6, weight_bytes=15 * 10**11)
    said = {name: fit(model, product_named(name), demand).verdict for name in ("MI300X", "MI355X", "B200", "B300")}
    assert said == {
        "MI300X": "pool does not fit", "MI355X": "fits", "B200": "weights alone do not fit", "B300": "fits"
    }  # fmt: skip
    assert fit(model, product_named("MI300X"), Demand(8, 10**6)).verdict == "no pool fits"


def test_reserve_as_sglang_has_it() -> None:
    assert sglang_reserve(8) == 10 * GIB
    assert sglang_reserve(8, 16384) == (GIB // 2) + 24 * GIB + GIB


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 0}, "tp = 0"), ({"pool_tokens": -1}, "pool_tokens = -1"), ({"pool_shards": 3}, "pool_shards = 3"),
        ({"weight_bytes": 0}, "weight_bytes = 0"), ({"reserve_bytes": -5}, "reserve_bytes = -5"),
    ],
)  # fmt: skip
def test_demands_that_cannot_be(fields: dict[str, int], message: str) -> None:
    with pytest.raises(DoesNotApply, match=message):
        Demand(**{"tp": 8, "pool_tokens": 1, **fields})  # type: ignore[arg-type]


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(DoesNotApply, match="GLM-5"):
        model_named("GLM-5").weight_bytes_per_gpu(8)
    with pytest.raises(DoesNotApply, match="KV dtype 'int4'"):
        model_named("Kimi-K3").kv_bytes_per_token("int4")
    with pytest.raises(DoesNotApply, match="which TP 5 does not divide"):
        model_named("DeepSeek-V3").weight_bytes_per_gpu(5)
    with pytest.raises(ModelUnknown):
        model_named("Kimi-K9")


CONFIG = {
    "num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_hidden_layers": 4, "linear_attn_config": {"kda_layers": [1, 2, 3], "num_heads": 32, "head_dim": 128},
}  # fmt: skip


def test_a_config_brings_its_linear_layers(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    model = model_named(str(tmp_path))
    assert model.kv_bytes_per_token() == 576 * 2
    assert model.state_bytes_per_request() == 3 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)
    file.write_text(
        json.dumps({**CONFIG, "linear_attn_config": {"kda_layers": [1], "num_heads": "many", "head_dim": 1}})
    )
    with pytest.raises(ConfigInvalid, match=r"linear_attn_config\.num_heads"):
        model_named(str(file))


def test_ranges_carry_their_size() -> None:
    found = claims.figure("speed", "4-7k")
    assert (found.nominal.low, found.nominal.high, found.widest.low) == (4000, 7000, 3500)
    assert claims.figure("times", "2-3x").widest.high == Fraction(7, 2)
    with pytest.raises(claims.BadClaim, match="speed: 'fast'"):
        claims.figure("speed", "fast")


def test_a_binary_k_does_not_save_the_claim() -> None:
    figures = claims.with_binary_prompt(claims.read_figures(claims.PREFILL))
    found = {one.relation.name: one.verdict for one in claims.judge_prefill(figures)}
    assert found["average speed of the fallback"] == "disagree"


def test_figures_that_agree_do() -> None:
    figures = dict(claims.read_figures(claims.PREFILL))
    figures["fallback_time"] = claims.figure("fallback_time", "34")
    found = {one.relation.name: one.verdict for one in claims.judge_prefill(figures)}
    assert found["average speed of the fallback"] == found["time of the fallback at its speed"] == "agree"
    with pytest.raises(claims.BadClaim, match="needs fallback_time"):
        claims.judge_prefill({"prompt": figures["prompt"]})


def test_falling_speeds() -> None:
    model = claims.falling_speed(7000, 172_000, 51)
    # The derivative of the time is one over the speed.
    step = 1.0
    slope = (model.seconds(60_000 + step) - model.seconds(60_000 - step)) / (2 * step)
    assert 1 / slope == pytest.approx(model.speed(60_000))
    assert model.speed(model.reaches(4000)) == pytest.approx(4000)
    assert claims.fixed_cost(4000, 172_000, 51) == pytest.approx(8.0)
    with pytest.raises(claims.BadClaim, match=r"take 57\.3 s, above 51 s"):
        claims.falling_speed(3000, 172_000, 51)
    with pytest.raises(claims.BadClaim, match="it begins at 7000"):
        model.reaches(8000)
