"""What a runtime passes to a kernel behind its own arguments: sizes of the grid and of workgroups.

Layout of code object V5: LLVM "User Guide for AMDGPU Backend", "Code Object V5 Metadata" (``hidden_*``), and
``ImplicitArg::Offset_COV5`` in LLVM's ``SIDefines.h``. Pointers to services of the host (printf buffer, host calls,
heap, queues) are zero: none of them exists here, and a kernel that uses one faults at a null pointer.
"""

from __future__ import annotations

import struct

HIDDEN_BYTES = 256
_ALIGNMENT = 8
_GRID_DIMENSIONS, _DYNAMIC_LDS = 64, 120

Grid = tuple[int, int, int]


def with_hidden_arguments(kernarg: bytes, needed: int, grid: Grid, block: Grid, lds_bytes: int) -> bytes:
    """Kernel argument bytes with the hidden arguments, if the kernel has any.

    Args:
        kernarg: the kernel's own arguments.
        needed: size of the kernel's argument segment, from its descriptor.
        grid: workgroups in x, y, z.
        block: work-items of a workgroup in x, y, z.
        lds_bytes: LDS that the launch asks for.
    """
    explicit = kernarg + bytes(-len(kernarg) % _ALIGNMENT)
    if needed <= len(explicit):
        return kernarg
    hidden = bytearray(HIDDEN_BYTES)
    # Workgroups, work-items of one, and work-items of a last, partial workgroup, of which there is none here.
    struct.pack_into("<3I3H3H", hidden, 0, *grid, *block, 0, 0, 0)
    dimensions = 3 if grid[2] * block[2] > 1 else 2 if grid[1] * block[1] > 1 else 1
    struct.pack_into("<H", hidden, _GRID_DIMENSIONS, dimensions)
    struct.pack_into("<I", hidden, _DYNAMIC_LDS, lds_bytes)
    return explicit + bytes(hidden[: needed - len(explicit)])


def dispatch_packet(grid: Grid, block: Grid, private_bytes: int, lds_bytes: int, arguments: int) -> bytes:
    """The packet a kernel was launched by, 64 bytes: ``hsa_kernel_dispatch_packet_t`` (HSA Runtime Specification 2.9).

    Args:
        grid: workgroups in x, y, z; the packet holds work-items.
        block: work-items of a workgroup in x, y, z.
        private_bytes: scratch of a work-item.
        lds_bytes: LDS of a workgroup.
        arguments: address of the kernel arguments.
    """
    header, dimensions = 2, 3  # type kernel dispatch
    items = [workgroups * size for workgroups, size in zip(grid, block, strict=True)]
    return struct.pack("<6H3I2I4Q", header, dimensions, *block, 0, *items, private_bytes, lds_bytes, 0, arguments, 0, 0)
