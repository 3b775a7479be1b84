"""Figures on the ``renorm`` kernels, measured when asked for: launches, memory traffic, registers, times on the CPU.

None is a time on a GPU. Bytes and registers say what a kernel must do, not how long it takes there: a kernel that moves
less with one program a row may still leave most compute units idle at a small batch, so the grid is a figure too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from waveproof.fixtures.strategies.renorm import make_rows
from waveproof.golden.judges.tolerance import judge_distribution
from waveproof.golden.references.renorm import reference
from waveproof.kernels.operators.contract import Call, Embedding, Value
from waveproof.kernels.providers.registry import Implementation, Subject, builtin_implementations
from waveproof.kernels.runtimes.amdgcn_resources import Resources
from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.process import Crashed, Outcome, TimedOut, Unavailable, Unsuitable, Worker
from waveproof.perf.host_traffic import Operation, operations, with_traffic
from waveproof.perf.intervals import MedianInterval, median_interval
from waveproof.perf.measure import interleaved_seconds, paired_ratios
from waveproof.perf.renorm_forms import FORMS

OPERATORS = ("top_k_renorm_prob", "top_p_renorm_prob")
KERNEL_PROVIDERS = ("waveproof", "sglang")
KINDS = ("peaked", "softmax", "flat", "quantised")
"""Rows that traffic is measured on; see :data:`waveproof.fixtures.strategies.renorm.ROW_KINDS`."""

TOP_K, TOP_P = 50, 0.9
SEED = 0
CALL_SECONDS = 60.0


class WrongResult(RuntimeError):
    """What was to be measured does not compute the operator; its figures would say nothing."""


@dataclass(frozen=True)
class Traffic:
    """What one call moves for one row, in the interpreter or, without kernels, as torch on the CPU."""

    subject: Subject
    kind: str
    kept: int
    """Values of the row that stay."""
    vocab_size: int
    kernels: tuple[str, ...]
    """One name a launch."""
    kernel_bytes: tuple[int, int]
    """Read and written by kernels; a value that many lanes load counts once for each."""
    host: tuple[Operation, ...]
    """What torch did around them."""

    @property
    def host_bytes(self) -> tuple[int, int]:
        """Read and written by torch operations, at least."""
        return sum(one.bytes_read for one in self.host), sum(one.bytes_written for one in self.host)

    @property
    def reads_of_the_row(self) -> float:
        """Bytes that kernels read, in rows of float32."""
        return self.kernel_bytes[0] / (4 * self.vocab_size)


@dataclass(frozen=True)
class Compiled:
    """One launch of a call with ``rows`` rows, compiled ahead of time."""

    subject: Subject
    kernel: str
    grid: tuple[int, int, int]
    num_warps: int
    resources: Resources


@dataclass(frozen=True)
class Timing:
    """A form of top-k in plain torch on the CPU."""

    limit: str
    form: str
    seconds: MedianInterval
    ratio: MedianInterval
    """Times as long as the first form."""


@dataclass(frozen=True)
class Figures:
    """Everything, and what could not be had."""

    vocab_size: int
    rows: int
    threads: int
    traffic: tuple[Traffic, ...]
    compiled: tuple[Compiled, ...]
    timings: tuple[Timing, ...]
    notes: tuple[str, ...]


def measure(vocab_size: int, rows: int, repeats: int) -> Figures:
    """Measure all figures.

    Args:
        vocab_size: V of every call.
        rows: rows of what is compiled and of what is timed; traffic is measured on single rows.
        repeats: of each timed form.

    Raises:
        TooFewRepeats: too few for an interval.
        WrongResult: a timed form is wrong.
    """
    median_interval([0.0] * repeats)  # before half a minute is spent
    places = [("cpu", ""), ("interpret", ""), *(("compile", arch) for arch in ARCHES)]
    # Processes of their own: these threads only wait. Times are taken when all of that is over.
    with ThreadPoolExecutor(len(places)) as threads:
        found = list(threads.map(lambda place: figures_at(place[0], place[1], vocab_size, rows), places))
    figures = [figure for figures, _ in found for figure in figures]
    traffic = [figure for figure in figures if isinstance(figure, Traffic)]
    return Figures(
        vocab_size,
        rows,
        torch.get_num_threads(),
        tuple(sorted(traffic, key=lambda one: OPERATORS.index(one.subject.implementation.operator))),
        tuple(figure for figure in figures if isinstance(figure, Compiled)),
        tuple(time_forms(vocab_size, rows, repeats)),
        tuple(note for _, notes in found for note in notes),
    )


def time_forms(vocab_size: int, rows: int, repeats: int) -> Iterator[Timing]:
    """Times of every form, with one k and with one a row.

    Raises:
        WrongResult: a form gives something else than float64 does.
    """
    probs = make_rows(["softmax"] * rows, vocab_size, SEED)
    most = min(2 * TOP_K, vocab_size)
    per_row = torch.randint(1, most + 1, (rows,), generator=torch.Generator().manual_seed(SEED))
    limits: dict[str, int | torch.Tensor] = {
        f"k = {min(TOP_K, vocab_size)}": min(TOP_K, vocab_size),
        f"k of each row in 1..{most}": per_row,
    }
    for name, limit in limits.items():
        few = limit[:2] if isinstance(limit, torch.Tensor) else limit
        call = Call(OPERATORS[0], {"probs": probs[:2], "top_k": few})
        for form, function in FORMS.items():
            _require_right(f"{form} with {name}", function(probs[:2], few), call)
        seconds = interleaved_seconds(
            {form: partial(function, probs, limit) for form, function in FORMS.items()}, repeats
        )
        baseline = next(iter(seconds.values()))
        for form, taken in seconds.items():
            yield Timing(name, form, median_interval(taken), median_interval(paired_ratios(taken, baseline)))


def traffic_of(worker: Worker, subject: Subject, kind: str, vocab_size: int) -> Traffic:
    """What a call of a subject on one row of that kind moves.

    Raises:
        WrongResult: it raised, did damage or gave something else than float64 does.
        Unavailable, Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    probs = make_rows([kind], vocab_size, SEED)
    call = Call(subject.implementation.operator, {"probs": probs, **_limit(subject.implementation, 1)})
    watched = Subject(with_traffic(subject.implementation), subject.runtime, subject.arch)
    outcome = _returned(worker.call(watched, call, CALL_SECONDS), subject)
    output, report = outcome.outputs
    _require_right(subject.id, output, call)
    return Traffic(
        subject,
        kind,
        int((output > 0).sum()),
        vocab_size,
        tuple(launch["kernel"] for launch in outcome.launches),
        (
            sum(launch["bytes_read"] for launch in outcome.launches),
            sum(launch["bytes_written"] for launch in outcome.launches),
        ),
        operations(report),
    )


