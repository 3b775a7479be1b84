"""Growths, pairs and counts that must be found out, ways of judging that do not, and some that only look wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from waveproof.golden.judges import launched
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.runtimes.catalogue import installed
from waveproof.perf import growth, pairs
from waveproof.perf.counts import Counted, Launch
from waveproof.perf.records import Place
from waveproof.selftest.planted import Planted

KEYS = (64, 128, 256, 512, 1024)
ODD_KEYS = (200, 400, 800, 1600, 3200)
CONSTANT, SLOPE = 40_000, 580
DECODE = ("mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co", "_fwd_kernel_stage2_asm")
GENERIC = ("get_num_kv_splits_triton", "_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2")
FAST, SLOW = (10_696, 12_288), (1_750, 14_320, 15_408)
"""Wave instructions of these launches on 64 keys."""
Grows = Callable[[int], float]


def counts_of(grows: Grows, sizes: Sequence[int] = KEYS) -> list[int]:
    """Whole numbers, as counts are."""
    return [round(grows(size)) for size in sizes]


def linear(n: int) -> float:
    """As AITER's assembly prefill grows: exactly."""
    return CONSTANT + SLOPE * n


def stepwise(n: int) -> float:
    """Tiles of 64 keys, whole ones alone."""
    return CONSTANT + SLOPE * 64 * math.ceil(n / 64)


def re_reads(n: int) -> float:
    """Each key reads all earlier ones again."""
    return linear(n) + n * (n - 1) // 2


def n_log_n(n: int) -> float:
    """As a sort of all keys grows."""
    return CONSTANT + SLOPE * n * math.log2(n)


def judged(grows: Grows, sizes: Sequence[int] = KEYS, tile: int = 0) -> Callable[[], list[str]]:
    """Rules that a growth breaks."""

    def broken() -> list[str]:
        one = growth.judge_linear(sizes, counts_of(grows, sizes), tile)
        return [] if one.holds else [one.rule]

    return broken


def counted(kernels: Sequence[str], waves: Sequence[int], case: str = "mla_decode") -> Counted:
    """A call that launched these."""
    launches = tuple(
        Launch(kernel, {"wave_instructions": count}) for kernel, count in zip(kernels, waves, strict=True)
    )  # fmt: skip
    return Counted(case, launches, Place("emulate", "gfx950"))


def guarded(
    kernels: Sequence[str], waves: Sequence[int], slow: Sequence[str] = GENERIC, slow_waves: Sequence[int] = SLOW
) -> pairs.Guarded:
    """The first pair, both sides of which launched these."""
    return pairs.Guarded(pairs.PAIRS[0], counted(kernels, waves), counted(slow, slow_waves))


def pair(*arguments: Sequence[str] | Sequence[int]) -> Callable[[], list[str]]:
    """Rules that a pair breaks."""
    return lambda: [one.rule for one in pairs.judge_guarded(guarded(*arguments)) if not one.holds]  # type: ignore[arg-type]


def by_name_alone(one: pairs.Guarded) -> list[Judgement]:
    """A wrong guard: the fast kernel is among those that ran."""
    expected = launched.expectation(one.pair.fast_kernels)
    found = launched.judge_ran(one.fast.ran, expected, "gfx950", False)
    return [judgement for judgement in found if judgement.rule == launched.RAN]


def log_log_slope(sizes: Sequence[int], counts: Sequence[int]) -> float:
    """A wrong exponent: that of the counts themselves, which a constant flattens."""
    return math.log(counts[-1] / counts[0]) / math.log(sizes[-1] / sizes[0])


def _misses_beneath_a_constant() -> list[str]:
    heavy = counts_of(lambda n: 10**7 + n * n)
    return ["slope of counts misses it"] if log_log_slope(KEYS, heavy) < 1 < growth.exponent(KEYS, heavy) else []


def _misses_slow_first() -> list[str]:
    one = guarded((*GENERIC, *DECODE), (*SLOW, *FAST))
    return ["names alone miss it"] if all(judgement.holds for judgement in by_name_alone(one)) else []


def _changed(launch: int) -> Callable[[], list[str]]:
    def broken() -> list[str]:
        before, after = counted(DECODE, FAST), counted(DECODE, FAST)
        first = replace(after.launches[launch], figures={"wave_instructions": FAST[launch] + 1})
        after = replace(after, launches=(first, *after.launches[1:]))
        return _differences(before, after)

    return broken


