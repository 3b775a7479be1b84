"""Who implements what: the implementations that the suite knows, and those that a user brings.

A provider module holds *adapters*: functions with an operator's signature whose body imports the upstream package and
calls it. An adapter is self-contained, because its source is also what a minimal repro shows. Modules under
``kernels.providers`` import nothing heavy at the top, so this registry can be read at collection time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from waveproof.kernels.operators.contract import Operator
from waveproof.kernels.operators.registry import operator_named
from waveproof.kernels.runtimes.catalogue import RUNTIMES, installed, runtime_named, why_unavailable


@dataclass(frozen=True)
class Implementation:
    """Someone's implementation of an operator."""

    provider: str
    operator: str
    variant: str
    """The semantic variant that it declares, one of its operator's."""
    runtimes: tuple[str, ...]
    load: str
    """``package.module:function`` or ``path/to/file.py:function``; loaded only in the process that runs it."""
    packages: tuple[str, ...] = ()
    """Top-level packages that must be installed."""
    distribution: str = ""
    """Distribution whose version is recorded; empty for the suite's own."""
    origin: str = ""
    """Upstream file and function that the adapter calls."""
    launches: bool = False
    """Whether kernels compute it, Triton's or assembly: it must launch one where a runtime sees every launch."""
    runs_as: tuple[str, ...] = ()
    """Kernels that compute it, in the notation of ``golden/judges/launched.py``: ``class`` or ``class:name``. One that
    ends in ``?`` may run beside, all others must. Empty where it is not stated."""
    whole_row_programs: bool = False
    """Whether axis 0 of its launch grid is the row and its host code touches no other row (see ``Embedding``)."""
    paths: tuple[tuple[str, str], ...] = ()
    """Values of an argument ``path`` that it implements, each with the variant that it has there."""
    assembly: bool = False
    """Whether its kernels are shipped as machine code: few instructions, so that the emulated device takes no time."""
    heads_apart: bool = False
    """Of attention: whether a head is computed by the same instructions wherever it stands, so that its bits stay."""
    omits: tuple[str, ...] = ()
    """Optional results that it does not give; it returns the others, in order."""
    heads: tuple[int, ...] = ()
    """Numbers of attention heads that it computes; empty for any. It must refuse all others."""
    dtypes: tuple[str, ...] = ()
    """Of attention: ``"q/kv"`` pairs that it computes, as in ``"bfloat16/float8_e4m3fn"``; empty for any."""
    longest_query: int = 0
    """Of attention: the longest query of a request that it takes; 0 for any."""
    page_sizes: tuple[int, ...] = ()
    """Of attention: tokens in a page that it takes; empty for any."""
    most_requests: int = 0
    """Of attention: the largest batch that it is known to compute, whatever it accepts; 0 for any."""
    equal_queries: bool = False
    """Of attention: whether all requests of a batch must have as many queries."""
    contiguous: bool = False
    """Of attention: whether q must be contiguous."""
    keys_are_queries: bool = False
    """Of mla_prefill: whether it takes only requests with a key for each query and no more."""
    asked: str = ""
    """The one question that it is here for, as tests name it; empty for one that is held to the whole contract."""
    row_by_row: bool = False
    """Whether it is called once a row, so that a batch takes as long as a kernel where one is interpreted."""
    token_by_token: bool = False
    """Of chain_verify: whether it has no block verification."""

    @property
    def external(self) -> bool:
        """Whether a user brought it: it may do anything, so it shares its process with nobody."""
        return not self.load.startswith("waveproof.kernels.")

    def variant_of(self, path: str) -> str:
        """The variant that it has on a path; its own where the operator has no paths."""
        return dict(self.paths).get(path, self.variant)

    @property
    def contract(self) -> Operator:
        """The operator that it is held to."""
        return operator_named(self.operator)


