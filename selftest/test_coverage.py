"""Coverage on trial: its rows, and configs that are none.

Faults planted in it: ``selftest/mutants/coverage.py``, run by ``test_planted.py``.
Upstream is the stand-in; ``conformance/test_coverage.py`` asks the installed packages.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waveproof.fixtures.deployment.attention import DECODE, EXTEND, PREFILL, VERIFY
from waveproof.fixtures.deployment.coverage import BACKEND, KDA, PAIR, cover
from waveproof.fixtures.deployment.engine import Engine, read_engine
from waveproof.fixtures.deployment.huggingface import ConfigInvalid, read_config, served
from waveproof.fixtures.deployment.plan import Deployment, DeploymentInvalid, product_for
from waveproof.fixtures.deployment.sampling import condensed, gist, renorm_row
from waveproof.fixtures.deployment.tuned import numbers, tokens
from waveproof.fixtures.deployment.verdicts import Verdict, worst
from waveproof.fixtures.products import UnknownProduct
from waveproof.fixtures.shapes.latent_attention import MODELS
from waveproof.fixtures.shapes.served_model import PUBLISHED, ModelUnknown, built_in
from waveproof.fixtures.shapes.weights import weights
from waveproof.selftest.stand_in_upstream import ENGINE, MI355X, UPSTREAM, covered

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_size": 7168,
    "vocab_size": 129280,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}


# Configs --------------------------------------------------------------------------------------------------------------


def test_a_config_is_read_as_the_built_in_model() -> None:
    read, known = served(CONFIG), built_in("DeepSeek-V3")
    same = ("heads", "dimensions", "q_lora_rank", "widths", "dense_format", "expert_format", "architecture")
    assert {name: getattr(read, name) for name in same} == {name: getattr(known, name) for name in same}


def test_a_hybrid_nested_in_text_config() -> None:
    names = {"n_routed_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token"}
    text = {names.get(name, name): value for name, value in CONFIG.items() if name != "quantization_config"}
    text |= {
        "num_attention_heads": 96,
        "routed_expert_hidden_size": 3584,
        "hidden_act": "situ",
        "num_hidden_layers": 93,
        "linear_attn_config": {"kda_layers": list(range(1, 70)), "full_attn_layers": list(range(70, 94))},
        "quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    }
    read = served({"architectures": ["KimiK3ForConditionalGeneration"], "text_config": text})
    assert (read.heads, read.mla_layers, read.linear_layers) == (96, 24, 69)
    assert (read.dense_format, read.expert_format) == ("bf16", "mxfp4")
    assert (read.widths.experts, read.widths.top_k, read.widths.expert_width) == (256, 8, 3584)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_lora_rank": None}, "kv_lora_rank is missing or null: the model has no latent attention"),
        ({"num_attention_heads": "128"}, "num_attention_heads = '128': input should be a valid integer"),
        ({"num_attention_heads": -1}, "num_attention_heads = -1: input should be greater than 0"),
        ({"v_head_dim": None}, "v_head_dim is missing"),
        ({"hidden_size": 71.5}, "hidden_size = 71.5"),
        ({"quantization_config": {"weight_block_size": "128"}}, "quantization_config.weight_block_size = '128'"),
        ({"num_experts_per_tok": 512}, "num_experts_per_tok = 512: there are 256 experts to choose from"),
        ({"linear_attn_config": {"kda_layers": [*range(62)]}}, "kda_layers has 62 layers: the model has 61"),
    ],
)
def test_a_config_that_is_none_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        served(CONFIG | changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "words"), [("{", "is no JSON"), ("[1]", "is a list"), ("\xff", "is no JSON")])
def test_a_file_that_is_no_config(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigInvalid, match=words):
        read_config(tmp_path)


def test_nested_keys_are_named_with_their_place() -> None:
    with pytest.raises(ConfigInvalid, match=r"text_config\.kv_lora_rank"):
        served({"text_config": {name: value for name, value in CONFIG.items() if name != "kv_lora_rank"}})


@pytest.mark.parametrize(
    ("quantised", "formats"),
    [
        (None, ("bf16", "bf16")),
        ({"quant_method": "fp8"}, ("fp8", "fp8")),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, ("mxfp4", "mxfp4")),
        ({"quant_method": "gptq"}, ("unknown", "unknown")),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, ("unknown", "unknown")),
    ],
)
def test_formats_of_weights(quantised: dict[str, Any] | None, formats: tuple[str, str]) -> None:
    read = served(CONFIG | {"quantization_config": quantised})
    assert (read.dense_format, read.expert_format) == formats


def test_built_in_names() -> None:
    assert built_in("kimi-k2").name == "moonshotai/Kimi-K2-Instruct"
    assert set(PUBLISHED) <= {model.model for model in MODELS}
    assert all(row.source for row in PUBLISHED.values())
    for name, words in (("Llama", "no built-in models"), ("dots3.note.omni", "2 built-in models")):
        with pytest.raises(ModelUnknown, match=words):
            built_in(name)


# Deployments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 7}, "--tp 7: num_attention_heads = 96 of moonshotai/Kimi-K3 is not divisible by it; divisors: 1, 2, 3"),
        ({"tp": 0}, "--tp 0"),
        ({"dcp": 3}, "--dcp 3: has to divide --tp 8"),
        ({"kv_dtype": "int8"}, "--kv-dtype 'int8': is none of bf16, fp8"),
        ({"spec_tokens": -1}, "--spec-tokens -1: is not within 0-32"),
        ({"backend": "fa3"}, "--attention-backend 'fa3'"),
        ({"algorithm": "medusa"}, "--spec-algorithm 'medusa'"),
    ],
)
def test_deployments_that_no_engine_starts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DeploymentInvalid) as refused:
        Deployment(**{"model": built_in("Kimi-K3"), "tp": 8, "product": MI355X, **changes})
    assert words in str(refused.value)


def test_products_by_architecture_and_name() -> None:
    assert (product_for("gfx950").name, product_for("gfx942").name) == ("MI355X", "MI300X")
    with pytest.raises(DeploymentInvalid, match="--arch 'gfx90a': no product has it"):
        product_for("gfx90a")
    with pytest.raises(DeploymentInvalid, match="MI300X: is gfx942"):
        product_for("gfx950", "MI300X")
    with pytest.raises(DeploymentInvalid, match="H200: is sm_90"):
        product_for("", "H200")
    with pytest.raises(UnknownProduct):
        product_for("", "MI1")


# Rows -----------------------------------------------------------------------------------------------------------------


def test_twelve_heads() -> None:
    found = covered()
    row = found.row(DECODE)
    assert (row.verdict, row.cost) == (Verdict.PADDED, "16/12 = 1.33x the multiply-adds")
    assert "AITER on 12 heads: nhead=12 not supported (aiter/mla.py)" in row.why
    assert [remedy.text for remedy in row.remedies] == [
        "TP 2 (48 heads a rank): fast kernel", "TP 1 (96 heads a rank): fast kernel", "DCP 4 (48 heads): fast kernel",
    ]  # fmt: skip
    assert found.row(KDA).verdict is Verdict.UNKNOWN


def test_an_operator_that_is_not_come_to_stops_nothing() -> None:
    found = covered(tp=4)
    assert found.row(PREFILL).verdict is Verdict.REFUSED
    assert not found.row(PREFILL).taken
    assert found.row(PREFILL) not in found.stopped_by()
    assert found.row(DECODE) in found.stopped_by()


def test_no_drafted_tokens_no_verification() -> None:
    operators = [row.operator for row in covered(spec_tokens=0).rows]
    assert VERIFY not in operators
    assert not [name for name in operators if name.startswith("verify")]


def test_one_way_of_speculating_alone() -> None:
    names = [row.operator for row in covered(algorithm="dspark").rows if row.operator.startswith("verify")]
    assert names == ["verify chain, DSpark"]


def test_a_greedy_verifier_is_wrong_until_it_is_switched_on() -> None:
    found = covered()
    tree, chain = found.row("verify tree, EAGLE"), found.row("verify chain, EAGLE")
    assert (tree.verdict, chain.verdict) == (Verdict.WRONG, Verdict.FAST)
    assert [remedy.text for remedy in tree.remedies] == ["--speculative-use-rejection-sampling"]


def test_left_to_sglang() -> None:
    found = covered(backend="auto")
    assert {found.row(name).verdict for name in (BACKEND, PREFILL, DECODE, VERIFY)} == {Verdict.FALLBACK}
    assert found.row(DECODE).remedies[0].text == "--attention-backend aiter: padded to 16"
    assert not found.row(PAIR).taken, "the AITER backend is not imported"


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [("m.triton:f", Verdict.FAST), ("None", Verdict.ERROR), ("unbound", Verdict.ERROR), ("unknown", Verdict.UNKNOWN)],
)
def test_renorm(bound: str, verdict: Verdict) -> None:
    assert renorm_row("top_k_renorm_prob", bound).verdict is verdict


def test_names_that_aiter_does_not_define_are_errors() -> None:
    engine = replace(ENGINE, unbound=("mla_prefill_ps_asm_fwd",))
    upstream = replace(UPSTREAM, engine=engine, pairing=lambda: ("it is called with x, which it does not take",))
    found = cover(Deployment(built_in("Kimi-K3"), 8, MI355X), upstream)
    assert found.row(PAIR).verdict is Verdict.ERROR
    assert "which it does not take" in found.row(PAIR).why
    assert found.row(EXTEND).verdict is Verdict.ERROR
    assert found.row(EXTEND).remedies[0].text.startswith("SGLANG_AITER_FP8_PREFILL_ATTN=0")


def test_an_activation_that_aiter_does_not_have() -> None:
    row = covered().row("MoE experts")
    assert row.verdict is Verdict.ERROR
    assert "'situ' becomes ActivationType.Situv2" in row.why


def test_a_fused_shared_expert_makes_a_shape_without_rows() -> None:
    row = covered("DeepSeek-V3").row("MoE experts")
    assert row.verdict is Verdict.FALLBACK
    assert row.tuned is not None
    assert (row.tuned.weight.experts, row.tuned.weight.top_k) == (257, 9)
    assert row.remedies[0].text == "--disable-shared-experts-fusion: 256 experts, top 8, have rows for 13 of 13 M"


def test_triton_gemms_with_and_without_a_configuration() -> None:
    shapes = frozenset({(2112, 7168), (3072, 1536)})
    engine = replace(ENGINE, triton_gemms=shapes, triton_configs=frozenset({(2112, 7168)}))
    found = cover(Deployment(built_in("DeepSeek-V3"), 8, MI355X), replace(UPSTREAM, engine=engine))
    assert found.row("GEMM fused_qkv_a_proj").verdict is Verdict.FAST
    assert found.row("GEMM q_b_proj").verdict is Verdict.FALLBACK


def test_narrow_weights_go_past_the_table() -> None:
    engine = replace(ENGINE, narrow_gemm=((512, 512), (2048, 64)))
    found = cover(Deployment(built_in("Kimi-K3"), 8, MI355X), replace(UPSTREAM, engine=engine))
    past = {row.tuned.weight.name: row.tuned.past for row in found.rows if row.tuned and row.tuned.lookup}
    assert (past["kv_b_proj"], past["q_b_proj"], past["router"]) == (512, 64, 0)


def test_shapes_of_deepseek_on_eight() -> None:
    found = {w.name: (w.n, w.k) for w in weights(built_in("DeepSeek-V3"), 8, False)}
    assert found["fused_qkv_a_proj"] == (2112, 7168)
    assert found["q_b_proj"] == (3072, 1536)
    assert found["kv_b_proj"] == (4096, 512)
    assert found["o_proj"] == (7168, 2048)
    assert found["dense gate_up"] == (4608, 7168)
    assert found["shared down"] == (7168, 256)
    assert found["experts"] == (256, 7168)


def test_a_width_that_is_not_known_is_said() -> None:
    found = covered("GLM-4.7-Flash", 2)
    assert found.row("GEMM o_proj").why == "shape not known: hidden_size"
    assert found.row("GEMM kv_b_proj").verdict is Verdict.UNKNOWN


def test_other_latents_and_sparse_models_are_not_guessed() -> None:
    assert "288 and 256" in covered("MiniCPM3-4B").row(DECODE).why
    assert "indexer" in covered("DeepSeek-V3.2").row(DECODE).why


def test_steps_of_a_deployment() -> None:
    assert tokens(Deployment(built_in("Kimi-K3"), 8, MI355X, spec_tokens=3))[:3] == (4, 8, 16)
    assert numbers(range(1, 9)) == "1, 2 ... 7, 8"
    assert numbers([1, 2]) == "1, 2"


def test_worst_and_what_is_allowed() -> None:
    found = covered()
    assert worst([Verdict.FAST, Verdict.ERROR, Verdict.PADDED]) is Verdict.ERROR
    assert worst([]) is Verdict.UNKNOWN
    assert found.stopped_by(tuple(Verdict)) == ()


# Sources --------------------------------------------------------------------------------------------------------------


def test_an_engine_is_read_from_its_sources(tmp_path: Path) -> None:
    sglang, aiter = tmp_path / "sglang", tmp_path / "aiter"
    backend = """
