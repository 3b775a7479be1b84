"""Models made in code: their laws are neither flat nor peaked, their float64 logits right, their noise noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

pytest.importorskip("transformers")

from waveproof.fixtures.models.tiny_llama import exact_logits, in_float64, next_logits, tiny_llama, with_noise
from waveproof.fixtures.models.trigram import trigram

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def prefixes(vocab_size: int) -> torch.Tensor:
    return torch.randint(vocab_size, (200, 6), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("vocab_size", [8, 16, 32, 64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_laws_are_neither_flat_nor_peaked_and_depend_on_the_context(vocab_size: int, seed: int) -> None:
    law = next_logits(in_float64(tiny_llama(vocab_size, seed)), prefixes(vocab_size)).softmax(-1)
    entropy = -(law * law.log()).sum(-1).mean() / math.log(vocab_size)
    assert 0.6 < float(entropy) < 0.85
    assert float((law - law.mean(0)).abs().sum(-1).mean()) / 2 > 0.25


def test_equal_seeds_give_equal_bits() -> None:
    one, same, other = (tiny_llama(8, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert not torch.equal(one["lm_head.weight"], one["model.embed_tokens.weight"])


def test_draft_is_accepted_often_and_not_always() -> None:
    target = tiny_llama(8, seed=0)
    laws = [next_logits(model, prefixes(8)).softmax(-1) for model in (target, with_noise(target, 0.25, seed=1))]
    accepted = torch.minimum(*laws).sum(-1)
    assert 0.5 < float(accepted.mean()) < 0.9
    assert torch.equal(next_logits(with_noise(target, 0.0, seed=1), prefixes(8)), next_logits(target, prefixes(8)))


def test_float64_copy_agrees_with_a_forward_pass_of_our_own() -> None:
    model = tiny_llama(16, seed=2)
    tokens = prefixes(16)[:20]
    due = forward(model, tokens)
    assert torch.allclose(next_logits(in_float64(model), tokens), due, rtol=0, atol=1e-5)
    assert torch.allclose(next_logits(model, tokens), due, rtol=0, atol=1e-4)
    assert float((next_logits(model, tokens[:, 1:]) - due).abs().max()) > 1e-2, "the context does not matter"


def test_exact_logits_cover_the_whole_tree() -> None:
    model = tiny_llama(8, seed=0)
    after = exact_logits(model, (1, 2), 3)
    expected = next_logits(in_float64(model), torch.tensor([[1, 2, 7, 0]]))[0]
    assert torch.allclose(after((1, 2, 7, 0)), expected, rtol=0, atol=1e-9)
    with pytest.raises(KeyError):
        after((1, 2, 7, 0, 0))


def test_trigram_gives_one_law_to_prefixes_and_to_tokens() -> None:
    model = trigram(6, seed=1)
    assert torch.equal(model(torch.tensor([[0, 3, 5]]))[0], model.after((0, 3, 5)))
    assert torch.equal(model.with_noise(0.0, seed=2).table, model.table)


def forward(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Llama in float64 throughout (arXiv 2302.13971): RMS norms, rotary halves, SwiGLU; [N, T] to [N, V]."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    config = model.config
    length, heads = tokens.shape[1], config.num_attention_heads
    width = config.hidden_size // heads
    frequencies = float(config.to_dict()["rope_parameters"]["rope_theta"]) ** (
        -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[f"{name}.weight"]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return torch.cat((low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()), -1)

    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (heads, width)).transpose(1, 2)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.num_hidden_layers):
        own = f"model.layers.{layer}"
        y = norm(x, f"{own}.input_layernorm")
        q, k, v = (split(y @ weights[f"{own}.self_attn.{part}_proj.weight"].T) for part in "qkv")
        scores = rotated(q) @ rotated(k).transpose(-1, -2) / math.sqrt(width)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        x = x + mixed @ weights[f"{own}.self_attn.o_proj.weight"].T
        y = norm(x, f"{own}.post_attention_layernorm")
        gate, up = (y @ weights[f"{own}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[f"{own}.mlp.down_proj.weight"].T
    return norm(x, "model.norm")[:, -1] @ weights["lm_head.weight"].T
