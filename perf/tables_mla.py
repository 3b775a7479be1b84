"""The figures on latent attention as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.table import Column, Table

from waveproof.perf.figures_mla import (
    MEASURES,
    NATIVE_HEADS,
    REAL_HEADS,
    Comparison,
    Compiled,
    Executed,
    Figures,
    Padding,
    comparisons,
    paddings,
)
from waveproof.perf.kernel_code import Code

_MEASURES = ("wave instr.", "MFMA", "mult.-adds", "global B", "LDS B")
"""Headings of :data:`waveproof.perf.figures_mla.MEASURES`."""


def tables(figures: Figures) -> Iterator[Table]:
    """For each arch: what kernels take, what calls execute, generic against padded assembly, padded against native."""
    for arch in figures.arches:
        compiled = [one for one in figures.compiled if one.subject.arch == arch]
        executed = [one for one in figures.executed if one.subject.arch == arch]
        if compiled:
            yield _compiled_table(arch, compiled)
        if executed:
            yield _executed_table(arch, figures.keys, [one for one in executed if one.keys == figures.keys])
        padding = [one for one in paddings(executed) if one.padded.keys == figures.keys]
        compared = list(comparisons(executed, figures.keys))
        if compared:
            yield _comparison_table(arch, figures, compared, padding)
        if padding:
            yield _padding_table(arch, padding)


def _number(text: str) -> Column:
    return Column(text, justify="right")


def _compiled_table(arch: str, compiled: Iterable[Compiled]) -> Table:
    table = Table(
        Column("provider", no_wrap=True),
        Column("kernel", no_wrap=True, overflow="ellipsis", max_width=44),
        Column("in", overflow="fold"),
        _number("VGPR"),
        _number("of them AGPR"),
        _number("spilled"),
        _number("scratch B"),
        _number("LDS B"),
        _number("MFMA"),
        _number("waves/SIMD"),
        box=box.SIMPLE_HEAD,
        title=f"{arch}: what kernels take from the device, and MFMA in their code",
        caption="Triton's as compiled ahead of time; the one that merges what AITER's assembly leaves is not among "
        "them. Of AITER's code objects (.co) what the kernel descriptor asks for; they do not say what was spilled, "
        "and without scratch nothing is spilled to memory.",
    )
    places: dict[tuple[str, Code], dict[str, list[str]]] = {}
    for one in compiled:
        place = places.setdefault((_name(one), one.code), {}).setdefault(one.phase.name, [])
        if str(one.heads) not in place:
            place.append(str(one.heads))
    for (provider, code), where in places.items():
        table.add_row(provider, code.kernel, _where(where), *_taken(code))
    return table


def _name(one: Compiled | Executed) -> str:
    provider = one.subject.implementation.provider
    return provider if one.page_size == 1 else f"{provider}, pages of {one.page_size}"


def _where(heads: dict[str, list[str]]) -> str:
    return ", ".join(f"{phase} {'/'.join(numbers)}" for phase, numbers in heads.items())


def _taken(code: Code) -> tuple[str, ...]:
    spilled = "?" if code.vgpr_spill is None else f"{code.vgpr_spill:,}"
    numbers = (code.scratch_bytes, code.lds_bytes, code.mfma, code.waves_per_simd)
    return f"{code.vgpr:,}", f"{code.agpr:,}", spilled, *(f"{number:,}" for number in numbers)


def _executed_table(arch: str, keys: int, executed: Iterable[Executed]) -> Table:
    table = Table(
        Column("phase, queries", no_wrap=True),
        _number("heads"),
        Column("provider", no_wrap=True),
        _number("launches"),
        _number("workgroups"),
        _number("wave instr."),
        _number("MFMA"),
        _number("mult.-adds"),
        _number("of needed"),
        _number("global B read"),
        _number("written"),
        _number("copied"),
        _number("LDS B read"),
        _number("written"),
        _number("of error bound"),
        box=box.SIMPLE_HEAD,
        title=f"{arch}: executed for each query token of one request on {keys:,} keys, bf16, machine code on the "
        "emulated device",
        caption="Every result was held to float64. Bytes are counted for each lane, without caches. Multiply-adds are "
        "those of the MFMA, padding and hidden keys among them; of needed: for each that the definition has. Copied: "
        "by torch, to pad and unpad.",
    )
    for one in executed:
        work = one.work
        table.add_row(
            f"{one.phase.name}, {one.phase.queries}",
            str(one.heads),
            _name(one),
            str(len(one.kernels)),
            f"{one.workgroups:,}",
            f"{work.wave_instructions:,.0f}",
            f"{work.mfma:,.0f}",
            f"{work.multiply_adds:,.0f}",
            f"{one.of_needed:.2f}" if work.mfma else "no MFMA",
            f"{work.bytes_read:,.0f}",
            f"{work.bytes_written:,.0f}",
            f"{work.copied:,.0f}",
            f"{work.lds_bytes_read:,.0f}",
            f"{work.lds_bytes_written:,.0f}",
            f"{one.severity:.2f}",
        )
    return table


def _comparison_table(arch: str, figures: Figures, compared: Iterable[Comparison], padding: Iterable[Padding]) -> Table:
    table = Table(
        "phase",
        "generic provider",
        "of",
        *(_number(heading) for heading in _MEASURES),
        _number("padding's own"),
        box=box.SIMPLE_HEAD,
        title=f"{arch}: {REAL_HEADS} heads in generic Triton, as multiples of AITER's assembly padded to "
        f"{NATIVE_HEADS}",
        caption="Further keys: what they add at long contexts, as hosts split them. Padding's own: multiply-adds "
        "for each needed one, padded to native heads; the assembly pays it, and these multiples hold it already.",
    )
    own = {one.padded.phase.name: one.overhead for one in padding}
    for one in compared:
        name = one.generic.phase.name
        overhead = f"{own[name]:.2f}" if name in own else "?"
        table.add_row(name, one.generic.provider, f"all {figures.keys:,} keys", *_shown(one.whole), overhead)
        if one.further is not None:
            start, end = one.generic.phase.long
            table.add_row("", "", f"further keys, {start:,} to {end:,}", *_shown(one.further), "")
    return table


def _shown(ratios: dict[str, float | None]) -> tuple[str, ...]:
    found = (ratios[name] for name in MEASURES)
    return tuple("none" if ratio is None else f"{ratio:.2f}" for ratio in found)


def _padding_table(arch: str, padding: Iterable[Padding]) -> Table:
    table = Table(
        "phase",
        *(_number(heading) for heading in _MEASURES),
        _number(f"of needed, native {NATIVE_HEADS}"),
        _number(f"of needed, {REAL_HEADS} padded"),
        _number("ratio"),
        _number("copied B"),
        _number("of the kernels' B"),
        box=box.SIMPLE_HEAD,
        title=f"{arch}: {REAL_HEADS} heads padded to {NATIVE_HEADS}, as multiples of {NATIVE_HEADS} native ones",
        caption="Copies of padding are torch's around the kernels, for each query token, whatever the number of keys.",
    )
    for one in padding:
        work = one.padded.work
        table.add_row(
            one.padded.phase.name,
            *_shown(one.same),
            f"{one.native.of_needed:.2f}",
            f"{one.padded.of_needed:.2f}",
            f"{one.overhead:.2f}",
            f"{work.copied:,.0f}",
            f"{work.copied / (work.bytes - work.copied):.0%}",
        )
    return table
