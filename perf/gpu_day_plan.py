"""Which pairs are timed on the day, the most important first.

``hip``: what the case study is about, attention of 12 heads on AITER's assembly by padding against the generic kernel
that a serving engine falls back to (decode over the context's length, verification, prefill), then renormalisation and
what else is in :data:`waveproof.perf.pairs.PAIRS`. ``cuda``: our own Triton kernels against torch, flashinfer and
sglang. ``cpu``: a rehearsal of the steps, of torch forms by the host's clock.

No time of any of these pairs on a GPU is known here, so what is asked of a pair is little: that the fast side is not
the slower one. How much faster it should be by its counts is shown beside what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from waveproof.fixtures.strategies.mla import AttentionCase
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Implementation, Subject, implementation_of
from waveproof.perf.counted_cases import HEADS, NATIVE_HEADS
from waveproof.perf.gpu_day_terms import COLD, WARM, Contender, Trial, Way
from waveproof.perf.pairs import PAIRS, FastSlow

OWN = "waveproof"
"""Provider of our kernels, and of AITER's assembly on padded heads."""
CONTEXTS = (1024, 4096, 16_384, 65_536, 131_072)
"""Tokens of the one request whose decode is timed over its length."""
VOCABULARY = 151_936
"""Qwen 2.5 and 3, ``config.json``."""
SMALL_VOCABULARY = 32_000
"""Llama 2; what the rehearsal renormalises."""
ROWS = (8, 64)
FAST_ENOUGH = 1.0
FIRST_SECONDS, TRIAL_SECONDS, REHEARSAL_SECONDS = 60.0, 15.0, 2.0
"""Estimates of what a trial needs: the first imports its packages, and Triton compiles for it."""


class NoTrials(LookupError):
    """Nothing is planned for this runtime; the message lists those that have trials."""


def trials_for(runtime: str) -> tuple[Trial, ...]:
    """The day's plan.

    Raises:
        NoTrials: there is none for this runtime.
    """
    if runtime not in _PLANS:
        raise NoTrials(f"no trials for runtime {runtime!r}; there are for: {', '.join(_PLANS)}")
    return tuple(_PLANS[runtime]())


def contender(operator: str, provider: str, runtime: str, build: Callable[[], Call]) -> Contender:
    """A side by the names of an operator and of a provider that comes with the suite.

    Raises:
        LookupError: there is none.
    """
    return Contender(Subject(implementation_of(operator, provider, runtime), runtime), build)


def attention(
    name: str, queries: int, keys: int, fast: tuple[str, str], slow: tuple[str, str], heads: int = HEADS
) -> Trial:
    """One request's attention on ``hip``, each side ``(operator, provider)``: the same last queries on the same keys.

    ``mla_extend`` takes its own tokens beside the cache, the other operators in it.
    """

    def side(operator: str, provider: str) -> Contender:
        cached = keys - queries if operator == "mla_extend" else keys
        return contender(operator, provider, "hip", partial(AttentionCase(heads, ((queries, cached),)).call, operator))

    sides = side(*fast), side(*slow)
    work = f"{name}/heads={heads}/queries={queries}/keys={keys}"
    swept = keys if name == "decode" and heads == HEADS else 0
    return Trial(work, *sides, least_seconds=TRIAL_SECONDS, at_least=FAST_ENOUGH, keys=swept)


def renorm(
    runtime: str,
    operator: str,
    fast: str,
    slow: str,
    rows: int,
    vocabulary: int = VOCABULARY,
    at_least: float = FAST_ENOUGH,
) -> Trial:
    """Renormalisation of softmax rows by two providers."""
    build = partial(renorm_call, operator, rows, vocabulary)
    return Trial(
        f"rows={rows}/vocabulary={vocabulary}",
        contender(operator, fast, runtime, build),
        contender(operator, slow, runtime, build),
        least_seconds=TRIAL_SECONDS,
        at_least=at_least,
    )


def renorm_call(operator: str, rows: int, vocabulary: int) -> Call:
    """Rows of a softmax with one limit each, as serving engines pass it: k = 50, p = 0.9."""
    import torch

    from waveproof.fixtures.strategies.renorm import make_rows

    probs = make_rows(["softmax"] * rows, vocabulary, seed=0)
    if operator == "top_k_renorm_prob":
        return Call(operator, {"probs": probs, "top_k": torch.full((rows,), 50, dtype=torch.int32)})
    return Call(operator, {"probs": probs, "top_p": torch.full((rows,), 0.9)})


