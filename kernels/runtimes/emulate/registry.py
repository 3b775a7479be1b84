"""Which mnemonic is executed by what. One entry a mnemonic; a second definition is an error at import.

An entry's ``build(instruction, context)`` is called once for each address (and register-index and float mode) and
returns the *step*: a closure that works on a :class:`~waveproof.kernels.runtimes.emulate.registers.Group`. Steps of
control instructions return where to go on (see :mod:`waveproof.kernels.runtimes.emulate.program`), all others None.

Most entries are made by the decorators in :mod:`.vector` and :mod:`.scalar` from pure functions of arrays.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import Group

ARCHITECTURES = ("gfx942", "gfx950")

MODULES = (
    "atomics", "control", "convert", "convert_scaled", "dots", "ds", "ds_atomics", "ds_lanes", "flat", "float_order",
    "float_parts", "lane", "lds_dma", "mfma", "packed", "packed16", "salu", "salu_bits", "scratch", "smem",
    "transcendental", "valu_bits", "valu_cmp", "valu_f16", "valu_f64", "valu_float", "valu_int", "valu_int16",
    "vmem_buffer", "vmem_global",
)  # fmt: skip

Step = Callable[[Group], Any]


@dataclass(frozen=True)
class Context:
    """What an instruction's meaning depends on besides its words. Part of the key under which steps are kept."""

    arch: str = "gfx950"
    vgprs: int = 256
    """VGPRs of a wave; AccVGPR n is row ``vgprs + n`` of the register array."""
    accvgprs: int = 256
    float_mode: int = 0xF0
    """MODE[7:0]: round32, round16/64, denorm32, denorm16/64, two bits each (CDNA3 ISA, "MODE register")."""
    ieee: bool = True
    dx10_clamp: bool = True
    fp16_overflow: bool = False
    """MODE[23]: results that overflow f16, fp8 or bf8 become the largest finite number."""
    gpr_index: tuple[int, int, int, int] = (0, 0, 0, 0)
    """What S_SET_GPR_IDX_ON adds to the VGPR numbers of src0, src1, src2 and vdst."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Looked up at every branch, so it is worth keeping.
        return hash((self.arch, self.vgprs, self.accvgprs, self.float_mode, self.gpr_index))


Build = Callable[[Instruction, Context], Step]


@dataclass(frozen=True)
class Operation:
    """An entry of the registry."""

    mnemonic: str
    build: Build
    architectures: tuple[str, ...]
    control: bool
    """Ends a straight line of code."""
    sources: tuple[str, ...] = ()
    """Kinds of the sources and results, where the entry is made from a signature (see :mod:`.vector`)."""
    results: tuple[str, ...] = ()


_OPERATIONS: dict[str, Operation] = {}


def define(
    *mnemonics: str,
    architectures: tuple[str, ...] = ARCHITECTURES,
    control: bool = False,
    sources: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Register a builder of steps for one or more mnemonics.

    Raises:
        ValueError: a mnemonic is registered already.
    """

    def register(build: Build) -> Build:
        for mnemonic in mnemonics:
            if mnemonic in _OPERATIONS:
                raise ValueError(f"{mnemonic} is registered twice")
            _OPERATIONS[mnemonic] = Operation(mnemonic, build, architectures, control, sources, results)
        return build

    return register


@functools.cache
def _load() -> None:
    for module in MODULES:
        importlib.import_module(f"waveproof.kernels.runtimes.emulate.isa.{module}")


def operations() -> dict[str, Operation]:
    """All entries by mnemonic."""
    _load()
    return dict(_OPERATIONS)


def lookup(mnemonic: str, arch: str) -> Operation | None:
    """The entry of a mnemonic, None where it has none or the architecture lacks the instruction."""
    _load()
    operation = _OPERATIONS.get(mnemonic)
    return operation if operation is not None and arch in operation.architectures else None


def is_control(mnemonic: str) -> bool:
    """Whether the instruction can change where execution goes on."""
    _load()
    operation = _OPERATIONS.get(mnemonic)
    return operation is not None and operation.control


def build_step(instruction: Instruction, context: Context) -> Step:
    """The step of one instruction.

    Raises:
        InstructionUnsupported: no entry for the mnemonic on this architecture, or none for this form of it.
    """
    operation = lookup(instruction.mnemonic, context.arch)
    if operation is None:
        other = "" if instruction.mnemonic not in _OPERATIONS else ", though another architecture has it"
        raise InstructionUnsupported(f"{instruction.mnemonic} is not implemented for {context.arch}{other}")
    return operation.build(instruction, context)
