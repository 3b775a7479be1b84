"""Matrix fused multiply-add, D = A B + C (CDNA3 and CDNA4 ISA, "Matrix Arithmetic Instructions").

Layouts
    A has M rows, B has M columns, both K deep; 64 / M = G groups of lanes. Lane L holds of A the row L % M and of B the
    column L % M. Its elements, low bits of the first register first, are element e at depth

        k = (e // run) * run * G + (L // M) * run + e % run

    where ``run`` (a column of the table below) is all elements of a lane but for the 8-bit types of 128- and 64-deep
    instructions. C and D: register r of lane L is row 4 G (r // 4) + 4 (L // M) + r % 4, column L % M.
    Sources: AMD matrix instruction calculator (github.com/ROCm/amd_matrix_instruction_calculator) for CDNA3; the HIP
    code in ROCm blogs, "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture", sections 5.1 to 5.5, for f32,
    f16, 8-bit, and the scaled instructions with 8- and 4-bit elements. 6-bit elements are taken to lie as 4-bit ones.

Numerics
    Products are exact, the sum of the K products and C is formed in float64 and rounded to float32 once, to nearest
    even; denormals are kept, whatever MODE says (CDNA3 ISA: matrix instructions ignore MODE's rounding and denormal
    bits). Hardware accumulates in an unspecified order at about float32 precision, so it may differ by up to
    (K + 1) * 2**-23 * (sum |a b| + |c|) in each element. Integers wrap at 32 bits.

EXEC is ignored. CBSZ, ABID and BLGP, which broadcast among blocks or lanes, are refused except where the 128- and
64-deep instructions use CBSZ and BLGP as the types of A and B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import element_format, unpack
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step, define

Reader = Callable[[Group], Array]


@dataclass(frozen=True)
class Shape:
    """Size and lane layout of an instruction."""

    rows: int
    """M: rows of A and D, columns of B and D; 16 or 32."""
    depth: int
    """K."""
    run: int
    """Consecutive k in a lane before the next lane group's."""

    @property
    def groups(self) -> int:
        """Lane groups that share the depth."""
        return LANES // self.rows

    @property
    def elements(self) -> int:
        """Elements of A or B in a lane."""
        return self.depth // self.groups

    @property
    def results(self) -> int:
        """Registers of C and D."""
        return self.rows * self.rows // LANES


@dataclass(frozen=True)
class Form:
    """One instruction: shape, types of A and B, type of C and D."""

    shape: Shape
    a: str
    b: str
    result: str = "f32"
    architectures: tuple[str, ...] = ARCHITECTURES


_CDNA4 = ("gfx950",)
_EIGHT_BIT_PAIRS = [(a, b) for a in ("FP8", "BF8") for b in ("FP8", "BF8")]

FORMS: dict[str, Form] = {
    "V_MFMA_F32_16X16X4_F32": Form(Shape(16, 4, 1), "f32", "f32"),
    "V_MFMA_F32_32X32X2_F32": Form(Shape(32, 2, 1), "f32", "f32"),
    "V_MFMA_F32_16X16X16_F16": Form(Shape(16, 16, 4), "f16", "f16"),
    "V_MFMA_F32_32X32X8_F16": Form(Shape(32, 8, 4), "f16", "f16"),
    "V_MFMA_F32_16X16X16_BF16": Form(Shape(16, 16, 4), "bf16", "bf16"),
    "V_MFMA_F32_32X32X8_BF16": Form(Shape(32, 8, 4), "bf16", "bf16"),
    "V_MFMA_F32_16X16X32_F16": Form(Shape(16, 32, 8), "f16", "f16", architectures=_CDNA4),
    "V_MFMA_F32_32X32X16_F16": Form(Shape(32, 16, 8), "f16", "f16", architectures=_CDNA4),
    "V_MFMA_F32_16X16X32_BF16": Form(Shape(16, 32, 8), "bf16", "bf16", architectures=_CDNA4),
    "V_MFMA_F32_32X32X16_BF16": Form(Shape(32, 16, 8), "bf16", "bf16", architectures=_CDNA4),
    "V_MFMA_I32_16X16X32_I8": Form(Shape(16, 32, 8), "i8", "i8", "i32"),
    "V_MFMA_I32_32X32X16_I8": Form(Shape(32, 16, 8), "i8", "i8", "i32"),
    "V_MFMA_I32_16X16X64_I8": Form(Shape(16, 64, 16), "i8", "i8", "i32", _CDNA4),
    "V_MFMA_I32_32X32X32_I8": Form(Shape(32, 32, 16), "i8", "i8", "i32", _CDNA4),
    **{f"V_MFMA_F32_16X16X32_{a}_{b}": Form(Shape(16, 32, 8), a.lower(), b.lower()) for a, b in _EIGHT_BIT_PAIRS},
    **{f"V_MFMA_F32_32X32X16_{a}_{b}": Form(Shape(32, 16, 8), a.lower(), b.lower()) for a, b in _EIGHT_BIT_PAIRS},
}
"""Instructions whose types are in their names."""

