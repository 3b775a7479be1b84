"""The ``emulate`` runtime for Triton: unmodified ``kernel[grid](...)`` runs as machine code on an emulated AMD GPU.

:func:`prepare` makes a fresh process look like one with a gfx942 or a gfx950 and gives Triton a driver whose device is
the emulator. Upstream's launchers then choose block sizes, warps and grid as on the device, Triton's AMD back end
compiles, and the code object runs on tensors that lie on the CPU, which is the device's memory: nothing is copied.

What of a tensor the device sees is its *storage*, as on a GPU, where a kernel may leave a view and stay in its
allocation. So an access beyond the storage faults at once; one beyond the view lands, and guards around the view
(:mod:`waveproof.kernels.runtimes.memory`) see it, as they do on every other runtime. A fault names the argument and the
element counted from the view's first. Pointers that lie in memory as data are host addresses and fault where used.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from waveproof.kernels.runtimes.catalogue import why_unavailable
from waveproof.kernels.runtimes.emulate.fault import EmulationError, Fault
from waveproof.kernels.runtimes.emulate.hidden_arguments import with_hidden_arguments
from waveproof.kernels.runtimes.pretence import Device, DeviceTensor, PretenceUnavailable, on_device, plain, pretend

if TYPE_CHECKING:
    from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
    from waveproof.kernels.runtimes.triton_device import Parameter

__all__ = [
    "DeviceTensor",
    "EmulatedLaunch",
    "Selection",
    "clear_launches",
    "launches",
    "machine",
    "on_device",
    "only_workgroups",
    "pack_kernarg",
    "plain",
    "prepare",
    "record",
    "settle",
]

Grid = tuple[int, int, int]
Selection = Callable[[str, Grid], Iterable[Grid]]
"""Kernel and grid of a launch to the ids of the workgroups that run."""

_NULL_PAGE = 1 << 16
"""Addresses below are offsets from a null pointer, see :meth:`Memory.describe`."""


@dataclass(frozen=True)
class EmulatedLaunch:
    """One finished launch. All counts are exact, and equal whenever the same code runs on the same input."""

    kernel: str
    arch: str
    grid: Grid
    num_warps: int
    workgroups: int
    """How many of the grid's ran."""
    wave_instructions: int
    mfma: int
    """Matrix instructions, counted by wave."""
    multiply_adds: int
    """Of the matrix instructions, which differ in size; those on padding count."""
    bytes_read: int
    """Global memory that lanes read: what two lanes read counts twice, masked lanes count nothing."""
    bytes_written: int
    scalar_bytes_read: int
    """By scalar loads, kernel arguments among it."""
    lds_bytes_read: int
    lds_bytes_written: int
    seconds: float
    """Wall time in the emulator; says nothing about a device."""
    cpu_seconds: float = 0.0
    """The same in time of the thread."""


@dataclass
class _Emulator:
    """The device of this process."""

    machine: Machine
    finished: list[EmulatedLaunch] = field(default_factory=list)
    failure: EmulationError | None = None
    """What the first launch that did not finish ended in, since the last :func:`clear_launches`."""
    selection: Selection | None = None


_emulators: list[_Emulator] = []


def prepare(arch: str) -> None:
    """Give this process an emulated device. Call it before sglang is imported; a second call does nothing.

    Raises:
        PretenceUnavailable: tinygrad is missing, or see :func:`waveproof.kernels.runtimes.pretence.pretend`; or this
            process only compiles.
    """
    reason = why_unavailable("emulate")
    if reason:
        raise PretenceUnavailable(reason)
    device = pretend(arch)
    if _emulators:
        return
    from waveproof.kernels.runtimes.emulate.launch import Machine

    emulator = _Emulator(Machine(arch))
    _install(arch, device, emulator)
    _emulators.append(emulator)


def _install(arch: str, device: Device, emulator: _Emulator) -> None:
    from waveproof.kernels.runtimes import triton_device

    triton_device.install(arch, device, torch.device("cpu"), lambda kernel: _Launcher(emulator, kernel))


def machine() -> Machine:
    """The device of this process, to set what looks on (``machine().trace``, ``machine().watch``).

    Raises:
        PretenceUnavailable: :func:`prepare` was not called.
    """
    if not _emulators:
        raise PretenceUnavailable("this process has no emulated device; call prepare() first")
    return _emulators[0].machine


def launches() -> list[EmulatedLaunch]:
    """Launches that finished since the start or the last :func:`clear_launches`, in order."""
    return [launch for emulator in _emulators for launch in emulator.finished]


