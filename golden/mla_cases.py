"""The fixed cases of family ``mla`` that goldens are captured for.

Small cases go with the suite: a query's head costs 5 kB and a cached token up to 1, so each is small in one way.
Serving cases are for captures on a GPU. Twelve heads are Kimi K3's at TP8, which kernels for sixteen get padded.
Whoever changes what a case holds raises ``GENERATOR``: stored goldens of the old one stay comparable, for they carry
their inputs. So nothing is shared with the strategies that conformance tests draw from, which change freely.

Values have mean 1, so that outputs are as large as the values. Queries on an 8-bit cache hold only what e4m3 can, so
that a kernel that rounds them to it (variant ``narrow``) changes nothing. Unused pages and the tail of the last page
hold garbage.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from waveproof.golden.cases import Case, make_case, stream
from waveproof.kernels.operators.contract import Value
from waveproof.kernels.operators.mla import DEEPSEEK, MERGE_STATE

GENERATOR = "mla-cases/1"

SEED = 20_261_130

ROPE = DEEPSEEK.qk_rope_head_dim
BRIGHT = 1.6
"""Amplitude of a code: two equal ones add 1.6^2 * 64 * 192^-0.5 = 11.8 to a score, two others nothing."""
Q_SCALE, KV_SCALE, V_SCALE = 0.7, 0.6, 1.2
"""Of 8-bit tensors: none is 1 and no two are equal, so that one left out or taken for another shows."""

Look = Literal["noise", "newest", "pages", "large"]
"""What queries look at. ``noise``: at all keys a little. ``newest``: at the last tokens, where a mask that is off by
one shows. ``pages``: each head, in turn, at one token of a page, so that no page is missed unseen. ``large``: scores
beyond 88, where exp overflows float32."""

_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True)
class _Attention:
    """What an attention case is made of; ``name`` begins with it."""

    operator: str
    heads: int
    requests: tuple[tuple[int, int], ...]
    """Queries and tokens of each request; of ``mla_extend`` the tokens of the cached prefix alone."""
    dtypes: str = "bf16"
    """Of q, or ``q-kv``."""
    page_size: int = 1
    look: Look = "noise"
    spare: int = 1
    """Pages of the pool that nobody uses."""
    garbage: float = 100.0
    causal: bool = True
    """Of ``mla_prefill``."""

    @property
    def name(self) -> str:
        longest = max(queries for queries, _ in self.requests)
        parts = [f"h{self.heads}", f"q{longest}", f"kv{max(tokens for _, tokens in self.requests)}", self.dtypes]
        parts += [f"p{self.page_size}"] if self.operator != "mla_prefill" else [] if self.causal else ["full"]
        parts += ["ragged"] if len(self.requests) > 1 else []
        return "-".join([*parts, self.look])

    @property
    def types(self) -> tuple[torch.dtype, torch.dtype]:
        q, _, kv = self.dtypes.partition("-")
        return _DTYPES[q], _DTYPES[kv or q]


_SMALL = (
    _Attention("mla_decode", 12, ((2, 13),), look="newest"),
    _Attention("mla_decode", 12, ((1, 130),), "bf16-fp8", 16, "pages", spare=0),
    _Attention("mla_decode", 16, ((1, 19),), look="pages"),
    _Attention("mla_decode", 16, ((1, 9),), "fp8"),
    _Attention("mla_decode", 2, ((4, 7),), look="newest"),
    _Attention("mla_decode", 2, ((1, 1), (2, 15), (1, 0)), "fp16", 16, "pages", spare=0, garbage=torch.nan),
    _Attention("mla_decode", 2, ((1, 5),), look="large"),
    _Attention("mla_extend", 3, ((3, 9),), look="newest"),
    _Attention("mla_extend", 2, ((4, 17),), "bf16-fp8", 16, "pages"),
    _Attention("mla_prefill", 12, ((2, 2),)),
    _Attention("mla_prefill", 2, ((2, 9), (1, 4)), "fp16", causal=False),
    _Attention("mla_prefill", 2, ((4, 20),), "bf16-fp8", look="newest"),
)

_SERVING = (
    _Attention("mla_decode", 12, ((1, 300), (1, 1), (1, 77)), look="pages"),
    _Attention("mla_decode", 12, ((4, 257), (4, 65)), look="newest"),
    _Attention("mla_decode", 16, ((1, 1000), (1, 333)), "bf16-fp8", 16, "pages"),
    _Attention("mla_decode", 16, ((2, 500), (2, 31)), "fp8", look="newest"),
    _Attention("mla_decode", 12, ((1, 300), (1, 64)), "fp16", 64, "pages"),
    _Attention("mla_prefill_absorbed", 12, ((33, 40),), look="newest"),
    _Attention("mla_extend", 12, ((33, 200), (5, 64)), look="newest"),
    _Attention("mla_extend", 12, ((20, 130),), "bf16-fp8", 16, "pages"),
    _Attention("mla_prefill", 12, ((65, 65), (20, 20)), look="newest"),
    _Attention("mla_prefill", 12, ((20, 130),), "fp16"),
)


def small_cases(seed: int = SEED) -> tuple[Case, ...]:
    """Cases of few queries on up to 130 tokens, whose goldens are small enough to be committed: below 1 MB in all."""
    merges = (
        _merge(seed, 12, 2, 128, "bf16", difference=1.0),
        _merge(seed, 16, 2, 64, "fp16", difference=-30.0),
        _merge(seed, 2, 4, 128, "fp32", empty=True),
    )
    return (*(_attention(seed, case) for case in _SMALL), *merges)


def serving_cases(seed: int = SEED) -> tuple[Case, ...]:
    """Cases of ragged batches on up to 1,000 tokens, 0.5 to 2 MB of input each."""
    merges = (_merge(seed, 12, 16, 512, "bf16", difference=1.0), _merge(seed, 128, 3, 128, "bf16", empty=True))
    return (*(_attention(seed, case) for case in _SERVING), *merges)


def _attention(seed: int, case: _Attention) -> Case:
    generator = stream(seed, f"{case.operator} {case.name}")
    make = {"mla_prefill": _per_head, "mla_extend": _extend}.get(case.operator, _paged)
    return make_case(GENERATOR, seed, case.operator, case.name, make(case, generator))


def _paged(case: _Attention, generator: torch.Generator) -> dict[str, Value]:
    q_scale, kv_scale = _scales(case)
    scales: dict[str, Value] = {"sm_scale": DEEPSEEK.sm_scale, "q_scale": q_scale, "kv_scale": kv_scale}
    return {"q": _queries(case, DEEPSEEK.kv_lora_rank, generator), **_cache(case, generator), **scales}


def _extend(case: _Attention, generator: torch.Generator) -> dict[str, Value]:
    q = _queries(case, DEEPSEEK.kv_lora_rank, generator)
    new = [_keys(case, queries, DEEPSEEK.kv_lora_rank, generator) for queries, _ in case.requests]
    arguments: dict[str, Value] = {"q": q, "kv_new": torch.cat(new)[:, None].to(q.dtype), **_cache(case, generator)}
    return {**arguments, "sm_scale": DEEPSEEK.sm_scale, "kv_scale": _scales(case)[1]}


def _per_head(case: _Attention, generator: torch.Generator) -> dict[str, Value]:
    kv_dtype, scale = case.types[1], _scales(case)[1]
    v_scale = V_SCALE if scale != 1.0 else 1.0
    tokens = [tokens for _, tokens in case.requests]
    keys = [
        torch.stack([_keys(case, count, DEEPSEEK.qk_nope_head_dim, generator) for _ in range(case.heads)], 1)
        for count in tokens
    ]
    values = torch.randn(sum(tokens), case.heads, DEEPSEEK.v_head_dim, generator=generator) + 1.0
    return {
        "q": _queries(case, DEEPSEEK.qk_nope_head_dim, generator),
        "k": (torch.cat(keys) / scale).to(kv_dtype),
        "v": (values / v_scale).to(kv_dtype),
        "qo_indptr": _indptr([queries for queries, _ in case.requests]),
        "kv_indptr": _indptr(tokens),
        "sm_scale": DEEPSEEK.sm_scale,
        "causal": case.causal,
        "k_scale": scale,
        "v_scale": v_scale,
    }


def _merge(
    seed: int, heads: int, tokens: int, width: int, dtype: str, difference: float = 0.0, empty: bool = False
) -> Case:
    """Sides whose LSE differ; with ``empty``, of four rows the second lacks keys on side a, the third on b, the last on
    both, and their outputs hold something all the same.
    """
    name = f"h{heads}-t{tokens}-d{width}-{dtype}-{'empty-sides' if empty else f'apart{difference:g}'}"
    generator = stream(seed, f"merge_state {name}")
    arguments: dict[str, Value] = {}
    for side, shift, row in (("a", difference, 1), ("b", 0.0, 2)):
        out = torch.randn(tokens, heads, width, generator=generator)
        lse = 5.0 + 3.0 * torch.randn(tokens, heads, generator=generator) + shift
        if empty:
            lse[row::4] = lse[3::4] = -torch.inf
        arguments |= {f"out_{side}": out.to(_DTYPES[dtype]), f"lse_{side}": lse}
    return make_case(GENERATOR, seed, MERGE_STATE.name, name, arguments)


def _scales(case: _Attention) -> tuple[float, float]:
    """q_scale and kv_scale."""
    q, kv = case.types
    return Q_SCALE if q.itemsize == 1 else 1.0, KV_SCALE if kv.itemsize == 1 else 1.0


def _queries(case: _Attention, width: int, generator: torch.Generator) -> torch.Tensor:
    """[T, heads, width + 64] that look at :func:`_keys`; with ``pages`` query i's head h looks for code h + i."""
    (dtype, kv_dtype), scale = case.types, _scales(case)[0]
    parts = []
    for queries, _ in case.requests:
        q = torch.randn(queries, case.heads, width + ROPE, generator=generator)
        if case.look in ("newest", "pages"):
            q *= 0.25
            turn = torch.arange(queries)[:, None] + torch.arange(case.heads)[None]
            q[..., width:] = _code(turn % case.heads if case.look == "pages" else torch.zeros_like(turn))
        parts.append(q * 32.0 if case.look == "large" else q)
    q = torch.cat(parts) / scale
    return (q.to(torch.float8_e4m3fn).float() if kv_dtype.itemsize == 1 else q).to(dtype)


