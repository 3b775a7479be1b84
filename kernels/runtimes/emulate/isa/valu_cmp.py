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

for _type in ("I16", "U16", "I32", "U32", "I64", "U64", "F16", "F32", "F64"):
    for _name, _compare in (_FLOAT if _type[0] == "F" else _INTEGER_ALL).items():
        _kind = _type.lower()
        valu(f"V_CMP_{_name}_{_type}", signature=f"{_kind} {_kind} -> mask")(_compare)
        valu(f"V_CMPX_{_name}_{_type}", signature=f"{_kind} {_kind} -> maskx")(_compare)
