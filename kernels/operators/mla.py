"""Family ``mla``: multi-head latent attention as DeepSeek, Kimi and GLM serve it, and what pads its heads.

A cached token is one row of 576 numbers, the *latent*: the first 512 (``kv_lora_rank``) are key and value at once, the
last 64 (``qk_rope_head_dim``) are the rotary part of the key; all heads share it (DeepSeek-V2, arXiv 2405.04434,
section 2.1). Decode works on latents with absorbed weights (576/512); prefill may also work on keys of 128 + 64 and
values of 128 for each head.

**Which keys a query sees.** With ``causal`` (always, except where the operator says otherwise) the queries of a request
are its last tokens: query i of n on m keys sees keys 0 to i + m - n, *bottom-right* alignment. A query that sees no key
(an empty request, or more queries than keys) has output 0 and LSE -inf, and changes no other row. Each request has one
query at least.

**LSE** is the natural logarithm of the sum of exponentials of the scaled scores, float32[T, H].

**Paging.** Token t of request b lies in page ``kv_indices[kv_indptr[b] + t // page_size]`` at ``t % page_size``; the
last page of a request holds ``kv_last_page_len[b]`` tokens, ((m - 1) mod page_size) + 1, and 0 for a request without
tokens, which has no page. What else lies in the pool may be anything, NaN included.

**8-bit caches.** ``e4m3fn`` on gfx950, ``e4m3fnuz`` on gfx942, with one scale a tensor: a stored x stands for
x * scale.

**Variants.** ``wide``: the softmax weights meet V with the precision of q at least. ``narrow``: they are rounded to
e4m3 before, which the error model then allows for. 8-bit queries are ``narrow`` in all kernels we know.

**Strides.** q, k and v may have any, as slices of a projection's output do; a cache and new latents are contiguous.

The error model is in :mod:`waveproof.golden.judges.mla`.
"""

from __future__ import annotations

from dataclasses import dataclass

from waveproof.kernels.operators.contract import Argument, Operator


@dataclass(frozen=True)
class Dimensions:
    """Head dimensions of a model's latent attention."""

    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128

    @property
    def latent(self) -> int:
        """Numbers of a cached token: key of the absorbed form."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """Numbers of a key of the form that is not absorbed."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def sm_scale(self) -> float:
        """Scale of the scores: that of the form that is not absorbed, in both forms."""
        return float(self.qk_head_dim**-0.5)


DEEPSEEK = Dimensions()
"""DeepSeek V2 to V3.2, Kimi K2, K3 and Linear; ``config.json`` of each."""

NATIVE_E4M3 = {"gfx942": "float8_e4m3fnuz", "gfx950": "float8_e4m3fn"}
"""torch dtype of the e4m3 that an architecture computes with; the other one is converted in software."""

WIDE, NARROW = "wide", "narrow"
PAD_MODES = ("zero", "repeat", "tile")
"""What the added heads hold: ``zero``: zeros. ``repeat``: head h, target / H times in a row, so H must divide the
target. ``tile``: all heads over and over, cut at the target."""

SIXTEEN_BIT = ("bfloat16", "float16")
EIGHT_BIT = ("float8_e4m3fn", "float8_e4m3fnuz")
ANY = SIXTEEN_BIT + EIGHT_BIT

_INDPTR = ("int32",)
_QO_INDPTR = Argument("qo_indptr", ("B+1",), _INDPTR, "where the queries of a request begin in q")
_CACHE = Argument("kv_cache", ("pages", "page_size", "1", "576"), ANY, "the pool of pages")
_PAGES = (
    Argument("kv_indptr", ("B+1",), _INDPTR, "where the pages of a request begin in kv_indices"),
    Argument("kv_indices", ("pages used",), _INDPTR, "pages in the order of the sequence"),
    Argument("kv_last_page_len", ("B",), _INDPTR, "tokens in the last page of a request; 0 where it has none"),
)
_SM_SCALE = Argument("sm_scale", (), (), "scale of the scores, above 0", scalar="float")
_Q_SCALE = Argument("q_scale", (), (), "of 8-bit queries; 1.0 otherwise", scalar="float")
_KV_SCALE = Argument("kv_scale", (), (), "of an 8-bit cache; 1.0 otherwise", scalar="float")
_LSE = Argument("lse", ("T", "H"), ("float32",), "natural log-sum-exp of the scaled scores", optional=True)
_LATENT_OUT = Argument("out", ("T", "H", "512"), SIXTEEN_BIT, "dtype of q; bfloat16 where q has 8 bits")
_LATENT_QUERY = Argument("q", ("T", "H", "576"), ANY, "absorbed queries, T over all requests")

MLA_DECODE = Operator(
    name="mla_decode",
    family="mla",
    summary="The last tokens of each request, one or the few that speculative decoding verifies, attend to its cached "
    "latents, their own among them; causal, bottom-right.",
    arguments=(_LATENT_QUERY, _CACHE, _QO_INDPTR, *_PAGES, _SM_SCALE, _Q_SCALE, _KV_SCALE),
    returns=(_LATENT_OUT, _LSE),
    variants=(WIDE, NARROW),
    refusals=("a number of heads, dtype or page size that the implementation does not compute",),
    source="aiter/mla.py mla_decode_fwd; sglang/kernels/ops/attention/decode_attention.py",
)