def _keys(case: _Attention, tokens: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """float32[tokens, width + 64]: the first ``width`` with mean 1, the rest the rotary part."""
    keys = torch.randn(tokens, width + ROPE, generator=generator)
    keys[:, :width] += 1.0
    if case.look == "newest":
        keys[:, width:] *= 0.25
        keys[-8:, width:] = _code(torch.zeros(()))
    elif case.look == "pages":
        keys[:, width:] *= 0.25
        for page, start in enumerate(range(0, tokens, case.page_size)):
            inside = min(case.page_size, tokens - start)
            place = start + int(torch.randint(inside, (), generator=generator))
            keys[place, width:] = _code(torch.tensor(page % case.heads))
    return keys


def _cache(case: _Attention, generator: torch.Generator) -> dict[str, Value]:
    """A pool whose pages lie in no order, with garbage around the tokens."""
    size, dtype, scale = case.page_size, case.types[1], _scales(case)[1]
    lengths = [tokens for _, tokens in case.requests]
    counts = [-(-tokens // size) for tokens in lengths]
    total = sum(counts) + case.spare
    pool = torch.randn(total, size, 1, DEEPSEEK.latent, generator=generator) * case.garbage
    table = torch.randperm(total, generator=generator)[: sum(counts)]
    for tokens, pages in zip(lengths, table.split(counts), strict=True):
        keys = _keys(case, tokens, DEEPSEEK.kv_lora_rank, generator) / scale
        at = torch.arange(tokens)
        pool[pages[at // size], at % size, 0] = keys
    return {
        "kv_cache": pool.clamp(-448.0, 448.0).to(dtype) if dtype.itemsize == 1 else pool.to(dtype),
        "qo_indptr": _indptr([queries for queries, _ in case.requests]),
        "kv_indptr": _indptr(counts),
        "kv_indices": table.int(),
        "kv_last_page_len": torch.tensor([(n - 1) % size + 1 if n else 0 for n in lengths], dtype=torch.int32),
    }


def _code(number: torch.Tensor) -> torch.Tensor:
    """Rows [..., 64] of +-BRIGHT that are orthogonal for different numbers modulo 64 (Walsh functions)."""
    both = number.long()[..., None] & torch.arange(ROPE)
    parity = torch.zeros_like(both)
    for bit in range(ROPE.bit_length() - 1):
        parity ^= (both >> bit) & 1
    return BRIGHT * (1.0 - 2.0 * parity)


def _indptr(sizes: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