MIXED_TYPES = ("fp8", "bf8", "fp6", "bf6", "fp4")
"""Types of A and B of the F8F6F4 instructions, by CBSZ and BLGP."""
MIXED_SIZES = {"16X16X128": (16, 128), "32X32X64": (32, 64)}
_SCALE_BLOCK = 32
"""Elements along k that share a scale (OCP MX)."""


def multiply_adds(mnemonic: str) -> int:
    """What one wave's instruction multiplies and adds: rows x columns x depth, 0 for one that is no MFMA."""
    if mnemonic in FORMS:
        shape = FORMS[mnemonic].shape
        return shape.rows**2 * shape.depth
    size = next((size for size in MIXED_SIZES if mnemonic.endswith(f"_{size}_F8F6F4")), None)
    return 0 if size is None else MIXED_SIZES[size][0] ** 2 * MIXED_SIZES[size][1]


def mixed_shape(size: str, element: str) -> Shape:
    """Layout of one operand of an F8F6F4 instruction: 8-bit types come in runs of 16, others of 32."""
    rows, depth = MIXED_SIZES[size]
    return Shape(rows, depth, 16 if element in ("fp8", "bf8") else 32)


@define(*(name for name, form in FORMS.items() if form.architectures == ARCHITECTURES))
def mfma(instruction: Instruction, context: Context) -> Step:
    """Both architectures."""
    form, i = FORMS[instruction.mnemonic], instruction
    if i.cbsz or i.abid or i.blgp:
        raise InstructionUnsupported(f"{i.mnemonic} with CBSZ {i.cbsz}, ABID {i.abid}, BLGP {i.blgp}")
    a = _elements(i.src0, bool(i.acc & 1), form.shape, form.a, context)
    b = _elements(i.src1, bool(i.acc & 2), form.shape, form.b, context)
    return _multiply_add(i, context, form.shape, form.result, a, b)


define(*(name for name, form in FORMS.items() if form.architectures == _CDNA4), architectures=_CDNA4)(mfma)


@define(
    *(f"V_MFMA_F32_{size}_F8F6F4" for size in MIXED_SIZES),
    *(f"V_MFMA_SCALE_F32_{size}_F8F6F4" for size in MIXED_SIZES),
    architectures=_CDNA4,
)
def mixed(instruction: Instruction, context: Context) -> Step:
    """Types by CBSZ and BLGP; the SCALE forms scale blocks of 32 along k by powers of two."""
    i = instruction
    size = i.mnemonic.split("_")[-2]
    kinds = []
    for field, value in (("CBSZ", i.cbsz), ("BLGP", i.blgp)):
        if value >= len(MIXED_TYPES):
            raise InstructionUnsupported(f"{i.mnemonic} with {field} {value}, which is no type")
        kinds.append(MIXED_TYPES[value])
    scaled = i.format == "VOP3PX2"
    if i.abid != scaled:  # its lowest bit says that there are scales (LLVM, VOP3PInstructions.td)
        raise InstructionUnsupported(f"{i.mnemonic} with ABID {i.abid}")
    readers = []
    for at, (source, kind) in enumerate(zip((i.src0, i.src1), kinds, strict=True)):
        shape = mixed_shape(size, kind)
        read = _elements(source, bool(i.acc >> at & 1), shape, kind, context)
        if scaled:
            byte = (i.opsel >> at & 1) | (i.opsel_hi >> at & 1) << 1
            read = _scaled(read, (i.scale_src0, i.scale_src1)[at], byte, shape, context)
        readers.append(read)
    if scaled and (i.neg or i.neg_hi):
        raise InstructionUnsupported(f"{i.mnemonic} with NEG")
    return _multiply_add(i, context, shape, "f32", *readers)