MLA_PREFILL_ABSORBED = Operator(
    name="mla_prefill_absorbed",
    family="mla",
    summary="As mla_decode, for queries of any number: the tokens of a prompt attend to latents, their own among them.",
    arguments=(_LATENT_QUERY, _CACHE, _QO_INDPTR, *_PAGES, _SM_SCALE, _Q_SCALE, _KV_SCALE),
    returns=(_LATENT_OUT, _LSE),
    variants=(WIDE, NARROW),
    refusals=MLA_DECODE.refusals,
    source="aiter/mla.py mla_prefill_fwd, code objects mla_pfl_*",
)

MLA_EXTEND = Operator(
    name="mla_extend",
    family="mla",
    summary="New tokens attend to the cached latents of their request (a prefix, all of it) and causally to the "
    "latents of the new tokens, which are not in the cache yet.",
    arguments=(
        Argument("q", ("T", "H", "576"), SIXTEEN_BIT, "absorbed queries, T over all requests"),
        Argument("kv_new", ("T", "1", "576"), SIXTEEN_BIT, "latents of the new tokens, dtype of q"),
        _CACHE,
        _QO_INDPTR,
        *_PAGES,
        _SM_SCALE,
        _KV_SCALE,
    ),
    returns=(_LATENT_OUT, _LSE),
    variants=(WIDE, NARROW),
    refusals=MLA_DECODE.refusals,
    source="sglang/kernels/ops/attention/extend_attention.py extend_attention_fwd",
)

MLA_PREFILL = Operator(
    name="mla_prefill",
    family="mla",
    summary="Prefill with a key and a value for each head: queries attend to the keys of their request, causal "
    "(bottom-right) or all of them.",
    arguments=(
        Argument("q", ("T", "H", "192"), SIXTEEN_BIT, "queries, T over all requests"),
        Argument("k", ("S", "H", "192"), ANY, "keys, S over all requests"),
        Argument("v", ("S", "H", "128"), ANY, "values, dtype of k"),
        _QO_INDPTR,
        Argument("kv_indptr", ("B+1",), _INDPTR, "where the keys of a request begin in k and v"),
        _SM_SCALE,
        Argument("causal", (), (), "whether later keys are hidden", scalar="bool"),
        Argument("k_scale", (), (), "of 8-bit keys; 1.0 otherwise", scalar="float"),
        Argument("v_scale", (), (), "of 8-bit values; 1.0 otherwise", scalar="float"),
    ),
    returns=(Argument("out", ("T", "H", "128"), SIXTEEN_BIT, "dtype of q"), _LSE),
    variants=(WIDE, NARROW),
    refusals=("a dtype or head dimension that the implementation does not compute",),
    source="sglang/kernels/ops/attention/prefill_attention.py, extend_attention.py",
)

MERGE_STATE = Operator(
    name="merge_state",
    family="mla",
    summary="Attention to two disjoint sets of keys from attention to each: outputs weighted by exp(lse). A side "
    "without keys (LSE -inf) counts for nothing, whatever its output holds; two such sides give 0 and -inf.",
    arguments=(
        Argument("out_a", ("T", "H", "D"), (*SIXTEEN_BIT, "float32"), "attention to the first set"),
        Argument("lse_a", ("T", "H"), ("float32",), "its natural log-sum-exp"),
        Argument("out_b", ("T", "H", "D"), (*SIXTEEN_BIT, "float32"), "attention to the second set, dtype of out_a"),
        Argument("lse_b", ("T", "H"), ("float32",), "its natural log-sum-exp"),
    ),
    returns=(
        Argument("out", ("T", "H", "D"), (*SIXTEEN_BIT, "float32"), "attention to both, dtype of out_a"),
        Argument("lse", ("T", "H"), ("float32",), "natural log-sum-exp of both"),
    ),
    variants=("natural",),
    refusals=(),
    source="FlashInfer (arXiv 2501.01005), section 3.1; sglang/kernels/ops/attention/merge_state.py",
)

PAD_HEADS = Operator(
    name="pad_heads",
    family="mla",
    summary="Give queries (or keys and values of as many heads) a number of heads that a kernel takes; the real heads "
    "come out where unpad_heads finds them.",
    arguments=(
        Argument("x", ("T", "H", "D"), (*ANY, "float32"), "H real heads"),
        Argument("target", (), (), "heads that the kernel takes, at least H", scalar="int"),
        Argument("mode", (), (), f"one of {', '.join(PAD_MODES)}", scalar="str"),
    ),
    returns=(Argument("padded", ("T", "target", "D"), (*ANY, "float32"), "dtype of x"),),
    variants=("exact",),
    refusals=(
        "a target below H",
        "mode repeat where H does not divide the target",
        "an unknown mode",
    ),
    source="sglang/srt/layers/attention/aiter_backend.py; vllm-project/vllm#50817",
)

UNPAD_HEADS = Operator(
    name="unpad_heads",
    family="mla",
    summary="The real heads of what a kernel gave for padded ones, in memory of their own.",
    arguments=(
        Argument("x", ("T", "target", "..."), (*ANY, "float32"), "output or LSE of the padded heads"),
        Argument("heads", (), (), "real heads, at most target", scalar="int"),
        Argument("mode", (), (), "as they were padded", scalar="str"),
    ),
    returns=(Argument("unpadded", ("T", "heads", "..."), (*ANY, "float32"), "dtype of x"),),
    variants=("exact",),
    refusals=("more heads than there are", "mode repeat where heads do not divide the target", "an unknown mode"),
    source="sglang/srt/layers/attention/aiter_backend.py",
)

OPERATORS = (
    MLA_DECODE,
    MLA_PREFILL_ABSORBED,
    MLA_EXTEND,
    MLA_PREFILL,
    MERGE_STATE,
    PAD_HEADS,
    UNPAD_HEADS,
)
