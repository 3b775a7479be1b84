"""Vector comparisons (CDNA3 ISA, "VOPC"): a lane mask, 0 for lanes outside EXEC; V_CMPX writes EXEC as well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

Compare = Callable[[Array, Array], Array]

_INTEGER: dict[str, Compare] = {
    "LT": np.less, "EQ": np.equal, "LE": np.less_equal, "GT": np.greater, "NE": np.not_equal, "GE": np.greater_equal,
}  # fmt: skip


def _never(a: Array, b: Array) -> Array:
    return np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _always(a: Array, b: Array) -> Array:
    return np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _ordered(a: Array, b: Array) -> Array:
    return ~(np.isnan(a) | np.isnan(b))


def _less_or_greater(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _not(compare: Compare) -> Compare:
    return lambda a, b: ~compare(a, b)


_FLOAT: dict[str, Compare] = {
    "F": _never, "LT": np.less, "EQ": np.equal, "LE": np.less_equal, "GT": np.greater, "LG": _less_or_greater,
    "GE": np.greater_equal, "O": _ordered, "U": _not(_ordered), "NGE": _not(np.greater_equal),
    "NLG": _not(_less_or_greater), "NGT": _not(np.greater), "NLE": _not(np.less_equal), "NEQ": _not(np.equal),
    "NLT": _not(np.less), "TRU": _always,
}  # fmt: skip

_INTEGER_ALL = {"F": _never, **_INTEGER, "T": _always}

_CLASSES = {"F16": (10, 5), "F32": (23, 8), "F64": (52, 11)}
"""Mantissa and exponent bits."""


def _class_of(type_name: str) -> Compare:
    """Whether S1 has the bit of S0's class: 0 signalling, 1 quiet NaN, then from -inf (2) to +inf (9)."""
    mantissa_bits, exponent_bits = _CLASSES[type_name]

    def compare(a: Array, b: Array) -> Array:
        bits = a.view(f"u{a.dtype.itemsize}")
        one = bits.dtype.type
        mantissa = bits & one((1 << mantissa_bits) - 1)
        exponent = bits >> one(mantissa_bits) & one((1 << exponent_bits) - 1)
        negative = (bits >> one(mantissa_bits + exponent_bits)) != 0
        special, quiet = exponent == (1 << exponent_bits) - 1, (mantissa >> one(mantissa_bits - 1)) != 0
        number = np.where(
            special,
            np.where(negative, 2, 9),
            np.where(
                exponent != 0,
                np.where(negative, 3, 8),
                np.where(mantissa != 0, np.where(negative, 4, 7), np.where(negative, 5, 6)),
            ),
        )
        number = np.where(special & (mantissa != 0), np.where(quiet, 1, 0), number)
        return (b >> number.astype(np.uint32) & np.uint32(1)) != 0

    return compare


for _type in _CLASSES:
    # Source denormals count as such whatever MODE says: LLVM lowers llvm.is.fpclass, which ignores it, to this.
    _classify = _class_of(_type)
    for _prefix, _result in (("V_CMP", "mask"), ("V_CMPX", "maskx")):
        valu(f"{_prefix}_CLASS_{_type}", signature=f"{_type.lower()} b32 -> {_result}", raw_denormals=True)(_classify)

for _type in ("I16", "U16", "I32", "U32", "I64", "U64", "F16", "F32", "F64"):
    for _name, _compare in (_FLOAT if _type[0] == "F" else _INTEGER_ALL).items():
        _kind = _type.lower()
        valu(f"V_CMP_{_name}_{_type}", signature=f"{_kind} {_kind} -> mask")(_compare)
        valu(f"V_CMPX_{_name}_{_type}", signature=f"{_kind} {_kind} -> maskx")(_compare)