def _elements(source: int, accumulator: bool, shape: Shape, kind: str, context: Context) -> Reader:
    """Reader of A, or of B transposed: values float64 [n, M, K]."""
    form = element_format(kind, context.arch)
    registers = shape.elements * form.bits // 32
    first = operands.vector_row(source - 256, context, registers, accumulator)
    last, rows, groups, depth, run = first + registers, shape.rows, shape.groups, shape.depth, shape.run
    table = form.table
    if form.bits < 8:
        assert table is not None
        assert run == shape.elements

        def read_small(group: Group) -> Array:
            words = np.ascontiguousarray(group.vectors[first:last].transpose(1, 2, 0))
            elements = unpack(words.view(np.uint8), form.bits).reshape(group.n, groups, rows, run)
            return table.take(elements.transpose(0, 2, 1, 3)).reshape(group.n, rows, depth)

        return read_small
    dtype = {8: np.uint8, 16: np.uint16, 32: np.float32}[form.bits]
    in_register = 32 // form.bits
    chunks, registers_of_run = shape.elements // run, run // in_register

    def read(group: Group) -> Array:
        lanes = group.vectors[first:last].view(dtype)
        lanes = lanes.reshape(chunks, registers_of_run, group.n, groups, rows, in_register)
        matrix = lanes.transpose(2, 4, 0, 3, 1, 5).reshape(group.n, rows, depth)
        return table.take(matrix) if table is not None else matrix.astype(np.float64)

    return read


def _scaled(read: Reader, source: int, byte: int, shape: Shape, context: Context) -> Reader:
    """A or B with its scales: lane L holds that of row L % M and the (L // M)-th block of 32 along k.

    The chosen byte of the register is the exponent of a power of two plus 127, 255 is NaN (E8M0, OCP MX section 5.4).
    Byte by OP_SEL and OP_SEL_HI: LLVM, VOP3PInstructions.td, class VOP3PXe.
    """
    registers = operands.source(source, "u32", context)
    shift = np.uint32(8 * byte)
    exponent = np.arange(256)
    powers = np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))
    rows, groups = shape.rows, shape.groups
    assert shape.depth == groups * _SCALE_BLOCK

    def scaled(group: Group) -> Array:
        patterns = np.broadcast_to(registers(group) >> shift & np.uint32(0xFF), (group.n, LANES))
        scales = powers.take(patterns).reshape(group.n, groups, rows).transpose(0, 2, 1)
        values = read(group).reshape(group.n, rows, groups, _SCALE_BLOCK) * scales[..., None]
        return values.reshape(group.n, rows, shape.depth)

    return scaled


def _multiply_add(i: Instruction, context: Context, shape: Shape, result: str, a: Reader, b: Reader) -> Step:
    """The step: C and D share one layout, so only the product is moved to it."""
    count, accumulator = shape.results, bool(i.acc_cd)
    target = operands.vector_row(i.vdst - 256, context, count, accumulator)
    dtype = np.float32 if result == "f32" else np.int32
    by_register = (count // 4, 4)
    by_row = (count // 4, shape.groups, 4, shape.rows)
    lanes = (shape.groups, shape.rows)
    if i.src2 >= 256:
        addend = operands.vector_row(i.src2 - 256, context, count, accumulator)
    else:
        bits = operands.constant_bits(i.src2, "u32")
        if bits is None:
            raise InstructionUnsupported(f"{i.mnemonic} with source 2 number {i.src2}")
        addend, constant = -1, np.array(bits, np.uint32).view(dtype)[()]

    def step(group: Group) -> None:
        n = group.n
        product = np.matmul(a(group), b(group).transpose(0, 2, 1))
        product = product.reshape(n, *by_row).transpose(1, 3, 0, 2, 4)
        registers = group.vectors[target : target + count].view(dtype).reshape(*by_register, n, *lanes)
        if addend < 0:
            c = constant
        elif addend == target:
            c = registers
        else:
            c = group.vectors[addend : addend + count].view(dtype).reshape(*by_register, n, *lanes)
        if dtype is np.float32:
            np.add(product, c, out=registers, casting="same_kind")
        else:
            # Sums of K products of 8-bit integers are exact in float64.
            registers[...] = (product.astype(np.int64) + c).astype(np.int32)

    return step
