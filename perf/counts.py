"""Exact counts of calls on the emulated device, and what the compiler takes for them, as measurements without noise.

A call runs as machine code on ``emulate``, is held to its contract against float64, and only then counts: wave
instructions, matrix instructions, bytes in global memory and in LDS, of each launch. On ``compile`` its launches are
compiled ahead of time: registers, spills, scratch, LDS. Both give the same figure in every run of the same versions,
so any change is real.

No figure is a time. Bytes are counted for each lane and know no caches; waves that wait count nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from waveproof.fixtures.launched.trace import recorded
from waveproof.golden.judges.launched import Ran
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Implementation, Subject, builtin_implementations
from waveproof.kernels.runtimes.catalogue import installed, version_of
from waveproof.kernels.runtimes.process import Crashed, TimedOut, Unavailable, Unsuitable, Worker
from waveproof.perf.attention_phases import PADDED
from waveproof.perf.fallback_costs import PACKAGES
from waveproof.perf.figures_mla import copies
from waveproof.perf.figures_renorm import WrongResult
from waveproof.perf.host_traffic import operations, with_traffic
from waveproof.perf.judged_results import require_right
from waveproof.perf.records import COUNTS, Measurement, Place, Quantity

CALL_SECONDS = 180.0
EXECUTED = ("wave_instructions", "mfma", "bytes", "lds_bytes")
QUANTITIES: Mapping[str, Quantity] = {one.name: one for one in COUNTS}
LAUNCHES = Quantity("launches", "1", exact=True)
"""Of a call, so that a launch that is gone is seen too."""
TORCH_BYTES = Quantity("torch_bytes", "B", exact=True)
"""That torch reads and writes around the kernels (:mod:`waveproof.perf.host_traffic`); of heads that are padded the
copies that pad and unpad them."""
_MOVES_NOTHING = ("set_",)
"""Storage that is pointed elsewhere: the emulated device's tensors are wrapped by it."""
_AITER = ("aiter", "waveproof")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@dataclass(frozen=True)
class CountCase:
    """A call that is counted."""

    operator: str
    provider: str
    label: str
    """What distinguishes it: ``heads=12/queries=1/keys=256/batch=1``."""
    make: Callable[[], Call] = field(compare=False)
    """The call; made where it is needed, since it holds tensors."""
    torch_too: bool = False
    """Whether what torch moves around the kernels counts: of operators with one result."""
    implementation: Implementation | None = None
    """Where it is none that comes with the suite: what stands in for a provider on trial."""

    @property
    def name(self) -> str:
        """``mla_decode/waveproof/heads=12/...``."""
        return f"{self.operator}/{self.provider}/{self.label}"

    @property
    def _offers(self) -> tuple[Implementation, ...]:
        """Of one provider there may be several, each for runtimes of its own."""
        if self.implementation is not None:
            return (self.implementation,)
        known = builtin_implementations()
        return tuple(one for one in known if (one.operator, one.provider) == (self.operator, self.provider))

    @property
    def runtimes(self) -> tuple[str, ...]:
        """That its provider runs on; of one that nobody has both, so that it is named as missing."""
        offers = self._offers
        return tuple(runtime for one in offers for runtime in one.runtimes) if offers else ("emulate", "compile")

    def subject(self, runtime: str, arch: str) -> Subject:
        """Who is called, and where.

        Raises:
            Unavailable: there is no such implementation there, or a package is missing.
        """
        found = next((one for one in self._offers if runtime in one.runtimes), None)
        if found is None:
            raise Unavailable(f"{self.provider} has no {self.operator} on {runtime}")
        subject = Subject(found, runtime, arch)
        if reason := subject.why_unavailable():
            raise Unavailable(reason)
        return subject


@dataclass(frozen=True)
class Launch:
    """One launch: its kernel and exact figures by quantity."""

    kernel: str
    figures: Mapping[str, int]
    workgroups: int = 0


