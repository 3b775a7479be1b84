"""Capture goldens: ask each source for each case and store what it answers.

A source is whoever can answer a call: the float64 reference here, or an implementation in a process of its own, which
the caller brings as a function. Nothing here knows of providers or runtimes.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import torch

from waveproof.golden.cases import Case
from waveproof.golden.manifest import BadManifest, Golden, Provenance, describe_arguments, describe_outputs
from waveproof.golden.references.outputs import distinct_variants, reference_outputs
from waveproof.golden.store import GoldenStore
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.registry import OPERATORS

REFERENCE = "float64"
"""The provider's name under which the float64 reference is stored."""


OPEN_VARIANTS = ("any-k",)
"""Variants that leave the choice among equals to the implementation: no single value is the right one to store."""


class NoAnswer(RuntimeError):
    """A source could not answer this call; the message says why."""


class SourceUnavailable(NoAnswer):
    """A source cannot answer any call here."""


@dataclass(frozen=True)
class Answer:
    """What a source made of a call."""

    outputs: tuple[torch.Tensor, ...]
    provenance: Provenance


@dataclass(frozen=True)
class Source:
    """Somebody who can answer calls of one operator."""

    provider: str
    operator: str
    variant: str
    """The semantic variant that it declares."""
    runtime: str
    run: Callable[[Call], Answer]
    """Raises :class:`NoAnswer` or :class:`SourceUnavailable`."""
    paths: tuple[str, ...] = ()
    """Values of an argument ``path`` that it knows; empty where the operator has none or it knows all."""
    omits: tuple[str, ...] = ()
    """Optional results that it does not give."""
    computes: Callable[[Call], bool] = lambda call: True
    """Whether it claims to compute a call of its operator: a golden is of what somebody stands for."""

    def takes(self, case: Case) -> bool:
        """Whether the case is for this source."""
        path = case.call.arguments.get("path")
        return (
            case.operator == self.operator
            and self.variant in case.variants
            and (path is None or not self.paths or path in self.paths)
            and self.computes(case.call)
        )

    def golden_id(self, case: Case) -> str:
        """``operator-variant-case-provider[-runtime]``; the reference has no runtime worth naming."""
        parts = [self.operator, self.variant, case.name, self.provider]
        return "-".join(parts if self.provider == REFERENCE else [*parts, self.runtime])


@dataclass(frozen=True)
class Attempt:
    """One source asked for one case."""

    id: str
    result: Literal["stored", "present", "refused"]
    """``present``: the store had this id before, so a capture that was cut short can be taken up again."""
    reason: str = ""
    """Why refused."""


def capture(sources: Iterable[Source], store: GoldenStore, cases: Iterable[Case]) -> Iterator[Attempt]:
    """Ask every source for every case that it takes; yields as it goes, each golden stored by then.

    A source that says it is unavailable is not asked again.

    Raises:
        BadManifest: the store's manifest cannot be read.
    """
    cases = tuple(cases)
    present = {entry.golden.id for entry in store.entries()}
    for source in sources:
        for case in filter(source.takes, cases):
            identifier = source.golden_id(case)
            if identifier in present:
                yield Attempt(identifier, "present")
                continue
            try:
                answer = source.run(case.call)
                store.add(_golden(identifier, source, case, answer), case.call, answer.outputs)
            except SourceUnavailable as error:
                yield Attempt(identifier, "refused", str(error))
                break
            except (NoAnswer, BadManifest) as error:
                yield Attempt(identifier, "refused", str(error))
            else:
                yield Attempt(identifier, "stored")


def reference_sources() -> tuple[Source, ...]:
    """The float64 reference of every operator that computes, under each variant whose values are its own."""
    return tuple(
        Source(REFERENCE, operator.name, variant, "cpu", _reference_run(variant))
        for operator in OPERATORS.values()
        for variant in distinct_variants(operator)
        if variant not in OPEN_VARIANTS
    )


def provenance_of(library: str, version: str, device: str, runtime: str, versions: Mapping[str, str]) -> Provenance:
    """Provenance dated today, UTC."""
    return Provenance(
        library=library,
        version=version,
        device=device,
        runtime=runtime,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        versions=dict(versions),
    )


def cpu_name() -> str:
    """``cpu`` and the machine's architecture, and no more: a report names no machine."""
    return f"cpu {platform.machine()}".strip()


def suite_version() -> str:
    """The installed version of the suite, or ``not installed`` where it runs from a checkout alone."""
    try:
        return metadata.version("waveproof")
    except metadata.PackageNotFoundError:
        return "not installed"


def _reference_run(variant: str) -> Callable[[Call], Answer]:
    def run(call: Call) -> Answer:
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        provenance = provenance_of("waveproof", suite_version(), cpu_name(), "cpu", versions)
        return Answer(tuple(output.value for output in reference_outputs(call, variant)), provenance)

    return run


def _golden(identifier: str, source: Source, case: Case, answer: Answer) -> Golden:
    return Golden(
        id=identifier,
        operator=case.operator,
        variant=source.variant,
        provider=source.provider,
        case=case.name,
        generator=case.generator,
        seed=case.seed,
        arguments=describe_arguments(case.call),
        outputs=describe_outputs(case.call, answer.outputs, source.omits),
        provenance=answer.provenance,
    )