try:
    from aiter import there, gone
    from aiter.ops.nowhere import f
except ImportError:
    print("no aiter")
def forward(q):
    return mla_prefill_ps_asm_fwd(q) if fp8 else flash_attn_varlen_func(q)
"""
    handler = """
def handle_attention_aiter(attn, batch):
    if batch.forward_mode.is_extend_without_speculative():
        return AttnForwardMethod.MHA
    return AttnForwardMethod.MLA
"""
    files = {
        "srt/layers/attention/aiter_backend.py": backend,
        "srt/models/deepseek_common/attention_backend_handler.py": handler,
        "srt/layers/moe/moe_runner/aiter.py": '_AITER_ACTIVATIONS = {"silu": "Silu"}',
    }
    for name, text in files.items():
        (sglang / name).parent.mkdir(parents=True, exist_ok=True)
        (sglang / name).write_text(text)
    aiter.mkdir()
    (aiter / "__init__.py").write_text("from .ops import *\n")
    (aiter / "ops.py").write_text("def there(): ...\n")
    engine = read_engine(sglang, aiter)
    assert engine.unbound == ("gone", "f")
    assert engine.extend_methods == ("MHA",)
    assert (engine.fp8_prefill, engine.flash_attention) == ("mla_prefill_ps_asm_fwd", "flash_attn_varlen_func")
    assert engine.activations == (("silu", "Silu"),)
    assert read_engine(tmp_path / "nothing", aiter) == Engine("?", "?")


def test_long_conditions_are_shortened() -> None:
    assert condensed("short(x)") == "short(x)"
    assert condensed(f"f({'a, ' * 40}b)") == "f(...)"
    long = "is_hip and (algorithm == 'EAGLE') and (eagle_topk == 1) and (a == 1) and (b == 2) (hook.py:53)"
    assert gist(long) == "algorithm == 'EAGLE' and eagle_topk == 1, and 3 more hold (hook.py:53)"
