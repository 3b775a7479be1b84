"""Figures on laws read off coins: how closely sglang's chain sampler follows the closed form, and what that costs.

Drawn cases of all kinds go through ``golden/judges/law.py`` on an emulated AMD device or in Triton's interpreter; then
once more with a bias planted in front of the same kernel, to show that the method sees it in every case in which a law
is left to bias. Beside it stands how many samples a G-test (chi-square) with the same error rates would need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.table import Table

from waveproof.fixtures.strategies.verify import CHAIN_KINDS, ChainCase
from waveproof.golden.judges.evidence import CASE_ALPHA, POWER, samples_needed
from waveproof.golden.judges.law import Extracted, extract
from waveproof.golden.references.decisions import Node, Outcome, law, visits
from waveproof.golden.references.verify import decision
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.verify import LAST_COIN
from waveproof.kernels.providers.registry import Subject, builtin_implementations, subjects
from waveproof.kernels.runtimes.process import Worker

VOCABULARY, SLOTS = 8, 3
BIAS = 1e-4
CALL_SECONDS = 300.0


class LawUnreadable(RuntimeError):
    """The kernel cannot run here, or answers with an error; the message says why."""


@dataclass(frozen=True)
class LawFigures:
    """One implementation in one mode."""

    subject: Subject
    block: bool
    cases: int
    """Rows whose law was read."""
    with_choice: int
    """Of them, those whose last token is drawn among at least two of more than twice the bias: the bias moves an
    edge between two such and swallows neither."""
    due: Extracted
    biased: Extracted
    """The same with ``BIAS`` planted in the final coin."""
    caught: int
    """Cases in which the bias was found, of those with a choice."""
    samples: int
    """That a G-test needs for a total variation of ``BIAS`` in the median case, at ``CASE_ALPHA`` and ``POWER``."""


def drawn(cases: int, block: bool, seed: int) -> Call:
    """One call whose rows are the cases, all kinds in turn."""
    kinds = tuple(CHAIN_KINDS[at % len(CHAIN_KINDS)] for at in range(cases))
    return ChainCase(VOCABULARY, SLOTS, kinds, block, seed=seed).call()


def measure(cases: int, runtime: str, arch: str, provider: str = "sglang", seed: int = 1) -> Iterator[LawFigures]:
    """Token by token, then block verification.

    Raises:
        LawUnreadable: there is no such subject, or it gives no result.
    """
    known = [one for one in builtin_implementations() if (one.provider, one.operator) == (provider, "chain_verify")]
    chosen = subjects(tuple(known), (runtime,), (arch,) if arch else ())
    if not chosen:
        raise LawUnreadable(f"{provider} has no chain_verify on {runtime} {arch}".rstrip())
    subject = chosen[0]
    if reason := subject.why_unavailable():
        raise LawUnreadable(f"{subject.id}: {reason}")
    worker = Worker(subject.runtime, subject.arch)
    try:
        run = _runner(worker, subject)
        for block in (False, True):
            call = drawn(cases, block, seed)
            run(call)  # what compiles is not timed
            due, biased = extract(run, call, seed=seed), extract(_biased(run), call, seed=seed)
            trees = [decision(call, row) for row in range(cases)]
            chooses = [row for row, tree in enumerate(trees) if _chooses(tree)]
            caught = len({one.row for one in biased.misplaced} & set(chooses))
            samples = sorted(samples_needed(_masses(trees[row]), BIAS, CASE_ALPHA, POWER) for row in chooses)
            yield LawFigures(
                subject=subject,
                block=block,
                cases=cases,
                with_choice=len(chooses),
                due=due,
                biased=biased,
                caught=caught,
                samples=samples[len(samples) // 2],
            )
    finally:
        worker.close()


def _runner(worker: Worker, subject: Subject) -> Callable[[Call], Sequence[torch.Tensor]]:
    def run(call: Call) -> Sequence[torch.Tensor]:
        outcome = worker.call(subject, call, CALL_SECONDS)
        if outcome.fault:
            raise LawUnreadable(f"{subject.id}: {outcome.fault}")
        return outcome.outputs

    return run


def _biased(run: Callable[[Call], Sequence[torch.Tensor]]) -> Callable[[Call], Sequence[torch.Tensor]]:
    """The same kernel with every final coin raised by ``BIAS``: mass moves from the first token to the last."""

    def biased(call: Call) -> Sequence[torch.Tensor]:
        return run(call.with_arguments(final_coins=(call.tensor("final_coins") + BIAS).clamp(max=LAST_COIN)))

    return biased


def _chooses(tree: Node) -> bool:
    """Whether somewhere at least two tokens are drawn with more than twice the bias' probability."""
    finals = [visit.choice for visit in visits(tree) if not isinstance(visit, float) and visit.choice.coin == SLOTS - 1]
    return any(
        sum(choice.width(branch) > 2.0 * BIAS for branch in range(len(choice.edges) + 1)) > 1 for choice in finals
    )


def _masses(tree: Node) -> np.ndarray:
    return np.array([mass for one, mass in law(tree).items() if isinstance(one, Outcome)])


def table(figures: Sequence[LawFigures], seconds: float) -> Table:
    """One line for each mode."""
    head = figures[0].subject
    title = f"law of {head.implementation.provider} chain_verify on {head.where}, V = {VOCABULARY}, S = {SLOTS}"
    result = Table(title=f"{title}; {seconds:.0f} s in all")
    for name in ("mode", "cases", "steps", "probes", "launches", "kernel s", "total variation", "bound (worst case)"):
        result.add_column(name, justify="right")
    result.add_column(f"bias {BIAS:g} caught", justify="right")
    result.add_column(f"G-test samples for {BIAS:g}", justify="right")
    for one in figures:
        result.add_row(
            "block" if one.block else "tokens",
            str(one.cases),
            str(one.due.steps),
            str(one.due.probes),
            str(one.due.launches),
            f"{one.due.seconds:.1f}",
            f"{max(one.due.total_variation):.1e}" if one.due.misplaced else "0 (every bracket holds)",
            f"{max(one.due.bound):.1e}",
            f"{one.caught} of {one.with_choice}",
            f"{one.samples:.2e}",
        )
    return result


def timed(cases: int, runtime: str, arch: str) -> tuple[list[LawFigures], float]:
    """All figures and how long they took."""
    started = time.perf_counter()
    return list(measure(cases, runtime, arch)), time.perf_counter() - started
