"""The float64 attention and its judges on trial: a second method agrees, planted faults are seen, right work passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from waveproof.golden.judges.mla import error_bounds, judge_attention, judge_lse
from waveproof.golden.references.mla import HEAD_SIZE, VALUE_SIZE, Attended, attend

SCALE = 192**-0.5
SHAPES = [(1, 1), (1, 65), (5, 17), (1, 300)]


def drawn(queries: int, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(queries, 12, HEAD_SIZE, generator=generator).bfloat16()
    return q, torch.randn(tokens, HEAD_SIZE, generator=generator).bfloat16()


def modelled(q: torch.Tensor, kv: torch.Tensor, tile: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """A kernel within the error model: float32, a maximum that grows from tile to tile, weights rounded to bf16."""
    key, query = kv.float(), q.float()
    visible = torch.arange(len(kv) - len(q) + 1, len(kv) + 1)
    top = torch.full((len(q), q.shape[1], 1), -torch.inf)
    total, output = torch.zeros_like(top), torch.zeros(len(q), q.shape[1], VALUE_SIZE)
    for first in range(0, len(kv), tile):
        part = key[first : first + tile]
        hidden = torch.arange(first, first + len(part)) >= visible[:, None]
        scores = (torch.einsum("qhd,kd->qhk", query, part) * SCALE).masked_fill(hidden[:, None], -torch.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrink = torch.exp(scores - new), torch.exp(top - new)
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + weights.bfloat16().float() @ part[:, :VALUE_SIZE]
        top = new
    return (output / total).bfloat16(), (top + total.log())[..., 0]


@pytest.mark.parametrize(("queries", "tokens"), SHAPES)
def test_a_second_method_gives_the_same(queries: int, tokens: int) -> None:
    """torch's own attention in float64, with its own mask."""
    q, kv = drawn(queries, tokens)
    expected = attend(q, kv, SCALE)
    mask = torch.ones(queries, tokens).tril(tokens - queries).bool()
    key = kv.double().expand(12, tokens, HEAD_SIZE)
    second = torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(0, 1), key, key[..., :VALUE_SIZE], mask, scale=SCALE
    )
    torch.testing.assert_close(expected.output, second.transpose(0, 1), rtol=1e-12, atol=1e-13)
    by_hand = [float(q[-1, 3].double() @ kv[t].double()) * SCALE for t in range(tokens)]
    assert float(expected.lse[-1, 3]) == pytest.approx(float(torch.logsumexp(torch.tensor(by_hand).double(), 0)))


@pytest.mark.parametrize(("queries", "tokens"), SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_work_within_the_error_model_passes(queries: int, tokens: int, seed: int) -> None:
    q, kv = drawn(queries, tokens, seed)
    expected = attend(q, kv, SCALE)
    bounds = error_bounds(expected, torch.bfloat16)
    output, lse = modelled(q, kv)
    assert judge_attention(output, expected, bounds).holds
    assert judge_lse(lse, expected, bounds).holds


Fault = Callable[[torch.Tensor, torch.Tensor], Attended]
FAULTS: dict[str, Fault] = {
    "scale 1 % off": lambda q, kv: attend(q, kv, SCALE * 1.01),
    "heads permuted": lambda q, kv: attend(q.roll(1, 1), kv, SCALE),
    "a token dropped": lambda q, kv: attend(q, torch.cat([kv[:20], kv[21:]]), SCALE),
    "a token twice": lambda q, kv: attend(q, torch.cat([kv[:20], kv[19:]]), SCALE),
    "causal off by one": lambda q, kv: attend(torch.cat([q, q[-1:]]), kv, SCALE),
    "rotary part left out": lambda q, kv: attend(
        torch.cat([q[..., :VALUE_SIZE], torch.zeros_like(q[..., VALUE_SIZE:])], -1), kv, SCALE
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planted_faults_are_rejected(fault: Fault) -> None:
    q, kv = drawn(3, 120)
    expected, wrong = attend(q, kv, SCALE), fault(q, kv)
    bounds = error_bounds(expected, torch.bfloat16)
    assert not judge_attention(wrong.output[:3].bfloat16(), expected, bounds).holds
    assert not judge_lse(wrong.lse[:3].float(), expected, bounds).holds


def test_faults_of_single_elements_are_rejected() -> None:
    q, kv = drawn(1, 120)
    expected = attend(q, kv, SCALE)
    bounds = error_bounds(expected, torch.bfloat16)
    for value in (0.0, float("nan"), float("inf")):
        output = expected.output.bfloat16()
        output[0, 7] = value
        verdict = judge_attention(output, expected, bounds)
        assert not verdict.holds
        assert verdict.index is not None
        assert verdict.index[:2] == (0, 7)
    assert not judge_lse(expected.lse / 0.6931471805599453, expected, bounds).holds, "base 2"
    assert not judge_attention(expected.output[:, :11], expected, bounds).holds, "a head is missing"


def test_a_query_before_the_first_token_sees_nothing() -> None:
    expected = attend(*drawn(5, 3), SCALE)
    assert expected.visible.tolist() == [0, 0, 1, 2, 3]
    assert torch.equal(expected.output[:2], torch.zeros_like(expected.output[:2]))
    assert (expected.lse[:2] == -torch.inf).all()
    q, kv = drawn(5, 3)
    whole = attend(q[2:], kv, SCALE)
    torch.testing.assert_close(expected.output[2:], whole.output, rtol=1e-14, atol=0)
