"""All that is counted in a session of tests, measured once for each architecture: three test modules look at it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pytest

from waveproof.fixtures.inspection import unavailable
from waveproof.golden.judges.judgement import Judgement, Nonconformance
from waveproof.kernels.runtimes.process import Worker
from waveproof.perf.counted_cases import CASES
from waveproof.perf.counts import CountCase, Counted, NotCounted, count, halves, in_workers
from waveproof.perf.growth_ladders import LADDERS, every_case
from waveproof.perf.pairs import PAIRS, FastSlow, Guarded, guard

ARCHES = ("gfx950", pytest.param("gfx942", marks=pytest.mark.nightly))
"""Parameters of tests: the other one takes as long again."""
COMPILED = tuple(case for case in CASES if "compile" in case.runtimes)
COUNTED = "counted calls are right"
Job: TypeAlias = CountCase | FastSlow


@dataclass(frozen=True)
class Session:
    """By name; what could not be counted by runtime and name."""

    executed: Mapping[str, Counted]
    compiled: Mapping[str, Counted]
    guarded: Mapping[str, Guarded]
    missing: Mapping[tuple[str, str], NotCounted]


@functools.cache
def session(arch: str, table: bool = False) -> Session:
    """Everything on an architecture: half a minute to a minute on two cores.

    Args:
        arch: architecture.
        table: whether the calls that only the table of the pair shows are counted too.
    """
    of_ladders = {case.name: case for ladder in LADDERS for case in ladder.cases}
    ladders = every_case() if table else tuple(of_ladders.values())
    cases = tuple({case.name: case for case in (*CASES, *ladders)}.values())
    ours, others = halves(cases)
    # Pairs go to the workers that have most of their kernels; both sides of one to the same.
    renorms = [pair for pair in PAIRS if pair.torch_too]
    attention = [pair for pair in PAIRS if not pair.torch_too]
    groups: list[tuple[str, str, Sequence[Job]]] = [
        ("emulate", arch, [*others, *attention]),
        ("emulate", arch, [*ours, *renorms]),
        ("compile", arch, COMPILED),
    ]
    answers, missing = in_workers(groups, _one, lambda job: job.name)
    counted = [one for one in answers if isinstance(one, Counted)]
    return Session(
        {one.case: one for one in counted if one.place.runtime == "emulate"},
        {one.case: one for one in counted if one.place.runtime == "compile"},
        {one.pair.name: one for one in answers if isinstance(one, Guarded)},
        {(one.runtime, one.case): one for one in missing},
    )


def _one(worker: Worker, job: Job) -> Counted | Guarded:
    return guard(worker, job) if isinstance(job, FastSlow) else count(worker, job)


T = TypeVar("T")


def found(of: Mapping[str, T], session: Session, runtime: str, name: str) -> T:
    """One of a session by name; unavailable where this machine does not have it.

    Raises:
        Nonconformance: it could run, and is wrong, crashed or launched nothing.
    """
    if name in of:
        return of[name]
    why = session.missing[runtime, name]
    if why.fault:
        raise Nonconformance(Judgement(COUNTED, False, 1.0, message=str(why)))
    unavailable(why.reason)
