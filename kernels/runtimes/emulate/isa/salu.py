"""Scalar arithmetic and logic (CDNA3 ISA, "SOP1", "SOP2", "SOPC", "SOPK"). SCC as its tables say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.scalar import salu

_31, _63 = np.uint32(31), np.uint32(63)


@salu("S_MOV_B32", signature="b32 -> b32")
@salu("S_MOV_B64", signature="b64 -> b64")
@salu("S_MOVK_I32", signature="k:i32 -> i32")
def move(a: Array) -> Array:
    """D = S0."""
    return a


@salu("S_CMOV_B32", signature="b32 old:b32 scc -> b32")
@salu("S_CMOV_B64", signature="b64 old:b64 scc -> b64")
@salu("S_CMOVK_I32", signature="k:i32 old:i32 scc -> i32")
def move_if(a: Array, old: Array, scc: Array) -> Array:
    """if SCC: D = S0."""
    return np.where(scc, a, old)


@salu("S_CSELECT_B32", signature="b32 b32 scc -> b32")
@salu("S_CSELECT_B64", signature="b64 b64 scc -> b64")
def select(a: Array, b: Array, scc: Array) -> Array:
    """D = SCC ? S0 : S1."""
    return np.where(scc, a, b)


@salu("S_ADD_U32", signature="u32 u32 -> u32 scc")
def add(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = carry."""
    total = a + b
    return total, total < a


