"""Which calls are counted: a few of each family that has machine code, small, of the sizes of a serving engine.

Twelve heads are Kimi K3's under TP8. Counts grow in a straight line with batch and context (``perf/growth.py`` holds
that), so one size of each says what its neighbours would.

Values are drawn from fixed seeds. Most counts do not depend on them; those of our top-p do, which looks for its pivot
in as many passes as the row takes. The last bits of a softmax differ between CPUs: no count here has been seen to.
"""

from __future__ import annotations

from waveproof.fixtures.strategies.mla import AttentionCase, MergeCase
from waveproof.fixtures.strategies.renorm import Case, LawCase
from waveproof.fixtures.strategies.verify import AcceptCase, ChainCase
from waveproof.fixtures.strategies.verify_sampling import seeded_call
from waveproof.fixtures.strategies.verify_trees import TreeCase
from waveproof.kernels.operators.contract import Call
from waveproof.perf.counts import CountCase

HEADS, NATIVE_HEADS = 12, 16
KEYS = 256
VOCABULARY = 32_000
TOP_K, TOP_P, TEMPERATURE = 50, 0.9, 0.8


def attention(
    operator: str, provider: str, queries: int, keys: int = KEYS, batch: int = 1, heads: int = HEADS
) -> CountCase:
    """Requests whose last ``queries`` tokens attend to ``keys`` tokens, themselves among them.

    Args:
        operator: of attention; ``mla_extend`` takes its new tokens beside the cache.
        provider: who computes it.
        queries: of each request.
        keys: that its last query sees.
        batch: requests.
        heads: attention heads.
    """
    label = f"heads={heads}/queries={queries}/keys={keys}/batch={batch}"
    return CountCase(operator, provider, label, lambda: attention_call(operator, queries, keys, batch, heads))


def attention_call(operator: str, queries: int, keys: int = KEYS, batch: int = 1, heads: int = HEADS) -> Call:
    """The call of :func:`attention`."""
    cached = keys - queries if operator == "mla_extend" else keys
    return AttentionCase(heads, ((queries, cached),) * batch).call(operator)


def renorm_call(operator: str, rows: int = 2) -> Call:
    """Rows of softmax over :data:`VOCABULARY`: top-k, top-p, or both after a temperature."""
    if operator == "target_probs":
        filters = (TEMPERATURE,) * rows, (TOP_K,) * rows, (TOP_P,) * rows
        return LawCase(VOCABULARY, ("softmax",) * rows, *filters).call("dense")
    limit = (TOP_K,) if operator == "top_k_renorm_prob" else (TOP_P,)
    return Case(VOCABULARY, ("softmax",) * rows, limit).call(operator)


def accept_call(path: str) -> Call:
    """Two rows of three drafts, from logits."""
    return AcceptCase(4096, 4, (TEMPERATURE,) * 2, (TOP_K,) * 2, (TOP_P,) * 2).call("accept_sampling", path)


def _chain(block: bool) -> CountCase:
    label = f"vocab=4096/drafts=3/rows=2/{'block' if block else 'token'}"
    return CountCase(
        "chain_verify", "sglang", label, lambda: ChainCase(4096, 4, ("near", "near"), block=block).call()
    )  # fmt: skip


def _renorm(operator: str, provider: str) -> CountCase:
    label = f"vocab={VOCABULARY}/rows=2"
    return CountCase(operator, provider, label, lambda: renorm_call(operator), torch_too=True)


def _accept(path: str) -> CountCase:
    return CountCase("accept_sampling", "sglang", f"{path}/vocab=4096/drafts=3/rows=2", lambda: accept_call(path))


_DECODE, _PREFILL, _EXTEND = "mla_decode", "mla_prefill_absorbed", "mla_extend"

CASES = (
    *(attention(_DECODE, provider, 1) for provider in ("waveproof", "sglang", "aiter_triton")),
    attention(_DECODE, "sglang", 1, batch=8),
    attention(_DECODE, "waveproof", 1, batch=8),
    attention(_DECODE, "aiter", 1, heads=NATIVE_HEADS),
    *(attention(_DECODE, provider, 4) for provider in ("waveproof", "sglang_verify", "sglang_verify_shared")),
    attention(_PREFILL, "waveproof", 32),
    *(attention(_EXTEND, provider, 32) for provider in ("sglang", "aiter_triton")),
    *(attention("mla_prefill", provider, 96, 96) for provider in ("sglang", "sglang_dense")),
    CountCase("merge_state", "sglang", "heads=12/tokens=8", lambda: MergeCase(8, HEADS).call()),
    *(
        _renorm(operator, provider)
        for operator in ("top_k_renorm_prob", "top_p_renorm_prob", "target_probs")
        for provider in ("waveproof", "sglang")
    ),
    _chain(False),
    _chain(True),
    _accept("dense"),
    _accept("sparse"),
    CountCase("seeded_chain_verify", "sglang", "drafts=2/rows=4", lambda: seeded_call("alike", 4, 7)),
    CountCase(
        "tree_verify_greedy",
        "sglang",
        "bushy/vocab=4096/rows=2",
        lambda: TreeCase("bushy", 4096, 2).call("tree_verify_greedy"),
    ),
)
"""Not among them: ``mla_decode`` of 128 heads, which takes seconds, and sglang's on 8-bit caches: its LSE is wrong."""
