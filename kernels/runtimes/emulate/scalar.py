"""Scalar instructions from pure functions of arrays: the decorator :func:`salu`.

    @salu("S_ADD_U32", signature="u32 u32 -> u32 scc")
    def add(a, b):
        total = a + b
        return total, total < a

Arrays are [n, 1], one row a wave; constants [1, 1]. Besides the kinds of :mod:`.operands`, a source or result may be
``scc`` (bool) or ``exec`` (u64), a source ``old:KIND`` (the destination before), ``k:KIND`` (SIMM16 of SOPK,
sign-extended for i32, zero-extended for u32). A result ``scc`` is bool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.operands import Reader, Writer
from waveproof.kernels.runtimes.emulate.registers import EXEC, Array, Group
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step, define
from waveproof.kernels.runtimes.emulate.vector import Signature

Function = Callable[..., Any]


def salu(
    *mnemonics: str, signature: str, architectures: tuple[str, ...] = ARCHITECTURES
) -> Callable[[Function], Function]:
    """Register a pure function as scalar instructions; see the module."""
    parsed = Signature.parse(signature)

    def register(function: Function) -> Function:
        def build(instruction: Instruction, context: Context) -> Step:
            readers = list(_readers(instruction, context, parsed))
            writers = [_writer(instruction, kind) for kind in parsed.results]
            return _step(function, readers, writers)

        define(*mnemonics, architectures=architectures, sources=parsed.sources, results=parsed.results)(build)
        return function

    return register


def _readers(instruction: Instruction, context: Context, signature: Signature) -> Iterator[Reader]:
    numbers = iter([instruction.get("ssrc0"), instruction.get("ssrc1")])
    for kind in signature.sources:
        if kind == "scc":
            yield lambda group: group.scc
        elif kind == "exec":
            yield lambda group: group.s64[EXEC // 2]
        elif kind.startswith("old:"):
            yield operands.scalar_reader(instruction.sdst, kind[4:])
        elif kind.startswith("k:"):
            yield immediate(instruction.simm16, kind[2:])
        else:
            yield operands.source(next(numbers), kind, context, instruction.literal)


def immediate(simm16: int, kind: str) -> Reader:
    """SIMM16 as a constant: sign-extended for i32, zero-extended for u32."""
    bits = simm16 - ((simm16 & 0x8000) << 1) if kind[0] == "i" else simm16
    value = operands.constant(bits & 0xFFFFFFFF, kind)
    return lambda group: value


def _write_scc(group: Group, value: Array) -> None:
    group.scc[:] = value


def _writer(instruction: Instruction, kind: str) -> Writer:
    if kind == "scc":
        return _write_scc
    if kind == "exec":
        return operands.scalar_writer(EXEC, "b64")
    return operands.scalar_writer(instruction.sdst, kind)


def _step(function: Function, readers: list[Reader], writers: list[Writer]) -> Step:
    if len(writers) == 1:
        (write,) = writers
        if len(readers) == 1:
            (only,) = readers
            return lambda group: write(group, function(only(group)))
        if len(readers) == 2:
            a, b = readers
            return lambda group: write(group, function(a(group), b(group)))
        return lambda group: write(group, function(*[read(group) for read in readers]))

    def step(group: Group) -> None:
        values = function(*[read(group) for read in readers])
        # A result may be a view of a source register that an earlier write changes (S_AND_SAVEEXEC).
        values = [np.array(value) if isinstance(value, np.ndarray) and value.base is not None else value
                  for value in values]  # fmt: skip
        for write, value in zip(writers, values, strict=True):
            write(group, value)

    return step