@dataclass(frozen=True)
class Subject:
    """One implementation on one runtime: what a conformance test is pointed at."""

    implementation: Implementation
    runtime: str
    arch: str = ""

    @property
    def id(self) -> str:
        """``operator-provider-runtime[-arch]``, as it appears in test ids, waivers and records."""
        parts = (self.implementation.operator, self.implementation.provider, self.runtime, self.arch)
        return "-".join(part for part in parts if part)

    @property
    def place(self) -> str:
        """``provider-runtime[-arch]``: what its cases share when they are spread over processes."""
        return "-".join(part for part in (self.implementation.provider, self.runtime, self.arch) if part)

    @property
    def slow(self) -> bool:
        """Whether a call takes a second and more: Triton's interpreter, or on the emulated device a compiled Triton
        kernel, or assembly for many heads; or a function that takes one row a call.
        """
        assembly = self.implementation.assembly and min(self.implementation.heads, default=0) <= 16
        emulated = self.runtime == "emulate" and not assembly
        return self.runtime == "interpret" or emulated or self.implementation.row_by_row

    @property
    def where(self) -> str:
        """Runtime and arch."""
        return f"{self.runtime} {self.arch}".strip()

    def why_unavailable(self) -> str:
        """Why it cannot run on this machine, or an empty string, as far as can be told without importing."""
        reason = why_unavailable(self.runtime)
        missing = [package for package in self.implementation.packages if not installed(package)]
        if reason or not missing:
            return reason
        return f"{', '.join(missing)} not installed"


def builtin_implementations() -> tuple[Implementation, ...]:
    """Every implementation that comes with the suite."""
    from waveproof.kernels.providers import (
        aiter_kernels,
        aiter_mla,
        aiter_triton_mla,
        flashinfer_kernels,
        own_kernels,
        padded_mla,
        pytorch,
        pytorch_mla,
        pytorch_verify,
        sglang_accept,
        sglang_eagle,
        sglang_heads,
        sglang_kernels,
        sglang_mla,
        sglang_prefill,
        sglang_verify,
        transformers_verify,
        vllm_verify,
    )

    modules = (
        pytorch,
        pytorch_mla,
        pytorch_verify,
        own_kernels,
        padded_mla,
        sglang_kernels,
        sglang_accept,
        sglang_eagle,
        sglang_verify,
        sglang_mla,
        sglang_prefill,
        sglang_heads,
        transformers_verify,
        vllm_verify,
        aiter_kernels,
        flashinfer_kernels,
        aiter_mla,
        aiter_triton_mla,
    )
    return tuple(implementation for module in modules for implementation in module.IMPLEMENTATIONS)


def implementation_of(operator: str, provider: str, runtime: str = "") -> Implementation:
    """The one that comes with the suite; where a provider has several, that for ``runtime`` if there is one.

    Raises:
        LookupError: the provider does not implement the operator.
    """
    offers = [one for one in builtin_implementations() if (one.operator, one.provider) == (operator, provider)]
    if not offers:
        raise LookupError(f"{provider} has no {operator}")
    return next((one for one in offers if runtime in one.runtimes), offers[0])


def subjects(
    implementations: tuple[Implementation, ...],
    runtimes: tuple[str, ...] = (),
    arches: tuple[str, ...] = (),
) -> tuple[Subject, ...]:
    """Every implementation on every runtime that it can use, narrowed to the given runtimes and arches.

    Raises:
        UnknownRuntime: a runtime is named that does not exist.
    """
    chosen = {runtime_named(name).name for name in runtimes} or set(RUNTIMES)
    return tuple(
        Subject(implementation, runtime, arch)
        for implementation in implementations
        for runtime in implementation.runtimes
        if runtime in chosen
        for arch in RUNTIMES[runtime].arches
        if not arches or not arch or arch in arches
    )


def declared_as(implementation: Implementation, variant: str) -> Implementation:
    """The same implementation under another declared variant.

    Raises:
        ValueError: the operator has no such variant.
    """
    variants = implementation.contract.variants
    if variant not in variants:
        raise ValueError(f"{implementation.operator} has no variant {variant!r}; it has: {', '.join(variants)}")
    paths = tuple((path, variant) for path, _ in implementation.paths)
    return replace(implementation, variant=variant, paths=paths)
