"""Guarded memory: what a provider reads and writes is laid between canaries, poisoned first and checked afterwards.

Inputs are placed with the caller's strides in a larger buffer; everything around the elements and between them is
canary. ``torch.empty`` and its kin, as called by the provider's host code, are served from poisoned buffers of the same
kind, so that a workspace overrun (ROCm/aiter#5191) and an unwritten output show on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch

GUARD_BYTES = 4096
"""Canary bytes on each side of a buffer: more than the widest vector store of a wavefront (64 lanes x 16 bytes)."""

CANARY = 0x5C
"""Byte pattern of the guards; as float32 it is 2.5e17, so a value read from them is far out of any range."""

POISONS = (0xFF, 0xA7)
"""Byte patterns of fresh allocations on the first and the second run: NaN, then a small negative number. What differs
between two runs was read from memory that nobody wrote."""


@dataclass(frozen=True)
class Incident:
    """A write or a silence that no result shows."""

    kind: str
    """``input-changed``, ``out-of-bounds``, ``unrepeatable`` or ``result-reused``."""
    buffer: str
    """Argument name, or the allocation's shape and number in order of allocation."""
    position: int
    """Byte offset of the first damage relative to the buffer's first byte (negative: before it)."""
    detail: str


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor as a flat uint8 tensor that shares it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one addressed, both included; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


@dataclass
class Guarded:
    """A buffer with canaries; ``view`` is the tensor that a provider sees."""

    name: str
    view: torch.Tensor
    before: torch.Tensor | None
    """Copy of the whole storage as it was handed over (inputs), None for an allocation that may be written."""
    lead: int
    """Bytes of guard before the first element."""
    span: int
    """Bytes from the first to the last element."""
    trail: int = 0
    """Bytes of guard behind an allocation."""

    def damage(self) -> Incident | None:
        """The first byte that should not have changed and did."""
        now = _bytes(self.view)
        if self.before is None and now.numel() != self.lead + self.span + self.trail:
            return None  # the provider gave its allocation another size, and with it other memory
        if self.before is not None:
            changed = torch.nonzero(now != self.before)
            if not changed.numel():
                return None
            at = int(changed[0]) - self.lead
            inside = 0 <= at < self.span
            return Incident(
                "input-changed" if inside else "out-of-bounds",
                self.name,
                at,
                f"{changed.numel()} bytes changed, the first at byte {at} of {self.name} ({self.span} bytes)",
            )
        for start, stop in ((0, self.lead), (self.lead + self.span, now.numel())):
            changed = torch.nonzero(now[start:stop] != CANARY)
            if changed.numel():
                at = start + int(changed[0]) - self.lead
                side = "before the start" if at < 0 else "past the end"
                return Incident(
                    "out-of-bounds",
                    self.name,
                    at,
                    f"{changed.numel()} bytes written {side} of {self.name} ({self.span} bytes), first at byte {at}",
                )
        return None


def guard_input(name: str, tensor: torch.Tensor, device: torch.device | str = "cpu") -> Guarded:
    """Copy a tensor, strides and alignment kept, to the device between canaries.

    The gaps of a strided view and both guards hold the canary; the check afterwards covers all of them.
    """
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    size = tensor.element_size()
    # The offset within a 16-byte vector is part of the layout: it decides which loads a compiler may choose.
    shift = (int(tensor.storage_offset()) * size) % 16
    lead, span = GUARD_BYTES + shift, extent(shape, stride) * size
    total = -(-(lead + span + GUARD_BYTES) // size) * size
    storage = torch.full((total,), CANARY, dtype=torch.uint8)
    view = torch.empty(0, dtype=tensor.dtype).set_(storage.untyped_storage(), lead // size, shape, stride)
    if tensor.numel():
        # A write through an expanded view would visit one cell many times: write each cell once.
        index = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
        view[index].copy_(tensor[index])
    if str(device) != "cpu":
        moved = storage.to(device)
        view = torch.empty(0, dtype=tensor.dtype, device=device).set_(
            moved.untyped_storage(), lead // size, shape, stride
        )
    return Guarded(name, view, _bytes(view).clone(), lead, span)


@dataclass
class GuardedAllocator(TorchFunctionMode):
    """Serve ``torch.empty``, ``zeros``, ``full`` and their kin from guarded buffers, uninitialised ones poisoned."""

    poison: int
    wrap: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    """Applied to each allocation, so that it is of the kind of tensor that the runtime hands out."""
    largest: int = 1 << 28
    """Bytes above which an allocation is left to torch (touching it would defeat sparse huge tensors)."""
    allocations: list[Guarded] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Intercept the allocations, let everything else through."""
        result = func(*args, **(kwargs or {}))
        if func not in _UNINITIALISED | _FILLED or not isinstance(result, torch.Tensor):
            return result
        size = result.element_size()
        span = extent(tuple(result.shape), tuple(result.stride())) * size
        if result.device.type == "meta" or span > self.largest or 0 in result.shape:
            return result
        total = -(-(span + 2 * GUARD_BYTES) // size) * size
        # Unseen by whoever counts what the provider does: filled on the CPU, so that no kernel is launched for it, and
        # out of sight of dispatch modes.
        with torch._C.DisableTorchFunctionSubclass(), no_dispatch():
            storage = torch.full((total,), CANARY, dtype=torch.uint8, device="cpu")
            storage[GUARD_BYTES : GUARD_BYTES + span] = self.poison
            storage = storage.to(result.device)
            view = torch.empty(0, dtype=result.dtype, device=result.device).set_(
                storage.untyped_storage(), GUARD_BYTES // size, result.shape, result.stride()
            )
            if func in _FILLED:
                view.copy_(result.as_subclass(torch.Tensor))
        name = f"allocation {len(self.allocations)} {list(result.shape)}"
        self.allocations.append(Guarded(name, view, None, GUARD_BYTES, span, total - GUARD_BYTES - span))
        return self.wrap(view)


_UNINITIALISED = frozenset(
    {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided}
)
_FILLED = frozenset(
    {torch.zeros, torch.zeros_like, torch.ones, torch.ones_like, torch.full, torch.full_like}
    | {torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full}
)


@contextmanager
def guarded_allocations(poison: int, wrap: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[GuardedAllocator]:
    """Within the context, uninitialised allocations of the provider's host code are poisoned and guarded."""
    mode = GuardedAllocator(poison, wrap)
    with mode:
        yield mode