_DECODE, _PREFILL, _EXTEND, _PROMPT = "mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill"
_TOP_K, _TOP_P = "top_k_renorm_prob", "top_p_renorm_prob"


def _hip() -> Iterable[Trial]:
    def decode(keys: int) -> Trial:
        return attention("decode", 1, keys, (_DECODE, OWN), (_DECODE, "sglang"))

    middle = CONTEXTS[2]
    trials = [
        replace(decode(middle), share=2.0, least_seconds=FIRST_SECONDS),
        attention("prefill", 128, 8192, (_PREFILL, OWN), (_EXTEND, "sglang")),
        attention("verify", 4, middle, (_DECODE, OWN), (_DECODE, "sglang_verify")),
        *(decode(keys) for keys in CONTEXTS if keys != middle),
        attention("decode", 1, middle, (_DECODE, "aiter"), (_DECODE, "sglang"), NATIVE_HEADS),
        attention("prefill", 128, 8192, (_PREFILL, "aiter"), (_EXTEND, "sglang"), NATIVE_HEADS),
        attention("verify", 4, middle, (_DECODE, "sglang_verify_shared"), (_DECODE, "sglang_verify")),
        attention("prompt", 1024, 1024, (_PROMPT, "sglang_dense"), (_PROMPT, "sglang")),
        *(
            renorm("hip", operator, OWN, slow, rows)
            for slow in ("torch", "sglang")
            for operator in (_TOP_K, _TOP_P)
            for rows in ROWS
        ),
    ]
    timed = {sides(trial) for trial in trials}
    trials += [paired(pair) for pair in PAIRS if (pair.operator, pair.fast, pair.slow) not in timed]
    # Neither is promised to be the faster.
    return [*trials, *(renorm("hip", _TOP_K, OWN, "aiter", rows, at_least=0.0) for rows in ROWS)]


def paired(pair: FastSlow) -> Trial:
    """A pair at the size at which it is counted. That is small, so nothing is asked of its time."""
    fast, slow = (
        Contender(Subject(implementation, "hip"), make)
        for implementation, make in zip(pair.implementations(), (pair.make_fast, pair.make_slow), strict=True)
    )
    return Trial(pair.case, fast, slow, least_seconds=TRIAL_SECONDS)


def sides(trial: Trial) -> tuple[str, str, str]:
    """Operator of the fast side, and both providers: what identifies a pair of :data:`waveproof.perf.pairs.PAIRS`."""
    fast, slow = trial.fast.subject.implementation, trial.slow.subject.implementation
    return fast.operator, fast.provider, slow.provider


def _cuda() -> Iterable[Trial]:
    trials = [
        renorm("cuda", operator, OWN, slow, rows, at_least=FAST_ENOUGH if slow == "torch" else 0.0)
        for slow in ("torch", "flashinfer", "sglang")
        for operator in (_TOP_K, _TOP_P)
        for rows in ROWS
    ]
    return [replace(trials[0], share=2.0, least_seconds=FIRST_SECONDS), *trials[1:]]


def _cpu() -> Iterable[Trial]:
    """Torch's top-k by a threshold beside a full sort, on the CPU."""
    build = partial(renorm_call, _TOP_K, 2, SMALL_VOCABULARY)
    ways: tuple[Way, ...] = (WARM, COLD)
    by_topk, by_sort = (
        Contender(Subject(Implementation(name, _TOP_K, "threshold", ("cpu",), load), "cpu"), build)
        for name, load in (
            ("topk", "waveproof.perf.renorm_forms:by_topk"),
            ("sort", "waveproof.perf.renorm_forms:by_sort"),
        )
    )
    yield Trial(
        f"rows=2/vocabulary={SMALL_VOCABULARY}",
        by_topk,
        by_sort,
        least_seconds=REHEARSAL_SECONDS,
        at_least=FAST_ENOUGH,
        ways=ways,
    )


_PLANS = {"hip": _hip, "cuda": _cuda, "cpu": _cpu}
