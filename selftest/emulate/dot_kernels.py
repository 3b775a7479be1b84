"""Triton matrix products, compiled ahead of time and launched on the machine: MFMA as compilers use it.

With two stages Triton 3.9 loads tiles by LDS-DMA on gfx950 and reads B transposed (``ds_read_b64_tr_b16``); on gfx942
tiles go through registers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate import loader
from waveproof.kernels.runtimes.emulate.hidden_arguments import with_hidden_arguments
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import eight_bit_float
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.loader import CodeObject


@triton.jit
def product(  # type: ignore[no-untyped-def]
    a, b, c, depth, stride_a, stride_b, stride_c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """C[M, N] = A[M, depth] B[depth, N], one workgroup, K at a time."""
    rows = tl.arange(0, M)
    columns = tl.arange(0, N)
    along = tl.arange(0, K)
    total = tl.zeros((M, N), c.dtype.element_ty)
    for start in range(0, depth, K):
        left = tl.load(a + rows[:, None] * stride_a + (start + along)[None, :])
        right = tl.load(b + (start + along)[:, None] * stride_b + columns[None, :])
        total = tl.dot(left, right, total, input_precision="ieee", out_dtype=c.dtype.element_ty)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], total)


_TRITON_TYPES = {"bf16": "*bf16", "f16": "*fp16", "f32": "*fp32", "i8": "*i8", "fp8": "", "bf8": ""}
_EIGHT_BITS = {("fp8", "gfx950"): "*fp8e4nv", ("bf8", "gfx950"): "*fp8e5", ("fp8", "gfx942"): "*fp8e4b8",
               ("bf8", "gfx942"): "*fp8e5b16"}  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A product and how it is compiled."""

    arch: str
    m: int
    n: int
    k: int
    depth: int
    warps: int
    instruction: int
    """M of the matrix instruction."""
    kind: str = "bf16"
    stages: int = 2
    pack: int = 1

    def compile(self) -> tuple[CodeObject, int]:
        """The code object, and its LDS bytes."""
        operand = _TRITON_TYPES[self.kind] or _EIGHT_BITS[self.kind, self.arch]
        result = "*i32" if self.kind == "i8" else "*fp32"
        scalars = dict.fromkeys(("depth", "stride_a", "stride_b", "stride_c"), "i32")
        constants = {"M": self.m, "N": self.n, "K": self.k}
        signature = {"a": operand, "b": operand, "c": result, **scalars, **dict.fromkeys(constants, "constexpr")}
        source = ASTSource(
            fn=product,
            signature=signature,
            constexprs=constants,
            attrs={(at,): [["tt.divisibility", 16]] for at in range(7)},
        )
        options = {"num_warps": self.warps, "num_stages": self.stages, "matrix_instr_nonkdim": self.instruction,
                   "kpack": self.pack}  # fmt: skip
        compiled = triton.compile(source, target=GPUTarget("hip", self.arch, 64), options=options)
        return loader.load(compiled.asm["hsaco"]), int(compiled.metadata.shared)

    def operands(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float64]]:
        """A and B as the device holds them, and their product."""
        rng = np.random.default_rng(0)
        sizes = ((self.m, self.depth), (self.depth, self.n))
        if self.kind == "i8":
            integers = [rng.integers(-128, 128, size).astype(np.int8) for size in sizes]
            return integers[0], integers[1], integers[0].astype(np.float64) @ integers[1].astype(np.float64)
        drawn = [rng.standard_normal(size).astype(np.float32) for size in sizes]
        if self.kind in ("f16", "f32"):
            reals = [x.astype(np.float16 if self.kind == "f16" else np.float32) for x in drawn]
            return reals[0], reals[1], reals[0].astype(np.float64) @ reals[1].astype(np.float64)
        form = narrow_floats.BFLOAT16 if self.kind == "bf16" else eight_bit_float(self.kind, self.arch)
        bits = [narrow_floats.narrow(x, form) for x in drawn]
        values = [narrow_floats.widen(x, form).astype(np.float64) for x in bits]
        return bits[0], bits[1], values[0] @ values[1]

    def run(self) -> tuple[LaunchStats, npt.NDArray[Any], npt.NDArray[np.float64], int]:
        """Statistics, C, what it should be, and the LDS bytes."""
        code, shared = self.compile()
        a, b, want = self.operands()
        c: npt.NDArray[Any] = np.full((self.m, self.n), np.nan, np.float32)
        if self.kind == "i8":
            c = np.full((self.m, self.n), -1, np.int32)
        machine = Machine(self.arch)
        buffers: Mapping[str, npt.NDArray[Any]] = {"a": a, "b": b, "c": c}
        addresses = [machine.memory.add(name, array, read_only=name != "c") for name, array in buffers.items()]
        numbers = (self.depth, self.depth, self.n, self.n)
        kernarg = struct.pack("<3Q4i", *addresses, *numbers) + bytes(16)
        grid, block = (1, 1, 1), (64 * self.warps, 1, 1)
        needed = code.kernel(None).kernarg_bytes
        kernarg = with_hidden_arguments(kernarg, needed, grid, block, shared)
        return machine.launch(code, grid, block, kernarg, lds_bytes=shared), c, want, shared
