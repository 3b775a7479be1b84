"""AITER's MLA from its Python entry points down to the shipped machine code, on the emulated device.

``aiter.mla.mla_decode_fwd`` and ``mla_prefill_fwd`` run unmodified: their assembly kernels through AITER's own C++
launcher, their Triton merge of splits compiled for the architecture, both on one emulated device. A process has one
architecture, and it is taken for a process on a GPU from then on (see :mod:`.triton_driver`).

:func:`offer` is for processes that run any host code, :class:`EmulatedMla` for looking at what the first stage leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from waveproof.kernels.runtimes.emulate import aiter_host, aiter_launch, aiter_package, triton_driver
from waveproof.kernels.runtimes.emulate.aiter_package import emulated_mla
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch, Launcher
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.registers import LANES

VALUE_SIZE = 512


def offer(arch: str) -> None:
    """Let ``import aiter`` find AITER on the emulated device of this process, after ``triton_driver.prepare(arch)``.

    Assembly kernels run on the same machine as Triton's and are among ``triton_driver.launches()``, by the name of
    their code object.
    """

    def record(launch: HipLaunch, statistics: LaunchStats) -> None:
        triton_driver.record(_name(launch), launch.grid, math.prod(launch.block) // LANES, statistics)

    aiter_package.offer(arch, aiter_launch.launcher(triton_driver.machine(), record))


def _name(launch: HipLaunch) -> str:
    return launch.code_object.name if launch.code_object else launch.kernel


@dataclass(frozen=True)
class MlaCall:
    """A batch of requests; all tensors on the CPU."""

    q: torch.Tensor
    """bf16[tokens, heads, 576]."""
    kv: torch.Tensor
    """bf16[pages, page size, 1, 576]."""
    qo_indptr: torch.Tensor
    """int32[requests + 1]: where the queries of a request begin."""
    kv_indptr: torch.Tensor
    """int32[requests + 1]: where its pages begin in ``kv_indices``."""
    kv_indices: torch.Tensor
    """int32[pages used]."""
    last_page_lens: torch.Tensor
    """int32[requests]: tokens in the last page."""
    scale: float

    @property
    def longest_query(self) -> int:
        """In tokens."""
        return int(self.qo_indptr.diff().max())


@dataclass(frozen=True)
class KernelRun:
    """One finished launch of machine code."""

    kernel: str
    """Name of the shipped code object, or of the Triton kernel."""
    wave_instructions: int
    seconds: float


@dataclass(frozen=True)
class MlaResult:
    """What a call gave."""

    output: torch.Tensor
    """bf16[tokens, heads, 512]."""
    partial: torch.Tensor
    """[tokens, splits, heads, 512] of the first stage; NaN where it wrote nothing."""
    lse: torch.Tensor
    """float32[tokens, splits, heads] of the first stage; NaN where it wrote nothing."""
    runs: tuple[KernelRun, ...]


def stage_arguments(call: MlaCall, splits: int = 1) -> dict[str, Any]:
    """Named arguments of the C++ entry point ``mla_decode_stage1_asm_fwd`` for a call; outputs hold NaN."""
    tokens, heads = call.q.shape[:2]
    requests = call.qo_indptr.numel() - 1
    return {
        "Q": call.q,
        "KV": call.kv,
        "qo_indptr": call.qo_indptr,
        "kv_indptr": call.kv_indptr,
        "kv_page_indices": call.kv_indices,
        "kv_last_page_lens": call.last_page_lens,
        "num_kv_splits_indptr": torch.arange(requests + 1, dtype=torch.int32) * splits,
        "work_meta_data": None,
        "work_indptr": None,
        "work_info_set": None,
        "max_seqlen_q": call.longest_query,
        "softmax_scale": call.scale,
        "splitData": torch.full((tokens, splits, heads, VALUE_SIZE), math.nan),
        "splitLse": torch.full((tokens, splits, heads, 1), math.nan),
        "output": torch.full((tokens, heads, VALUE_SIZE), math.nan, dtype=torch.bfloat16),
        "q_scale": None,
        "kv_scale": None,
    }


def decode_stage_one(
    machine: Machine,
    call: MlaCall,
    splits: int = 1,
    around: Callable[[Launcher], Launcher] = lambda launcher: launcher,
    outputs: dict[str, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The assembly part of a decode alone; needs no process of its own.

    Args:
        machine: of the architecture.
        call: the batch.
        splits: of the KV.
        around: given the launcher, returns the one that is used.
        outputs: in place of the entry point's, by parameter name, where ``around`` exchanges them.

    Returns:
        ``splitData`` and ``splitLse`` as the kernel left them.

    Raises:
        AiterRefused: the host refused.
        Fault: see :meth:`Machine.launch`.
    """
    arguments = stage_arguments(call, splits)
    aiter_host.launch(machine.arch, aiter_host.DECODE, around(aiter_launch.launcher(machine)), **arguments)
    arguments |= outputs or {}
    return arguments["splitData"], arguments["splitLse"]


class EmulatedMla:
    """AITER's ``mla_decode_fwd`` and ``mla_prefill_fwd`` on an emulated device.

    Raises:
        PretenceUnavailable, AiterPackageUnavailable: this process cannot be made one with such a device.
    """

    def __init__(self, arch: str) -> None:
        triton_driver.prepare(arch)
        self.arch = arch
        self.machine = Machine(arch)

    def decode(self, call: MlaCall, splits: int = 1) -> MlaResult:
        """``mla_decode_fwd``: first stage and merge.

        Raises:
            AssertionError: AITER's Python refuses the number of heads.
            AiterRefused: its C++ does.
        """
        return self._run("mla_decode_fwd", call, num_kv_splits=splits)

    def prefill(self, call: MlaCall) -> MlaResult:
        """``mla_prefill_fwd``: causal, one split, no merge.

        Raises:
            AiterRefused: the host refused.
        """
        return self._run("mla_prefill_fwd", call)

    def _run(self, function: str, call: MlaCall, **named: Any) -> MlaResult:
        runs: list[KernelRun] = []
        seen: list[HipLaunch] = []

        def record(launch: HipLaunch, statistics: LaunchStats) -> None:
            runs.append(KernelRun(_name(launch), statistics.wave_instructions, statistics.seconds))
            seen.append(launch)

        run = aiter_launch.launcher(self.machine, record)

        def poisoned(launch: HipLaunch) -> None:
            # AITER allocates these with torch.empty: what is left of the poison was not written.
            for output in ("splitData", "splitLse"):
                triton_driver.plain(launch.buffers[output]).fill_(math.nan)
            run(launch)

        output = torch.full((*call.q.shape[:2], VALUE_SIZE), math.nan, dtype=torch.bfloat16)
        triton_driver.clear_launches()
        with emulated_mla(self.arch, poisoned) as mla:
            getattr(mla, function)(
                triton_driver.on_device(call.q),
                triton_driver.on_device(call.kv),
                triton_driver.on_device(output),
                call.qo_indptr,
                call.kv_indptr,
                call.kv_indices,
                call.last_page_lens,
                call.longest_query,
                sm_scale=call.scale,
                **named,
            )
        triton_driver.settle()
        runs += [KernelRun(one.kernel, one.wave_instructions, one.seconds) for one in triton_driver.launches()]
        (stage,) = seen
        partial, lse = (triton_driver.plain(stage.buffers[name]).clone() for name in ("splitData", "splitLse"))
        return MlaResult(output, partial, lse[..., 0], tuple(runs))
