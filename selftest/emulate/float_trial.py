"""Try an instruction on five waves of telling operands in all its encodings, against a reference for one lane.

A :class:`Case` says what the instruction does to bit patterns; :func:`failures` encodes it with registers, overlapping
destinations, scalar, inline and literal operands, NEG, ABS, CLAMP, OMOD and OP_SEL, runs it under full, partial and no
EXEC in three denormal modes, and compares every cell of the register file with what the reference predicts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble, formats
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

WAVES = 5
EXEC_MASKS = {"full": (1 << 64) - 1, "partial": 0x5A5A_F00F_1234_8001, "zero": 0}
MODES = {
    "keep": {"float_mode": 0xF0, "ieee": True},
    "aiter": {"float_mode": 0xC0, "ieee": False},
    "flush": {"float_mode": 0x00, "ieee": False},
}
LITERAL = 0xC0490FDB
_SOURCES, _DESTINATION, _SCALAR = (2, 4, 6), 10, 20
_INLINE = {16: 0xC000, 32: 0xC0000000, 64: 0xC000000000000000}
"""The inline constant -2.0 (number 245) by width."""
_INTEGERS = {
    "i32": [0, 1, 2, 5, 23, 31, 64, 127, 150, 0x7FFFFFFF, 0x80000000, -1, -3, -24, -126, -149, -300, 16777217],
    "i16": [0, 1, 2, 5, 10, 15, 24, 100, 0x7FFF, 0x8000, -1, -3, -14, -24, -25, -100],
    "b32": [0, 1, 0xFFFFFFFF, 0x80000000, 0x01020304, 0x7F80FF81, 0x8001FFFE, 0x00FF0100, 0x7C007BFF, 0xFBFF0001],
}


@dataclass(frozen=True)
class Case:
    """One instruction and what it does to one lane.

    Attributes:
        mnemonic: without encoding suffix.
        signature: kinds of sources and of the result, as ``"f32 f32 -> f32"``; ``old:KIND`` for the destination before.
        reference: bit patterns of the sources to that of the result; gets ``ieee`` as well if that is set below.
        raw: MODE does not flush its denormals.
        keep_high: a 16-bit result keeps the other half of the register.
        slack: how far from the reference a float result may be, in units of its last place.
        arch: where to run it.
        ieee: whether MODE.IEEE matters.
    """

    mnemonic: str
    signature: str
    reference: Callable[..., int]
    raw: bool = False
    keep_high: bool = False
    slack: int = 0
    arch: str = "gfx950"
    ieee: bool = False
    sources: tuple[str, ...] = field(init=False)
    result: str = field(init=False)

    def __post_init__(self) -> None:
        sources, _, result = self.signature.partition(" -> ")
        object.__setattr__(self, "sources", tuple(sources.split()))
        object.__setattr__(self, "result", result)


@dataclass(frozen=True)
class Trial:
    """One encoding: where operands are, and the modifiers."""

    label: str
    words: tuple[int, ...]
    numbers: tuple[int, ...]
    destination: int = _DESTINATION
    halves: int = 0
    neg: int = 0
    absolute: int = 0
    clamp: bool = False
    omod: int = 0


def width(kind: str) -> int:
    """Bits of a kind."""
    return int(kind.removeprefix("old:")[1:])


def trials(case: Case) -> Iterator[Trial]:
    """The encodings of a case."""
    kinds = [kind for kind in case.sources if not kind.startswith("old:")]
    plain = tuple(256 + _SOURCES[at] for at in range(len(kinds)))
    available = formats(case.mnemonic)
    for format in ("VOP1", "VOP2"):
        if format in available:
            names = ("src0", "vsrc1")[: len(kinds)]
            yield from _short_trials(case, format, names, kinds, plain)
    if "VOP3" in available:
        yield from _long_trials(case, kinds, plain)


def _short_trials(
    case: Case, format: str, names: tuple[str, ...], kinds: list[str], plain: tuple[int, ...]
) -> Iterator[Trial]:
    def encode(numbers: tuple[int, ...], vdst: int, literal: int | None = None) -> tuple[int, ...]:
        fields: dict[str, Any] = {
            name: number - 256 if name == "vsrc1" else number for name, number in zip(names, numbers, strict=True)
        }
        return assemble(format, case.mnemonic, literal=literal, vdst=vdst, **fields)

    yield Trial(f"{format}", encode(plain, _DESTINATION), plain)
    for at, number in enumerate(plain):
        yield Trial(f"{format} onto source {at}", encode(plain, number - 256), plain, number - 256)
    for number in (_SCALAR, 245):
        numbers = (number, *plain[1:])
        if number == 245 and (kinds[0][0] not in "fb" or kinds[0] == "b16"):
            continue
        yield Trial(f"{format} source {number}", encode(numbers, _DESTINATION), numbers)
    if width(kinds[0]) < 64:
        numbers = (255, *plain[1:])
        yield Trial(f"{format} literal", encode(numbers, _DESTINATION, LITERAL), numbers)


def _long_trials(case: Case, kinds: list[str], plain: tuple[int, ...]) -> Iterator[Trial]:
    names = ("src0", "src1", "src2")[: len(kinds)]

    def encode(numbers: tuple[int, ...], vdst: int, **modifiers: Any) -> tuple[int, ...]:
        operands: dict[str, Any] = dict(zip(names, numbers, strict=True))
        return assemble("VOP3", case.mnemonic, vdst=vdst, **modifiers, **operands)

    yield Trial("VOP3", encode(plain, _DESTINATION), plain)
    for at, number in enumerate(plain):
        yield Trial(f"VOP3 onto source {at}", encode(plain, number - 256), plain, number - 256)
        numbers = (*plain[:at], _SCALAR, *plain[at + 1 :])
        yield Trial(f"VOP3 scalar source {at}", encode(numbers, _DESTINATION), numbers)
        if kinds[at][0] == "f":
            numbers = (*plain[:at], 245, *plain[at + 1 :])
            yield Trial(f"VOP3 constant source {at}", encode(numbers, _DESTINATION), numbers)
            yield Trial(f"VOP3 neg {at}", encode(plain, _DESTINATION, neg=1 << at), plain, neg=1 << at)
            yield Trial(f"VOP3 abs {at}", encode(plain, _DESTINATION, abs=1 << at), plain, absolute=1 << at)
            both = encode(plain, _DESTINATION, neg=1 << at, abs=1 << at)
            yield Trial(f"VOP3 neg abs {at}", both, plain, neg=1 << at, absolute=1 << at)
        if width(kinds[at]) == 16:
            yield Trial(f"VOP3 high half {at}", encode(plain, _DESTINATION, opsel=1 << at), plain, halves=1 << at)
    if case.result[0] == "f":
        yield Trial("VOP3 clamp", encode(plain, _DESTINATION, clamp=1), plain, clamp=True)
        for omod in (1, 2, 3):
            yield Trial(f"VOP3 omod {omod}", encode(plain, _DESTINATION, omod=omod), plain, omod=omod)
    if width(case.result) == 16:
        yield Trial("VOP3 high half of D", encode(plain, _DESTINATION, opsel=8), plain, halves=8)


@functools.cache
def specials(kind: str) -> tuple[int, ...]:
    """Sixteen or so telling bit patterns of a kind."""
    if kind[0] != "f":
        mask = (1 << width(kind)) - 1
        return tuple(n & mask for n in _INTEGERS.get(kind, _INTEGERS["b32"]))
    form = sf.FORMS[kind]
    unit, one = 1 << form.mantissa_bits, form.bias << form.mantissa_bits
    positive = [0, 1, unit - 1, unit, one, one + unit // 2, one - unit, form.infinity - 1, form.infinity]
    positive += [one + 1, one + 3 * unit + 3, one - 5 * unit + 7]
    patterns = [*positive[:9], *(x | form.sign for x in (0, 1, unit, one, form.infinity)), *positive[9:]]
    return (*patterns, form.nan, form.infinity | 1, form.sign | positive[-2])


def operand_bits(kind: str, at: int, rng: np.random.Generator) -> list[int]:
    """Bit patterns for all lanes: every pair of specials for the first two operands, then random ones."""
    values = specials(kind)
    count = 64 * WAVES
    if at == 2:
        # Between rounding traps: the product's neighbourhood as often as a special.
        return [values[int(i)] if i < len(values) else int(r) for i, r in zip(
            rng.integers(0, 2 * len(values), count), _random_bits(kind, count, rng), strict=True)]  # fmt: skip
    lanes = [values[(lane if at == 0 else lane // 17) % len(values)] for lane in range(count - 64)]
    return lanes + _random_bits(kind, 64, rng)


def _random_bits(kind: str, count: int, rng: np.random.Generator) -> list[int]:
    bits = [int(x) for x in rng.integers(0, 1 << width(kind), count, dtype=np.uint64, endpoint=False)] if width(
        kind) < 64 else [int(x) for x in rng.integers(0, (1 << 64) - 1, count, dtype=np.uint64)]  # fmt: skip
    if kind[0] != "f":
        return bits
    form = sf.FORMS[kind]
    # Exponents near each other, so that sums round.
    near = ((1 << form.exponent_bits) - 1) << form.mantissa_bits
    exponents = rng.integers(form.bias - 6, form.bias + 12, count)
    return [
        (b & ~near) | int(e) << form.mantissa_bits if i % 4 else b
        for i, (b, e) in enumerate(zip(bits, exponents, strict=True))
    ]


def failures(case: Case, mode: str, masks: str, seed: int = 0) -> list[str]:
    """What differs, one line an encoding at most."""
    # Most encodings see the same operands.
    case = dataclasses.replace(case, reference=functools.cache(case.reference))
    return [line for trial in trials(case) if (line := _run(case, trial, mode, masks, seed))]


def _run(case: Case, trial: Trial, mode: str, masks: str, seed: int) -> str:
    rng = np.random.default_rng(seed)
    context = Context(arch=case.arch, vgprs=16, accvgprs=2, **MODES[mode])  # type: ignore[arg-type]
    group = bare_group(context, waves=WAVES)
    group.state.v[:] = rng.integers(0, 1 << 32, group.state.v.shape, dtype=np.uint64).astype(np.uint32)
    group.state.s[:, :100] = rng.integers(0, 1 << 32, (WAVES, 100), dtype=np.uint64).astype(np.uint32)
    kinds = [kind for kind in case.sources if not kind.startswith("old:")]
    lanes: list[list[int]] = []
    for at, (kind, number) in enumerate(zip(kinds, trial.numbers, strict=True)):
        lanes.append(_place(group, kind, number, trial.halves >> at & 1, operand_bits(kind, at, rng)))
    set_exec(group, EXEC_MASKS[masks])
    expected = group.state.v.copy()
    target = trial.destination
    for at, kind in enumerate(case.sources):
        if kind.startswith("old:"):
            lanes.insert(at, _read(expected, kind[4:], target, 0))
    for lane in range(64 * WAVES):
        if EXEC_MASKS[masks] >> lane % 64 & 1:
            values = [_modified(case, trial, at, kinds, mode, row[lane]) for at, row in enumerate(lanes)]
            extra: dict[str, Any] = {"ieee": MODES[mode]["ieee"]} if case.ieee else {}
            bits = _finished(case, trial, mode, case.reference(*values, **extra))
            _store(case, trial, expected, lane, bits)
    execute(group, *trial.words)
    return _difference(case, trial, group.state.v, expected, mode, masks)


def _place(group: Any, kind: str, number: int, half: int, bits: list[int]) -> list[int]:
    """Put an operand where the encoding looks for it; returns what each lane then has."""
    if number == 245:
        return [_INLINE[width(kind)]] * (64 * WAVES)
    if number == 255:
        return [LITERAL & ((1 << width(kind)) - 1)] * (64 * WAVES)
    if number < 256:
        for wave in range(WAVES):
            value = bits[64 * wave + 5] << 16 * half
            for at in range(max(1, width(kind) // 32)):
                group.state.s[wave, number + at] = value >> 32 * at & 0xFFFFFFFF
        return [bits[64 * (lane // 64) + 5] for lane in range(64 * WAVES)]
    row = number - 256
    cells = group.state.v
    table = np.array(bits, np.uint64).reshape(WAVES, 64)
    if width(kind) == 16:
        keep = np.uint32(0xFFFF0000 if not half else 0xFFFF)
        cells[row] = cells[row] & keep | table.astype(np.uint32) << np.uint32(16 * half)
    else:
        for at in range(width(kind) // 32):
            cells[row + at] = (table >> np.uint64(32 * at)).astype(np.uint32)
    return bits


def _read(cells: np.ndarray, kind: str, row: int, half: int) -> list[int]:
    value = cells[row].astype(np.uint64)
    if width(kind) == 64:
        value |= cells[row + 1].astype(np.uint64) << np.uint64(32)
    return [int(x) >> 16 * half & ((1 << width(kind)) - 1) for x in value.reshape(-1)]


def _flushes(case: Case, kind: str, mode: str) -> bool:
    if case.raw or kind[0] != "f":
        return False
    return not int(MODES[mode]["float_mode"]) >> (4 if kind == "f32" else 6) & 1


def _modified(case: Case, trial: Trial, at: int, kinds: list[str], mode: str, bits: int) -> int:
    kind = case.sources[at].removeprefix("old:")
    if case.sources[at].startswith("old:"):
        pass
    elif kind[0] == "f":
        sign = sf.FORMS[kind].sign
        if trial.absolute >> at & 1:
            bits &= sign - 1
        if trial.neg >> at & 1:
            bits ^= sign
    if _flushes(case, kind, mode) and sf.is_denormal(bits, sf.FORMS[kind]):
        bits &= sf.FORMS[kind].sign
    return bits


def _finished(case: Case, trial: Trial, mode: str, bits: int) -> int:
    if case.result[0] != "f":
        return bits
    form, flushes = sf.FORMS[case.result], _flushes(case, case.result, mode)
    if sf.is_nan(bits, form):
        return 0 if trial.clamp else form.nan
    if trial.omod and flushes and not MODES[mode]["ieee"]:
        if sf.is_denormal(bits, form):
            bits = 0
        factor = {1: 1, 2: 2, 3: -1}[trial.omod]
        bits = 0 if sf.is_zero(bits, form) else sf.scale(bits, factor, form)
    if flushes and sf.is_denormal(bits, form):
        bits &= form.sign
    if trial.clamp:
        one = form.bias << form.mantissa_bits
        bits = 0 if sf.negative(bits, form) else min(bits, one)
    return bits


def _store(case: Case, trial: Trial, cells: np.ndarray, lane: int, bits: int) -> None:
    wave, at = divmod(lane, 64)
    if width(case.result) == 16:
        half = trial.halves >> 3 & 1
        keep = int(cells[trial.destination, wave, at]) & (0xFFFF if half else 0xFFFF0000)
        bits = bits << 16 * half | (keep if half or case.keep_high else 0)
    for part in range(max(1, width(case.result) // 32)):
        cells[trial.destination + part, wave, at] = bits >> 32 * part & 0xFFFFFFFF


def _difference(case: Case, trial: Trial, got: np.ndarray, expected: np.ndarray, mode: str, masks: str) -> str:
    if (got == expected).all():
        return ""
    row = trial.destination
    kind, half = case.result, trial.halves >> 3 & 1
    actual, wanted = _read(got, kind, row, half), _read(expected, kind, row, half)
    other = got.copy()
    other[row : row + max(1, width(kind) // 32)] = expected[row : row + max(1, width(kind) // 32)]
    if not (other == expected).all():
        return f"{case.mnemonic} {trial.label}, {mode}, EXEC {masks}: writes another register"
    if width(kind) == 16:
        untouched = np.uint32(0xFFFF if half else 0xFFFF0000)
        if ((got[row] ^ expected[row]) & untouched).any():
            return f"{case.mnemonic} {trial.label}, {mode}, EXEC {masks}: the other half of v{row}"
    for lane, (a, b) in enumerate(zip(actual, wanted, strict=True)):
        if not _close(a, b, kind, case.slack):
            return f"{case.mnemonic} {trial.label}, {mode}, EXEC {masks}: lane {lane} {a:#x}, expected {b:#x}"
    return ""


def _close(a: int, b: int, kind: str, slack: int) -> bool:
    if a == b:
        return True
    if kind[0] != "f":
        return False
    form = sf.FORMS[kind]
    if sf.is_nan(a, form) or sf.is_nan(b, form):
        return sf.is_nan(a, form) and sf.is_nan(b, form)
    if slack and sf.negative(a, form) == sf.negative(b, form):
        return abs(a - b) <= slack
    return False


def exactly(number: Fraction, kind: str) -> int:
    """A rational number in a kind, rounded to nearest even."""
    return sf.rounded(number, sf.FORMS[kind])
