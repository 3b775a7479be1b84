"""The judge of whole heads on trial: what must fail at 8,192 tokens fails, right work never does."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from waveproof.fixtures.strategies.mla import KINDS, AttentionCase, draw_keys, draw_queries
from waveproof.golden.judges.conformance import judge_outputs
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.judges.mla import error_bounds, judge_all, judge_lse
from waveproof.golden.judges.mla_fp8 import with_fp8_weights
from waveproof.golden.references.mla import VALUE_SIZE, Attended, attend, attend_keys, own_error
from waveproof.golden.references.mla_extended import attend_extended
from waveproof.kernels.operators.mla import DEEPSEEK

SCALE = DEEPSEEK.sm_scale
LONG, PAGE, HEADS = 8192, 16, 12


def kernel(
    q: torch.Tensor, kv: torch.Tensor, scale: float = SCALE, weights: torch.dtype = torch.float32, later: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A right kernel: float32, a maximum that grows, weights rounded to a type; ``later`` moves the causal mask."""
    query, key = q.float(), kv.float()
    visible = torch.arange(len(kv) - len(q) + 1, len(kv) + 1) + later
    top = torch.full((*q.shape[:2], 1), -torch.inf)
    total, output = torch.zeros_like(top), torch.zeros(*q.shape[:2], VALUE_SIZE)
    for first in range(0, len(kv), 64):
        part = key[first : first + 64]
        hidden = torch.arange(first, first + len(part)) >= visible[:, None]
        scores = (torch.einsum("qhd,kd->qhk", query, part) * scale).masked_fill(hidden[:, None], -torch.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weight, shrink = torch.exp(scores - new), torch.exp(top - new)
        total = total * shrink + weight.sum(-1, keepdim=True)
        output = output * shrink + weight.to(weights).float() @ part[:, :VALUE_SIZE]
        top = new
    return output / total, (top + total.log())[..., 0]


def drawn(kind: str, queries: int, tokens: int, seed: int, heads: int = HEADS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kv = draw_keys(kind, tokens, PAGE, heads, VALUE_SIZE, generator).bfloat16()
    return draw_queries(kind, queries, heads, VALUE_SIZE, generator).bfloat16(), kv


def broken(judgements: list[Judgement]) -> set[str]:
    return {judgement.rule for judgement in judgements if not judgement.holds}


def judged(output: torch.Tensor, lse: torch.Tensor, expected: Attended, dtype: torch.dtype) -> list[Judgement]:
    bounds = error_bounds(expected, dtype, torch.bfloat16 if dtype is torch.float32 else dtype, splits=2)
    return [*judge_all(output.to(dtype), expected, bounds), judge_lse(lse, expected, bounds)]


class TestAtEightThousandTokens:
    """Each of the faults, on each kind of input that the conformance test uses there."""

    @pytest.fixture(params=["offset", "spotlight"], scope="class")
    @classmethod
    def case(cls, request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, Attended]:
        q, kv = drawn(request.param, 2, LONG, 0)
        return q, kv, attend(q, kv, SCALE, narrow=False)

    def test_right_work_passes(self, case: tuple[torch.Tensor, torch.Tensor, Attended]) -> None:
        q, kv, expected = case
        assert not broken(judged(*kernel(q, kv, weights=torch.bfloat16), expected, torch.bfloat16))

    @pytest.mark.parametrize("fault", ["dead head", "1 % scale", "1 % of one head", "one head another's"])
    def test_fault_of_heads(self, case: tuple[torch.Tensor, torch.Tensor, Attended], fault: str) -> None:
        q, kv, expected = case
        output, lse = kernel(q, kv, weights=torch.bfloat16)
        if fault == "dead head":
            output[:, 7] = 0
        elif fault == "1 % scale":
            output *= 1.01
        elif fault == "1 % of one head":
            output[:, 3] *= 0.99
        else:
            output[:, 3] = output[:, 4]
        assert broken(judged(output, lse, expected, torch.bfloat16)) - {"natural LSE"}

    @pytest.mark.parametrize("later", [-1, 1])
    def test_one_key_off_causal(self, later: int) -> None:
        q, kv = drawn("newest", 2, LONG, 0)
        expected = attend(q, kv, SCALE, narrow=False)
        assert len(broken(judged(*kernel(q, kv, later=later), expected, torch.bfloat16))) > 1

    def test_halved_scale(self, case: tuple[torch.Tensor, torch.Tensor, Attended]) -> None:
        q, kv, expected = case
        assert {"natural LSE", "head norm"} <= broken(judged(*kernel(q, kv, SCALE / 2), expected, torch.bfloat16))

    @pytest.mark.parametrize("page", [0, 1, 100, 257, 510, 511])
    def test_dropped_page(self, page: int) -> None:
        q, kv = drawn("spotlight", 2, LONG, 0)
        expected = attend(q, kv, SCALE, narrow=False)
        kept = torch.cat([kv[: page * PAGE], kv[(page + 1) * PAGE :]])
        rules = broken(judged(*kernel(q, kept), expected, torch.bfloat16))
        assert rules - {"natural LSE"}, "the output itself shows it"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_no_false_alarm_in_500_seeds(dtype: torch.dtype) -> None:
    alarms = []
    for seed in range(500):
        tokens, queries = 1 + seed * 7 % 260, 1 + seed % 4
        kind = KINDS[seed % len(KINDS)]
        q, kv = drawn(kind, queries, max(tokens, queries), seed, heads=4)
        if dtype is torch.float8_e4m3fn:
            q, kv = q.to(dtype), kv.to(dtype)
            expected = attend(q, kv, SCALE)
            bounds = with_fp8_weights(error_bounds(expected, torch.bfloat16, splits=2), expected)
            output, lse = kernel(q, kv, weights=dtype)
            found = broken([*judge_all(output.bfloat16(), expected, bounds), judge_lse(lse, expected, bounds)])
        else:
            expected = attend(q, kv, SCALE, narrow=False)
            found = broken(judged(*kernel(q, kv, weights=dtype), expected, dtype))
        if found:
            alarms.append((seed, kind, found))
    assert not alarms


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_is_within_its_own_error_of_a_second_method(kind: str) -> None:
    q, kv = drawn(kind, 3, 150, 1, heads=2)
    expected = attend_keys(q, kv[:, None], kv[:, None, :VALUE_SIZE], SCALE, torch.tensor([1, 75, 150]))
    allowed = own_error(expected)
    for row, visible in enumerate((1, 75, 150)):
        output, lse = attend_extended(q[row, 1], kv, kv[:, :VALUE_SIZE], SCALE, visible)
        assert ((expected.output[row, 1] - output).abs() <= allowed[row, 1] + 2.0**-53 * output.abs()).all()
        assert float(expected.lse[row, 1]) == pytest.approx(lse, rel=1e-13, abs=1e-12)
    assert float(allowed.max()) < 1e-8 * float(expected.spread.max())


def test_blocks_of_keys_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    q, kv = drawn("noise", 4, 130, 2)
    whole = attend(q, kv, SCALE)
    monkeypatch.setattr("waveproof.golden.references.mla.BLOCK_KEYS", 7)
    parts = attend(q, kv, SCALE)
    for name, value in vars(whole).items():
        torch.testing.assert_close(getattr(parts, name), value, rtol=1e-11, atol=1e-12, msg=name)


def test_kinds_show_what_they_are_for() -> None:
    """Each page is lit for one head, the last tokens for all, and large scores overflow."""
    q, kv = drawn("spotlight", 1, 640, 3)
    weights = torch.softmax(torch.einsum("qhd,kd->qhk", q.double(), kv.double()) * SCALE, -1)[0]
    for page in range(40):
        share = weights[:, page * PAGE : (page + 1) * PAGE].sum(1)
        assert float(share[page % HEADS]) > 0.05, f"head {page % HEADS} looks at page {page}"
    q, kv = drawn("large", 1, 200, 3)
    assert float((torch.einsum("qhd,kd->qhk", q.double(), kv.double()) * SCALE).max()) > 89.0


def test_requests_are_judged_together() -> None:
    case = AttentionCase(2, ((1, 5), (2, 0), (3, 4)), page_size=16, seed=1)
    call = case.call("mla_decode")
    judgements = judge_outputs((torch.zeros(6, 2, 512), torch.zeros(6, 2)), call, "wide")
    assert {judgement.rule for judgement in judgements if not judgement.holds} >= {"attention output", "natural LSE"}
    assert all(j.demonstration is not None for j in judgements if not j.holds and j.unit != "pooled")
