"""What latent attention costs in a generic Triton kernel and in AITER's assembly on padded heads, without a device.

Twelve heads (Kimi K3 under TP8) fall between the sizes of AITER's assembly, so a serving engine either falls back to a
generic kernel or pads them to 16. Each call runs as machine code on the emulated device, is held to float64, and only
then counts: wave instructions, matrix instructions, bytes. What a kernel takes from the device (registers, spills,
scratch, LDS) is what the compiler made of it, or what the shipped code object asks for.

No figure is a time. Counts know no caches, and waves that wait for memory or for each other count nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import torch

from waveproof.kernels.operators.mla import DEEPSEEK
from waveproof.kernels.own.padded_heads import pad_heads, unpad_heads
from waveproof.kernels.providers.registry import Subject
from waveproof.kernels.runtimes.process import Crashed, Outcome, TimedOut, Unavailable, Unsuitable, Worker
from waveproof.perf.attention_phases import NATIVE, PADDED, PHASES, Candidate, Phase, takers
from waveproof.perf.figures_renorm import WrongResult
from waveproof.perf.host_traffic import HostTraffic
from waveproof.perf.judged_results import require_right
from waveproof.perf.kernel_code import Code, compiled_code, shipped_code

REAL_HEADS, NATIVE_HEADS = 12, 16
KEYS = 96
CALL_SECONDS = 180.0


@dataclass(frozen=True)
class Work:
    """What a call executes, for each query token."""

    wave_instructions: float
    mfma: float
    """Matrix instructions, counted by wave."""
    multiply_adds: float
    """Of the matrix instructions: on padding, and on keys that are hidden, too."""
    bytes_read: float
    """Global memory; what several lanes read counts for each."""
    bytes_written: float
    lds_bytes_read: float
    lds_bytes_written: float
    copied: float = 0.0
    """Bytes that torch reads and writes to pad the queries and to unpad the outputs; no kernel of the emulator."""

    @property
    def bytes(self) -> float:
        """Global memory, read and written, the copies of padding included."""
        return self.bytes_read + self.bytes_written + self.copied

    @property
    def lds_bytes(self) -> float:
        """LDS, read and written."""
        return self.lds_bytes_read + self.lds_bytes_written

    def __sub__(self, other: Work) -> Work:
        return Work(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(Work)))


MEASURES = ("wave_instructions", "mfma", "multiply_adds", "bytes", "lds_bytes")
"""Properties of :class:`Work` that implementations are compared by."""


@dataclass(frozen=True)
class Executed:
    """One call on the emulated device whose results are right."""

    subject: Subject
    phase: Phase
    page_size: int
    heads: int
    keys: int
    kernels: tuple[str, ...]
    """One name a launch; that of the code object where it is shipped."""
    workgroups: int
    work: Work
    severity: float
    """Largest error as a share of its bound."""

    @property
    def provider(self) -> str:
        """Who implements it."""
        return self.subject.implementation.provider

    @property
    def of_needed(self) -> float:
        """Multiply-adds for each one that the definition needs; 0 where no matrix instruction is used."""
        return self.work.multiply_adds * self.phase.queries / self.phase.needed(self.heads, self.keys)


@dataclass(frozen=True)
class Compiled:
    """A kernel of a call, as compiled ahead of time or as shipped."""

    subject: Subject
    phase: Phase
    page_size: int
    heads: int
    code: Code


@dataclass(frozen=True)
class Comparison:
    """A generic kernel against assembly on padded heads: ratios by :data:`MEASURES`, None where there is nothing."""

    generic: Executed
    padded: Executed
    whole: dict[str, float | None]
    """Of the calls as they are."""
    further: dict[str, float | None] | None
    """Of what further keys add at long contexts (``Phase.long``); None where one of the four was not measured."""


@dataclass(frozen=True)
class Padding:
    """Padded heads against native ones of the same assembly."""

    padded: Executed
    native: Executed
    same: dict[str, float | None]
    """Ratios of the work of the kernels, without the copies."""

    @property
    def overhead(self) -> float:
        """How many times the multiply-adds for each that is needed."""
        return self.padded.of_needed / self.native.of_needed


@dataclass(frozen=True)
class Figures:
    """Everything, and what could not be had."""

    arches: tuple[str, ...]
    keys: int
    executed: tuple[Executed, ...]
    compiled: tuple[Compiled, ...]
    notes: tuple[str, ...]


def measure(arches: Sequence[str], keys: int = KEYS, further: bool = True) -> Figures:
    """Measure all figures.

    Args:
        arches: of ``gfx942`` and ``gfx950``.
        keys: that the last query of each request sees; at least as many as it has queries.
        further: whether calls of 12 heads are made at long contexts too, to see what a further key costs.
    """
    places = [(runtime, arch) for arch in arches for runtime in ("emulate", "compile")]
    # Processes of their own: these threads wait and judge.
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda place: figures_at(place[0], place[1], keys, further), places))
    figures = [figure for figures, _ in found for figure in figures]
    executed = tuple(one for one in figures if isinstance(one, Executed))
    return Figures(
        tuple(arches),
        keys,
        executed,
        (*shipped_of(executed), *(one for one in figures if isinstance(one, Compiled))),
        tuple(note for _, notes in found for note in notes),
    )


def figures_at(runtime: str, arch: str, keys: int, further: bool) -> tuple[list[Executed | Compiled], list[str]]:
    """Figures of every implementation there, and a note on each that has none: why, and in which phases."""
    figures: list[Executed | Compiled] = []
    missing: dict[str, list[str]] = {}
    worker = Worker(runtime, arch)
    try:
        for phase, heads in itertools.product(PHASES, (REAL_HEADS, NATIVE_HEADS)):
            lengths = {keys, *phase.long} if further and heads == REAL_HEADS else {keys}
            for candidate, subject in takers(phase, heads, runtime, arch):
                try:
                    if reason := subject.why_unavailable():
                        raise Unavailable(reason)
                    if runtime == "compile":
                        figures += compiled_for(worker, subject, phase, candidate, heads, keys)
                        continue
                    for count in sorted(lengths):
                        figures.append(executed_by(worker, subject, phase, candidate, heads, count))
                except (Unavailable, Unsuitable, Crashed, TimedOut, WrongResult) as error:
                    missing.setdefault(f"{subject.id}: {error}", []).append(f"{phase.name} of {heads} heads")
    finally:
        worker.close()
    return figures, [f"{note} ({', '.join(dict.fromkeys(where))})" for note, where in missing.items()]


def executed_by(
    worker: Worker, subject: Subject, phase: Phase, candidate: Candidate, heads: int, keys: int
) -> Executed:
    """Run a call on the emulated device, judge it and count.

    Raises:
        WrongResult: it raised, did damage, launched nothing or gave something else than float64 does.
        Unavailable, Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    call = phase.case(candidate, heads, keys).call(candidate.operator)
    outcome = _returned(worker.call(subject, call, CALL_SECONDS))
    severity = require_right(outcome.outputs, call, subject.implementation)
    return Executed(
        subject,
        phase,
        candidate.page_size,
        heads,
        keys,
        tuple(launch["kernel"] for launch in outcome.launches),
        sum(launch["workgroups"] for launch in outcome.launches),
        work_of(outcome.launches, phase.queries, copies(phase.queries, heads) if candidate.provider == PADDED else 0),
        severity,
    )


