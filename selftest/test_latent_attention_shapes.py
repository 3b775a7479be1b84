"""The table of served models: its arithmetic, and whether the installed sglang knows what it says of it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

from waveproof.fixtures.shapes.latent_attention import (
    COLUMNS,
    HEAD_COUNTS,
    MODELS,
    SWEEP_HEADS,
    SWEEP_QUERY_LENGTHS,
    TP_SIZES,
    WITHOUT_ROW,
    IndivisibleHeads,
    LatentAttentionModel,
    heads_per_rank,
    ranks,
    rows,
)

READ_FROM = "0.5.23"
NAMES = [f"{model.model} {model.part}".strip() for model in MODELS]
each_model = pytest.mark.parametrize("model", MODELS, ids=NAMES)


def named(name: str) -> LatentAttentionModel:
    return next(model for model in MODELS if model.model == name)


@pytest.fixture(scope="module")
def sglang() -> Path:
    """The installed package's folder, found without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("sglang is not installed")
    version = importlib.metadata.version("sglang")
    if version != READ_FROM:
        pytest.skip(f"the table was read from sglang {READ_FROM}; {version} is installed")
    return Path(next(iter(spec.submodule_search_locations)))


def latent_architectures(source: str) -> set[str]:
    """Architectures in the conditions under which ``source`` sets AttentionArch.MLA."""
    found: set[str] = set()
    for branch in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If)):
        assigned = {ast.unparse(each) for each in branch.body if isinstance(each, ast.Assign)}
        if "self.attention_arch = AttentionArch.MLA" in assigned:
            texts = (str(node.value) for node in ast.walk(branch.test) if isinstance(node, ast.Constant))
            found |= {text for text in texts if re.search("For(CausalLM|ConditionalGeneration)", text)}
    return found


def defaults(source: str, class_name: str) -> dict[str, object]:
    """Literal defaults of the parameters of a class's constructor."""
    class_ = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == class_name)
    init = next(n for n in class_.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    pairs = zip(reversed(init.args.args), reversed(init.args.defaults), strict=False)
    return {argument.arg: value.value for argument, value in pairs if isinstance(value, ast.Constant)}


def test_heads_of_kimi_k3() -> None:
    k3 = named("moonshotai/Kimi-K3")
    assert {tp: heads_per_rank(k3, tp) for tp in (4, 8, 16)} == {4: 24, 8: 12, 16: 6}
    assert ranks(k3) == {1: 96, 2: 48, 4: 24, 8: 12, 16: 6}


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("moonshotai/Kimi-K3", 5),
        ("moonshotai/Kimi-K3", 64),
        ("zai-org/GLM-4.7-Flash", 8),
        ("openbmb/MiniCPM3-4B", 16),
        ("deepseek-ai/DeepSeek-V3", 256),
        ("deepseek-ai/DeepSeek-V3", 0),
        ("deepseek-ai/DeepSeek-V3", -8),
    ],
)
def test_a_size_that_does_not_split_the_heads_is_refused(name: str, tp: int) -> None:
    with pytest.raises(IndivisibleHeads, match=f"TP {tp} does not split the {named(name).num_attention_heads} heads"):
        heads_per_rank(named(name), tp)


def test_ranks_leave_out_what_does_not_divide() -> None:
    assert ranks(named("zai-org/GLM-4.7-Flash")) == {1: 20, 2: 10, 4: 5}
    assert ranks(named("openbmb/MiniCPM3-4B")) == {1: 40, 2: 20, 4: 10, 8: 5}


def test_head_counts() -> None:
    assert HEAD_COUNTS == (1, 2, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)


def test_sweeps_hold_every_served_shape() -> None:
    assert set(HEAD_COUNTS) <= set(SWEEP_HEADS)
    assert (SWEEP_HEADS[0], SWEEP_HEADS[-1]) == (1, 128)
    assert (SWEEP_QUERY_LENGTHS[0], SWEEP_QUERY_LENGTHS[-1]) == (1, 17)


@each_model
def test_dimensions_are_consistent(model: LatentAttentionModel) -> None:
    dimensions = model.dimensions
    assert dimensions.latent == dimensions.kv_lora_rank + dimensions.qk_rope_head_dim
    # What makes caching latents worth while: one row is smaller than the keys and values of all heads.
    assert dimensions.latent < model.num_attention_heads * (dimensions.qk_head_dim + dimensions.v_head_dim)
    assert all(size % 32 == 0 for size in (dimensions.kv_lora_rank, dimensions.qk_head_dim, dimensions.v_head_dim))
    assert model.mla_layers > 0
    assert model.q_lora_rank is None or model.q_lora_rank > dimensions.qk_head_dim
    assert ranks(model)[1] == model.num_attention_heads


def test_rows_are_unique_and_fill_the_columns() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert [row[0].split(" ")[0] for row in rows()] == [model.model for model in MODELS]
    assert {len(row) for row in rows()} == {len(COLUMNS)}
    k3 = dict(zip(COLUMNS, rows()[NAMES.index("moonshotai/Kimi-K3")], strict=True))
    assert [k3[f"TP{tp}"] for tp in TP_SIZES] == ["96", "48", "24", "12", "6"]
    assert (k3["kv_lora"], k3["q_lora"], k3["nope"], k3["rope"], k3["v"]) == ("512", "1536", "128", "64", "128")


@each_model
def test_sglang_defines_the_architecture_where_the_row_says(model: LatentAttentionModel, sglang: Path) -> None:
    assert re.search(rf"^class {model.architecture}\b", (sglang / model.served_by).read_text(), re.MULTILINE)


@each_model
def test_files_of_sglang_in_a_source_exist(model: LatentAttentionModel, sglang: Path) -> None:
    for path in re.findall(r"srt/[\w/]+\.py", model.source):
        assert (sglang / path).is_file(), path


def test_every_latent_architecture_of_sglang_has_a_row_or_a_reason(sglang: Path) -> None:
    served = latent_architectures((sglang / "srt" / "configs" / "model_config.py").read_text())
    targets = {name for name in served if not re.search("NextN$|Eagle", name)}
    with_row = {model.architecture for model in MODELS}
    assert with_row | set(WITHOUT_ROW) == targets
    assert not with_row & set(WITHOUT_ROW)


@pytest.mark.parametrize(
    ("name", "path", "class_name"),
    [
        ("zai-org/GLM-5.3-Flash", "glm5_next.py", "Glm5NextTextConfig"),
        ("tencent/Hy4-preview", "hy_v4.py", "HYV4Config"),
    ],
)
def test_rows_read_from_defaults_of_sglang(name: str, path: str, class_name: str, sglang: Path) -> None:
    model, given = named(name), defaults((sglang / "srt" / "configs" / path).read_text(), class_name)
    for dimension in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        assert given[dimension] == getattr(model.dimensions, dimension), dimension
    assert given["num_attention_heads"] == model.num_attention_heads
    assert given["q_lora_rank"] == model.q_lora_rank
    assert given["num_nextn_predict_layers"] == model.nextn_layers