@salu("S_ADDC_U32", signature="u32 u32 scc -> u32 scc")
def add_carry(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    """D = S0 + S1 + SCC; SCC = carry."""
    total = a.astype(np.uint64) + b + scc
    return total.astype(np.uint32), total > np.uint64(0xFFFFFFFF)


@salu("S_SUB_U32", signature="u32 u32 -> u32 scc")
def subtract(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = borrow."""
    return a - b, b > a


@salu("S_SUBB_U32", signature="u32 u32 scc -> u32 scc")
def subtract_borrow(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    """D = S0 - S1 - SCC; SCC = borrow."""
    taken = b.astype(np.uint64) + scc
    return a - taken.astype(np.uint32), taken > a


@salu("S_ADD_I32", signature="i32 i32 -> i32 scc")
@salu("S_ADDK_I32", signature="old:i32 k:i32 -> i32 scc")
def add_signed(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = signed overflow."""
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


@salu("S_SUB_I32", signature="i32 i32 -> i32 scc")
def subtract_signed(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = signed overflow."""
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


@salu("S_MUL_I32", signature="i32 i32 -> i32")
@salu("S_MULK_I32", signature="old:i32 k:i32 -> i32")
def multiply(a: Array, b: Array) -> Array:
    """Low 32 bits; SCC is kept."""
    return a * b


@salu("S_MUL_HI_U32", signature="u32 u32 -> u32")
def multiply_high(a: Array, b: Array) -> Array:
    """Bits 63:32 of the unsigned product."""
    return (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)


@salu("S_MUL_HI_I32", signature="i32 i32 -> i32")
def multiply_high_signed(a: Array, b: Array) -> Array:
    """Bits 63:32 of the signed product."""
    return (a.astype(np.int64) * b >> np.int64(32)).astype(np.int32)


@salu("S_LSHL_B32", signature="b32 u32 -> b32 scc")
def shift_left(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[4:0]; SCC = result is not zero."""
    value = a << (b & _31)
    return value, value != 0


@salu("S_LSHL_B64", signature="b64 u32 -> b64 scc")
def shift_left_64(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[5:0]; SCC = result is not zero."""
    value = a << (b & _63).astype(np.uint64)
    return value, value != 0


@salu("S_LSHR_B32", signature="b32 u32 -> b32 scc")
def shift_right(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[4:0]; SCC = result is not zero."""
    value = a >> (b & _31)
    return value, value != 0


@salu("S_LSHR_B64", signature="b64 u32 -> b64 scc")
def shift_right_64(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[5:0]; SCC = result is not zero."""
    value = a >> (b & _63).astype(np.uint64)
    return value, value != 0


@salu("S_ASHR_I32", signature="i32 u32 -> i32 scc")
def shift_right_signed(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[4:0]; SCC = result is not zero."""
    value = a >> (b & _31).astype(np.int32)
    return value, value != 0


@salu("S_ASHR_I64", signature="i64 u32 -> i64 scc")
def shift_right_signed_64(a: Array, b: Array) -> tuple[Array, Array]:
    """By S1[5:0]; SCC = result is not zero."""
    value = a >> (b & _63).astype(np.int64)
    return value, value != 0


def _shift_add(amount: int) -> None:
    @salu(f"S_LSHL{amount}_ADD_U32", signature="u32 u32 -> u32 scc")
    def shift_add(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(amount)) + b
        return total.astype(np.uint32), total > np.uint64(0xFFFFFFFF)


for _amount in (1, 2, 3, 4):
    _shift_add(_amount)


_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "ANDN2": lambda a, b: a & ~b,
    "ORN2": lambda a, b: a | ~b,
    "NAND": lambda a, b: ~(a & b),
    "NOR": lambda a, b: ~(a | b),
    "XNOR": lambda a, b: ~(a ^ b),
}


def with_nonzero(function: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """The function, and SCC = its result is not zero."""

    def wrapped(*sources: Array) -> tuple[Array, Array]:
        value = function(*sources)
        return value, value != 0

    return wrapped


for _name, _function in _LOGIC.items():
    for _bits in (32, 64):
        salu(f"S_{_name}_B{_bits}", signature=f"b{_bits} b{_bits} -> b{_bits} scc")(with_nonzero(_function))
for _bits in (32, 64):
    salu(f"S_NOT_B{_bits}", signature=f"b{_bits} -> b{_bits} scc")(with_nonzero(np.invert))


def _save_exec(name: str, function: Callable[[Array, Array], Array], write_only: bool = False) -> None:
    """D = EXEC; EXEC = function(S0, EXEC); SCC = EXEC is not zero. With ``write_only``, D = the new EXEC."""

    def save(a: Array, mask: Array) -> tuple[Array, Array, Array]:
        value = function(a, mask)
        return value if write_only else mask, value, value != 0

    salu(name, signature="b64 exec -> b64 exec scc")(save)


for _name, _function in _LOGIC.items():
    _save_exec(f"S_{_name}_SAVEEXEC_B64", _function)
_save_exec("S_ANDN1_SAVEEXEC_B64", lambda a, mask: ~a & mask)
_save_exec("S_ORN1_SAVEEXEC_B64", lambda a, mask: ~a | mask)
_save_exec("S_ANDN1_WREXEC_B64", lambda a, mask: ~a & mask, write_only=True)
_save_exec("S_ANDN2_WREXEC_B64", lambda a, mask: a & ~mask, write_only=True)


@salu("S_MIN_I32", signature="i32 i32 -> i32 scc")
@salu("S_MIN_U32", signature="u32 u32 -> u32 scc")
def minimum(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = S0 < S1, as AMD's pseudocode has it."""
    return np.minimum(a, b), a < b


@salu("S_MAX_I32", signature="i32 i32 -> i32 scc")
@salu("S_MAX_U32", signature="u32 u32 -> u32 scc")
def maximum(a: Array, b: Array) -> tuple[Array, Array]:
    """SCC = S0 >= S1, as AMD's pseudocode has it."""
    return np.maximum(a, b), a >= b


@salu("S_ABS_I32", signature="i32 -> i32 scc")
def absolute(a: Array) -> tuple[Array, Array]:
    """SCC = result is not zero; the most negative integer stays."""
    value = np.abs(a)
    return value, value != 0


@salu("S_ABSDIFF_I32", signature="i32 i32 -> i32 scc")
def absolute_difference(a: Array, b: Array) -> tuple[Array, Array]:
    """|S0 - S1|, the difference wrapped to 32 bits; SCC = result is not zero."""
    value = np.abs(a - b)
    return value, value != 0


@salu("S_SEXT_I32_I8", signature="u32 -> i32")
def sign_extend_byte(a: Array) -> Array:
    """Bits 7:0, sign-extended."""
    return a.astype(np.uint8).view(np.int8).astype(np.int32)


@salu("S_SEXT_I32_I16", signature="u32 -> i32")
def sign_extend_half(a: Array) -> Array:
    """Bits 15:0, sign-extended."""
    return a.astype(np.uint16).view(np.int16).astype(np.int32)


@salu("S_GETREG_B32", signature="k:u32 -> u32")
def get_register(k: Array) -> Array:
    """Hardware registers are not modelled: refused when reached, since a made-up value could steer the program."""
    raise InstructionUnsupported(f"S_GETREG_B32 of hardware register {int(k[0, 0]) & 63}")


_COMPARE = {
    "EQ": np.equal, "LG": np.not_equal, "GT": np.greater, "GE": np.greater_equal, "LT": np.less, "LE": np.less_equal,
}  # fmt: skip

for _name, _ufunc in _COMPARE.items():
    for _type in ("I32", "U32"):
        _kind = _type.lower()
        salu(f"S_CMP_{_name}_{_type}", signature=f"{_kind} {_kind} -> scc")(_ufunc)
        salu(f"S_CMPK_{_name}_{_type}", signature=f"old:{_kind} k:{_kind} -> scc")(_ufunc)
for _name in ("EQ", "LG"):
    salu(f"S_CMP_{_name}_U64", signature="u64 u64 -> scc")(_COMPARE[_name])
