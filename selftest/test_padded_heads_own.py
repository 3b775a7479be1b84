"""Our padding of attention heads: every number of heads to 16, each mode, and attention behind it."""

from __future__ import annotations

import inspect

import pytest
import torch

from waveproof.golden.references.padded_heads import padded_heads
from waveproof.kernels.operators.mla import PAD_MODES
from waveproof.kernels.operators.registry import operator_named
from waveproof.kernels.own.padded_heads import MODES, pad_heads, padded, unpad_heads
from waveproof.kernels.providers import padded_mla

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e4m3fnuz)
DIVISORS_OF_16 = (1, 2, 4, 8, 16)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def test_modes_are_those_of_the_contract() -> None:
    assert MODES == PAD_MODES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", range(1, 17))
@pytest.mark.parametrize("mode", MODES)
def test_padded_to_16_and_back(mode: str, heads: int, dtype: torch.dtype) -> None:
    x = drawn(3, heads, 24, dtype=dtype)
    if mode == "repeat" and heads not in DIVISORS_OF_16:
        for refuse in (lambda: pad_heads(x, 16, mode), lambda: unpad_heads(drawn(3, 16, 24), heads, mode)):
            with pytest.raises(ValueError, match=f"'repeat'.*{heads} heads do not divide the 16"):
                refuse()
        return
    got = pad_heads(x, 16, mode)
    assert got.dtype is dtype
    assert got.is_contiguous()
    assert torch.equal(bits(got), bits(padded_heads(x, 16, mode)))
    back = unpad_heads(got, heads, mode)
    assert back.dtype is dtype
    assert back.is_contiguous()
    assert torch.equal(bits(back), bits(x))
    starts = {one.untyped_storage().data_ptr() for one in (x, got, back)}
    assert len(starts) == 3, "a result lies in the memory of its input"


@pytest.mark.parametrize("mode", MODES)
def test_strides_and_lse(mode: str) -> None:
    """A slice of a wider tensor goes in, an LSE of two dimensions comes back, no token is fine."""
    wide = drawn(5, 9, 40)
    x = wide[:, 2:6, ::2]
    assert torch.equal(unpad_heads(pad_heads(x, 16, mode), 4, mode), x)
    assert torch.equal(unpad_heads(pad_heads(x[..., 0], 16, mode), 4, mode), x[..., 0])
    assert pad_heads(x[:0], 16, mode).shape == (0, 16, 20)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pad_heads(drawn(2, 17, 4), 16, "zero"), "target = 16: 17 heads"),
        (lambda: pad_heads(drawn(2, 4, 4), 16, "edge"), "mode = 'edge'.*zero, repeat, tile"),
        (lambda: pad_heads(drawn(2), 16, "zero"), r"shape \(2,\)"),
        (lambda: pad_heads(drawn(2, 0, 4), 16, "tile"), r"shape \(2, 0, 4\)"),
        (lambda: unpad_heads(drawn(2, 16, 4), 17, "zero"), "heads = 17: x has 16"),
        (lambda: unpad_heads(drawn(2, 16, 4), 0, "zero"), "heads = 0: x has 16"),
        (lambda: unpad_heads(drawn(2, 16, 4), 4, "Zero"), "mode = 'Zero'"),
    ],
)
def test_refusals(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=words):
        call()


def attention(q: torch.Tensor, kv_cache: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes 16 heads or 32, on latents that all share."""
    assert q.shape[1] in (16, 32)
    scores = torch.einsum("thd,kd->thk", q, kv_cache[:, 0]) * scale
    return torch.softmax(scores, -1) @ kv_cache[:, 0, :8], torch.logsumexp(scores, -1)


@pytest.mark.parametrize("heads", [1, 3, 12, 16, 17, 20, 31, 32])
def test_attention_of_any_heads(heads: int) -> None:
    q, cache = drawn(3, heads, 12), drawn(7, 1, 12)
    out, lse = padded(attention, (32, 16))(q, kv_cache=cache, scale=0.5)
    scores = torch.einsum("thd,kd->thk", q, cache[:, 0]) * 0.5
    torch.testing.assert_close(out, torch.softmax(scores, -1) @ cache[:, 0, :8])
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))


@pytest.mark.parametrize("mode", MODES)
def test_attention_with_keys_for_each_head(mode: str) -> None:
    """``k`` and ``v`` are padded alike: a head of the queries meets its own."""

    def per_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert q.shape[1] == k.shape[1] == v.shape[1] == 16
        return torch.einsum("thk,khd->thd", torch.softmax(torch.einsum("thd,khd->thk", q, k), -1), v)

    q, k, v = drawn(3, 4, 12), drawn(7, 4, 12), drawn(7, 4, 6)
    want = torch.einsum("thk,khd->thd", torch.softmax(torch.einsum("thd,khd->thk", q, k), -1), v)
    torch.testing.assert_close(padded(per_head, (16,), mode)(q, k, v), want)


def test_cache_of_one_head_is_no_key_of_one_head() -> None:
    """One query head beside a cache that all heads share: only the query is padded."""
    seen: list[torch.Size] = []

    def extend(q: torch.Tensor, kv_new: torch.Tensor) -> torch.Tensor:
        seen.extend((q.shape, kv_new.shape))
        return q

    padded(extend, (16,))(drawn(2, 1, 12), drawn(2, 1, 12))
    assert seen == [(2, 16, 12), (2, 1, 12)]


def test_native_heads_are_not_copied() -> None:
    seen: list[torch.Tensor] = []

    def keep(q: torch.Tensor) -> torch.Tensor:
        seen.append(q)
        return q

    q = drawn(2, 16, 4)
    assert padded(keep, (16, 32))(q) is q
    assert seen[0] is q


def test_padded_refuses() -> None:
    with pytest.raises(ValueError, match="q has 33 heads: 32 are the most"):
        padded(attention, (16, 32))(drawn(2, 33, 12), drawn(7, 1, 12), 1.0)
    with pytest.raises(ValueError, match=r"takes = \(\)"):
        padded(attention, ())
    with pytest.raises(TypeError, match="has no argument q; it has: x"):
        padded(lambda x: x, (16,))


def test_signature_stays() -> None:
    assert inspect.signature(padded(attention, (16,))) == inspect.signature(attention)


@pytest.mark.parametrize("implementation", padded_mla.IMPLEMENTATIONS, ids=lambda one: one.operator)
def test_adapters_take_the_operators_arguments(implementation: object) -> None:
    name = implementation.operator  # type: ignore[attr-defined]
    operator_named(name).check_arity(getattr(padded_mla, name))


def test_adapters_of_the_helpers() -> None:
    x = drawn(2, 12, 4)
    assert torch.equal(padded_mla.unpad_heads(padded_mla.pad_heads(x, 16, "tile"), 12, "tile"), x)
