"""Implementations as sources of goldens: each in its worker process, as the conformance tests run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from waveproof.golden.capture import Answer, NoAnswer, Source, SourceUnavailable, cpu_name, provenance_of, suite_version
from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.providers.registry import Implementation, Subject, subjects
from waveproof.kernels.runtimes.catalogue import runtime_named
from waveproof.kernels.runtimes.process import Crashed, TimedOut, Unavailable, Unsuitable, Worker, WorkerPool

if TYPE_CHECKING:
    import torch

FIRST_CALL_SECONDS = 240.0
"""Patience for a source's first call, within which flashinfer builds its CUDA module."""

CALL_SECONDS = 60.0
"""Patience for each later call."""


class NothingExecutes(ValueError):
    """A runtime that only compiles has no results to capture."""


def implementation_sources(
    runtime: str, implementations: tuple[Implementation, ...], pool: WorkerPool
) -> tuple[Source, ...]:
    """Every implementation that offers the runtime; one that cannot run here says so when it is asked.

    Each call is made twice, and an answer that changes, or comes with damage around a buffer, is none.

    Raises:
        UnknownRuntime: the runtime does not exist.
        NothingExecutes: it does, and nothing runs on it.
    """
    if not runtime_named(runtime).executes:
        raise NothingExecutes(f"runtime {runtime!r} only compiles: there is no result to capture")
    return tuple(
        Source(
            subject.implementation.provider,
            subject.implementation.operator,
            variant,
            "-".join(filter(None, (subject.runtime, subject.arch))),
            _run(subject, pool),
            paths,
            subject.implementation.omits,
            partial(computes, subject.implementation),
        )
        for subject in subjects(implementations, (runtime,))
        for variant, paths in _declared(subject.implementation).items()
    )


def computes(implementation: Implementation, call: Call) -> bool:
    """Whether a call lies within what an implementation declares: heads, dtypes, pages, queries and requests.

    What lies outside it must refuse, or is known to get wrong: a conformance run says which; here is nothing to store.
    """
    q, kv = (call.arguments.get(name) for name in ("q", "k" if call.operator == "mla_prefill" else "kv_cache"))
    if q is None or kv is None:
        return True  # no attention: it declares no limits
    q, kv, qo_indptr = _tensor(q), _tensor(kv), _tensor(call.arguments["qo_indptr"])
    queries = qo_indptr.diff().tolist()
    dtypes = "/".join(str(part.dtype).removeprefix("torch.") for part in (q, kv))
    paged = call.operator != "mla_prefill"
    keys = [] if paged else _tensor(call.arguments["kv_indptr"]).diff().tolist()
    return (
        (not implementation.heads or q.shape[1] in implementation.heads)
        and (not implementation.dtypes or dtypes in implementation.dtypes)
        and (not implementation.longest_query or max(queries) <= implementation.longest_query)
        and (not implementation.page_sizes or not paged or kv.shape[1] in implementation.page_sizes)
        and (not implementation.most_requests or len(queries) <= implementation.most_requests)
        and (not implementation.equal_queries or len(set(queries)) == 1)
        and (not implementation.keys_are_queries or keys == queries)
    )


def _tensor(value: Value) -> torch.Tensor:
    import torch

    assert isinstance(value, torch.Tensor)
    return value


def _declared(implementation: Implementation) -> dict[str, tuple[str, ...]]:
    """Each variant that it declares, with the paths on which it does; no paths where the operator has none."""
    if not implementation.paths:
        return {implementation.variant: ()}
    variants = dict.fromkeys(variant for _, variant in implementation.paths)
    return {
        variant: tuple(path for path, on_path in implementation.paths if on_path == variant) for variant in variants
    }


def _run(subject: Subject, pool: WorkerPool) -> Callable[[Call], Answer]:
    patience = FIRST_CALL_SECONDS

    def run(call: Call) -> Answer:
        nonlocal patience
        reason = subject.why_unavailable()
        if reason:
            raise SourceUnavailable(reason)
        worker = pool.worker(subject)
        try:
            outcome = worker.call(subject, replace(call, repeats=2), patience)
        except (Crashed, TimedOut, Unavailable, Unsuitable) as error:
            # A worker that could not even start keeps its refusal; after anything else the next call may well succeed.
            refused = worker.unavailable or worker.refusals.get(subject.implementation.load)
            raise (SourceUnavailable if refused else NoAnswer)(str(error)) from None
        patience = CALL_SECONDS
        if outcome.error is not None:
            raise NoAnswer(f"raised {outcome.error['type']}: {outcome.error['message'].splitlines()[0]}")
        if outcome.incidents:
            raise NoAnswer(f"{outcome.incidents[0].kind}: {outcome.incidents[0].detail}")
        library, version = _library(subject.implementation)
        return Answer(
            outcome.outputs,
            provenance_of(library, version, _device_name(subject, worker), subject.runtime, worker.versions),
        )

    return run


def _library(implementation: Implementation) -> tuple[str, str]:
    """Who wrote what runs: the distribution that the adapter calls, torch for plain torch, else the suite itself."""
    name = implementation.distribution or ("torch" if implementation.provider == "torch" else "waveproof")
    if name == "waveproof":
        return name, suite_version()
    try:
        return name, metadata.version(name)
    except metadata.PackageNotFoundError:
        return name, "unknown"


def _device_name(subject: Subject, worker: Worker) -> str:
    if subject.runtime not in ("cuda", "hip"):
        return " ".join(filter(None, (cpu_name(), subject.arch)))
    import torch

    return f"{torch.cuda.get_device_name()} {worker.arch}".strip()