def record(kernel: str, grid: Grid, num_warps: int, statistics: LaunchStats) -> None:
    """Note a finished launch on the device of this process: of Triton's kernels, or of any other that runs there."""
    emulator = _emulators[0]
    emulator.finished.append(
        EmulatedLaunch(
            kernel=kernel,
            arch=emulator.machine.arch,
            grid=grid,
            num_warps=num_warps,
            workgroups=statistics.workgroups,
            wave_instructions=statistics.wave_instructions,
            mfma=statistics.mfma,
            multiply_adds=statistics.multiply_adds,
            bytes_read=statistics.traffic.loaded,
            bytes_written=statistics.traffic.stored,
            scalar_bytes_read=statistics.traffic.scalar_loaded,
            lds_bytes_read=statistics.lds_bytes_read,
            lds_bytes_written=statistics.lds_bytes_written,
            seconds=statistics.seconds,
            cpu_seconds=statistics.cpu_seconds,
        )
    )


def clear_launches() -> None:
    """Forget the launches so far, and what went wrong in them. Programs are kept."""
    for emulator in _emulators:
        emulator.finished.clear()
        emulator.failure = None


def settle() -> None:
    """Raise what a launch ended in, in case host code caught it and went on by another way.

    Raises:
        EmulationError: the first failure since :func:`clear_launches`.
    """
    for emulator in _emulators:
        if emulator.failure is not None:
            raise emulator.failure


@contextlib.contextmanager
def only_workgroups(select: Selection) -> Iterator[None]:
    """Within the context a launch runs only the workgroups that ``select`` names for its kernel and grid."""
    before = [emulator.selection for emulator in _emulators]
    for emulator in _emulators:
        emulator.selection = select
    try:
        yield
    finally:
        for emulator, selection in zip(_emulators, before, strict=True):
            emulator.selection = selection


_FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp64": "d",
}  # fmt: skip


def pack_kernarg(kinds: Sequence[str], values: Sequence[Any]) -> bytes:
    """Kernel argument bytes: each value at a multiple of its size, as LLVM lays out kernel parameters.

    Args:
        kinds: types as Triton spells them; everything that starts with ``*`` is a pointer.
        values: device addresses of pointers; integers, floats and truth values else.

    Raises:
        TypeError: a kind that is not known.
        OverflowError: an integer does not fit its kind.
    """
    block = bytearray()
    for kind, value in zip(kinds, values, strict=True):
        encoded = _encode(kind, value)
        block += bytes(-len(block) % len(encoded)) + encoded
    return bytes(block)


