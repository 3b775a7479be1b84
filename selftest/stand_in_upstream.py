"""An sglang and an AITER small enough to be known in full, in the place of the installed ones.

Its dispatcher takes 16, 32, 48, 64, 80, 96 and 128 heads, up to 4 queries of each request; with an fp8 cache 16 and 128
alone. Its engine pads 12 to 16 with zeros, repeats 4 and 8, and refuses what is above 16 and no multiple of it. Its
tables have rows for 256 compute units, for some weights of DeepSeek V3 on 8 GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from waveproof.fixtures.deployment.coverage import cover
from waveproof.fixtures.deployment.engine import Engine
from waveproof.fixtures.deployment.plan import Deployment, product_for
from waveproof.fixtures.deployment.upstream import Upstream
from waveproof.fixtures.deployment.verdicts import Coverage
from waveproof.fixtures.dispatch.oracle import Answer, Question
from waveproof.fixtures.dispatch.rulings import Ruling, State, Use
from waveproof.fixtures.greedy_impostor import Release, Verdict
from waveproof.fixtures.shapes.served_model import built_in
from waveproof.fixtures.tables.lookup import Lookup

NATIVE = {"bf16": (16, 32, 48, 64, 80, 96, 128), "fp8": (16, 128)}
MOST_QUERIES = 4
ROWS = {(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048), (4608, 7168), (7168, 2304)}

ENGINE = Engine(
    sglang="9.9.9",
    aiter="8.8.8",
    extend_methods=("MHA",),
    extend_at="handler.py:7",
    fp8_prefill="mla_prefill_ps_asm_fwd",
    flash_attention="flash_attn_varlen_func",
    fusing_architecture="DeepseekV3ForCausalLM",
    fusing_experts=frozenset({256}),
    activations=(("silu", "Silu"), ("situ", "Situv2")),
    activations_at="runner.py:107",
    aiter_activations=frozenset({"Silu", "Gelu"}),
)


def answer(question: Question) -> Answer:
    """What the dispatcher says."""
    if question.heads not in NATIVE[question.kv_dtype]:
        return Answer(question, False, refusal=f"nhead={question.heads} not supported", refused_by="aiter/mla.py")
    if question.query_length > MOST_QUERIES and not question.prefill:
        return Answer(question, False, refusal="unsupport current data type or shape", refused_by="asm_mla.cu")
    kind = "pfl" if question.prefill else "dec"
    return Answer(question, True, f"mla_{kind}_{question.kv_dtype}_qh{question.heads}.co", "kernel", (1, 1, 1))


def ask(questions: Iterable[Question]) -> dict[Question, Answer]:
    """Of several."""
    return {question: answer(question) for question in questions}


def rule(use: Use) -> Ruling:
    """What becomes of a use."""
    heads = use.heads * use.dcp
    if heads > 16 and heads % 16:
        said = "AssertionError: heads of 4, 8, 12 or multiples of 16"
        return Ruling(use, "refused", f"refuses {heads}", None, None, said, ())
    state: State = "native" if heads >= 16 else "tiled" if heads in (4, 8) else "padded"
    words = {"native": "as it is", "tiled": "repeat to 16", "padded": "zero-pad to 16"}[state]
    question = Question(
        use.arch, use.kv_dtype, use.kv_dtype, max(heads, 16), use.query_length, use.phase != "prefill", use.page_size,
        use.phase == "prefill",
    )  # fmt: skip
    found = answer(question)
    return Ruling(use, state if found.accepted else "refused", words, question, found, found.refusal, ())


def gemm(arch: str, cu_num: int, family: str, n: int, k: int, ms: Sequence[int]) -> Lookup:
    """Rows for every M of :data:`ROWS`, up to 4096."""
    rows = [m for m in ms if (n, k) in ROWS and cu_num == 256 and m <= 4096]
    misses = tuple(m for m in ms if m not in rows)
    key = f"(cu_num, M, N, K) = ({cu_num}, M, {n}, {k})"
    return Lookup(f"{family}.csv", key, tuple(range(2, 2 + len(rows))), misses, "a default kernel: gemm.cu:1")


def fused_moe(
    arch: str, cu_num: int, model_dim: int, inter_dim: int, experts: int, top_k: int, quant: str, tokens: Sequence[int]
) -> Lookup:
    """Rows for the routed experts of DeepSeek V3 on 8 GPUs, not with the shared one among them."""
    hit = (cu_num, model_dim, inter_dim, experts, top_k, quant) == (256, 7168, 256, 256, 8, "fp8_block")
    key = f"(cu_num, token, expert) = ({cu_num}, token, {experts})"
    return Lookup(
        "fmoe.csv", key, (5,) if hit else (), () if hit else tuple(tokens), "a default kernel: fused_moe.py:2"
    )


def verifiers() -> Release:
    """EAGLE is greedy unless rejection sampling is switched on; DFlash and DSpark sample."""
    eagle, dflash, dspark = (f"sglang/srt/speculative/{name}.py:accept" for name in ("eagle", "dflash", "dspark"))
    return Release(
        "9.9.9",
        (
            Verdict(eagle, 641, False, "greedy", "argmax: is_hip"),
            Verdict(eagle, 713, True, "samples", "chain_speculative_sampling_triton"),
            Verdict(dflash, 5, None, "samples", "dflash_sampling"),
            Verdict(dspark, 6, None, "samples", "AcceptSampling"),
        ),
        "algorithm == 'EAGLE' (hook.py:53)",
    )


def renorms() -> dict[str, str]:
    """Both are sglang's Triton kernels."""
    return {name: f"sglang.kernels.renorm_triton:{name}" for name in ("top_k_renorm_prob", "top_p_renorm_prob")}


def default_backend(heads: int) -> tuple[str, str]:
    """As sglang chooses."""
    return ("aiter" if heads in (16, 128) else "triton"), "defaults.py:344"


def advise(use: Use) -> tuple[str, ...]:
    """Nothing."""
    return ()


def pairing() -> tuple[str, ...]:
    """They fit."""
    return ()


UPSTREAM = Upstream(
    rule=rule,
    ask=ask,
    default_backend=default_backend,
    pairing=pairing,
    gemm=gemm,
    fused_moe=fused_moe,
    engine=ENGINE,
    verifiers=verifiers,
    renorms=renorms,
    advise=advise,
)
MI355X = product_for("gfx950")


def covered(model: str = "Kimi-K3", tp: int = 8, **changes: Any) -> Coverage:
    """The coverage of a built-in model on the MI355X, with three drafted tokens if nothing else is said."""
    return cover(Deployment(built_in(model), tp, MI355X, **{"spec_tokens": 3, **changes}), UPSTREAM)
