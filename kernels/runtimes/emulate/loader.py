"""AMD code objects (ELF64) to what a launch needs: the loaded image, the kernels and their descriptors. No numpy.

Layouts: LLVM "User Guide for AMDGPU Backend", sections "Code Object" and "Kernel Descriptor" (64 bytes, GFX9 columns).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid

_ELF_AMDGPU = 224
_MACHINES = {0x4C: "gfx942", 0x4F: "gfx950"}
"""EF_AMDGPU_MACH, the low byte of e_flags."""

_SHF_ALLOC, _SHT_NOBITS, _SYMBOL_TABLES = 2, 8, (2, 11)
DESCRIPTOR_BYTES = 64


@dataclass(frozen=True)
class Descriptor:
    """A kernel descriptor, decoded."""

    name: str
    entry: int
    """Virtual address of the first instruction, relative to the image."""
    group_segment_bytes: int
    """LDS that the kernel declares. 0 in Triton's kernels, which ask for it at launch."""
    private_segment_bytes: int
    """Scratch of a lane."""
    kernarg_bytes: int
    """0 in AITER's objects, whatever they read."""
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload_length: int
    """Kernel argument dwords that are preloaded into SGPRs."""
    preload_offset: int
    """First of them, in dwords."""

    @property
    def accum_offset(self) -> int:
        """VGPRs before the AccVGPRs in the unified file."""
        return 4 * ((self.rsrc3 & 63) + 1)

    @property
    def total_vgprs(self) -> int:
        """VGPRs and AccVGPRs of a wave."""
        return 8 * ((self.rsrc1 & 63) + 1)

    @property
    def float_mode(self) -> int:
        """MODE[7:0] at the start."""
        return self.rsrc1 >> 12 & 0xFF

    @property
    def dx10_clamp(self) -> bool:
        """MODE.DX10_CLAMP at the start."""
        return bool(self.rsrc1 >> 21 & 1)

    @property
    def ieee(self) -> bool:
        """MODE.IEEE at the start."""
        return bool(self.rsrc1 >> 23 & 1)

    @property
    def fp16_overflow(self) -> bool:
        """MODE.FP16_OVFL at the start."""
        return bool(self.rsrc1 >> 26 & 1)

    @property
    def user_sgprs(self) -> int:
        """SGPRs that are set up before the workgroup ids."""
        return self.rsrc2 >> 1 & 31

    @property
    def workgroup_id_enabled(self) -> tuple[bool, bool, bool]:
        """Which of x, y, z arrive in SGPRs."""
        return bool(self.rsrc2 >> 7 & 1), bool(self.rsrc2 >> 8 & 1), bool(self.rsrc2 >> 9 & 1)


@dataclass(frozen=True)
class CodeObject:
    """A loaded code object."""

    arch: str
    image: bytes
    """Allocated sections at their addresses, from address 0."""
    text: tuple[int, int]
    """Address and size of ``.text`` in the image."""
    kernels: Mapping[str, Descriptor]
    name: str = ""
    """File name or other label, for messages."""

    def kernel(self, name: str | None = None) -> Descriptor:
        """The kernel of that name, or the only one.

        Raises:
            CodeObjectInvalid: no such kernel, or no name given and there are several.
        """
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name is None or name not in self.kernels:
            raise CodeObjectInvalid(f"kernel {name!r} of {self.name or 'code object'}: it has {sorted(self.kernels)}")
        return self.kernels[name]


def load(code: bytes, name: str = "") -> CodeObject:
    """Read a code object.

    Args:
        code: the file's bytes (``.hsaco``, ``.co``).
        name: label for messages.

    Raises:
        CodeObjectInvalid: no AMDGPU ELF for gfx942 or gfx950, no ``.text``, no kernel, or a wave32 kernel.
    """
    if code[:5] != b"\x7fELF\x02" or len(code) < 64:
        raise CodeObjectInvalid(f"{name or 'code object'}: no 64-bit ELF file (starts with {code[:5]!r})")
    (machine,) = struct.unpack_from("<H", code, 18)
    if machine != _ELF_AMDGPU:
        raise CodeObjectInvalid(f"{name or 'code object'}: ELF machine {machine}, AMDGPU is {_ELF_AMDGPU}")
    (flags,) = struct.unpack_from("<I", code, 48)
    arch = _MACHINES.get(flags & 0xFF)
    if arch is None:
        known = ", ".join(f"{key:#x} {value}" for key, value in _MACHINES.items())
        raise CodeObjectInvalid(f"{name or 'code object'}: EF_AMDGPU_MACH {flags & 0xFF:#x} is none of {known}")
    sections = _sections(code)
    image = bytearray()
    for section in sections:
        if section.flags & _SHF_ALLOC and section.kind != _SHT_NOBITS:
            image.extend(bytes(max(0, section.address + section.size - len(image))))
            image[section.address : section.address + section.size] = code[
                section.offset : section.offset + section.size
            ]
    text = next((s for s in sections if s.name == ".text"), None)
    if text is None:
        raise CodeObjectInvalid(f"{name or 'code object'} has no section .text")
    kernels = {}
    for symbol, address in _symbols(code, sections):
        if symbol.endswith(".kd"):
            kernels[symbol[:-3]] = _descriptor(symbol[:-3], bytes(image), address)
    if not kernels:
        raise CodeObjectInvalid(f"{name or 'code object'} has no kernel descriptor symbol (NAME.kd)")
    return CodeObject(arch, bytes(image), (text.address, text.size), kernels, name)


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


def _sections(code: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", code, 0x28)
    entry, count, names = struct.unpack_from("<HHH", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, table + entry * i) for i in range(count)]
    strings = headers[names][4]

    def text(offset: int) -> str:
        start = strings + offset
        return code[start : code.index(b"\0", start)].decode()

    return [_Section(text(h[0]), h[1], h[2], h[3], h[4], h[5], h[6]) for h in headers]


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[str, int]]:
    found = {}
    for section in sections:
        if section.kind not in _SYMBOL_TABLES:
            continue
        strings = sections[section.link].offset
        for offset in range(section.offset, section.offset + section.size, 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", code, offset)
            start = strings + name
            found[code[start : code.index(b"\0", start)].decode()] = value
    return list(found.items())


def _descriptor(name: str, image: bytes, address: int) -> Descriptor:
    if address + DESCRIPTOR_BYTES > len(image):
        raise CodeObjectInvalid(f"descriptor of {name} at {address:#x} lies outside the image ({len(image):#x} bytes)")
    lds, private, kernarg, _, entry = struct.unpack_from("<IIIIq", image, address)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", image, address + 44)
    if properties >> 10 & 1:
        raise CodeObjectInvalid(f"{name} is a wave32 kernel; gfx942 and gfx950 have waves of 64")
    return Descriptor(
        name, address + entry, lds, private, kernarg, rsrc1, rsrc2, rsrc3, properties, preload & 127, preload >> 7
    )