@dataclass(frozen=True)
class Counted:
    """One call whose results are right, and what it executed; or, on ``compile``, what was made of its launches."""

    case: str
    launches: tuple[Launch, ...]
    place: Place
    torch_bytes: int | None = None
    torch_roles: tuple[str, ...] = ()
    """What of the operator's own work torch did on the host: ``sort``, ``topk``, ``softmax``, ``matmul``."""
    severity: float = 0.0
    """Largest error as a share of its bound."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """One name a launch."""
        return tuple(one.kernel for one in self.launches)

    @property
    def ran(self) -> list[Ran]:
        """Its kernels, classified, and what torch computed: on a GPU kernels too, on an emulated device none."""
        return [
            *recorded([{"kernel": name} for name in self.kernels]),
            *(Ran(f"torch.{role}", "torch", role) for role in self.torch_roles),
        ]

    @property
    def workgroups(self) -> int:
        """Of all launches."""
        return sum(one.workgroups for one in self.launches)

    def total(self, quantity: str) -> int:
        """Of all launches; of ``bytes`` what torch moves as well, where it was counted."""
        launched = sum(one.figures.get(quantity, 0) for one in self.launches)
        return launched + (self.torch_bytes or 0 if quantity == "bytes" else 0)

    def measurements(self) -> Iterator[Measurement]:
        """Of each launch each figure, and how many launches there are.

        A figure of 0 is one too: matrix instructions that are gone must not take their baseline along.
        """
        yield Measurement(self.case, LAUNCHES, (len(self.launches),), self.place)
        if self.torch_bytes is not None:
            yield Measurement(self.case, TORCH_BYTES, (self.torch_bytes,), self.place)
        for number, launch in enumerate(self.launches, 1):
            for name, value in launch.figures.items():
                if name in QUANTITIES:
                    case = f"{self.case}/{number}:{launch.kernel}"
                    yield Measurement(case, QUANTITIES[name], (float(value),), self.place)


@dataclass(frozen=True)
class NotCounted:
    """Why there are no counts of a case."""

    case: str
    runtime: str
    arch: str
    reason: str
    fault: bool
    """Whether it could run and is wrong, crashed or launched nothing; otherwise this machine does not have it."""

    def __str__(self) -> str:
        return f"{self.case} on {self.runtime} {self.arch}: {self.reason}"


@dataclass(frozen=True)
class Found:
    """What was counted, and what was not."""

    counted: tuple[Counted, ...]
    missing: tuple[NotCounted, ...] = ()


def place_of(runtime: str, arch: str) -> Place:
    """A place with the versions of all packages whose code is counted."""
    return Place(runtime, arch, versions={name: version_of(name) or "absent" for name in PACKAGES})


def count(worker: Worker, case: CountCase) -> Counted:
    """Run a case on the worker's runtime, judge it and count; on ``compile`` it is compiled alone.

    Raises:
        WrongResult: it raised, did damage, launched nothing or gave something else than float64 does.
        Unavailable: as there, and where an import lacks a package.
        Unsuitable, Crashed, TimedOut: see :mod:`waveproof.kernels.runtimes.process`.
    """
    subject, call = case.subject(worker.runtime, worker.arch), case.make()
    runs = worker.runtime != "compile"
    watched = Subject(with_traffic(subject.implementation), subject.runtime, subject.arch)
    asked = watched if runs else subject
    try:
        outcome = worker.call(asked, call, CALL_SECONDS)
    except Unsuitable as error:
        _require_packages(worker, asked, str(error))
        raise
    if outcome.fault:
        _require_packages(worker, asked, outcome.fault)
        raise WrongResult(outcome.fault)
    if not outcome.launches:
        raise WrongResult("launched no kernel: nothing is to be counted")
    place = place_of(worker.runtime, worker.arch)
    if not runs:
        return Counted(case.name, tuple(compiled(one) for one in outcome.launches), place)
    *outputs, report = outcome.outputs
    by_torch = operations(report)
    roles = tuple(dict.fromkeys(one.role for one in by_torch if one.role))
    moved: int | None = None
    if case.torch_too:
        moved = sum(one.bytes_read + one.bytes_written for one in by_torch if one.name not in _MOVES_NOTHING)
    elif subject.implementation.provider == PADDED and "kv_cache" in call.arguments:
        moved = copies(*call.tensor("q").shape[:2])
    severity = require_right(outputs, call, subject.implementation)
    return Counted(case.name, tuple(executed(one) for one in outcome.launches), place, moved, roles, severity)


def _require_packages(worker: Worker, subject: Subject, said: str) -> None:
    """Refuse a subject, from now on too, where what it said is that a package is not installed.

    Its process ends: there an import that stopped half way lets the next one fail with another error, a
    ``KeyError: 'sglang'``, and of every subject the first error is the one to tell.

    Raises:
        Unavailable: names the package.
    """
    lacking = _NO_MODULE.search(said)
    if lacking is None or installed(lacking[1]):
        return
    worker.close()
    refusal = Unavailable(f"needs the package {lacking[1]}, which is not installed")
    worker.refusals[subject.implementation.load] = refusal
    raise refusal


def executed(launch: Mapping[str, Any]) -> Launch:
    """Of a launch on ``emulate``."""
    figures = {
        "wave_instructions": launch["wave_instructions"],
        "mfma": launch["mfma"],
        # Shown beside: matrix instructions of different shapes are no equal pieces of work.
        "multiply_adds": launch["multiply_adds"],
        "bytes": launch["bytes_read"] + launch["bytes_written"],
        "lds_bytes": launch["lds_bytes_read"] + launch["lds_bytes_written"],
    }
    return Launch(launch["kernel"], figures, launch["workgroups"])


def compiled(launch: Mapping[str, Any]) -> Launch:
    """Of a launch on ``compile``."""
    taken = launch["resources"]
    figures = {name: taken[name] for name in ("vgpr", "vgpr_spill", "scratch_bytes")}
    return Launch(launch["kernel"], {**figures, "lds_allocated": taken["lds_bytes"]})


Job = TypeVar("Job")
Answer = TypeVar("Answer")


def in_workers(
    groups: Iterable[tuple[str, str, Sequence[Job]]],
    each: Callable[[Worker, Job], Answer],
    name: Callable[[Job], str],
    done: Callable[[str], object] = lambda name: None,
) -> tuple[list[Answer], list[NotCounted]]:
    """Groups of jobs, each on ``(runtime, arch)`` in a worker process of its own, two at a time.

    Args:
        groups: runtime, architecture and jobs.
        each: answers a job.
        name: of a job.
        done: told of each job that is over.

    Returns:
        Answers in the order of groups and jobs; and each job that ended in a reason not to count.
    """

    def run(group: tuple[str, str, Sequence[Job]]) -> tuple[list[Answer], list[NotCounted]]:
        runtime, arch, jobs = group
        answers: list[Answer] = []
        missing: list[NotCounted] = []
        worker = Worker(runtime, arch)
        try:
            for job in jobs:
                try:
                    answers.append(each(worker, job))
                except (Unavailable, Unsuitable, Crashed, TimedOut, WrongResult) as error:
                    fault = not isinstance(error, Unavailable)
                    missing.append(NotCounted(name(job), runtime, arch, str(error), fault))
                done(name(job))
        finally:
            worker.close()
        return answers, missing

    # Processes of their own: these threads wait and judge.
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(run, groups))
    return [one for answers, _ in found for one in answers], [one for _, missing in found for one in missing]


def count_all(
    cases: Sequence[CountCase],
    arches: Sequence[str],
    runtimes: Sequence[str] = ("emulate",),
    done: Callable[[str], object] = lambda name: None,
) -> Found:
    """Every case on every runtime and architecture; a case that a runtime does not have is not counted there."""
    groups = [
        (runtime, arch, part)
        for arch in arches
        for runtime in runtimes
        for part in halves([one for one in cases if runtime in one.runtimes])
    ]
    counted, missing = in_workers(groups, count, lambda case: case.name, done)
    return Found(tuple(counted), tuple(missing))


def halves(cases: Sequence[CountCase]) -> tuple[list[CountCase], list[CountCase]]:
    """What AITER and our own kernels compute, and the rest: each worker imports, and compiles, its own half."""
    return [one for one in cases if one.provider in _AITER], [one for one in cases if one.provider not in _AITER]
