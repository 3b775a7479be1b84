"""Which kernels ran: whether they are the ones that were meant, all of them, built beforehand and fully recorded.

An operator is rarely wrong because its fast kernel is; it is slow because something else answered for it, and nothing
said so. What is expected is stated for each implementation, in a small notation:

``asm``
    some kernel of that class ran.
``asm:mla_dec_*``
    a kernel of that class whose name matches ran; ``a|b`` is either name.
``triton:_fwd_kernel_stage2_asm?``
    such a kernel may run beside: it is no fallback. All that is neither expected, nor allowed, nor :data:`HOUSEKEEPING`
    is taken for one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from waveproof.golden.judges.judgement import Judgement

KINDS = (
    "asm", "triton", "ck", "hipblaslt", "rocblas", "hip", "flashinfer", "cublas", "torch", "memory", "unknown",
)  # fmt: skip
"""Classes of kernels; ``hip`` is C++ that AITER, sgl-kernel or vLLM were built with."""

HOUSEKEEPING = ("memory", "torch:elementwise", "torch:fill", "torch:index", "torch:reduce")
"""What host code does to an operator's arguments before and after. None of it sorts, scans, normalises or multiplies
matrices, so that no operator of the suite is computed by it alone but by leaving its expected kernel out."""

SEEN = "kernels were seen"
RAN = "expected kernel ran"
ALONE = "nothing ran in its place"
INSTALLED = "kernel is of this installation"
NOT_BUILT = "nothing was built"
COMPLETE = "recording is complete"
SAME = "same kernels in each repeat"
TIMED = "kernels take time"
RULES = (SEEN, RAN, ALONE, INSTALLED, NOT_BUILT, COMPLETE, SAME, TIMED)


class BadExpectation(ValueError):
    """Not in the notation; the message says what is."""


@dataclass(frozen=True)
class Ran:
    """All launches of one kernel."""

    name: str
    """As it was recorded, mangled or not."""
    kind: str
    """One of :data:`KINDS`."""
    role: str = ""
    """Of torch's: ``elementwise``, ``fill``, ``index``, ``reduce``, ``sort``, ``topk``, ``scan``, ``softmax``; else
    empty."""
    plain: str = ""
    """The name without namespaces, arguments and template parameters."""
    calls: int = 1
    seconds: float = 0.0
    """Of all calls; 0 where time was not taken."""
    shipped: bool = False
    """Of ``asm``: whether a code object of the installation has it."""
    arches: tuple[str, ...] = ()
    """Of ``asm``: architectures whose code objects have it."""

    def matches(self, pattern: str) -> bool:
        """Whether it is of a class, or of a class and a name or role: ``torch:sort``, ``asm:mla_dec_*``."""
        kind, _, name = pattern.partition(":")
        plain = self.plain or self.name
        named = not name or self.role == name or any(fnmatchcase(plain, one) for one in name.split("|"))
        return kind == self.kind and named


@dataclass(frozen=True)
class Expectation:
    """What must run, and what may."""

    runs: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """In the notation."""
        return ", ".join([*self.runs, *(f"{one}?" for one in self.beside)])


def expectation(texts: Iterable[str]) -> Expectation:
    """Read the notation.

    Raises:
        BadExpectation: an unknown class, or nothing that must run.
    """
    runs: list[str] = []
    beside: list[str] = []
    for text in texts:
        pattern = text.removesuffix("?")
        kind = pattern.partition(":")[0]
        if kind not in KINDS:
            raise BadExpectation(f"{text!r}: {kind!r} is no class of kernels; there are: {', '.join(KINDS)}")
        (beside if text.endswith("?") else runs).append(pattern)
    if not runs:
        raise BadExpectation(f"{', '.join(beside) or 'nothing'}: at least one class must run, one without '?'")
    return Expectation(tuple(runs), tuple(beside))


def judge_ran(
    ran: Sequence[Ran], expected: Expectation, arch: str = "", installed: bool = True, where: str = ""
) -> list[Judgement]:
    """Whether the expected kernels ran, and nothing in their place.

    Args:
        ran: what was recorded.
        expected: what is due.
        arch: that it ran on, ``gfx950``; empty where unknown.
        installed: whether the code objects of the installation are known here, so that a name can be looked up.
        where: for messages, ``mla_decode, range 2 of 2``.
    """
    at = _at(where)
    seen = [one for one in ran if one.kind != "memory"]
    total = sum(one.seconds for one in ran)
    judgements = [judge_seen(ran, where, expected.text)]
    if not seen:
        return judgements
    judgements += [_required(pattern, seen, expected, at, total) for pattern in expected.runs]
    allowed = (*expected.runs, *expected.beside, *HOUSEKEEPING)
    others = [one for one in seen if not any(one.matches(pattern) for pattern in allowed)]
    judgements.append(_alone(others, expected, at, total))
    judgements += [_installed(one, arch, at) for one in seen if one.kind == "asm" and installed]
    return judgements


def judge_seen(ran: Sequence[Ran], where: str = "", expected: str = "a kernel") -> Judgement:
    """Whether any kernel is on record: of what saw none, nothing is proven."""
    if any(one.kind != "memory" for one in ran):
        return Judgement(SEEN, True)
    at = _at(where)
    what = f"only {_listed(ran, 0.0)}" if ran else "nothing at all"
    return Judgement(
        SEEN,
        False,
        figure=1.0,
        message=f"{at}{what} ran on the device: see that the range covers the operator and that the profiler records "
        "the device (ProfilerActivity.CUDA, on ROCm too)",
        expected=expected,
        got=what,
    )


def _at(where: str) -> str:
    """The beginning of a message."""
    return f"{where}: " if where else ""


def _required(pattern: str, seen: Sequence[Ran], expected: Expectation, at: str, total: float) -> Judgement:
    if any(one.matches(pattern) for one in seen):
        return Judgement(RAN, True)
    return Judgement(
        RAN,
        False,
        figure=1.0,
        message=f"{at}no kernel is {pattern}; what ran: {_listed(seen, total)}",
        expected=expected.text,
        got=_listed(seen, total),
    )


def _alone(others: Sequence[Ran], expected: Expectation, at: str, total: float) -> Judgement:
    if not others:
        return Judgement(ALONE, True)
    share = sum(one.seconds for one in others) / total if total else 0.0
    part = f" and took {share:.0%} of the time" if share else ""
    return Judgement(
        ALONE,
        False,
        figure=1.0,
        message=f"{at}{_listed(others, total)} took part{part}: a fallback, or to be allowed by name with a '?'",
        expected=expected.text,
        got=_listed(others, total),
    )


def _installed(one: Ran, arch: str, at: str) -> Judgement:
    if one.shipped and (not arch or arch in one.arches):
        return Judgement(INSTALLED, True)
    has = f"only objects for {', '.join(one.arches)} have it" if one.shipped else "no code object has it"
    return Judgement(
        INSTALLED,
        False,
        figure=1.0,
        message=f"{at}{one.plain or one.name} ran{f' on {arch}' if arch else ''}, but {has}: the trace is of another "
        "installation, or of another architecture",
        expected="a kernel of an installed code object" + (f" for {arch}" if arch else ""),
        got=one.name,
    )


def _listed(ran: Sequence[Ran], total: float, most: int = 4) -> str:
    """The kernels with class, calls and share of the time, the longest first."""
    ordered = sorted(ran, key=lambda one: -one.seconds)
    texts = [
        f"{one.kind} {(one.plain or one.name)[:80]} ({one.calls}x{f', {one.seconds / total:.0%}' if total else ''})"
        for one in ordered[:most]
    ]
    return ", ".join(texts) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


class Built(Protocol):
    """What was built meanwhile, see ``fixtures.launched.builds.Builds``."""

    @property
    def texts(self) -> tuple[str, ...]:
        """A line for each file, compilation and process."""


def judge_not_built(built: Built, where: str = "") -> Judgement:
    """Whether nothing was compiled or loaded for the first time: a warm-up leaves nothing to do."""
    texts = built.texts
    if not texts:
        return Judgement(NOT_BUILT, True)
    return Judgement(
        NOT_BUILT,
        False,
        figure=float(len(texts)),
        unit="builds",
        message=f"{_at(where)}{'; '.join(texts[:4])}"
        + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
        + ": the time of this call is a compiler's; warm up with the same shapes and dtypes first",
        derivation="what a call needs is built before it is timed, and before a server is under its watchdog",
    )


def judge_recording(launches: int, unrecorded: int, dropped: int, where: str = "") -> Judgement:
    """Whether each launch that the host made has its kernel on record.

    Args:
        launches: calls of the runtime's launch functions within the range.
        unrecorded: of these, how many have no kernel.
        dropped: records that the profiler itself says it lost.
        where: for the message.
    """
    if not unrecorded and not dropped:
        return Judgement(COMPLETE, True)
    return Judgement(
        COMPLETE,
        False,
        figure=float(max(unrecorded, dropped)),
        unit="records",
        message=f"{_at(where)}{unrecorded} of {launches} launches have no kernel on record"
        + (f", and the profiler reports {dropped} dropped records" if dropped else "")
        + ": what is missing may be the fallback; record fewer steps, and wait for the device before the range ends",
    )


def judge_same(repeats: Sequence[Sequence[Ran]], where: str = "") -> Judgement:
    """Whether each repeat of a call ran the same kernels as often; one alone shows nothing."""
    if len(repeats) < 2:
        return Judgement(
            SAME, False, float(len(repeats)), 2.0, "repeats",
            message=f"{_at(where)}{len(repeats)} repeat on record: nothing to compare it with",
        )  # fmt: skip
    counts = [Counter({one.name: one.calls for one in repeat if one.kind != "memory"}) for repeat in repeats]
    for turn, count in enumerate(counts[1:], 2):
        if count != counts[0]:
            more, fewer = count - counts[0], counts[0] - count
            told = [f"{n}x {name[:80]} more" for name, n in more.items()]
            told += [f"{n}x {name[:80]} fewer" for name, n in fewer.items()]
            return Judgement(
                SAME,
                False,
                figure=float(sum(more.values()) + sum(fewer.values())),
                unit="kernels",
                message=f"{_at(where)}repeat {turn} differs from the first: {', '.join(told[:4])}",
                index=(turn - 1,),
            )
    return Judgement(SAME, True)


def judge_timed(ran: Sequence[Ran], where: str = "") -> Judgement:
    """Whether each kernel has a duration: a clock that stands still proves nothing."""
    still = [one for one in ran if one.kind != "memory" and not 0 < one.seconds < math.inf]
    if not still:
        return Judgement(TIMED, True)
    return Judgement(
        TIMED,
        False,
        figure=float(len(still)),
        unit="kernels",
        message=f"{_at(where)}{', '.join(one.plain or one.name for one in still[:4])} took no time",
        expected="more than 0 s",
        got=f"{still[0].seconds:g} s",
    )