def _encode(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        return struct.pack("<Q", value)
    if kind in ("fp32", "f32"):
        with np.errstate(over="ignore"):
            return np.float32(value).tobytes()
    if kind == "bf16":
        # The launcher of Triton's AMD back end cuts the lower half off (driver.c, extractBF16), so it is done here too.
        with np.errstate(over="ignore"):
            return np.float32(value).tobytes()[2:]
    if kind not in _FORMATS:
        raise TypeError(f"a kernel argument of type {kind!r} cannot be passed; known: *, {', '.join(_FORMATS)}")
    try:
        return struct.pack("<" + _FORMATS[kind], float(value) if kind.startswith("fp") else int(value))
    except struct.error as error:
        raise OverflowError(f"{value} does not fit {kind}: {error}") from error


@dataclass(frozen=True)
class _Pointer:
    """A pointer argument as the device sees it."""

    name: str
    tensor: torch.Tensor | None
    address: int
    """Device address of the tensor's first element, 0 for None and for a tensor without elements."""

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if self.tensor is None or not self.tensor.numel():
            return 0
        shape = zip(self.tensor.shape, self.tensor.stride(), strict=True)
        return (1 + sum((size - 1) * step for size, step in shape)) * self.tensor.itemsize


class _Launcher:
    """Runs one compiled kernel whenever it is launched."""

    def __init__(self, emulator: _Emulator, kernel: Any) -> None:
        from waveproof.kernels.runtimes.emulate import loader

        self.emulator = emulator
        self.source, self.metadata = kernel.src, kernel.metadata
        self.code = loader.load(kernel.asm["hsaco"], kernel.metadata.name)

    def __call__(self, grid: Grid, arguments: Sequence[Any]) -> None:
        if 0 in grid:
            return  # as the launcher of Triton's AMD back end (driver.c, _launch)
        machine = self.emulator.machine
        # Loaded outside the scope, where it would be forgotten with the buffers.
        machine.program(self.code)
        with machine.memory.scope():
            parameters = self._parameters(arguments, grid)
            pointers = _map(machine, [one for one in parameters if one.kind.startswith("*")])
            addresses = {pointer.name: pointer.address for pointer in pointers}
            kernarg = pack_kernarg(
                [one.kind for one in parameters], [addresses.get(one.name, one.value) for one in parameters]
            )
            try:
                statistics = self._run(machine, grid, kernarg)
            except EmulationError as error:
                if isinstance(error, Fault):
                    error = _explained(error, pointers)
                if self.emulator.failure is None:
                    self.emulator.failure = error
                raise error from None
        record(self.metadata.name, grid, self.metadata.num_warps, statistics)

    def _parameters(self, arguments: Sequence[Any], grid: Grid) -> list[Parameter]:
        """What the machine code takes, in order: no constants, descriptors in parts, two hidden pointers to scratch."""
        from triton.backends.driver import decompose_descriptor, expand_signature

        from waveproof.kernels.runtimes import triton_device

        found = []
        for one in triton_device.parameters(self.source.signature, arguments):
            if one.kind.startswith("tensordesc"):
                kinds = expand_signature([one.kind], getattr(self.metadata, "tensordesc_meta", None), "tensordesc")
                signature = {f"{one.name}.{index}": kind for index, kind in enumerate(kinds)}
                found += triton_device.parameters(signature, decompose_descriptor(one.value))
            elif one.kind != "constexpr":
                found.append(one)
        hidden = {"global scratch": "*u8", "profile scratch": "*u8"}
        return found + triton_device.parameters(hidden, self._scratch(grid))

    def _scratch(self, grid: Grid) -> list[torch.Tensor | None]:
        """Memory that Triton's host side provides beside the arguments (``HIPLauncher.__call__``), for all programs."""
        from triton.runtime import _allocation

        count = grid[0] * grid[1] * grid[2]
        scratch: list[torch.Tensor | None] = [None, None]
        if self.metadata.global_scratch_size:
            # The allocator is the application's (triton.set_allocator); where it set none this raises, as on a GPU.
            allocate = _allocation._allocator.get()
            scratch[0] = allocate(count * self.metadata.global_scratch_size, self.metadata.global_scratch_align, 0)
        if self.metadata.profile_scratch_size:
            scratch[1] = torch.zeros(count * self.metadata.profile_scratch_size, dtype=torch.uint8)
        return scratch

    def _run(self, machine: Machine, grid: Grid, kernarg: bytes) -> LaunchStats:
        name, lds_bytes = self.metadata.name, self.metadata.shared
        block = (self.metadata.num_warps * self.metadata.warp_size, 1, 1)
        needed = self.code.kernel(name).kernarg_bytes
        selection = self.emulator.selection
        return machine.launch(
            self.code,
            grid,
            block,
            with_hidden_arguments(kernarg, needed, grid, block, lds_bytes),
            lds_bytes=lds_bytes,
            kernel=name,
            workgroups=None if selection is None else list(selection(name, grid)),
        )


def _map(machine: Machine, arguments: Sequence[Parameter]) -> list[_Pointer]:
    """Make the storage of each pointer argument visible to the device, once each.

    Raises:
        TypeError: an argument is neither a tensor nor None, or its tensor is not on the CPU.
    """
    tensors = {one.name: _tensor(one) for one in arguments}
    sharing: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.numel():
            sharing.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    bases = {}
    for start, names in sharing.items():
        tensor = tensors[names[0]]
        assert tensor is not None
        bases[start] = machine.memory.add(f"storage of {', '.join(names)}", _storage(tensor))
    pointers = []
    for name, tensor in tensors.items():
        if tensor is None or not tensor.numel():
            pointers.append(_Pointer(name, tensor, 0))
            continue
        start = tensor.untyped_storage().data_ptr()
        pointers.append(_Pointer(name, tensor, bases[start] + tensor.data_ptr() - start))
    return pointers


def _tensor(argument: Parameter) -> torch.Tensor | None:
    value = argument.value
    if not isinstance(value, torch.Tensor) and isinstance(getattr(value, "base", None), torch.Tensor):
        value = value.base  # triton.reinterpret
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"pointer argument {argument.name} is {type(value).__name__}; only tensors are mapped")
    if value.device.type != "cpu":
        raise TypeError(
            f"pointer argument {argument.name} is on {value.device}; the emulated device's memory is the CPU's"
        )
    return plain(value.detach())


def _storage(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's whole storage as a flat array that shares it, in elements where they divide it."""
    octets = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    size = tensor.itemsize
    return octets.view(f"u{size}") if size in (2, 4, 8) and not octets.size % size else octets


def _explained(fault: Fault, pointers: Sequence[_Pointer]) -> Fault:
    """The fault with the access in terms of the argument that it is nearest to."""
    access = fault.access
    if access is None or access.address is None or access.space not in ("global", "scalar"):
        return fault
    address = access.address
    if address < _NULL_PAGE:
        absent = [pointer.name for pointer in pointers if not pointer.address]
        about = f"without memory: {', '.join(absent)}"
    else:
        near = [pointer for pointer in pointers if pointer.tensor is not None and pointer.address]
        if not near:
            return fault
        closest = min(near, key=lambda p: max(p.address - address, address - p.address - p.span + 1, 0))
        assert closest.tensor is not None
        tensor = closest.tensor
        element = (address - closest.address) // tensor.itemsize
        layout = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        if not tensor.is_contiguous():
            layout += f" with strides {list(tensor.stride())}"
        last = closest.span // tensor.itemsize - 1
        about = f"element {element} of argument {closest.name}, {layout}, whose last is {last}"
    return Fault(f"{fault.rule}; {about}", fault.place, access)
