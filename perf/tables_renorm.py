"""The figures on the ``renorm`` kernels as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Column, Table

from waveproof.perf.figures_renorm import TOP_K, TOP_P, Compiled, Figures, Timing, Traffic


def tables(figures: Figures) -> Iterator[Table]:
    """One table for what a call moves, one for what the compiler made, one for times on the CPU."""
    if figures.traffic:
        yield _traffic_table(figures)
    if figures.compiled:
        yield _compiled_table(figures)
    if figures.timings:
        yield _timing_table(figures)


def _number(text: str) -> Column:
    return Column(text, justify="right")


def _traffic_table(figures: Figures) -> Table:
    table = Table(
        "operator",
        "provider",
        Column("kind of row: values kept", overflow="fold"),
        _number("kernels"),
        _number("read"),
        _number("written"),
        _number("torch ops"),
        _number("read"),
        _number("written"),
        _number("all"),
        Column("largest torch ops", overflow="fold"),
        box=box.SIMPLE_HEAD,
        title=f"Bytes per element of a row, V = {figures.vocab_size:,}, top_k = {TOP_K}, top_p = {TOP_P}: "
        "kernels, then torch around them",
        caption="Kernels: counted in Triton's interpreter for each lane, so a value that all lanes share counts for "
        "each (sglang's _normalize_kernel loads the row's sum so: 4 of its 8). torch: every operand and result once, "
        "a floor: a sort takes several passes.",
    )
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in figures.traffic:
        implementation = one.subject.implementation
        key = (implementation.operator, implementation.provider, *_moved(one))
        groups.setdefault(key, []).append(f"{one.kind}: {one.kept:,}")
    for (operator, provider, *cells), kinds in groups.items():
        table.add_row(operator, provider, ", ".join(kinds), *cells)
    return table


def _moved(one: Traffic) -> tuple[str, ...]:
    size = one.vocab_size
    read, written = one.kernel_bytes
    host_read, host_written = one.host_bytes
    # An operation on the limits of a row, not on the row, is not worth naming.
    large = [each.name for each in one.host if each.bytes_read + each.bytes_written >= size]
    figures = (read, written, host_read, host_written, read + written + host_read + host_written)
    shown = [f"{value / size:.1f}" for value in figures]
    return (
        str(len(one.kernels)),
        *shown[:2],
        str(len(one.host)),
        *shown[2:4],
        shown[4],
        ", ".join(dict.fromkeys(large)) or "none",
    )


def _compiled_table(figures: Figures) -> Table:
    table = Table(
        "arch",
        "provider",
        "operator",
        Column("kernel", overflow="fold"),
        _number("programs"),
        _number("waves each"),
        _number("VGPR"),
        _number("spilled"),
        _number("scratch B"),
        _number("LDS B"),
        _number("waves/SIMD"),
        box=box.SIMPLE_HEAD,
        title=f"Compiled ahead of time by Triton's AMD back end, B = {figures.rows:,}, V = {figures.vocab_size:,}",
        caption="Programs against 304 compute units (MI300X) or 256 (MI355X): fewer leave some idle.",
    )
    for one in figures.compiled:
        table.add_row(*_taken(one))
    return table


def _taken(one: Compiled) -> tuple[str, ...]:
    taken, (x, y, z) = one.resources, one.grid
    implementation = one.subject.implementation
    numbers = (
        x * y * z,
        one.num_warps,
        taken.vgpr,
        taken.vgpr_spill,
        taken.scratch_bytes,
        taken.lds_bytes,
        taken.waves_per_simd,
    )
    shown = (f"{number:,}" for number in numbers)
    return (one.subject.arch, implementation.provider, implementation.operator, one.kernel, *shown)


def _timing_table(figures: Figures) -> Table:
    coverage = figures.timings[0].ratio.coverage
    table = Table(
        "top_k",
        "form",
        _number("median ms"),
        _number("interval"),
        _number("times as long"),
        _number("interval"),
        box=box.SIMPLE_HEAD,
        title=f"On this CPU, {figures.threads} threads, B = {figures.rows:,}, V = {figures.vocab_size:,}",
        caption=f"Forms take turns; ratios are paired by repeat. Intervals hold the median with probability "
        f"{coverage:.1%} (order statistics).",
    )
    for one in figures.timings:
        table.add_row(*_timed(one))
    return table


def _timed(one: Timing) -> tuple[str, ...]:
    seconds, ratio = one.seconds, one.ratio
    return (
        one.limit,
        one.form,
        f"{seconds.median * 1e3:.1f}",
        f"{seconds.low * 1e3:.1f} to {seconds.high * 1e3:.1f}",
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
    )
