"""Family ``verify``: decide which draft tokens of speculative decoding stand, and sample the one after them.

All randomness comes in as *coins* in [0, 1), so the outcome is a step function of each coin and the law of the outcome
can be read off exactly (``golden/judges/law.py``).

**Chain.** ``candidates[b, 0]`` is the token that the target has already committed (the root, never judged);
``candidates[b, i]``, i >= 1, was drawn from ``draft_probs[b, i - 1]`` and is judged against ``target_probs[b, i - 1]``.
It is accepted iff 0 < q <= 1 and coin < p / q (Leviathan et al., arXiv 2211.17192, Algorithm 1); a q that is NaN,
infinite, negative, zero or above 1 is no probability, so the draft token is rejected. After n accepted tokens one more
is drawn with the final coin: from ``target_probs[b, n]`` when all were accepted, else from the residual
max(p - q, 0) of row n, where a q outside [0, 1] counts as 0. Block verification (Sun et al., arXiv 2403.10444,
Algorithm 2) accepts the longest prefix whose own coin lies below h_i and draws from max(scale * p - q, 0).

**Which token.** Weights w_v (not normalised) and a final coin c give the token v with C_(v-1) <= c C < C_v, C_v being
the sum of w up to v and C all of it: intervals are half-open, so that a token without weight is never drawn, whatever
the coin (sgl-project/sglang#35771). Where the residual is empty (p = q and the draft token is no proposal of q) any
token with p > 0 is legal and one with p = 0 is not.

**Tree.** ``retrieve_next_token[b, i]`` is the first child of node i and ``retrieve_next_sibling[b, i]`` the next child
of its parent, -1 where there is none; node 0 is the root. Target-only verification walks the children of the last
accepted node, adding up p: a child is accepted iff p > 0 and (coin < sum / threshold_acc or p >= threshold_single), the
coin being that of the last accepted node (two children of one token count twice); without one the final coin draws from
the target of that node without the children that were refused (all of the target at a node of full depth). With both
thresholds 1 that is lossless for a draft that is deterministic (one-hot q); below 1 it is lossy by design and judged by
this same formula.

**Greedy tree.** A child is accepted iff it is the target's argmax at its parent; the last token is that argmax.

**Degenerate rows.** A row of target_probs with NaN, inf or a negative value, or that sums to zero, may become anything
within the vocabulary, but must not raise or hang, and no other row may change.

**Error model**, with u = 2^-24 and float32's division good to 2.5 ulp (OpenCL C 3.0, section 7.4), 5 u at most.

* *Accept.* coin * q < p rounds once; coin < p / q once by division: the step lies within 6 u of p / q, relatively.
  Logarithms of both sides round more, and are not covered.
* *Prefix of a block.* One product, one division and a minimum a step: after i steps within 6 i u, relatively.
* *Cumulative weights.* A difference p - q rounds by u of itself, and scale * p by u more and by what the scale is off.
  A sum of m weights is off by at most gamma_{min(d(V), m - 1)} (see ``kernels/operators/renorm.py``), the product with
  the coin and a division by the total by 6 u more: relatively, so that sums are from the low end.

Where p and q are small multiples of a power of two, all of this is exact, and so is the step.
"""

from __future__ import annotations

from waveproof.kernels.operators.contract import Argument, Operator

NO_TOKEN = -1
"""Fills ``tokens`` behind the last token of a row."""

LAST_COIN = 1.0 - 2.0**-24
"""Largest float32 below 1: the last coin."""

_CANDIDATES = Argument("candidates", ("B", "S"), ("int64",), "token ids; slot 0 is the root, then the draft tokens")
_TARGET = Argument("target_probs", ("B", "S", "V"), ("float32",), "target's law after each slot; rows sum to 1")
_DRAFT = Argument("draft_probs", ("B", "S-1", "V"), ("float32",), "law that each draft token was drawn from")
_FINAL = Argument("final_coins", ("B",), ("float32",), "coin in [0, 1) of the token after the accepted ones")
_BLOCK = Argument("block_verification", (), (), "whether whole prefixes are judged (arXiv 2403.10444)", scalar="bool")
_TEMPERATURE = Argument("temperature", ("B",), ("float32",), "softmax temperature above 0")
_TOP_K = Argument("top_k", ("B",), ("int32", "int64"), "tokens to keep; 2^30 for all")
_TOP_P = Argument("top_p", ("B",), ("float32",), "mass to keep in (0, 1]")
_LOGITS = Argument("target_logits", ("B", "S", "V"), ("float32", "bfloat16"), "target's logits after each slot")
_PATH = Argument("path", (), (), "'dense' or 'sparse'", scalar="str")
_THRESHOLDS = (
    Argument("threshold_single", (), (), "a child of at least this p is accepted, in (0, 1]", scalar="float"),
    Argument("threshold_acc", (), (), "divides the sum of p that the coin is compared with, in (0, 1]", scalar="float"),
)
_NODES = (
    Argument("candidates", ("B", "N"), ("int64",), "token ids of the nodes; node 0 is the root"),
    Argument("retrieve_next_token", ("B", "N"), ("int64",), "first child of each node, -1 for none"),
    Argument("retrieve_next_sibling", ("B", "N"), ("int64",), "next child of the same parent, -1 for none"),
)
_DEPTH = Argument("depth", (), (), "most nodes on a path, root included: D", scalar="int")
_COINS = Argument("coins", ("B", "S-1"), ("float32",), "coin in [0, 1) of each draft token")
_PATH_RETURNS = (
    Argument("accept_len", ("B",), ("int32",), "draft tokens that were accepted"),
    Argument("tokens", ("B", "D"), ("int32",), "the accepted tokens, the one after them, then -1"),
)
_RETURNS = (
    Argument("accept_len", ("B",), ("int32",), "draft tokens that were accepted"),
    Argument("tokens", ("B", "S"), ("int32",), "the accepted tokens, the one drawn after them, then -1"),
)

