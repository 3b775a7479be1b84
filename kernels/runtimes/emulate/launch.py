"""Launching a kernel on the emulated device.

    machine = Machine("gfx950")
    a = machine.memory.add("a", array)
    statistics = machine.launch(loader.load(code), grid=(4, 1, 1), block=(256, 1, 1), kernarg=struct.pack("<Q", a))

Initial state: LLVM "User Guide for AMDGPU Backend", "Initial Kernel Execution State".
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.amdgcn_resources import LOCAL_MEMORY
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import LaunchInvalid
from waveproof.kernels.runtimes.emulate.hidden_arguments import dispatch_packet
from waveproof.kernels.runtimes.emulate.isa import mfma
from waveproof.kernels.runtimes.emulate.lds_watch import LdsReport, LdsWatch
from waveproof.kernels.runtimes.emulate.loader import CodeObject, Descriptor
from waveproof.kernels.runtimes.emulate.memory import Memory, Traffic
from waveproof.kernels.runtimes.emulate.program import Program
from waveproof.kernels.runtimes.emulate.registers import LANES, POISON, State
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step
from waveproof.kernels.runtimes.emulate.scheduler import Execution, Schedule, histogram
from waveproof.kernels.runtimes.emulate.trace import Trace
from waveproof.kernels.runtimes.emulate.watch import Touched, Watch, by_class

_MOST_WORK_ITEMS = 1024
_PRELOAD_PROLOGUE = 256
"""Bytes at the entry that load the arguments where no preload happens ("Preloaded Kernel Arguments")."""
_BATCH_BYTES = 24 << 20
"""Register bytes of the workgroups that execute together: enough waves to pay for numpy's calls, few enough to
stay in a cache."""
_WANTS_DISPATCH = 1
"""Bit of kernel_code_properties: the address of the dispatch packet in SGPRs."""
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchStats:
    """Exact counts of a launch, and the time it took here."""

    wave_instructions: int
    by_mnemonic: Counter[str]
    waves: int
    workgroups: int
    traffic: Traffic
    """Bytes that lanes loaded and stored."""
    lds_bytes_read: int
    lds_bytes_written: int
    seconds: float
    cpu_seconds: float = 0.0
    """The same in time of this thread: without what other processes took."""
    distinct: dict[str, Touched] = field(default_factory=dict)
    """Distinct bytes touched, by buffer; empty without a :class:`~waveproof.kernels.runtimes.emulate.watch.Watch`."""

    @property
    def by_class(self) -> Counter[str]:
        """Wave instructions by class (:data:`waveproof.kernels.runtimes.emulate.watch.CLASSES`)."""
        return by_class(self.by_mnemonic)

    @property
    def mfma(self) -> int:
        """Matrix instructions, counted by wave."""
        return sum(n for name, n in self.by_mnemonic.items() if name.startswith(("V_MFMA", "V_SMFMAC")))

    @property
    def multiply_adds(self) -> int:
        """Of the matrix instructions, whatever the numbers are: rows and columns of padding count."""
        return sum(n * mfma.multiply_adds(name) for name, n in self.by_mnemonic.items())


class LDS:
    """The LDS of all workgroups of a batch, one after another."""

    def __init__(self, workgroups: int, size: int, report: LdsReport | None = None) -> None:
        self.size = size
        """Bytes of a workgroup; an access at or beyond it is out of bounds."""
        self.stride = -(-size // 16) * 16
        self.words: npt.NDArray[np.uint32] = np.full(workgroups * self.stride // 4, POISON, np.uint32)
        self.bytes: npt.NDArray[np.uint8] = self.words.view(np.uint8)
        self.halves: npt.NDArray[np.uint16] = self.words.view(np.uint16)
        self.watch = None if report is None else LdsWatch(workgroups, self.stride, report)


class Scratch:
    """Private memory of all lanes of a batch: ``stride`` bytes a lane, lanes of a wave together."""

    def __init__(self, waves: int, size: int) -> None:
        self.size = size
        """Bytes that a lane may use."""
        self.stride = -(-size // 16) * 16
        words: npt.NDArray[np.uint32] = np.full(waves * LANES * self.stride // 4, POISON, np.uint32)
        self.units = {1: words.view(np.uint8), 2: words.view(np.uint16), 4: words}
        """The same bytes in units of 1, 2 and 4."""


class Machine:
    """An emulated device.

    Attributes:
        arch: ``gfx942`` or ``gfx950``.
        memory: the global address space; :meth:`Memory.add` makes a host array visible.
        lds: LDS of the workgroups that execute now.
        scratch: private memory of their lanes.
        workgroup_ids: their ids, by number in the batch.
        code_base: virtual address of ``.text`` of the code that executes now.
        lds_report: if set to a report, LDS use is watched (slow), and what is seen is added to it.
        watch: if set, undefined reads and distinct bytes are tracked (slow).
        trace: if set, records one wave of each launch (slow).
    """

    def __init__(
        self, arch: str, memory: Memory | None = None, watch: Watch | None = None, trace: Trace | None = None
    ) -> None:
        if arch not in ARCHITECTURES:
            raise LaunchInvalid(f"architecture {arch!r}: one of {', '.join(ARCHITECTURES)} is emulated")
        self.arch = arch
        self.memory = memory if memory is not None else Memory()
        self.lds = LDS(1, LOCAL_MEMORY[arch].size)
        self.scratch = Scratch(1, 0)
        self.workgroup_ids: list[Grid] = [(0, 0, 0)]
        self.code_base = 0
        self.lds_report: LdsReport | None = None
        self.watch, self.trace = watch, trace
        self.lds_bytes_read = 0
        self.lds_bytes_written = 0
        self._registers: npt.NDArray[np.uint32] | None = None
        self._loaded: dict[int, tuple[CodeObject, Program, int]] = {}

    def program(self, code: CodeObject) -> Program:
        """The code object's program; its image is mapped read-only and its blocks are kept between launches."""
        found = self._loaded.get(id(code))
        if found is None:
            image = np.frombuffer(code.image, np.uint8)
            base = self.memory.add(f"code {code.name}".rstrip(), image, read_only=True)
            # The code object is kept as well, so that its id stays its own.
            found = self._loaded[id(code)] = (code, Program(code), base)
        self.code_base = found[2] + code.text[0]
        return found[1]

    def _looked_on(self, code: CodeObject, program: Program, kernel: str) -> Program:
        """The program, or where somebody looks on a new one that is instrumented for it."""
        onlookers = [one for one in (self.watch, self.trace) if one is not None and one.wants(kernel)]
        self.memory.watch = self.watch
        if not onlookers:
            return program
        for one in onlookers:
            one.start()

        def instrument(instruction: Instruction, context: Context, step: Step) -> Step:
            for one in onlookers:
                step = one.instrument(instruction, context, step)
            return step

        return Program(code, instrument)

    def launch(
        self,
        code: CodeObject,
        grid: Grid,
        block: Grid,
        kernarg: bytes,
        lds_bytes: int = 0,
        kernel: str | None = None,
        schedule: Schedule | None = None,
        preload: bool = True,
        workgroups: Sequence[Grid] | None = None,
    ) -> LaunchStats:
        """Run a kernel to its end.

        Args:
            code: from :func:`~waveproof.kernels.runtimes.emulate.loader.load`.
            grid: workgroups in x, y, z.
            block: work-items of a workgroup in x, y, z.
            kernarg: kernel argument bytes, hidden arguments included.
            lds_bytes: dynamic LDS, on top of what the descriptor declares.
            kernel: name, if the code object has several.
            schedule: order of waves.
            preload: whether arguments are preloaded into SGPRs where the descriptor asks for it (the firmware decides).
            workgroups: the ids of those that run; all of the grid if None.

        Raises:
            LaunchInvalid: the launch does not fit the kernel or the device.
            Fault: see :class:`~waveproof.kernels.runtimes.emulate.scheduler.Execution`.
            InstructionUnsupported: an instruction without a handler was reached.
        """
        descriptor = code.kernel(kernel)
        self._check(code, descriptor, grid, block, kernarg, lds_bytes)
        started, cpu_started = time.perf_counter(), time.thread_time()
        program = self._looked_on(code, self.program(code), descriptor.name)
        program.reset_counts()
        self.memory.traffic = Traffic()
        self.lds_bytes_read = self.lds_bytes_written = 0
        padded = kernarg.ljust(-(-max(len(kernarg), 16) // 16) * 16, b"\0")
        arguments = self.memory.add("kernel arguments", np.frombuffer(padded, np.uint8), read_only=True)
        packet = 0
        if descriptor.properties >> _WANTS_DISPATCH & 1:
            words = dispatch_packet(grid, block, descriptor.private_segment_bytes, lds_bytes, arguments)
            packet = self.memory.add("dispatch packet", np.frombuffer(words, np.uint8), read_only=True)
        ids = _all(grid) if workgroups is None else workgroups
        executed = waves = 0
        try:
            for batch in self._batches(descriptor, ids, block):
                execution = self._batch(
                    program,
                    descriptor,
                    batch,
                    block,
                    (arguments, packet),
                    padded,
                    lds_bytes,
                    schedule or Schedule(),
                    preload,
                )
                with np.errstate(all="ignore"):
                    execution.run()
                executed += execution.executed
                waves += execution.state.waves
        finally:
            self.memory.remove(arguments)
            if packet:
                self.memory.remove(packet)
        return LaunchStats(
            executed,
            histogram(program),
            waves,
            len(ids),
            self.memory.traffic,
            self.lds_bytes_read,
            self.lds_bytes_written,
            time.perf_counter() - started,
            time.thread_time() - cpu_started,
            {} if self.watch is None else self.watch.touched(),
        )

    def _check(
        self, code: CodeObject, descriptor: Descriptor, grid: Grid, block: Grid, kernarg: bytes, lds_bytes: int
    ) -> None:
        if code.arch != self.arch:
            raise LaunchInvalid(f"{descriptor.name} is code for {code.arch}, the device is {self.arch}")
        if min(grid) < 1 or min(block) < 1:
            raise LaunchInvalid(f"{descriptor.name}: grid {grid} and block {block} must be positive")
        items = block[0] * block[1] * block[2]
        if items > _MOST_WORK_ITEMS:
            raise LaunchInvalid(f"{descriptor.name}: {items} work-items in a workgroup, at most {_MOST_WORK_ITEMS}")
        lds, size = descriptor.group_segment_bytes + lds_bytes, LOCAL_MEMORY[self.arch].size
        if lds > size:
            raise LaunchInvalid(f"{descriptor.name}: {lds} bytes of LDS, {self.arch} has {size} in a compute unit")
        if len(kernarg) < descriptor.kernarg_bytes:
            raise LaunchInvalid(
                f"{descriptor.name}: {len(kernarg)} bytes of arguments, its descriptor says {descriptor.kernarg_bytes}"
            )

    def _batches(self, descriptor: Descriptor, ids: Sequence[Grid], block: Grid) -> Iterator[list[Grid]]:
        waves = -(-block[0] * block[1] * block[2] // LANES)
        count = max(1, _BATCH_BYTES // (waves * descriptor.total_vgprs * LANES * 4))
        for first in range(0, len(ids), count):
            yield list(ids[first : first + count])

    def _batch(
        self,
        program: Program,
        descriptor: Descriptor,
        ids: list[Grid],
        block: Grid,
        addresses: tuple[int, int],
        kernarg: bytes,
        lds_bytes: int,
        schedule: Schedule,
        preload: bool,
    ) -> Execution:
        items = block[0] * block[1] * block[2]
        waves = -(-items // LANES)
        vgprs = min(descriptor.accum_offset, descriptor.total_vgprs)
        context = Context(
            self.arch,
            vgprs,
            descriptor.total_vgprs - vgprs,
            descriptor.float_mode,
            descriptor.ieee,
            descriptor.dx10_clamp,
            descriptor.fp16_overflow,
        )
        state = State(len(ids) * waves, context.vgprs, context.accvgprs, self._registers)
        self._registers = state.storage
        # Slots are wave-major: wave k of all workgroups is one range, see the scheduler.
        workgroup = np.tile(np.arange(len(ids)), waves)
        state.workgroup[:] = workgroup
        report = self.lds_report
        if report is None and self.watch is not None and self.watch.lds:
            report = self.watch.lds_report
        self.lds = LDS(len(ids), descriptor.group_segment_bytes + lds_bytes, report)
        self.scratch = Scratch(state.waves, descriptor.private_segment_bytes)
        self.workgroup_ids = ids
        state.lds_base[:, 0] = workgroup * self.lds.stride
        entry = descriptor.entry - program.code.text[0]
        scalars, skipped = _user_sgprs(descriptor, *addresses, kernarg, preload)
        state.s[:, : len(scalars)] = np.array(scalars, np.uint32)
        register = descriptor.user_sgprs
        for axis, enabled in enumerate(descriptor.workgroup_id_enabled):
            if enabled:
                state.s[:, register] = np.array([i[axis] for i in ids], np.uint32)[workgroup]
                register += 1
        thread = np.repeat(np.arange(waves), len(ids))[:, None] * LANES + np.arange(LANES)
        x, y, z = thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])
        state.v[0] = x | y << 10 | z << 20
        if items % LANES:
            state.s[(waves - 1) * len(ids) :, 126:128] = np.array([(1 << items % LANES) - 1], np.uint64).view(np.uint32)
        return Execution(program, state, context, entry + skipped, self, schedule, waves, descriptor.name)


def _all(grid: Grid) -> list[Grid]:
    return [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]


def _user_sgprs(
    descriptor: Descriptor, arguments: int, packet: int, kernarg: bytes, preload: bool
) -> tuple[list[int], int]:
    """SGPRs that the descriptor asks for, and the bytes of code that are skipped because of preloaded arguments.

    There is no queue: its pointer is null, and a kernel that follows it faults.

    Raises:
        LaunchInvalid: it asks for something that is not provided.
    """
    properties = descriptor.properties
    asked = {0: "private segment buffer", 5: "flat scratch"}
    for bit, what in asked.items():
        if properties >> bit & 1:
            raise LaunchInvalid(f"{descriptor.name} wants the {what} in SGPRs, which is not provided yet")
    scalars: list[int] = []
    if properties >> _WANTS_DISPATCH & 1:
        scalars += [packet & 0xFFFFFFFF, packet >> 32]
    if properties >> 2 & 1:
        scalars += [0, 0]  # queue
    if properties >> 3 & 1:
        scalars += [arguments & 0xFFFFFFFF, arguments >> 32]
    if properties >> 4 & 1:
        scalars += [0, 0]  # dispatch id
    if properties >> 6 & 1:
        scalars += [descriptor.private_segment_bytes]
    if not (preload and descriptor.preload_length):
        return scalars, 0
    first = 4 * descriptor.preload_offset
    wanted = kernarg[first : first + 4 * descriptor.preload_length].ljust(4 * descriptor.preload_length, b"\0")
    scalars += [int(word) for word in np.frombuffer(wanted, np.uint32)]
    return scalars, _PRELOAD_PROLOGUE
