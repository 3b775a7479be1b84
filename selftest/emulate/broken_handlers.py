"""Planted faults in instructions and in what they stand on; :mod:`.test_broken_handlers` demands that each is caught.

Each entry replaces one registered operation, or one function of the emulator, for the time of a ``with`` block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.isa import convert, convert_scaled
from waveproof.selftest.emulate.planting import (
    U32,
    U64,
    BrokenHandler,
    around,
    attribute,
    bound,
    conditional_inverted,
    constant_bits,
    dpp_source,
    first_target,
    function_for,
    inactive_bits_kept,
    keeping_scc,
    lane_minus,
    m0_kept,
    merge_part,
    misread,
    neighbour_wave,
    only_first_wave_exec,
    rounded_down,
    select_part,
    signs,
    sources_exchanged,
    stale_mask,
    swapped_select,
    take_along_axis,
    taken_for,
    wide,
    without_exec,
)


def _entry(
    name: str, fault_class: str, mnemonic: str, make: Callable[[], AbstractContextManager[None]]
) -> BrokenHandler:
    return BrokenHandler(name, fault_class, mnemonic, make)


def _misread(name: str, fault_class: str, mnemonic: str, **changes: Callable[[Any], int]) -> BrokenHandler:
    return BrokenHandler(name, fault_class, mnemonic, lambda: misread(mnemonic, **changes))


def _around(name: str, fault_class: str, mnemonic: str, wrap: Callable[..., Any]) -> BrokenHandler:
    return BrokenHandler(name, fault_class, mnemonic, lambda: around(mnemonic, wrap))


def _taken_for(name: str, fault_class: str, mnemonic: str, other: str) -> BrokenHandler:
    return BrokenHandler(name, fault_class, mnemonic, lambda: taken_for(mnemonic, other))


def _pure(
    name: str, fault_class: str, mnemonic: str, signature: str, function: Callable[..., Any], **options: Any
) -> BrokenHandler:
    return BrokenHandler(name, fault_class, mnemonic, lambda: function_for(mnemonic, signature, function, **options))


_UU, _II, _FF = "u32 u32 -> u32", "i32 i32 -> i32", "f32 f32 -> f32"
_63 = np.uint32(63)

BROKEN_HANDLERS: tuple[BrokenHandler, ...] = (
    # operands
    _pure("S1 - S0", "operands swapped", "V_SUB_U32", _UU, lambda a, b: b - a),
    _pure("S1 - S0 scalar", "operands swapped", "S_SUB_U32", "u32 u32 -> u32 scc", lambda a, b: (b - a, b > a)),
    _pure(
        "value and amount exchanged",
        "operands swapped",
        "V_LSHLREV_B32",
        "u32 u32 -> u32",
        lambda a, b: a << (b & U32(31)),
    ),
    _pure(
        "mask selects the other",
        "operands swapped",
        "V_CNDMASK_B32",
        "b32 b32 mask -> b32",
        lambda a, b, m: np.where(m, a, b),
    ),
    _pure(
        "SCC selects the other",
        "operands swapped",
        "S_CSELECT_B32",
        "b32 b32 scc -> b32",
        lambda a, b, c: np.where(c, b, a),
    ),
    _pure("S2 forgotten", "operands swapped", "V_ADD3_U32", "u32 u32 u32 -> u32", lambda a, b, c: a + b),
    _pure(
        "sense of the mask", "operands swapped", "V_BFI_B32", "b32 b32 b32 -> b32", lambda a, b, c: (~a & b) | (a & c)
    ),
    _entry(
        "S0 and S1 joined the wrong way",
        "operands swapped",
        "V_ALIGNBIT_B32",
        lambda: sources_exchanged("V_ALIGNBIT_B32"),
    ),
    _entry("bytes of S0 and S1 exchanged", "operands swapped", "V_PERM_B32", lambda: sources_exchanged("V_PERM_B32")),
    # EXEC
    _around("all lanes written", "EXEC ignored", "V_ADD_U32", without_exec),
    _around("all lanes moved", "EXEC ignored", "V_MOV_B32", without_exec),
    _around("first wave's EXEC for all", "EXEC ignored", "V_XOR_B32", only_first_wave_exec),
    _around("all lanes stored", "EXEC ignored", "GLOBAL_STORE_DWORD", without_exec),
    _around("all lanes loaded", "EXEC ignored", "BUFFER_LOAD_DWORD", without_exec),
    _around("bits of inactive lanes kept", "EXEC ignored", "V_CMP_GT_I32", inactive_bits_kept),
    _around("first lane whatever EXEC", "EXEC ignored", "V_READFIRSTLANE_B32", without_exec),
    _around("lane mask not refreshed", "EXEC ignored", "S_AND_SAVEEXEC_B64", stale_mask),
    _around("mask not refreshed by a move", "EXEC ignored", "S_MOV_B64", stale_mask),
    _around("neighbour wave written", "EXEC ignored", "V_OR_B32", neighbour_wave),
    # SCC, VCC, carry
    _around("SCC not written", "SCC forgotten", "S_AND_B32", keeping_scc),
    _around("SCC not written 64", "SCC forgotten", "S_LSHR_B64", keeping_scc),
    _pure("SCC = S0 > S1", "SCC forgotten", "S_MAX_I32", "i32 i32 -> i32 scc", lambda a, b: (np.maximum(a, b), a > b)),
    _pure(
        "SCC of the low half",
        "SCC forgotten",
        "S_OR_B64",
        "b64 b64 -> b64 scc",
        lambda a, b: (a | b, ((a | b) & U64(0xFFFFFFFF)) != 0),
    ),
    _pure(
        "SCC written by a product",
        "SCC forgotten",
        "S_MUL_I32",
        "i32 i32 -> i32 scc",
        lambda a, b: (a * b, (a * b) != 0),
    ),
    _pure(
        "unsigned carry for overflow",
        "carry dropped",
        "S_ADD_I32",
        "i32 i32 -> i32 scc",
        lambda a, b: (a + b, (a + b).view(U32) < a.view(U32)),
    ),
    _pure(
        "carry in dropped",
        "carry dropped",
        "V_ADDC_CO_U32",
        "u32 u32 mask -> u32 mask",
        lambda a, b, c: (a + b, a + b < a),
    ),
    _pure(
        "carry in dropped, scalar",
        "carry dropped",
        "S_ADDC_U32",
        "u32 u32 scc -> u32 scc",
        lambda a, b, c: (a + b, a + b < a),
    ),
    _pure(
        "carry without the carry in",
        "carry dropped",
        "V_SUBB_CO_U32",
        "u32 u32 mask -> u32 mask",
        lambda a, b, c: (a - b - c, b > a),
    ),
    _pure(
        "carry out always 0",
        "carry dropped",
        "V_MAD_U64_U32",
        "u32 u32 u64 -> u64 mask",
        lambda a, b, c: (wide(a) * b + c, np.zeros(np.broadcast_shapes(a.shape, c.shape), np.bool_)),
    ),
    _pure(
        "upper half lost",
        "carry dropped",
        "V_LSHL_ADD_U64",
        "u64 u32 u64 -> u64",
        lambda a, b, c: (a << wide(b & U32(7))) + (c & U64(0xFFFFFFFF)),
    ),
    # shifts and fields
    _pure(
        "amount not masked",
        "shift mask",
        "V_LSHRREV_B32",
        "u32 u32 -> u32",
        lambda a, b: np.where(a > 31, U32(0), b >> (a & U32(31))),
    ),
    _pure(
        "amount mod 64",
        "shift mask",
        "S_LSHL_B32",
        "u32 u32 -> u32 scc",
        lambda a, b: (x := (wide(a) << wide(b & _63)).astype(U32), x != 0),
    ),
    _pure("amount mod 32", "shift mask", "V_LSHLREV_B64", "u32 b64 -> b64", lambda a, b: b << wide(a & U32(31))),
    _pure(
        "three bits of amount",
        "shift mask",
        "V_LSHL_ADD_U32",
        "u32 u32 u32 -> u32",
        lambda a, b, c: (a << (b & U32(7))) + c,
    ),
    _pure(
        "width 0 gives all",
        "shift mask",
        "V_BFE_U32",
        "u32 u32 u32 -> u32",
        lambda a, b, c: np.where(
            c & U32(31) == 0, a >> (b & U32(31)), (a >> (b & U32(31))) & ((U32(1) << (c & U32(31))) - U32(1))
        ),
    ),
    # signs
    _pure(
        "logical for arithmetic", "sign extension", "V_ASHRREV_I32", "u32 u32 -> u32", lambda a, b: b >> (a & U32(31))
    ),
    _pure("zero-extended byte", "sign extension", "S_SEXT_I32_I8", "u32 -> u32", lambda a: a & U32(255)),
    _pure(
        "24 bits unsigned",
        "sign extension",
        "V_MUL_I32_I24",
        _UU,
        lambda a, b: (a & U32(0xFFFFFF)) * (b & U32(0xFFFFFF)),
    ),
    _pure("24 bits not cut", "sign extension", "V_MUL_U32_U24", _UU, lambda a, b: a * b),
    _pure("unsigned compare", "sign extension", "V_CMP_LT_I32", "u32 u32 -> mask", np.less),
    _pure("unsigned minimum", "sign extension", "V_MIN_I32", "u32 u32 -> u32", np.minimum),
    _pure(
        "unsigned high product",
        "sign extension",
        "V_MUL_HI_I32",
        _UU,
        lambda a, b: (wide(a) * b >> U64(32)).astype(U32),
    ),
    _pure("SIMM16 zero-extended", "sign extension", "S_MOVK_I32", "k:u32 -> u32", lambda a: a),
    _pure("unsigned compare, scalar", "sign extension", "S_CMPK_GT_I32", "old:u32 k:u32 -> scc", np.greater),
    _taken_for("bytes not sign-extended", "sign extension", "GLOBAL_LOAD_SBYTE", "GLOBAL_LOAD_UBYTE"),
    # floating point
    _pure("rounded down", "wrong rounding", "V_ADD_F32", _FF, rounded_down),
    _pure("multiplied, then added", "wrong rounding", "V_FMA_F32", "f32 f32 f32 -> f32", lambda a, b, c: a * b + c),
    _pure("NaN wins", "NaN rule", "V_MIN_F32", _FF, np.minimum),
    _pure(
        "first of two zeros",
        "NaN rule",
        "V_MAX_F32",
        _FF,
        lambda a, b: np.where(np.isnan(b), a, np.where(np.isnan(a) | (b > a), b, a)),
    ),
    _pure("ordered for unordered", "NaN rule", "V_CMP_NLT_F32", "f32 f32 -> mask", np.greater_equal),
    _pure("true on NaN", "NaN rule", "V_CMP_LG_F32", "f32 f32 -> mask", np.not_equal),
    _entry(
        "ABS after NEG",
        "modifiers",
        "V_MUL_F32",
        lambda: attribute(
            modifiers,
            "signs",
            lambda read, kind, negate, absolute: signs(read, kind, negate and not absolute, absolute),
        ),
    ),
    _misread("CLAMP not done", "modifiers", "V_MUL_F32", clmp=lambda i: 0),
    _misread("integer CLAMP wraps", "modifiers", "V_ADD_U32", clmp=lambda i: 0),
    _pure("denormals of sources kept", "modifiers", "V_SUB_F32", _FF, np.subtract, raw_denormals=True),
    # scaled conversions
    _misread("low word written", "wrong half", "V_CVT_SCALEF32_PK_FP8_F32", opsel=lambda i: 0),
    _misread("first byte read", "wrong half", "V_CVT_SCALEF32_F32_FP8", opsel=lambda i: 0),
    _misread("scale taken for 1", "operands swapped", "V_CVT_SCALEF32_PK_BF8_F16", src1=lambda i: 242),
    _taken_for("E5M2 for E4M3", "wrong format", "V_CVT_SCALEF32_PK_FP8_BF16", "V_CVT_SCALEF32_PK_BF8_BF16"),
    _taken_for(
        "half precision for bfloat16", "wrong format", "V_CVT_SCALEF32_PK_BF8_BF16", "V_CVT_SCALEF32_PK_BF8_F16"
    ),
    _entry(
        "multiplied by the scale",
        "wrong rounding",
        "V_CVT_SCALEF32_PK_FP8_F16",
        lambda: attribute(np, "ldexp", lambda value, power: value * 2.0 ** -np.float64(power)),
    ),
    _entry(
        "infinity for the largest number",
        "wrong rounding",
        "V_CVT_SCALEF32_PK_BF8_F32",
        lambda: attribute(
            convert_scaled, "to_eight_bits", lambda a, form, saturate: convert.to_eight_bits(a, form, False)
        ),
    ),
    # lanes
    _entry(
        "lane number mod 32",
        "wrong lane",
        "V_READLANE_B32",
        lambda: attribute(np, "take_along_axis", lambda a, i, axis: take_along_axis(a, i & 31, axis)),
    ),
    _misread("the other half", "wrong lane", "V_PERMLANE32_SWAP_B32", src0=lambda i: i.vdst, vdst=lambda i: i.src0),
    _taken_for("distance 16 as 32", "wrong lane", "V_PERMLANE16_SWAP_B32", "V_PERMLANE32_SWAP_B32"),
    _pure("counts its own lane", "wrong lane", "V_MBCNT_LO_U32_B32", _UU, lane_minus),
    _entry(
        "left for right",
        "wrong lane",
        "V_MOV_B32",
        dpp_source(lambda c, lanes, valid: (63 - lanes if 0x101 <= c <= 0x11F else lanes, valid)),
    ),
    _entry(
        "rotates the other way",
        "wrong lane",
        "V_ADD_F32",
        dpp_source(
            lambda c, lanes, valid: (
                (np.arange(64) & 48) + ((np.arange(64) + (c & 15)) & 15) if 0x121 <= c <= 0x12F else lanes,
                valid,
            )
        ),
    ),
    _entry(
        "rows run into one another",
        "wrong lane",
        "V_MOV_B32",
        dpp_source(lambda c, lanes, valid: (lanes, np.ones_like(valid) if 0x101 <= c <= 0x11F else valid)),
    ),
    _entry("BOUND_CTRL always set", "DPP bound control", "V_MOV_B32", bound(lambda bc: 1)),
    _entry("BOUND_CTRL ignored", "DPP bound control", "V_SUB_U32", bound(lambda bc: 0)),
    _entry(
        "row mask ignored",
        "DPP bound control",
        "V_MUL_U32_U24",
        lambda: attribute(modifiers, "dpp_enabled", lambda rows, banks: np.ones(64, np.bool_)),
    ),
    # halves and parts
    _entry("words exchanged", "wrong half", "V_SUB_U32", lambda: attribute(modifiers, "select_part", swapped_select)),
    _entry(
        "SDWA sign extension forgotten",
        "wrong half",
        "V_SUB_U32",
        lambda: attribute(modifiers, "select_part", lambda read, part, extend: select_part(read, part, 0)),
    ),
    _entry(
        "SDWA rest zeroed",
        "wrong half",
        "V_MOV_B32",
        lambda: attribute(modifiers, "merge_part", lambda value, old, part, unused: merge_part(value, old, part, 0)),
    ),
    _taken_for("halves exchanged", "wrong half", "S_PACK_LH_B32_B16", "S_PACK_HH_B32_B16"),
    _taken_for("low half overwritten", "wrong half", "GLOBAL_LOAD_UBYTE_D16_HI", "GLOBAL_LOAD_UBYTE_D16"),
    _taken_for("low half stored", "wrong half", "BUFFER_STORE_SHORT_D16_HI", "BUFFER_STORE_SHORT"),
    _misread("OP_SEL_HI ignored", "wrong half", "V_PK_MUL_F32", opsel_hi=lambda i: 3, opsel_hi2=lambda i: 1),
    _misread("OP_SEL_HI for OP_SEL[1]", "wrong half", "V_PK_MOV_B32", opsel=lambda i: i.opsel & 1 | i.opsel_hi & 2),
    _misread("NEG_HI ignored", "wrong half", "V_PK_ADD_F32", neg_hi=lambda i: 0),
    # addresses, M0, program counter
    _misread("offset ignored", "address", "GLOBAL_LOAD_DWORDX2", offset=lambda i: 0),
    _misread("offset unsigned", "address", "GLOBAL_LOAD_DWORD", offset=lambda i: i.offset & 0x1FFF),
    _misread("soffset ignored", "address", "BUFFER_LOAD_UBYTE", soffset=lambda i: 128),
    _misread("scalar soffset ignored", "address", "S_LOAD_DWORDX4", soffset_en=lambda i: 0),
    _misread("accumulator bit ignored", "address", "BUFFER_STORE_DWORD", acc=lambda i: 0),
    _around("M0 not written", "M0 ignored", "S_SET_GPR_IDX_ON", lambda step: m0_kept(step)),
    _around("taken where it is not", "branch", "S_CBRANCH_VCCZ", conditional_inverted),
    _misread("SIMM16 unsigned", "branch", "S_BRANCH", simm16=lambda i: i.simm16 & 0x7FFF),
    _around("jump by wave 0 for all", "branch", "S_SETPC_B64", lambda step: lambda group: first_target(step(group))),
    # constants
    _entry(
        "-1..-16 off by one",
        "constants",
        "V_ADD_U32",
        lambda: attribute(
            operands,
            "constant_bits",
            lambda n, kind, literal=None: constant_bits(n + 1 if 193 <= n < 208 else n, kind, literal),
        ),
    ),
    _entry(
        "literal halved for 64 bits",
        "constants",
        "S_ASHR_I64",
        lambda: attribute(
            operands,
            "constant_bits",
            lambda n, kind, literal=None: constant_bits(n, "u64" if kind == "i64" else kind, literal),
        ),
    ),
)
