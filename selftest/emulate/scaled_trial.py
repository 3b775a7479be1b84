"""V_CVT_SCALEF32_* on trial: exact rational numbers, formats typed in from the OCP specifications, whole registers.

The semantics are those of AMD's pseudocode (``exponent(S.f32)``, the parts that OP_SEL names, "other destination bits
are preserved") and of the sources named in ``isa/convert_scaled.py``; nothing here uses that module.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Group
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.instruction_reference import VGPRS, Words
from waveproof.selftest.emulate.instruction_trial import EXEC_MASKS, FIRST, LAST, Fault, differences, random_state
from waveproof.selftest.emulate.single_step import instructions

_PACKED = [f"PK_{a}_{b}" for x in ("FP4", "FP8", "BF8") for y in ("F32", "F16", "BF16") for a, b in ((x, y), (y, x))]
_SINGLE = [f"{wide}_{narrow}" for wide in ("F32", "F16") for narrow in ("FP8", "BF8")]
MNEMONICS = tuple(f"V_CVT_SCALEF32_{name}" for name in (*_PACKED, *_SINGLE))

_NARROW = {"FP4": (2, 1, 1, 0x7), "FP8": (4, 3, 7, 0x7E), "BF8": (5, 2, 15, 0x7B)}
"""Bits of exponent and mantissa, bias, code of the largest number (OCP Microscaling Formats 1.0, section 5.3; OCP
8-bit Floating Point Specification 1.0, tables 1 and 2)."""
_DESTINATION, _SCALAR = 10, 20
_SCALES = {242: Fraction(1), 244: Fraction(2), 240: Fraction(1, 2)}
"""Inline constants by number (CDNA4 ISA, "Vector ALU operands")."""


@dataclass(frozen=True)
class Scaled:
    """What a mnemonic converts."""

    wide: str
    narrow: str
    narrows: bool
    packed: bool

    @classmethod
    def parse(cls, mnemonic: str) -> Scaled:
        """From ``V_CVT_SCALEF32_[PK_]TO_FROM``."""
        found = re.fullmatch(r"V_CVT_SCALEF32_(PK_)?(\w+?)_(\w+)", mnemonic)
        assert found is not None
        packed, to, source = found.groups()
        return cls(source, to, True, bool(packed)) if to in _NARROW else cls(to, source, False, bool(packed))

    @property
    def bits(self) -> int:
        """Of a narrow number."""
        return 4 if self.narrow == "FP4" else 8

    @property
    def scale_at(self) -> int:
        """Which source the scale is."""
        return 2 if self.narrows and self.wide == "F32" else 1

    @property
    def selections(self) -> tuple[int, ...]:
        """Values of OP_SEL with a meaning."""
        if self.narrows:
            return (0, 4, 8, 12) if self.narrow == "FP4" else (0, 8)
        if not self.packed:
            return (0, 1, 2, 3) if self.wide == "F32" else (0, 1, 2, 3, 8, 11)
        return (0, 1, 2, 3) if self.narrow == "FP4" else (0, 1)


@dataclass(frozen=True)
class Trial:
    """One encoding."""

    label: str
    sources: tuple[int, ...]
    destination: int = _DESTINATION
    opsel: int = 0
    neg: int = 0
    absolute: int = 0


@functools.cache
def magnitudes(narrow: str) -> tuple[Fraction, ...]:
    """Values of the codes from 0 to the largest number."""
    _, mantissa_bits, bias, last = _NARROW[narrow]
    unit = 1 << mantissa_bits
    return tuple(
        Fraction(code % unit + unit * (code >= unit)) * Fraction(2) ** (max(code // unit, 1) - bias - mantissa_bits)
        for code in range(last + 1)
    )


@functools.cache
def middles(narrow: str) -> tuple[Fraction, ...]:
    """Between neighbours; the last one lies between the largest number and what would follow it."""
    table = magnitudes(narrow)
    beyond = 2 * table[-1] - table[-2]
    return tuple((a + b) / 2 for a, b in itertools.pairwise((*table, beyond)))


def narrowed(bits: int, form: sf.Form, narrow: str, exponent: int, saturate: bool) -> int:
    """A number over 2**exponent as a code, the nearest or the even one of two."""
    last = _NARROW[narrow][3]
    sign = (8 if narrow == "FP4" else 0x80) * sf.negative(bits, form)
    if sf.is_nan(bits, form):
        return sign | 0x7F
    code = last + 1
    if not sf.is_infinite(bits, form):
        number, between = abs(sf.value(bits, form)) / Fraction(2) ** exponent, middles(narrow)
        code = bisect_left(between, number)
        if code <= last and between[code] == number:
            code += code & 1
    if code > last:
        code = last if saturate or narrow == "FP4" else {"FP8": 0x7F, "BF8": 0x7C}[narrow]
    return sign | code


def widened(code: int, narrow: str, wide: str, exponent: int, saturate: bool) -> int:
    """A code times 2**exponent as a bit pattern."""
    form, last = sf.FORMS[wide.lower()], _NARROW[narrow][3]
    top = 8 if narrow == "FP4" else 0x80
    negative, magnitude = bool(code & top), code & (top - 1)
    if magnitude > last:
        infinite = narrow == "BF8" and magnitude == 0x7C
        return (form.sign * negative | form.infinity) if infinite else form.nan
    number = magnitudes(narrow)[magnitude] * Fraction(2) ** exponent
    bits = sf.rounded(-number if negative else number, form, negative)
    return bits - 1 if saturate and wide == "F16" and sf.is_infinite(bits, form) else bits


def encodings(what: Scaled) -> Iterator[Trial]:
    """The encodings in which an instruction is tried."""
    plain = (258, 260, 262)[: what.scale_at + 1]
    for opsel in what.selections:
        yield Trial(f"op_sel {opsel:#x}", plain, opsel=opsel)
    for number in plain:
        yield Trial(f"onto v{number - 256}", plain, number - 256, what.selections[-1])
    yield Trial("one register", (plain[0],) * len(plain))
    yield Trial("scalar source", (_SCALAR, *plain[1:]), opsel=what.selections[-1])
    yield Trial("scalar scale", (*plain[:-1], _SCALAR))
    for number in _SCALES:
        yield Trial(f"constant {number} as scale", (*plain[:-1], number))
    if what.narrows and what.wide == "F32":
        for at in (0, 1):
            yield Trial(f"neg {at}", plain, neg=1 << at)
            yield Trial(f"abs {at}", plain, absolute=1 << at)
            yield Trial(f"neg abs {at}", plain, neg=1 << at, absolute=1 << at, opsel=8)


def trials(mnemonic: str) -> list[Fault]:
    """Every encoding, in modes and under lane masks that take turns; what differs."""
    what = Scaled.parse(mnemonic)
    contexts = [Context(vgprs=VGPRS, accvgprs=4), Context(vgprs=VGPRS, accvgprs=4, fp16_overflow=True)]
    if what.wide == "F32":
        contexts.append(Context(vgprs=VGPRS, accvgprs=4, float_mode=0xC0, ieee=False))
    found: list[Fault] = []
    for at, trial in enumerate(encodings(what)):
        for context in contexts:
            found += _run(mnemonic, what, trial, context, list(EXEC_MASKS)[at % len(EXEC_MASKS)], at)
    return found


def _operands(what: Scaled, context: Context, rng: np.random.Generator) -> tuple[int, list[int]]:
    """A scale and two operands (or one with two numbers or codes) for which rounding and range show."""
    exponent = int(rng.choice([0, 0, 1, 7, -6, -15, 30, 97, 127 if not context.fp16_overflow else 90, -127]))
    scale = (exponent + 127) << 23 | int(rng.integers(0, 1 << 23))
    if not what.narrows:
        return scale, [int(rng.integers(0, 1 << 32))]
    form, table = sf.FORMS[what.wide.lower()], (*magnitudes(what.narrow), *middles(what.narrow))
    values = []
    for _ in range(2):
        bits = sf.rounded(table[int(rng.integers(len(table)))] * Fraction(2) ** exponent, form)
        bits = min(max(bits + int(rng.integers(-1, 2)), 0), form.infinity)
        if rng.random() < 0.1 and what.narrow != "FP4":
            bits = form.nan | int(rng.integers(0, 1 << form.mantissa_bits))
        elif rng.random() < 0.1:
            bits = form.infinity - int(rng.integers(0, 2))
        values.append(bits | form.sign * int(rng.integers(0, 2)))
    return scale, values if what.wide == "F32" else [values[0] | values[1] << 16]


def _run(mnemonic: str, what: Scaled, trial: Trial, context: Context, masks: str, seed: int) -> list[Fault]:
    label = f"{mnemonic} {trial.label}, EXEC {masks}, FP16_OVFL {context.fp16_overflow:d}, {context.float_mode:#x}"
    rng = np.random.default_rng(seed)
    state = random_state(rng, EXEC_MASKS[masks])
    group = Group(state, FIRST, LAST, 0, context)
    for slot in range(FIRST, LAST):
        for lane in range(64):
            scale, values = _operands(what, context, rng)
            # One register for all is a number and a scale at once.
            shared = (0x3F800000 if what.narrows else scale) if trial.label == "one register" else None
            for number, bits in zip(trial.sources, (*values, scale), strict=True):
                bits = bits if shared is None else shared
                if number >= 256:
                    state.v[number - 256, slot, lane] = bits
                elif number < 128:
                    state.s[slot, number] = bits
    v, s, scc = state.v.copy(), state.s.copy(), state.scc.copy()
    fields: dict[str, Any] = {f"src{at}": number for at, number in enumerate(trial.sources)}
    words = assemble(
        "VOP3", mnemonic, vdst=trial.destination, opsel=trial.opsel, neg=trial.neg, abs=trial.absolute, **fields
    )
    try:
        (instruction,) = instructions(words)
        with np.errstate(all="ignore"):
            build_step(instruction, context)(group)
    except Exception as error:
        return [Fault(label, f"{type(error).__name__}: {error}")]
    for slot in range(FIRST, LAST):
        for lane in range(64):
            if EXEC_MASKS[masks][slot - FIRST] >> lane & 1:
                _predict(what, trial, context, v[:, slot, lane], state_before(v, s, trial, slot, lane))
    for registers in (v, state.v):
        _one_nan(what, registers[trial.destination : trial.destination + 2])
    return differences(label, group, v, s, scc)


def state_before(v: Words, s: Words, trial: Trial, slot: int, lane: int) -> list[int]:
    """Bits of the sources of a lane."""
    found = []
    for number in trial.sources:
        if number >= 256:
            found.append(int(v[number - 256, slot, lane]))
        else:
            found.append(int(s[slot, number]) if number < 128 else sf.rounded(_SCALES[number], sf.FORMS["f32"]))
    return found


def _predict(what: Scaled, trial: Trial, context: Context, cells: Words, sources: list[int]) -> None:
    """Write what a lane gets into its column of registers."""
    exponent = (sources[-1] >> 23 & 255) - 127
    flush = what.wide == "F32" and not context.float_mode & 0x30
    form, row = sf.FORMS[what.wide.lower()], trial.destination
    kept = int(cells[row])
    if what.narrows:
        pair = [sources[0] & 0xFFFF, sources[0] >> 16]
        if what.wide == "F32":
            pair = [_signed(bits, at, trial) for at, bits in enumerate(sources[:2])]
        if flush:
            pair = [bits & form.sign if sf.is_denormal(bits, form) else bits for bits in pair]
        low, high = (narrowed(bits, form, what.narrow, exponent, context.fp16_overflow) for bits in pair)
        shift = 2 * what.bits * (trial.opsel >> (2 if what.narrow == "FP4" else 3))
        field = (1 << 2 * what.bits) - 1 << shift
        cells[row] = kept & ~field | (low | high << what.bits) << shift
        return
    count = 2 if what.packed else 1
    word = sources[0] >> count * what.bits * (trial.opsel & 3)
    codes = [word >> what.bits * at & ((1 << what.bits) - 1) for at in range(count)]
    results = [widened(code, what.narrow, what.wide, exponent, context.fp16_overflow) for code in codes]
    if what.wide == "F32":
        for at, bits in enumerate(results):
            cells[row + at] = bits & form.sign if flush and sf.is_denormal(bits, form) else bits
    elif what.packed:
        cells[row] = results[0] | results[1] << 16
    else:
        half = 16 * (trial.opsel >> 3)
        cells[row] = kept & ~(0xFFFF << half) | results[0] << half


def _signed(bits: int, at: int, trial: Trial) -> int:
    bits = bits & 0x7FFFFFFF if trial.absolute >> at & 1 else bits
    return bits ^ 0x80000000 if trial.neg >> at & 1 else bits


def _one_nan(what: Scaled, rows: Words) -> None:
    """Make all NaNs of a wide result the same one: which NaN widening gives is not specified."""
    if what.narrows:
        return
    form = sf.FORMS[what.wide.lower()]
    for shift in range(0, 32, form.bits):
        part = rows >> np.uint32(shift) & np.uint32((1 << form.bits) - 1)
        nan = (part & np.uint32(form.sign - 1)) > form.infinity
        rows[nan] = rows[nan] & np.uint32(~((1 << form.bits) - 1 << shift) & 0xFFFFFFFF) | np.uint32(form.nan << shift)
