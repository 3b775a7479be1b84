"""What a generic fallback of attention costs, in figures that were measured on this machine for the installed versions.

They are those of ``waveproof figures mla``: calls of 12 heads, bf16, on the emulated device, every result held to
float64. Measuring takes half a minute for an architecture, so they are kept on disk: another version of a package, or
another way of measuring, is measured anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waveproof.fixtures.stored_answers import store
from waveproof.kernels.runtimes.catalogue import version_of

if TYPE_CHECKING:
    from waveproof.perf.figures_mla import Comparison, Figures

PACKAGES = ("sglang", "amd-aiter", "triton", "torch")
ENGINES = ("sglang", "sglang_verify")
"""Providers of what sglang itself falls back to."""


@dataclass(frozen=True)
class Fallback:
    """A generic kernel against AITER's assembly on heads padded from 12 to 16; ratios, None where there is nothing."""

    phase: str
    """``decode``, ``verify`` or ``prefill``."""
    provider: str
    kernel: str
    query_wave_instructions: float | None
    """Of a call on ``keys`` keys, for each query token."""
    query_mfma: float | None
    """Matrix instructions, likewise."""
    key_wave_instructions: float | None
    """Of what further keys add, at long contexts."""
    key_mfma: float | None
    vgpr: int | None
    spilled: int | None
    """Vector registers that the compiler spilled."""
    scratch_bytes: int | None
    keys: int
    heads: int

    def sentence(self) -> str:
        """``kernel: 2.4x the wave instructions a query token, 1.9x ... a further KV token, spills 311 VGPRs``."""
        parts = [
            _times(self.query_wave_instructions, self.query_mfma, "a query token"),
            _times(self.key_wave_instructions, self.key_mfma, "a further KV token"),
        ]
        if self.spilled:
            parts.append(f"spills {self.spilled} VGPRs ({self.scratch_bytes} B scratch)")
        elif self.spilled == 0:
            parts.append("spills nothing")
        return f"{self.kernel}: {', '.join(filter(None, parts))}"


def _times(waves: float | None, mfma: float | None, of: str) -> str:
    if waves is None:
        return ""
    also = "" if mfma is None else f" ({mfma:.1f}x MFMA)"
    return f"{waves:.1f}x the wave instructions{also} {of}"


def fallbacks(arch: str, measure: bool = True, folder: Path | None = None) -> tuple[Fallback, ...]:
    """Costs on an architecture: from disk, else measured now.

    Args:
        arch: architecture.
        measure: whether to measure where nothing is kept; without, there are then none.
        folder: where they are kept; the suite's cache if None.
    """
    from waveproof.kernels.runtimes.emulate.host_build import cache_folder

    file = (folder or cache_folder() / "coverage") / f"{arch}-{key()}.json"
    # What cannot be read is measured anew.
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        return tuple(Fallback(**fields) for fields in json.loads(file.read_text(encoding="utf-8")))
    if not measure:
        return ()
    from waveproof.perf.figures_mla import measure as measured

    found = tuple(of_figures(measured((arch,))))
    if found:
        store(file, json.dumps([asdict(one) for one in found], indent=1, allow_nan=False))
    return found


def key() -> str:
    """Of the installed versions and of how is measured."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        digest.update(f"{package} {version_of(package) or 'absent'}\n".encode())
    for file in sorted(Path(__file__).resolve().parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def of_figures(figures: Figures) -> Iterator[Fallback]:
    """Those of figures that were measured."""
    from waveproof.perf.figures_mla import comparisons

    for one in comparisons(figures.executed, figures.keys):
        if one.generic.provider in ENGINES:
            yield _fallback(one, figures)


def _fallback(one: Comparison, figures: Figures) -> Fallback:
    generic = one.generic
    codes = [
        compiled.code
        for compiled in figures.compiled
        if compiled.subject.arch == generic.subject.arch
        and compiled.subject.implementation.provider == generic.provider
        and compiled.phase == generic.phase
        and compiled.heads == generic.heads
    ]
    spilling = max(codes, key=lambda code: (code.vgpr_spill or 0, code.vgpr), default=None)
    further = one.further or {}
    return Fallback(
        phase=generic.phase.name,
        provider=generic.provider,
        kernel=spilling.kernel if spilling else generic.kernels[0],
        query_wave_instructions=one.whole["wave_instructions"],
        query_mfma=one.whole["mfma"],
        key_wave_instructions=further.get("wave_instructions"),
        key_mfma=further.get("mfma"),
        vgpr=spilling.vgpr if spilling else None,
        spilled=spilling.vgpr_spill if spilling else None,
        scratch_bytes=spilling.scratch_bytes if spilling else None,
        keys=generic.keys,
        heads=generic.heads,
    )


def of_phase(found: Sequence[Fallback], phase: str) -> tuple[Fallback, ...]:
    """Those of a phase."""
    return tuple(one for one in found if one.phase == phase)
