"""The bug report on AITER's fp8 MLA decode, whose result depends on the order of waves, with what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waveproof.fixtures.lds_order import Ordered
    from waveproof.kernels.runtimes.emulate.lds_pairs import Racing

_REPORT = """\
# MLA decode fp8 (`mla_a8w8_qh16_qseqlen1_gqaratio16.co`): P and the next K tile share LDS without a barrier

amd-aiter {version}, {arch}, entry point `mla_decode_stage1_asm_fwd`, 16 heads, e4m3, {kv_length} tokens of KV,
{splits} splits. Seen on a functional emulator that runs the shipped code object unchanged; not timed, not seen
on a GPU.

## What is wrong
The loop stores the probabilities P to LDS at byte 0 (`ds_write_b32 v7`), passes `s_barrier`, and loads them
(`ds_read_b64 v6`). The same bytes are the K tile: after its own loads each wave stores the next tile there
(`ds_write_b32 v20`). Between the loads of one wave and the stores of another there is **no `s_barrier`**; the
`s_waitcnt` in between waits for the wave's own accesses only. A wave that is held up after the barrier (instruction
fetch, debugger, context switch) loads K values as probabilities. LSE stays right, the output does not.

```
{disassembly}
```
Racing pairs, by dword accesses (offsets in `.text`):

| earlier | later | kind | accesses | LDS bytes |
|---|---|---|---|---|
{pairs}

## What depends on it
Waves are executed in different orders; within one wave, and at every barrier, the order is the program's.

| order between barriers | max error | LSE error | cosine | conflicting accesses |
|---|---|---|---|---|
{orders}

## Why it looks like an offset that was left out
The bf16 object of the same family keeps P behind its other areas (`offset:42624`, 0xa680: after the maxima). In the
fp8 object the maxima end at 0x5680, and P has offset 0. With {own_area:#x} added to the offsets of these instructions
in all copies of the loop, and nothing else changed, no access conflicts and every order gives the bits of lockstep:

| order between barriers | max error | conflicting accesses | bits of lockstep |
|---|---|---|---|
{mended}

A barrier after the loads of P would do as well.

## Repeat
`pip install waveproof amd-aiter`, then `waveproof emulate lds-order --arch {arch}`.
"""


def render(
    arch: str,
    version: str,
    shape: tuple[int, int],
    runs: Sequence[Ordered],
    mended: Sequence[Ordered],
    disassembly: Sequence[str],
    own_area: int,
) -> str:
    """The report as Markdown.

    Args:
        arch: ``gfx942`` or ``gfx950``.
        version: of amd-aiter.
        shape: tokens of KV, splits.
        runs: of the shipped code object.
        mended: of the changed one.
        disassembly: around a racing pair.
        own_area: LDS byte where the changed one keeps P.
    """
    return _REPORT.format(
        arch=arch,
        version=version,
        kv_length=shape[0],
        splits=shape[1],
        disassembly="\n".join(disassembly),
        pairs="\n".join(_pair(*one) for one in _most(runs)),
        orders="\n".join(
            f"| {run.order} | {run.error:.3g} | {run.lse_error:.1g} | {run.cosine:.5f} | {conflicts(run)} |"
            for run in runs
        ),
        mended="\n".join(
            f"| {run.order} | {run.error:.3g} | {conflicts(run)} | {'yes' if run.same_bits else 'NO'} |"
            for run in mended
        ),
        own_area=own_area,
    )


def conflicts(run: Ordered) -> str:
    """Counts by kind in words."""
    return ", ".join(f"{count} {kind}" for kind, count in run.conflicts.items()) or "none"


def _most(runs: Sequence[Ordered]) -> list[tuple[Racing, int, set[int]]]:
    report = next(run.report for run in runs if run.report.pairs)
    return [(pair, count, report.bytes[pair]) for pair, count in report.pairs.most_common(8)]


def _pair(pair: Racing, count: int, touched: set[int]) -> str:
    span = f"{min(touched):#x}-{max(touched) + 3:#x}"
    return f"| {pair.earlier:#x} | {pair.later:#x} | {pair.kind} | {count} | {span} |"
