"""Which operators have a fast and a slow path in the installed packages, and the guard that the fast one is.

A fallback is silent: results stay right. So both paths run in one run on the same call, the kernels of both are proven
by name, and the fast one must do less of what it is there to save. Where the fast side's dispatcher falls back, its
kernel is not the expected one and the ratio is 1: red twice.

On ``emulate`` less is counted; on ``hip`` the same table says which pairs are timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from waveproof.fixtures.launched.names import shipped_kernels
from waveproof.golden.judges import launched
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Implementation, implementation_of
from waveproof.kernels.runtimes.process import Worker
from waveproof.perf.counted_cases import HEADS, NATIVE_HEADS, accept_call, attention_call, renorm_call
from waveproof.perf.counts import QUANTITIES, CountCase, Counted, count
from waveproof.perf.records import Measurement, Quantity, Ruling

SAVES = "fast path saves"
SLOW = "slow path is another"
RULES = (launched.SEEN, launched.RAN, launched.ALONE, launched.INSTALLED, SAVES, SLOW)


@dataclass(frozen=True)
class FastSlow:
    """An operator with two ways to one result."""

    operator: str
    fast: str
    """Provider of the fast path."""
    slow: str
    """Provider of the slow one; may be the same, where an argument chooses."""
    case: str
    """What the call is: ``decode/heads=12/keys=256``."""
    fast_kernels: tuple[str, ...]
    """What proves the fast path, in the notation of :mod:`waveproof.golden.judges.launched`."""
    slow_kernels: tuple[str, ...]
    """What the slow one is, likewise."""
    saves: str
    """Quantity of :data:`waveproof.perf.records.COUNTS` that the fast path is there to save."""
    make_fast: Callable[[], Call] = field(compare=False)
    make_slow: Callable[[], Call] = field(compare=False)
    """The same requests, in the form that the slow path takes."""
    at_least_by_counts: float = 1.0
    """Slow over fast in ``saves`` must be above it."""
    slow_operator: str = ""
    """Where it has another name for the slow path."""
    torch_too: bool = False
    """Whether what torch does around the kernels is part of what is saved: a sort."""

    @property
    def name(self) -> str:
        """``mla_decode/waveproof over sglang/decode/...``."""
        return f"{self.operator}/{self.fast} over {self.slow}/{self.case}"

    def side(self, which: str, implementation: Implementation | None = None) -> CountCase:
        """One side as a case to count; ``which`` is ``fast`` or ``slow``.

        Args:
            which: side.
            implementation: what stands in for the provider: a trial of the guard.
        """
        fast = which == "fast"
        operator = self.operator if fast else self.slow_operator or self.operator
        provider, make = (self.fast, self.make_fast) if fast else (self.slow, self.make_slow)
        return CountCase(operator, provider, f"{self.case}/{which}", make, self.torch_too, implementation)

    def implementations(self) -> tuple[Implementation, Implementation]:
        """Of the fast and of the slow side.

        Raises:
            LookupError: a provider has no such operator.
        """
        slow = self.slow_operator or self.operator
        return implementation_of(self.operator, self.fast), implementation_of(slow, self.slow)


@dataclass(frozen=True)
class Guarded:
    """A pair that was counted in one run."""

    pair: FastSlow
    fast: Counted
    slow: Counted

    def ratio(self, quantity: str = "") -> float:
        """Slow over fast in a quantity, that which the pair saves if none is named; 0 where neither side has any."""
        fast, slow = (one.total(quantity or self.pair.saves) for one in (self.fast, self.slow))
        if fast == 0:
            return float("inf") if slow else 0.0
        return slow / fast

    def measurement(self) -> Measurement:
        """The ratio, exact as the counts are: any change of it is one."""
        name = f"slow over fast in {self.pair.saves}"
        quantity = Quantity(name, "1", exact=True, higher_is_better=True)
        return Measurement(self.pair.name, quantity, (round(self.ratio(), 6),), self.fast.place)


def guard(worker: Worker, pair: FastSlow, stand_in: Implementation | None = None) -> Guarded:
    """Run both sides one after the other in one process and count them; results are judged first.

    Raises:
        WrongResult: a side is wrong or launches nothing; nothing is then said of speed.
        Unavailable, Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    fast = count(worker, pair.side("fast", stand_in))
    return Guarded(pair, fast, count(worker, pair.side("slow")))


def judge_guarded(guarded: Guarded) -> list[Judgement]:
    """Whether the fast kernels ran alone, the slow ones are others, and the fast path saves what it is there for."""
    pair, arch = guarded.pair, guarded.fast.place.arch
    ran, installed = guarded.fast.ran, bool(shipped_kernels())
    judgements = launched.judge_ran(ran, launched.expectation(pair.fast_kernels), arch, installed, pair.name)
    slow = launched.judge_ran(
        guarded.slow.ran, launched.expectation(pair.slow_kernels), arch, installed, f"{pair.name}, slow side"
    )
    judgements += [replace(one, rule=SLOW) for one in slow if not one.holds]
    fast, other = guarded.fast.total(pair.saves), guarded.slow.total(pair.saves)
    saves = 0 < pair.at_least_by_counts * fast < other
    unit = QUANTITIES[pair.saves].unit
    judgements.append(
        Judgement(
            SAVES,
            saves,
            0.0 if saves else 1.0,
            derivation="both sides of one call in one run; counts are exact",
            message=""
            if saves
            else f"{pair.name}: {fast:,} {pair.saves} against {other:,} of the slow path: "
            f"{guarded.ratio():.3g} times, and more than {pair.at_least_by_counts:g} is due",
            expected=f"less than {other / pair.at_least_by_counts:,.0f} {unit}",
            got=f"{fast:,} {unit}",
        )
    )
    return judgements