def work_of(launches: Sequence[dict[str, Any]], queries: int, copied: int = 0) -> Work:
    """Sums over the launches of a call, for each of its queries."""
    counted = [one.name for one in fields(Work) if one.name != "copied"]
    sums = {name: sum(launch[name] for launch in launches) for name in counted}
    return Work(**{name: total / queries for name, total in {**sums, "copied": copied}.items()})


def copies(queries: int, heads: int) -> int:
    """Bytes that torch reads and writes to pad the bf16 queries and to take the real heads of the outputs."""
    q = torch.zeros(queries, heads, DEEPSEEK.latent, dtype=torch.bfloat16)
    out = torch.zeros(queries, NATIVE_HEADS, DEEPSEEK.kv_lora_rank, dtype=torch.bfloat16)
    with HostTraffic() as traffic:
        pad_heads(q, NATIVE_HEADS)
        unpad_heads(out, heads)
    return sum(one.bytes_read + one.bytes_written for one in traffic.operations)


def compiled_for(
    worker: Worker, subject: Subject, phase: Phase, candidate: Candidate, heads: int, keys: int
) -> list[Compiled]:
    """What the compiler makes of each launch of a call.

    Raises:
        WrongResult: it raised, or launched nothing.
        Unavailable, Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    call = phase.case(candidate, heads, keys).call(candidate.operator)
    outcome = _returned(worker.call(subject, call, CALL_SECONDS))
    return [Compiled(subject, phase, candidate.page_size, heads, compiled_code(launch)) for launch in outcome.launches]


def shipped_of(executed: Iterable[Executed]) -> Iterator[Compiled]:
    """The shipped code objects among the kernels that ran."""
    for one in executed:
        for kernel in dict.fromkeys(one.kernels):
            code = shipped_code(one.subject.arch, kernel)
            if code is not None:
                yield Compiled(one.subject, one.phase, one.page_size, one.heads, code)


def comparisons(executed: Sequence[Executed], keys: int) -> Iterator[Comparison]:
    """Each generic implementation of 12 heads against the padded one: calls on so many keys, and what more add."""
    calls = {(one.subject.arch, one.phase, one.provider, one.keys): one for one in executed if one.heads == REAL_HEADS}
    for (arch, phase, provider, length), generic in calls.items():
        padded = calls.get((arch, phase, PADDED, keys))
        if provider == PADDED or length != keys or padded is None:
            continue
        ends = [calls.get((arch, phase, who, end)) for who in (provider, PADDED) for end in phase.long]
        work = [one.work for one in ends if one is not None]
        further = ratios(work[1] - work[0], work[3] - work[2]) if len(work) == 4 else None
        yield Comparison(generic, padded, ratios(generic.work, padded.work), further)


def paddings(executed: Sequence[Executed]) -> Iterator[Padding]:
    """Padded heads beside native ones, for each phase that has both."""
    native = {(one.subject.arch, one.phase.name, one.keys): one for one in executed if one.provider == NATIVE}
    for one in executed:
        other = native.get((one.subject.arch, one.phase.name, one.keys))
        if one.provider == PADDED and other is not None:
            same = ratios(one.work, other.work)
            same["bytes"] = _ratio(one.work.bytes - one.work.copied, other.work.bytes)
            yield Padding(one, other, same)


def ratios(work: Work, base: Work) -> dict[str, float | None]:
    """By :data:`MEASURES`; None where the base has none."""
    return {name: _ratio(getattr(work, name), getattr(base, name)) for name in MEASURES}


def _ratio(value: float, base: float) -> float | None:
    return value / base if base > 0 else None


def _returned(outcome: Outcome) -> Outcome:
    if outcome.fault:
        raise WrongResult(outcome.fault)
    if not outcome.launches:
        raise WrongResult("launched no kernel: nothing is to be counted")
    return outcome
