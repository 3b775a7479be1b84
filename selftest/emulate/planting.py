"""Ways to plant a fault in the emulator for the time of a ``with`` block: what :mod:`.broken_handlers` is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands, registry
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.program import Branch
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Build, Context, Operation, Step
from waveproof.kernels.runtimes.emulate.scalar import salu
from waveproof.kernels.runtimes.emulate.vector import valu


@dataclass(frozen=True)
class BrokenHandler:
    """One planted fault."""

    name: str
    fault_class: str
    mnemonic: str
    """The instruction whose tests must see it."""
    planted: Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def operation(mnemonic: str, entry: Operation | None) -> Iterator[None]:
    """The registry with another entry for a mnemonic (None: removed, to be registered anew)."""
    registry.operations()
    table = registry._OPERATIONS
    kept = table.pop(mnemonic)
    if entry is not None:
        table[mnemonic] = entry
    try:
        yield
    finally:
        table[mnemonic] = kept


def function_for(
    mnemonic: str, signature: str, function: Callable[..., Any], **options: Any
) -> AbstractContextManager[None]:
    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        with operation(mnemonic, None):
            decorate = salu if mnemonic.startswith("S_") else valu
            decorate(mnemonic, signature=signature, **options)(function)
            yield

    return planted()


def building(mnemonic: str, change: Callable[[Build], Build]) -> AbstractContextManager[None]:
    """The operation with another way of building its steps."""
    right = registry.operations()[mnemonic]
    return operation(mnemonic, replace(right, build=change(right.build)))


def misread(mnemonic: str, **changes: Callable[[Instruction], int]) -> AbstractContextManager[None]:
    """The operation on an instruction with some fields misread."""

    def change(build: Build) -> Build:
        def with_changes(i: Instruction, context: Context) -> Step:
            fields = {**i.fields, **{name: value(i) for name, value in changes.items()}}
            return build(replace(i, fields=fields), context)

        return with_changes

    return building(mnemonic, change)


def taken_for(mnemonic: str, other: str) -> AbstractContextManager[None]:
    """The operation does what another one does."""
    build = registry.operations()[other].build
    return building(mnemonic, lambda _: lambda i, context: build(replace(i, mnemonic=other), context))


def around(mnemonic: str, wrap: Callable[[Step], Step]) -> AbstractContextManager[None]:
    return building(mnemonic, lambda build: lambda instruction, context: wrap(build(instruction, context)))


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def without_exec(step: Step) -> Step:
    def everywhere(group: Group) -> Any:
        full, mask = group.full, group.mask
        group.full, group.mask = True, np.ones_like(mask)
        try:
            return step(group)
        finally:
            group.full, group.mask = full, mask

    return everywhere


def only_first_wave_exec(step: Step) -> Step:
    def shared(group: Group) -> Any:
        full, mask = group.full, group.mask
        group.mask = np.broadcast_to(mask[:1], mask.shape).copy()
        group.full = bool(group.mask.all())
        try:
            return step(group)
        finally:
            group.full, group.mask = full, mask

    return shared


def keeping_scc(step: Step) -> Step:
    def kept(group: Group) -> Any:
        scc = group.scc.copy()
        outcome = step(group)
        group.scc[:] = scc
        return outcome

    return kept


def stale_mask(step: Step) -> Step:
    """EXEC is written but the lane mask that others use is not refreshed."""

    def stale(group: Group) -> Any:
        full, mask = group.full, group.mask
        outcome = step(group)
        group.full, group.mask = full, mask
        return outcome

    return stale


def inactive_bits_kept(step: Step) -> Step:
    """A comparison that leaves the bits of inactive lanes as they were."""

    def kept(group: Group) -> Any:
        before = group.lane_mask(106)
        outcome = step(group)
        group.set_lane_mask(106, np.where(group.mask, group.lane_mask(106), before))
        return outcome

    return kept


def neighbour_wave(step: Step) -> Step:
    """A wave outside the group is hit."""

    def beyond(group: Group) -> Any:
        outcome = step(group)
        group.state.v[10, group.last] = group.v[10][-1]
        return outcome

    return beyond


take_along_axis = np.take_along_axis
U32, U64 = np.uint32, np.uint64
wide = lambda a: a.astype(np.uint64)  # noqa: E731


def dpp_source(
    change: Callable[[int, Array, Array], tuple[Array, Array]],
) -> Callable[[], AbstractContextManager[None]]:
    right = modifiers.dpp_source
    return lambda: attribute(modifiers, "dpp_source", lambda control: change(control, *right(control)))


def rounded_down(a: Array, b: Array) -> Array:
    exact = a.astype(np.float64) + b
    value = exact.astype(np.float32)
    low = np.where(value > exact, np.nextafter(value, np.float32(-np.inf)), value)
    return np.asarray(low, np.float32)


def bound(read_of: Callable[[int], int]) -> Callable[[], AbstractContextManager[None]]:
    right = modifiers.dpp_reader
    return lambda: attribute(modifiers, "dpp_reader", lambda row, control, bc: right(row, control, read_of(bc)))


def swapped_select(read: Any, part: int, extend: int) -> Any:
    return select_part(read, {4: 5, 5: 4}.get(part, part), extend)


select_part, merge_part, signs, constant_bits = (
    modifiers.select_part, modifiers.merge_part, modifiers.signs, operands.constant_bits,
)  # fmt: skip


def conditional_inverted(step: Step) -> Step:
    def inverted(group: Group) -> Any:
        outcome = step(group)
        return Branch(~outcome.taken, outcome.target)

    return inverted


def sources_exchanged(mnemonic: str, one: str = "src0", other: str = "src1") -> AbstractContextManager[None]:
    return misread(mnemonic, **{one: lambda i: getattr(i, other), other: lambda i: getattr(i, one)})


def lane_minus(a: Array, b: Array) -> Array:
    lanes = np.arange(64, dtype=np.int64)
    mask = np.where(lanes >= 31, 0xFFFFFFFF, (1 << np.minimum(lanes + 1, 32)) - 1).astype(np.uint32)
    return b + np.bitwise_count(a & mask).astype(np.uint32) if hasattr(np, "bitwise_count") else b + (a & mask)


def m0_kept(step: Step) -> Step:
    def kept(group: Group) -> Any:
        m0 = group.s[124].copy()
        outcome = step(group)
        group.s[124][:] = m0
        return outcome

    return kept


def first_target(jump: Any) -> Any:
    jump.targets[:] = jump.targets[0]
    return jump