def ruling(guarded: Guarded) -> Ruling:
    """Of the guard: ``regress`` where a rule is broken, ``pass`` otherwise; the effect is fast over slow."""
    broken = [one for one in judge_guarded(guarded) if not one.holds]
    fast, slow = (one.total(guarded.pair.saves) for one in (guarded.fast, guarded.slow))
    effect = fast / slow if slow else 1.0
    reason = "; ".join(f"{one.rule}: {one.message}" for one in broken) or (
        f"{', '.join(dict.fromkeys(guarded.fast.kernels))} ran, and the slow path takes {guarded.ratio():.2f} times "
        f"its {guarded.pair.saves}"
    )
    return Ruling(
        guarded.pair.name, guarded.pair.saves, "regress" if broken else "pass", effect, effect, effect, 1.0, 0.0, reason
    )


def _attention(
    name: str,
    fast: tuple[str, str],
    slow: tuple[str, str],
    queries: int,
    keys: int,
    heads: int = HEADS,
    kernels: tuple[str, ...] = (),
) -> FastSlow:
    """Proven by ``kernels``, or by what the fast implementation states that it runs as."""
    (operator, provider), (slow_operator, slow_provider) = fast, slow
    return FastSlow(
        operator,
        provider,
        slow_provider,
        f"{name}/heads={heads}/queries={queries}/keys={keys}",
        kernels or implementation_of(*fast).runs_as,
        implementation_of(*slow).runs_as,
        "wave_instructions",
        lambda: attention_call(operator, queries, keys, heads=heads),
        lambda: attention_call(slow_operator, queries, keys, heads=heads),
        slow_operator=slow_operator,
    )


def _renorm(operator: str) -> FastSlow:
    fast, slow = implementation_of(operator, "waveproof"), implementation_of(operator, "sglang")
    return FastSlow(
        operator,
        "waveproof",
        "sglang",
        "no sort/vocab=32000/rows=2",
        fast.runs_as,
        slow.runs_as,
        "bytes",
        lambda: renorm_call(operator),
        lambda: renorm_call(operator),
        torch_too=True,
    )


_VERIFIES = ("asm:mla_a16w16_qh16_*", "triton:_fwd_kernel_stage2_asm?")
"""What AITER's decode of several queries a request is: an object of another name than that of one query."""
_ACCEPTING = implementation_of("accept_sampling", "sglang").runs_as
_DECODE, _PREFILL, _EXTEND = "mla_decode", "mla_prefill_absorbed", "mla_extend"

PAIRS: tuple[FastSlow, ...] = (
    _attention("decode", (_DECODE, "waveproof"), (_DECODE, "sglang"), 1, 256),
    _attention("decode", (_DECODE, "aiter"), (_DECODE, "sglang"), 1, 256, NATIVE_HEADS),
    _attention("verify", (_DECODE, "waveproof"), (_DECODE, "sglang_verify"), 4, 256, kernels=_VERIFIES),
    _attention("verify", (_DECODE, "sglang_verify_shared"), (_DECODE, "sglang_verify"), 4, 256),
    _attention("prefill", (_PREFILL, "waveproof"), (_EXTEND, "sglang"), 32, 256),
    _attention("prefill", (_PREFILL, "aiter"), (_EXTEND, "sglang"), 32, 256, NATIVE_HEADS),
    _attention("prompt", ("mla_prefill", "sglang_dense"), ("mla_prefill", "sglang"), 96, 96),
    *(_renorm(operator) for operator in ("top_k_renorm_prob", "top_p_renorm_prob", "target_probs")),
    FastSlow(
        "accept_sampling",
        "sglang",
        "sglang",
        "sparse over dense/vocab=4096/drafts=3/rows=2",
        # Both paths renormalise by the same kernels, the sparse one the 2 k candidates that torch.topk leaves.
        _ACCEPTING,
        tuple(one for one in _ACCEPTING if one != "torch:topk?"),
        "wave_instructions",
        lambda: accept_call("sparse"),
        lambda: accept_call("dense"),
    ),
)
"""Not in it, since the installed packages have one path on AMD: ``merge_state``, ``chain_verify``,
``seeded_chain_verify``. AITER's sparse attention is fast on pages of 32 tokens and slow on pages of one, which are no
two paths for one call. ``top_k_renorm_prob`` in torch (``torch.topk``) moves less than sglang's kernels after their
sort, so that neither is the other's fast path by counts."""
