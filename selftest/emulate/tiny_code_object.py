"""Minimal AMD code objects around a few instruction words: what tests of loader, scheduler and faults launch."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from waveproof.kernels.runtimes.emulate.loader import CodeObject, load

MACHINES = {"gfx942": 0x4C, "gfx950": 0x4F}
TEXT, RODATA = 0x1000, 0x400
"""Addresses of the sections in the image."""


def descriptor(
    *,
    vgprs: int = 32,
    accum_offset: int = 32,
    lds_bytes: int = 0,
    kernarg_bytes: int = 0,
    float_mode: int = 0xF0,
    user_sgprs: int = 2,
    workgroup_ids: int = 0b111,
    properties: int = 0b1000,
    preload_length: int = 0,
    preload_offset: int = 0,
    private_bytes: int = 0,
    entry: int = TEXT,
) -> bytes:
    """A 64-byte kernel descriptor at ``RODATA``, fields as in LLVM's table "Kernel Descriptor"."""
    rsrc1 = (vgprs // 8 - 1) | float_mode << 12 | 1 << 21 | 1 << 23
    rsrc2 = user_sgprs << 1 | workgroup_ids << 7
    rsrc3 = accum_offset // 4 - 1
    preload = preload_length | preload_offset << 7
    head = struct.pack("<IIIIq", lds_bytes, private_bytes, kernarg_bytes, 0, entry - RODATA)
    return head + bytes(20) + struct.pack("<IIIHHI", rsrc3, rsrc1, rsrc2, properties, preload, 0)


def code_object_bytes(words: Sequence[int], arch: str = "gfx950", kernel: str = "kernel", **fields: int) -> bytes:
    """An ELF file with one kernel of these words; ``fields`` as of :func:`descriptor`."""
    text = struct.pack(f"<{len(words)}I", *words)
    rodata = descriptor(**fields)
    strings = b"\0" + f"{kernel}.kd".encode() + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x11, 0, 1, RODATA, 64)
    names = b"\0.rodata\0.text\0.symtab\0.strtab\0.shstrtab\0"
    at = {name: names.index(name.encode()) for name in (".rodata", ".text", ".symtab", ".strtab", ".shstrtab")}
    bodies = [rodata, text, symbols, strings, names]
    offsets = []
    place = 64
    for body in bodies:
        offsets.append(place)
        place += -(-len(body) // 8) * 8
    headers = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (at[".rodata"], 1, 2, RODATA, offsets[0], len(rodata), 0, 0, 64, 0),
        (at[".text"], 1, 6, TEXT, offsets[1], len(text), 0, 0, 256, 0),
        (at[".symtab"], 2, 0, 0, offsets[2], len(symbols), 4, 1, 8, 24),
        (at[".strtab"], 3, 0, 0, offsets[3], len(strings), 0, 0, 1, 0),
        (at[".shstrtab"], 3, 0, 0, offsets[4], len(names), 0, 0, 1, 0),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes([64, 3]) + bytes(7)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, place, MACHINES[arch], 64, 0, 0, 64, 6, 5)
    file = bytearray(head)
    for offset, body in zip(offsets, bodies, strict=True):
        file.extend(bytes(offset - len(file)))
        file.extend(body)
    file.extend(bytes(place - len(file)))
    for header in headers:
        file.extend(struct.pack("<IIQQQQIIQQ", *header))
    return bytes(file)


def code_object(words: Sequence[int], arch: str = "gfx950", **fields: int) -> CodeObject:
    """The same, loaded."""
    return load(code_object_bytes(words, arch, "kernel", **fields), "test")
