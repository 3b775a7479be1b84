"""Vector instructions from pure functions of arrays: the decorator :func:`valu`.

    @valu("V_LSHL_ADD_U32", signature="u32 u32 u32 -> u32")
    def lshl_add(a, b, c):
        return (a << (b & 31)) + c

A signature lists the kinds of the sources in the order in which the instruction has them, and of the results. Besides
the kinds of :mod:`.operands`:

* source ``mask``: VCC in VOP2, src2 in VOP3 (as V_CNDMASK, V_ADDC_CO); ``mask:vcc``: VCC always; ``old:KIND``: the
  destination before (V_FMAC); ``k:KIND``: the literal that is part of the instruction (V_FMAMK).
* result ``mask``: a comparison's or carry's lane mask, to VCC in 32-bit encodings, to the scalar destination in VOP3;
  ``maskx``: the same, and EXEC with it (V_CMPX).

The function gets arrays that broadcast to [n, 64] and may be register views: it must not write to them. It returns an
array of the result's dtype, or a tuple for several results. The wrapper reads all sources before it writes anything,
applies modifiers, flushes denormals of floating-point kinds by MODE (kinds ``b*`` are left as they are) and writes the
lanes of EXEC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import LITERAL, Instruction
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.operands import Reader, Writer
from waveproof.kernels.runtimes.emulate.registers import EXEC, VCC, Array, Group
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step, define

Function = Callable[..., Any]


@dataclass(frozen=True)
class Signature:
    """Kinds of sources and results."""

    sources: tuple[str, ...]
    results: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Signature:
        """From ``"f32 f32 -> f32"``."""
        sources, _, results = text.partition("->")
        return cls(tuple(sources.split()), tuple(results.split()))


def valu(
    *mnemonics: str,
    signature: str,
    architectures: tuple[str, ...] = ARCHITECTURES,
    saturate: Function | None = None,
    keep_high: bool = False,
    raw_denormals: bool = False,
    ieee: Function | None = None,
) -> Callable[[Function], Function]:
    """Register a pure function (or a numpy ufunc) as vector instructions.

    Args:
        mnemonics: names without encoding suffix.
        signature: see the module.
        architectures: those that have the instruction.
        saturate: the function to use where CLAMP is set on an integer result; without one, CLAMP there is refused.
        keep_high: a 16-bit result keeps the register's other half even without OP_SEL (else it is zero-extended).
        raw_denormals: the instruction looks at denormals whatever MODE says.
        ieee: the function to use where MODE.IEEE is set, if it differs.
    """
    parsed = Signature.parse(signature)

    def register(function: Function) -> Function:
        def build(instruction: Instruction, context: Context) -> Step:
            chosen = ieee if ieee is not None and context.ieee else function
            return _Builder(instruction, context, parsed, keep_high, raw_denormals).build(chosen, saturate)

        define(*mnemonics, architectures=architectures, sources=parsed.sources, results=parsed.results)(build)
        return function

    return register


def vector_step(
    instruction: Instruction, context: Context, signature: str, function: Function, keep_high: bool = False
) -> Step:
    """The step of an instruction whose function depends on the context: what :func:`valu` does, for a ``define``."""
    return _Builder(instruction, context, Signature.parse(signature), keep_high, False).build(function, None)


class _Builder:
    """Resolves the operands of one vector instruction."""

    def __init__(
        self, instruction: Instruction, context: Context, signature: Signature, keep_high: bool, raw: bool
    ) -> None:
        self.instruction, self.context, self.signature = instruction, context, signature
        self.keep_high, self.raw = keep_high, raw
        self.vop3 = instruction.format in ("VOP3", "VOP3SD")
        self.enabled: list[Callable[[Group], Array | None]] = []
        """Lanes besides EXEC that are written, where DPP leaves some out."""

    def build(self, function: Function, saturate: Function | None) -> Step:
        """The step."""
        i, results = self.instruction, self.signature.results
        readers = list(self._readers())
        clamp = i.get("clmp")
        kind = results[0]
        compute = function
        finish = None
        if kind[0] == "f":
            # ufuncs of min and max kind included: they flush as all arithmetic does
            finish = modifiers.finish(kind, self.context, clamp, i.get("omod"))
            if self.raw:
                finish = modifiers.finish(kind, _keep_all(self.context), clamp, i.get("omod"))
        elif clamp:
            if saturate is None:
                raise InstructionUnsupported(f"CLAMP on {i.mnemonic}")
            compute = saturate
        writers = [self._writer(result, at) for at, result in enumerate(results)]
        if len(writers) > 1:
            return _several(compute, readers, writers)
        if finish is None and not self.enabled and kind in ("u32", "i32", "f32", "b32") and i.variant != "SDWA":
            row = self._destination()
            target = operands.vector_reader(row, kind)
            if isinstance(compute, np.ufunc):
                return _ufunc(compute, readers, target)
        return _single(compute, readers, writers[0], finish)

    def _numbers(self) -> list[int]:
        """Source numbers in order."""
        i = self.instruction
        if self.vop3:
            return [i.src0, i.src1, i.src2]
        first = i.vsrc0 - (256 if i.get("s0") else 0) if i.variant in ("DPP16", "SDWA") else i.src0
        second = i.get("vsrc1", -1)
        return [first, second - (256 if i.get("s1") else 0) if second >= 0 else -1]

    def _readers(self) -> Iterator[Reader]:
        i, context = self.instruction, self.context
        numbers = iter(enumerate(self._numbers()))
        for kind in self.signature.sources:
            if kind == "mask:vcc":
                yield operands.mask_source(VCC)
                continue
            if kind == "mask":
                yield operands.mask_source(next(numbers)[1] if self.vop3 else VCC)
                continue
            if kind.startswith("old:"):
                kind = kind[4:]
                half = i.get("opsel") >> 3 & 1 if operands.width(kind) == 16 else 0
                read = operands.vector_reader(self._destination(), kind, half)
                yield read if self.raw else modifiers.flushed_input(read, kind, context)
                continue
            if kind.startswith("k:"):
                kind = kind[2:]
                yield operands.source(LITERAL, kind, context, i.literal)
                continue
            at, number = next(numbers)
            yield self._modified(at, number, kind)

    def _modified(self, at: int, number: int, kind: str) -> Reader:
        i, context = self.instruction, self.context
        if number < 0:
            raise CodeObjectInvalid(f"{i.mnemonic} in format {i.format} has too few sources")
        if i.variant in ("DPP16", "SDWA"):
            negate, absolute = i.get(f"src{at}_neg"), i.get(f"src{at}_abs")
            read = self._part(at, number, kind) if i.variant == "SDWA" else self._permuted(at, number, kind)
        else:
            negate, absolute = i.get("neg") >> at & 1, i.get("abs") >> at & 1
            half = i.get("opsel") >> at & 1
            if half and operands.width(kind) != 16:
                raise InstructionUnsupported(f"OP_SEL on a source of kind {kind} of {i.mnemonic}")
            read = operands.source(number, kind, context, i.literal, half, at)
        read = modifiers.signs(read, kind, bool(negate), bool(absolute))
        return read if self.raw else modifiers.flushed_input(read, kind, context)

    def _part(self, at: int, number: int, kind: str) -> Reader:
        i = self.instruction
        whole = operands.source(number, "u32", self.context, at=at)
        read = modifiers.select_part(whole, i.get(f"src{at}_sel"), i.get(f"src{at}_sext"))
        return _as_kind(read, kind)

    def _permuted(self, at: int, number: int, kind: str) -> Reader:
        i, context = self.instruction, self.context
        if at:
            return operands.source(number, kind, context, at=at)
        row = operands.vector_row(number - 256 + context.gpr_index[0], context, operands.width(kind) // 32 or 1)
        read, enabled = modifiers.dpp_reader(row, i.dpp, i.bc)
        masked = modifiers.dpp_enabled(i.row_mask, i.bank_mask)
        self.enabled.append(enabled)
        if not masked.all():
            self.enabled.append(lambda group: masked[None])
        if operands.width(kind) == 64:
            high, _ = modifiers.dpp_reader(row + 1, i.dpp, i.bc)
            dtype = operands.DTYPES[kind]
            return lambda group: np.stack([read(group), high(group)], axis=2).view(dtype)[:, :, 0]
        return _as_kind(read, kind)

    def _destination(self) -> int:
        i, context = self.instruction, self.context
        count = 2 if operands.width(self.signature.results[0].removeprefix("old:")) == 64 else 1
        return operands.vector_row(i.vdst - 256 + context.gpr_index[3], context, count)

    def _writer(self, kind: str, at: int) -> Writer:
        i = self.instruction
        if kind in ("mask", "maskx"):
            return self._mask_writer(kind)
        row = self._destination()
        if i.variant == "SDWA" and i.dst_sel != 6:
            part, unused = i.dst_sel, i.dst_unused
            plain = operands.vector_writer(row, "u32")
            dtype = {16: np.uint16, 32: np.uint32}[operands.width(kind)]
            write: Writer = lambda group, value: plain(  # noqa: E731
                group, modifiers.merge_part(value.view(dtype).astype(np.uint32), group.v[row], part, unused)
            )
        else:
            half = i.get("opsel") >> 3 & 1 if self.vop3 else 0
            if half and operands.width(kind) != 16:
                raise InstructionUnsupported(f"OP_SEL on the result of {i.mnemonic}")
            selectable = bool(half) or self.keep_high
            write = operands.vector_writer(row, kind, half, zero_high=not selectable)
        return self._narrowed(write)

    def _narrowed(self, write: Writer) -> Writer:
        if not self.enabled:
            return write
        limits = self.enabled

        def narrowed(group: Group, value: Array) -> None:
            lanes = [mask for limit in limits if (mask := limit(group)) is not None]
            if not lanes:
                write(group, value)
                return
            full, mask = group.full, group.mask
            for limit in lanes:
                group.mask = group.mask & limit
            group.full = False
            try:
                write(group, value)
            finally:
                group.full, group.mask = full, mask

        return narrowed

    def _mask_writer(self, kind: str) -> Writer:
        i = self.instruction
        if i.variant == "DPP16":
            raise InstructionUnsupported(f"{i.mnemonic} with DPP and a lane mask as result")
        if i.format == "VOP3SD":
            number = i.sdst
        elif i.format == "VOP3":
            number = i.vdst - 256 if i.vdst >= 256 else i.vdst
        elif i.variant == "SDWA":
            number = i.get("sdst") if i.get("sd") else VCC
        else:
            number = VCC
        write = operands.mask_writer(number)
        if kind == "mask" or number == EXEC:
            return write
        also = operands.mask_writer(EXEC)

        def both(group: Group, value: Array) -> None:
            write(group, value)
            also(group, value)

        return both


def _keep_all(context: Context) -> Context:
    return replace(context, float_mode=context.float_mode | 0xF0)


def _as_kind(read: Reader, kind: str) -> Reader:
    """A uint32 reader as another kind; 16-bit kinds take the low half."""
    dtype = operands.DTYPES[kind]
    bits = operands.width(kind)
    if bits == 16:
        return lambda group: read(group).astype(np.uint16).view(dtype)
    if bits == 64:
        raise InstructionUnsupported(f"SDWA on a source of kind {kind}")
    return lambda group: read(group).view(dtype)


def _ufunc(function: np.ufunc, readers: list[Reader], target: Reader) -> Step:
    """The fast path: a numpy ufunc straight into the register when EXEC is full."""
    if len(readers) == 1:
        (read,) = readers

        def unary(group: Group) -> None:
            if group.full:
                function(read(group), out=target(group))
            else:
                np.copyto(target(group), function(read(group)), where=group.mask)

        return unary
    if len(readers) == 2:
        left, right = readers

        def binary(group: Group) -> None:
            if group.full:
                function(left(group), right(group), out=target(group))
            else:
                np.copyto(target(group), function(left(group), right(group)), where=group.mask)

        return binary
    raise TypeError(f"{function} with {len(readers)} sources")


def _single(function: Function, readers: list[Reader], write: Writer, finish: Callable[[Array], Array] | None) -> Step:
    if finish is not None:
        return lambda group: write(group, finish(function(*[read(group) for read in readers])))
    if len(readers) == 1:
        (only,) = readers
        return lambda group: write(group, function(only(group)))
    if len(readers) == 2:
        a, b = readers
        return lambda group: write(group, function(a(group), b(group)))
    if len(readers) == 3:
        a, b, c = readers
        return lambda group: write(group, function(a(group), b(group), c(group)))
    return lambda group: write(group, function(*[read(group) for read in readers]))


def _several(function: Function, readers: list[Reader], writers: list[Writer]) -> Step:
    def step(group: Group) -> None:
        values = function(*[read(group) for read in readers])
        for write, value in zip(writers, values, strict=True):
            write(group, value)

    return step
