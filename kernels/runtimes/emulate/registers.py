"""Register state of all waves of a batch, as arrays, and the views that a group of waves computes on.

Waves live in *slots* 0..W-1. A group owns a contiguous range of slots, so that each register of the whole group is one
view and an instruction is a few numpy calls whatever the number of waves. Where waves diverge, slots are permuted so
that each new group is contiguous again (see :meth:`State.permute`).

Layout: vector registers ``v[register, slot, lane]`` (AccVGPRs behind the VGPRs), scalar registers ``s[slot, 128]``, so
that the aligned pairs that 64-bit operands must be are a uint64 view. VCC, M0 and EXEC are cells of ``s``: 106-107, 124
and 126-127 (CDNA3 ISA, table "Scalar ALU operands").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LANES = 64
VCC, M0, EXEC = 106, 124, 126
POISON = 0x7FC0DEAD
"""Content of registers and LDS that nobody has written: undefined on the device; a NaN to whoever computes with it."""

Array = npt.NDArray[Any]


class _Rows(dict[int, Array]):
    """Views of one register in one dtype, made when first asked for."""

    def __init__(self, base: Array, first: int, last: int, scalar: bool) -> None:
        super().__init__()
        self.base, self.first, self.last, self.scalar = base, first, last, scalar

    def __missing__(self, register: int) -> Array:
        if self.scalar:
            view = self.base[self.first : self.last, register : register + 1]
        else:
            view = self.base[register, self.first : self.last]
        self[register] = view
        return view


class _Halves(dict[int, Array]):
    """16-bit halves of vector registers: key ``2 * register + half``."""

    def __init__(self, base: Array, first: int, last: int) -> None:
        super().__init__()
        self.base, self.first, self.last = base, first, last

    def __missing__(self, key: int) -> Array:
        view = self.base[key >> 1, self.first : self.last, key & 1 :: 2]
        self[key] = view
        return view


class Views:
    """What a range of slots sees. Vector rows are [n, 64], scalar ones [n, 1]: they broadcast."""

    def __init__(self, state: State, first: int, last: int) -> None:
        v, s = state.v, state.s
        self.state, self.first, self.last, self.n = state, first, last, last - first
        self.v = _Rows(v, first, last, False)
        self.vi = _Rows(v.view(np.int32), first, last, False)
        self.vf = _Rows(v.view(np.float32), first, last, False)
        self.hu = _Halves(v.view(np.uint16), first, last)
        self.hi = _Halves(v.view(np.int16), first, last)
        self.hf = _Halves(v.view(np.float16), first, last)
        self.s = _Rows(s, first, last, True)
        self.si = _Rows(s.view(np.int32), first, last, True)
        self.sf = _Rows(s.view(np.float32), first, last, True)
        self.s64 = _Rows(s.view(np.uint64), first, last, True)
        """Pairs, by half the number of the first register."""
        self.bytes = s.view(np.uint8)[first:last]
        self.scalars = s[first:last]
        self.scc = state.scc[first:last]
        self.lds_base = state.lds_base[first:last]
        self.vectors = v[:, first:last]


class State:
    """Registers of W waves.

    Args:
        waves: W.
        vgprs: VGPRs of a wave (those that instructions call v0, v1, ...).
        accvgprs: AccVGPRs of a wave. a0 is row ``vgprs``; on the device it is at ``accum_offset`` of one unified file,
            but no instruction can name one cell both ways.
        storage: memory of an earlier state, used again if it is large enough (fresh pages cost more than the filling).
    """

    def __init__(
        self, waves: int, vgprs: int = 256, accvgprs: int = 256, storage: npt.NDArray[np.uint32] | None = None
    ) -> None:
        self.waves, self.vgprs, self.accvgprs = waves, vgprs, accvgprs
        cells = (vgprs + accvgprs) * waves * LANES
        if storage is None or storage.size < cells:
            storage = np.empty(cells, np.uint32)
        self.storage = storage
        self.v = storage[:cells].reshape(vgprs + accvgprs, waves, LANES)
        self.v[:] = POISON
        self.s = np.full((waves, 128), POISON, np.uint32)
        self.s[:, EXEC : EXEC + 2] = 0xFFFFFFFF
        self.scc = np.zeros((waves, 1), np.bool_)
        self.wave = np.arange(waves)
        """Number of the wave (in launch order within the batch) that lives in each slot."""
        self.workgroup = np.zeros(waves, np.intp)
        """Workgroup within the batch, by slot."""
        self.lds_base = np.zeros((waves, 1), np.int64)
        """Byte offset of the workgroup's LDS in the batch's, by slot."""
        self._views: dict[tuple[int, int], Views] = {}

    def views(self, first: int, last: int) -> Views:
        """Views of slots first..last-1; kept, since the arrays never move."""
        key = (first, last)
        found = self._views.get(key)
        if found is None:
            if len(self._views) > 4096:
                self._views.clear()
            found = self._views[key] = Views(self, first, last)
        return found

    def permute(self, first: int, order: npt.NDArray[np.intp]) -> None:
        """Move waves among slots: slot first+i gets what was in slot first+order[i]."""
        last = first + len(order)
        for register in self.v:
            register[first:last] = register[first:last][order]
        for array in (self.s, self.scc, self.wave, self.workgroup, self.lds_base):
            array[first:last] = array[first:last][order]


class Group:
    """Waves at the same instruction: the machine state that one step of the program works on.

    Fields are public and plain for speed; handlers read registers through the ``v``, ``vf``, ``s``, ... mappings and
    write through :mod:`waveproof.kernels.runtimes.emulate.operands`.
    """

    __slots__ = (
        "block",
        "bytes",
        "context",
        "first",
        "full",
        "hf",
        "hi",
        "hu",
        "index",
        "last",
        "lds",
        "lds_base",
        "machine",
        "mask",
        "memory",
        "n",
        "pc",
        "s",
        "s64",
        "scalars",
        "scc",
        "sf",
        "si",
        "state",
        "v",
        "vectors",
        "vf",
        "vi",
        "waiting",
    )  # fmt: skip

    def __init__(self, state: State, first: int, last: int, pc: int, context: Any, machine: Any = None) -> None:
        self.state, self.pc, self.context, self.machine = state, pc, context, machine
        self.memory: Any = getattr(machine, "memory", None)
        self.lds: Any = getattr(machine, "lds", None)
        self.waiting = False
        self.block: Any = None
        self.index = 0
        self.resize(first, last)

    def resize(self, first: int, last: int) -> None:
        """Make the group own slots first..last-1."""
        views = self.state.views(first, last)
        self.first, self.last, self.n = first, last, last - first
        self.v, self.vi, self.vf = views.v, views.vi, views.vf
        self.hu, self.hi, self.hf = views.hu, views.hi, views.hf
        self.s, self.si, self.sf, self.s64 = views.s, views.si, views.sf, views.s64
        self.bytes, self.scc, self.lds_base = views.bytes, views.scc, views.lds_base
        self.scalars, self.vectors = views.scalars, views.vectors
        self.refresh_exec()

    def refresh_exec(self) -> None:
        """Read EXEC anew. To be called after every write to s126 or s127."""
        raw = self.bytes[:, 4 * EXEC : 4 * EXEC + 8]
        self.full = bool((self.s64[EXEC // 2] == 0xFFFFFFFFFFFFFFFF).all())
        self.mask: Array = np.unpackbits(raw, axis=1, bitorder="little").view(np.bool_)

    def lane_mask(self, register: int) -> Array:
        """The 64 bits of a scalar register pair as bool [n, 64]."""
        return np.unpackbits(self.bytes[:, 4 * register : 4 * register + 8], axis=1, bitorder="little").view(np.bool_)

    def set_lane_mask(self, register: int, value: Array) -> None:
        """Write bool [n, 64] to a scalar register pair, bit i from lane i."""
        self.bytes[:, 4 * register : 4 * register + 8] = np.packbits(value, axis=1, bitorder="little")
