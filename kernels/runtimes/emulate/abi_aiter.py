"""The argument block of AITER's assembly MLA kernels: 304 bytes, every field in a slot of 16.

Layout: ``struct KernelArgs`` in ``csrc/py_itfs_cu/asm_mla.cu`` of amd-aiter 0.1.7.post2.dev18 (an 8-byte pointer and
8 bytes of padding, or a 4-byte scalar and 12), which the self-test reads again from the installed source. What the
kernels do with a field was read in the prologues of three shipped gfx950 objects and confirmed by changing it:

- decode, bf16: ``mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co``
- prefill, bf16: ``mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co``
- decode, fp8: ``mla_a8w8_qh16_qseqlen1_gqaratio16.co``
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

ARGUMENT_BYTES = 304
SLOT_BYTES = 16

WORK_ITEMS = 256
"""Of a workgroup: four waves of 64."""


class Use(Enum):
    """What a kernel does with a field."""

    USED = "used"
    SPLIT = "used where the KV is split"
    IGNORED = "loaded or overwritten, without effect"
    NOT_LOADED = "not loaded"


@dataclass(frozen=True)
class Field:
    """One field of the block."""

    name: str
    """As in ``struct KernelArgs``."""
    offset: int
    """Bytes from the start of the block."""
    format: str
    """A :mod:`struct` code: ``Q`` address, ``f`` float32, ``I`` uint32."""
    meaning: str
    """With shape, dtype and unit."""
    decode_bf16: Use
    prefill_bf16: Use
    decode_fp8: Use

    @property
    def is_pointer(self) -> bool:
        """Whether the field is an address on the device."""
        return self.format == "Q"


_U, _S, _I, _N = Use.USED, Use.SPLIT, Use.IGNORED, Use.NOT_LOADED

FIELDS = (
    Field("ptr_R", 0x00, "Q", "output: float32[tokens, splits, heads, 512] partial, or bf16 final", _U, _U, _U),
    Field("ptr_LSE", 0x10, "Q", "output: float32[tokens, splits, heads], natural log, scaled scores", _U, _S, _S),
    Field("ptr_Q", 0x20, "Q", "queries [tokens, heads, 576]", _U, _U, _U),
    Field("ptr_KV", 0x30, "Q", "KV pool [pages, page size, 1, 576]", _U, _U, _U),
    Field("ptr_LTP", 0x40, "Q", "kv_indptr int32[batch + 1]", _U, _U, _U),
    Field("ptr_LTD", 0x50, "Q", "kv_page_indices int32[pages used]", _U, _U, _U),
    Field("ptr_LTL", 0x60, "Q", "kv_last_page_lens int32[batch]", _I, _I, _I),
    Field("scalar", 0x70, "f", "softmax scale", _U, _U, _U),
    Field("s_MQA", 0x80, "I", "decode: heads x longest query, prefill: heads (and forced to 16)", _U, _I, _U),
    Field("s_kv_split", 0x90, "I", "splits of the KV; the grid's z", _U, _U, _U),
    Field("s_Q_Bs", 0xA0, "I", "bytes of Q: a sequence of the longest query, in prefill a token", _U, _I, _U),
    Field("s_Bs", 0xB0, "I", "bytes of a KV page", _U, _U, _U),
    Field("s_log2_plen", 0xC0, "I", "log2 of the page size in tokens", _I, _I, _I),
    Field("ptr_QTP", 0xD0, "Q", "qo_indptr int32[batch + 1]", _N, _U, _N),
    Field(
        "ptr_STP", 0xE0, "Q", "num_kv_splits_indptr int32[batch + 1], or the work metadata if persistent", _N, _N, _N
    ),
    Field("ptr_RP", 0xF0, "Q", "final output [tokens, heads, 512]", _N, _N, _N),
    Field("ptr_QSCALE", 0x100, "Q", "scale of Q, float32[1]", _N, _N, _U),
    Field("ptr_KVSCALE", 0x110, "Q", "scale of KV, float32[1]", _N, _N, _U),
    Field("out_16_nosplit", 0x120, "I", "splits of the KV, once more", _N, _N, _N),
)
"""In the order of the struct."""


class WrongArgumentBlock(ValueError):
    """A block that is not of this layout; the message says how it differs."""


def unpack(kernarg: bytes) -> dict[str, int | float]:
    """The fields of an argument block by name; what the host did not set comes as the bytes that were there.

    Raises:
        WrongArgumentBlock: ``kernarg`` is not 304 bytes long.
    """
    _require_length(kernarg)
    return {field.name: struct.unpack_from("<" + field.format, kernarg, field.offset)[0] for field in FIELDS}


def pack(values: Mapping[str, int | float], unset: int = 0) -> bytes:
    """An argument block with these fields; the rest, padding included, is bytes of ``unset``.

    Raises:
        WrongArgumentBlock: a name is no field.
    """
    unknown = sorted(values.keys() - {field.name for field in FIELDS})
    if unknown:
        raise WrongArgumentBlock(f"no field {', '.join(unknown)}; fields: {', '.join(field.name for field in FIELDS)}")
    block = bytearray([unset]) * ARGUMENT_BYTES
    for field in FIELDS:
        if field.name in values:
            struct.pack_into("<" + field.format, block, field.offset, values[field.name])
    return bytes(block)


def unset_fields(kernarg: bytes, unset_byte: int) -> frozenset[str]:
    """Fields that the host left as they were, if uninitialised memory of the host holds ``unset_byte`` throughout.

    Raises:
        WrongArgumentBlock: ``kernarg`` is not 304 bytes long.
    """
    _require_length(kernarg)
    names = []
    for field in FIELDS:
        size = struct.calcsize("<" + field.format)
        if kernarg[field.offset : field.offset + size] == bytes([unset_byte]) * size:
            names.append(field.name)
    return frozenset(names)


def _require_length(kernarg: bytes) -> None:
    if len(kernarg) != ARGUMENT_BYTES:
        raise WrongArgumentBlock(f"{len(kernarg)} bytes; an argument block has {ARGUMENT_BYTES}")