def compiled_for(worker: Worker, subject: Subject, vocab_size: int, rows: int) -> tuple[Compiled, ...]:
    """What the compiler makes of each launch of a call with so many rows.

    Raises:
        WrongResult: it raised, or launched nothing.
        Unavailable, Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    arguments: dict[str, Value] = {"probs": torch.full((1, vocab_size), 1.0 / vocab_size)}
    call = Call(
        subject.implementation.operator,
        {**arguments, **_limit(subject.implementation, rows)},
        embedding=Embedding("probs", rows, 0),
    )
    outcome = _returned(worker.call(subject, call, CALL_SECONDS), subject)
    if not outcome.launches:
        raise WrongResult(f"{subject.id} launched no kernel: nothing was compiled")
    return tuple(
        Compiled(
            subject,
            launch["kernel"],
            tuple(launch["grid"]),
            launch["num_warps"],
            Resources(**launch["resources"]),
        )
        for launch in outcome.launches
    )


def renorm_subjects(runtime: str, arch: str = "") -> tuple[Subject, ...]:
    """Top-k and top-p of each provider that the figures are about, on that runtime."""
    providers = ("torch",) if runtime == "cpu" else KERNEL_PROVIDERS
    return tuple(
        Subject(implementation, runtime, arch)
        for operator in OPERATORS
        for implementation in builtin_implementations()
        if implementation.operator == operator and implementation.provider in providers
    )


def figures_at(runtime: str, arch: str, vocab_size: int, rows: int) -> tuple[list[Traffic | Compiled], list[str]]:
    """Figures of every subject there, and a note on each that has none and why."""
    figures: list[Traffic | Compiled] = []
    notes: list[str] = []
    worker = Worker(runtime, arch)
    try:
        for subject in renorm_subjects(runtime, arch):
            try:
                if reason := subject.why_unavailable():
                    raise Unavailable(reason)
                if runtime == "compile":
                    figures += compiled_for(worker, subject, vocab_size, rows)
                else:
                    figures += [traffic_of(worker, subject, kind, vocab_size) for kind in KINDS]
            except (Unavailable, Unsuitable, Crashed, TimedOut, WrongResult) as error:
                notes.append(f"{subject.id}: {error}")
    finally:
        worker.close()
    return figures, notes


def _limit(implementation: Implementation, rows: int) -> dict[str, Value]:
    """One limit a row, as serving engines pass it."""
    if implementation.operator == "top_k_renorm_prob":
        return {"top_k": torch.full((rows,), TOP_K, dtype=torch.int32)}
    return {"top_p": torch.full((rows,), TOP_P)}


def _returned(outcome: Outcome, subject: Subject) -> Outcome:
    if outcome.fault:
        raise WrongResult(f"{subject.id}: {outcome.fault}")
    return outcome


def _require_right(name: str, output: torch.Tensor, call: Call) -> None:
    for judgement in judge_distribution(output, reference(call, "threshold"), call):
        if not judgement.holds:
            raise WrongResult(f"{name}: {judgement.message}")