CHAIN_VERIFY = Operator(
    name="chain_verify",
    family="verify",
    summary="Rejection sampling of a chain of draft tokens: token by token, or as a block.",
    arguments=(
        _CANDIDATES,
        _TARGET,
        _DRAFT,
        _COINS,
        _FINAL,
        _BLOCK,
    ),
    returns=_RETURNS,
    variants=("half-open",),
    refusals=(),
    source="arXiv 2211.17192, Algorithm 1; arXiv 2403.10444, Algorithm 2; "
    "sglang/kernels/ops/speculative/reject_sampling.py chain_speculative_sampling_triton",
)

TARGET_ONLY_VERIFY = Operator(
    name="target_only_verify",
    family="verify",
    summary="Verification of a tree or chain of draft tokens by the target's law alone, lossy below thresholds of 1.",
    arguments=(
        *_NODES,
        Argument("target_probs", ("B", "N", "V"), ("float32",), "target's law after each node; rows sum to 1"),
        Argument("coins", ("B", "N"), ("float32",), "coin in [0, 1) of each node, for choosing among its children"),
        _FINAL,
        *_THRESHOLDS,
        _DEPTH,
    ),
    returns=_PATH_RETURNS,
    variants=("half-open",),
    refusals=(),
    source="sglang/kernels/jit/include/sgl_kernel/speculative/sampling.cuh TreeSpeculativeSamplingTargetOnly",
)

TREE_VERIFY_GREEDY = Operator(
    name="tree_verify_greedy",
    family="verify",
    summary="Verification of a tree of draft tokens at temperature 0.",
    arguments=(
        *_NODES,
        Argument("target_predict", ("B", "N"), ("int64",), "the target's argmax after each node"),
        _DEPTH,
    ),
    returns=_PATH_RETURNS,
    variants=("first-match",),
    refusals=(),
    source="sglang/kernels/ops/speculative/spec_tree.py verify_tree_greedy_kernel_triton",
)

ACCEPT_SAMPLING = Operator(
    name="accept_sampling",
    family="verify",
    summary="The whole verifier from logits: softmax(logits / temperature), top-k, top-p, the chain sampler, and what "
    "is left of it when the verified window of a request was cut off.",
    arguments=(
        _CANDIDATES,
        _LOGITS,
        _DRAFT,
        _TEMPERATURE,
        _TOP_K,
        _TOP_P,
        _COINS,
        _FINAL,
        Argument(
            "verify_lens",
            ("B",),
            ("int32",),
            "slots that stand for each request, root included, 1 to S: at most verify_lens - 1 draft tokens count, and "
            "the last token is the next accepted draft token where more would have been accepted",
        ),
        _BLOCK,
        _PATH,
    ),
    returns=_RETURNS,
    variants=("half-open",),
    refusals=("a path that is neither 'dense' nor 'sparse'",),
    source="sglang/kernels/ops/speculative/dspark/dspark_accept.py AcceptSampling",
)

TARGET_ONLY_ACCEPT_SAMPLING = Operator(
    name="target_only_accept_sampling",
    family="verify",
    summary="The whole verifier of block-diffusion drafts (DFlash) from logits: softmax, top-k, top-p, target-only "
    "verification of a chain.",
    arguments=(
        _CANDIDATES,
        _LOGITS,
        _TEMPERATURE,
        _TOP_K,
        _TOP_P,
        Argument("coins", ("B", "S"), ("float32",), "coin in [0, 1) of each slot, for judging the token after it"),
        _FINAL,
        *_THRESHOLDS,
        _PATH,
    ),
    returns=_RETURNS,
    variants=("half-open",),
    refusals=("a path that is neither 'dense' nor 'sparse'",),
    source="sglang/srt/speculative/dflash_utils.py compute_dflash_sampling_correct_drafts_and_bonus",
)

SEEDED_CHAIN_VERIFY = Operator(
    name="seeded_chain_verify",
    family="verify",
    summary="Rejection sampling of a chain by a verifier that draws its own random numbers: judged by what it draws.",
    arguments=(
        _CANDIDATES,
        _LOGITS,
        Argument("draft_logits", ("B", "S-1", "V"), ("float32", "bfloat16"), "logits that drafts were drawn from"),
        _TEMPERATURE,
        Argument("draft_temperature", ("B",), ("float32",), "temperature that drafts were drawn at, above 0"),
        Argument("seed", (), (), "key of its random numbers; another seed, other numbers", scalar="int"),
    ),
    returns=_RETURNS,
    variants=("sampled",),
    refusals=(),
    source="arXiv 2211.17192, Algorithm 1; sglang/kernels/ops/speculative/dspark/blockwise_rejection.py",
)

OPERATORS = (
    CHAIN_VERIFY,
    TARGET_ONLY_VERIFY,
    TREE_VERIFY_GREEDY,
    ACCEPT_SAMPLING,
    TARGET_ONLY_ACCEPT_SAMPLING,
    SEEDED_CHAIN_VERIFY,
)