def _differences(before: Counted, after: Counted) -> list[str]:
    """Rules by which the gate tells two nights apart."""
    from waveproof.perf.gate import judge_exact

    then = {one.key: one for one in before.measurements()}
    now = {one.key: one for one in after.measurements()}
    rulings = [judge_exact(now[key], then[key]).outcome for key in now if key in then]
    news = ["stale"] * len(now.keys() - then.keys())
    return [outcome for outcome in (*rulings, *news) if outcome != "pass"]


def _absent() -> str:
    return "" if installed("aiter") else "aiter is not installed: names of its kernels cannot be looked up"


def _beside_torch(role: str) -> Callable[[], list[str]]:
    """The fast kernels ran, on little, and torch did something as well."""

    def broken() -> list[str]:
        one = guarded(DECODE, (900, 700))
        one = replace(one, fast=replace(one.fast, torch_roles=(role,)))
        return [judgement.rule for judgement in pairs.judge_guarded(one) if not judgement.holds]

    return broken


def _mfma_gone() -> list[str]:
    def of(mfma: int) -> Counted:
        return Counted("mla_decode", (Launch("k", {"wave_instructions": 800, "mfma": mfma}),), Place("emulate"))

    return _differences(of(80), of(0))


STEPS = "counts step by whole tiles, at sizes that are none"
PLANTED = (
    Planted("re-reads", "each key reads all earlier ones again", growth.LINEAR, judged(re_reads)),
    Planted("one-in-a-thousand", "n^2 at a thousandth of the linear work", growth.LINEAR,
            judged(lambda n: linear(n) + n * n / 1024)),
    Planted("n-log-n", "keys are sorted", growth.LINEAR, judged(n_log_n)),
    Planted("late-quadratic", "beyond 512 keys a tail is read twice", growth.LINEAR,
            judged(lambda n: linear(n) + max(n - 512, 0) * 100)),
    Planted("quadratic-in-tiles", "each tile reads all earlier ones; tiles allowed for", growth.LINEAR,
            judged(lambda n: CONSTANT + SLOPE * math.ceil(n / 64) ** 2, ODD_KEYS, 64)),
    Planted("batch-times-batch", "each request walks the table of all", growth.LINEAR,
            judged(lambda n: CONSTANT + SLOPE * n * n, (1, 2, 4, 8))),
    Planted("under-a-constant", "a slope of the counts is taken for the growth", "slope of counts misses it",
            _misses_beneath_a_constant),
    Planted("fell-back", "the dispatcher took the slow kernel: ratio 1", pairs.SAVES, pair(GENERIC, SLOW), _absent),
    Planted("fell-back-by-name", "the same, told by name", launched.RAN, pair(GENERIC, SLOW), _absent),
    Planted("slow-first", "the slow kernel, then the fast one", launched.ALONE,
            pair((*GENERIC, *DECODE), (*SLOW, *FAST)), _absent),
    Planted("names-alone", "a guard that only looks for the fast kernel", "names alone miss it",
            _misses_slow_first, _absent),
    Planted("dummy-and-torch", "the fast kernel on a dummy; torch multiplies matrices", launched.ALONE,
            _beside_torch("matmul"), _absent),
    Planted("mfma-gone", "as many instructions, none of them a matrix instruction", "improve", _mfma_gone),
    Planted("nothing-launched", "torch did it", launched.SEEN, pair((), ()), _absent),
    Planted("fast-not-faster", "the fast kernel takes as much as the slow one", pairs.SAVES,
            pair(DECODE, (15_000, 16_478)), _absent),
    Planted("slow-is-fast", "the slow side runs the fast kernel: the ratio says nothing", pairs.SLOW,
            pair(DECODE, FAST, DECODE, FAST), _absent),
    Planted("one-more", "one wave instruction more", "regress", _changed(0)),
    Planted("one-more-launch", "a launch more, of a kernel that takes little", "regress",
            lambda: _differences(counted(DECODE, FAST), counted((*DECODE, "copy"), (*FAST, 1)))),
    Planted("other-kernel", "another kernel with the same counts", "stale",
            lambda: _differences(counted(DECODE, FAST), counted(("other", DECODE[1]), FAST))),
    Planted("linear", "a large constant and a slope", "", judged(linear)),
    Planted("constant", "nothing grows", "", judged(lambda n: CONSTANT)),
    Planted("sublinear", "splits fill up before more work comes", "", judged(lambda n: CONSTANT + 40 * math.sqrt(n))),
    Planted("steps-of-tiles", STEPS, "", judged(stepwise, ODD_KEYS, 64)),
    Planted("pair", "the pair as it is", "", pair(DECODE, FAST), _absent),
    Planted("same-night", "the same counts", "", lambda: _differences(counted(DECODE, FAST), counted(DECODE, FAST))),
)  # fmt: skip
