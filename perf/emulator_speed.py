"""Speed of the emulated device, in wave instructions per second of one core; and the launches that show it.

Workloads: AITER's shipped bf16 MLA decode kernel at one sequence of 64 tokens (one workgroup of four waves: what a
lone workgroup costs), and 256 workgroups of sglang's top-k renorm (what numpy gains from many waves at one place).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate import abi_aiter, loader
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.survey import NoCodeObjects, locate

DECODE_OBJECT = "mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co"
_HEADS, _DIM, _VALUE_DIM = 16, 576, 512
_RENORM_SHAPE = (8, 32768)
"""Rows and vocabulary for which both kernels of the renorm have 256 workgroups."""


@dataclass(frozen=True)
class Speed:
    """A kernel's speed over several warm launches."""

    kernel: str
    arch: str
    workgroups: int
    wave_instructions: int
    seconds: float
    """Median of a launch, in processor time of the thread: what other processes take does not count. So numpy must not
    have threads of its own (``OMP_NUM_THREADS=1`` before it is imported)."""
    least_rate: float | None = None
    """Wave instructions per second that are asked for; None if nothing is."""
    most_seconds: float | None = None

    @property
    def rate(self) -> float:
        """Wave instructions per second."""
        return self.wave_instructions / self.seconds

    @property
    def met(self) -> bool | None:
        """Whether the targets are met; None without one."""
        if self.least_rate is None and self.most_seconds is None:
            return None
        slow = self.least_rate is not None and self.rate < self.least_rate
        return not slow and (self.most_seconds is None or self.seconds <= self.most_seconds)


def decode_launch(machine: Machine, tokens: int = 64) -> Callable[[], LaunchStats]:
    """A launch of AITER's bf16 MLA decode kernel: one sequence, one split, random data; call it as often as wanted.

    Raises:
        NoCodeObjects: amd-aiter is not installed, or does not ship the kernel.
    """
    path = _decode_object(machine.arch)
    code = loader.load(path.read_bytes(), path.name)
    rng = np.random.default_rng(1)
    queries, pool = _bfloat16(rng, (1, _HEADS, _DIM)), _bfloat16(rng, (tokens, 1, 1, _DIM))
    pages = rng.permutation(tokens).astype(np.int32)
    partial = np.zeros((1, 1, _HEADS, _VALUE_DIM), np.float32)
    buffers: dict[str, npt.NDArray[Any]] = {
        "ptr_R": partial,
        "ptr_LSE": np.zeros((1, 1, _HEADS), np.float32),
        "ptr_Q": queries,
        "ptr_KV": pool,
        "ptr_LTP": np.array([0, tokens], np.int32),
        "ptr_LTD": pages,
        "ptr_LTL": np.ones(1, np.int32),
        "ptr_QTP": np.array([0, 1], np.int32),
        "ptr_STP": np.array([0, 1], np.int32),
        "ptr_RP": np.zeros((1, _HEADS, _VALUE_DIM), np.uint16),
    }
    addresses: dict[str, int | float] = {
        name: machine.memory.add(name, array, uninitialised=name in ("ptr_R", "ptr_LSE", "ptr_RP"))
        for name, array in buffers.items()
    }
    scalars: dict[str, int | float] = {
        "scalar": 192**-0.5,
        "s_MQA": _HEADS,
        "s_kv_split": 1,
        "s_Q_Bs": _HEADS * _DIM * 2,
        "s_Bs": _DIM * 2,
        "s_log2_plen": 0,
        "out_16_nosplit": 1,
    }
    kernarg = abi_aiter.pack({**addresses, **scalars})
    return lambda: machine.launch(code, (1, 1, 1), (abi_aiter.WORK_ITEMS, 1, 1), kernarg)


def _decode_object(arch: str) -> Path:
    for path in locate("aiter_meta").files:
        if path.name == DECODE_OBJECT and arch in path.parts:
            return path
    raise NoCodeObjects(f"the installed aiter_meta has no {DECODE_OBJECT} for {arch}")


def _bfloat16(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    words = rng.standard_normal(shape, np.float32).view(np.uint32)
    return (words >> np.uint32(16)).astype(np.uint16)


def measure_decode(arch: str, runs: int) -> list[Speed]:
    """Decode at 64 tokens on a fresh machine: at least 150,000 wave instructions per second and under 50 ms."""
    launch = decode_launch(Machine(arch))
    launch()
    statistics_of = [launch() for _ in range(runs)]
    seconds = statistics.median(one.cpu_seconds for one in statistics_of)
    return [Speed("AITER MLA decode, 64 tokens", arch, 1, statistics_of[0].wave_instructions, seconds, 150_000, 0.050)]


def renorm_call(arch: str) -> Callable[[], None]:
    """A call of sglang's top-k renorm on the emulated device of this process, which it prepares."""
    from waveproof.kernels.runtimes.emulate import triton_driver

    triton_driver.prepare(arch)
    import torch
    from sglang.kernels.ops.sampling import renorm_triton

    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(_RENORM_SHAPE, generator=generator)
    probabilities = triton_driver.on_device(torch.softmax(3 * scores, -1))
    return lambda: renorm_triton.top_k_renorm_probs_triton(probabilities, 50)


def measure_renorm(arch: str, runs: int) -> list[Speed]:
    """Both kernels of the renorm at 256 workgroups: at least 2,000,000 wave instructions per second in the larger."""
    from waveproof.kernels.runtimes.emulate import triton_driver

    call = renorm_call(arch)
    call()
    triton_driver.clear_launches()
    for _ in range(runs):
        call()
    found = []
    for kernel in dict.fromkeys(one.kernel for one in triton_driver.launches()):
        launches = [one for one in triton_driver.launches() if one.kernel == kernel]
        seconds = statistics.median(one.cpu_seconds for one in launches)
        target = 2_000_000 if kernel == "_mask_and_partial_sum_kernel" else None
        one = launches[0]
        found.append(Speed(f"sglang {kernel}", arch, one.workgroups, one.wave_instructions, seconds, target))
    return found
