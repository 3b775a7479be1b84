"""Traces as a profiler writes them, put together here in Kineto's schema: none of them was recorded on a GPU.

The schema is torch 2.13's on a CPU, which ``selftest/test_launched.py`` records anew, with the device's events as
libkineto documents them (``output_json.cpp``: ``handleActivity``, ``args.correlation``, ``External id``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from waveproof.fixtures.launched.trace import Trace, trace_of

DECODE = "_ZN5aiter39mla_dec_stage1_bf16_a16w16_subQ16_mqa16E"
PREFILL = "_ZN5aiter39mla_pfl_bf16_a16w16_causal_subQ16_mqa16E"
REDUCE = "_fwd_kernel_stage2_asm"
GENERIC = "_fwd_grouped_kernel_stage1"
"""sglang's Triton decode, which a decode falls back to."""
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"
SORT = "void rocprim::detail::onesweep_iteration_kernel<rocprim::detail::wrapped_radix_sort_onesweep_config>(float*)"
MASK, NORMALIZE = "_mask_and_partial_sum_kernel", "_normalize_kernel"
GEMM = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x128_MI16x16x1"

_HOST, _DEVICE = 4242, 0


@dataclass
class Recording:
    """A trace in the making; times in microseconds."""

    device: str = "AMD Instinct MI355X"
    events: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    now: float = 1_000_000.0
    _number: int = 100

    def span(
        self,
        name: str,
        kernels: Sequence[str],
        micros: float = 20.0,
        host: Sequence[str] = (),
        streams: int = 1,
        recorded: bool = True,
        late: float = 0.0,
    ) -> Recording:
        """A ``record_function`` range that launches kernels, one after another.

        Args:
            name: of the range; none is marked where it is empty.
            kernels: names; one that begins with ``Mem`` is a copy or a fill.
            micros: each takes.
            host: further calls of the runtime within the range, before the launches.
            streams: over which the kernels go by turns, at the same time.
            recorded: whether the device's events are there.
            late: by how much the device runs behind the host; the range does not wait for it then.
        """
        begun = self.now
        for call in host:
            self._event("cuda_runtime", call, self.now, 3.0, _HOST, _HOST, correlation=self._next())
            self.now += 4.0
        device = self.now + 5.0 + late
        for at, kernel in enumerate(kernels):
            correlation = self._next()
            copies = kernel.startswith("Mem")
            call = "hipMemcpyAsync" if copies else "hipModuleLaunchKernel"
            self._event("cuda_runtime", call, self.now, 2.0, _HOST, _HOST, correlation=correlation)
            kind = "kernel" if not copies else "gpu_memset" if kernel.startswith("Memset") else "gpu_memcpy"
            if recorded:
                start = device + (at // streams) * (micros + 1.0)
                placed = {"device": _DEVICE, "stream": at % streams, "correlation": correlation}
                self._event(kind, kernel, start, micros, _DEVICE, at % streams, **placed)
            self.now += 3.0
        if not late:  # the range waits for its kernels
            self.now = max(self.now, device + len(kernels) * (micros + 1.0)) + 5.0
        if name:
            number = self._next()
            labels = {"External id": number, "Record function id": 0}
            self._event("user_annotation", f"waveproof:{name}", begun, self.now - begun, _HOST, _HOST, **labels)
        self.now += 10.0
        return self

    def document(self) -> dict[str, Any]:
        """As it is written to a file."""
        properties = [{"id": 0, "name": self.device, "totalGlobalMem": 309220868096, "warpSize": 64}]
        head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": properties if self.device else []}
        return {**head, "displayTimeUnit": "ms", **self.extra, "traceEvents": self.events, "traceName": "trace.json"}

    def text(self) -> str:
        """JSON."""
        return json.dumps(self.document())

    def trace(self) -> Trace:
        """As it is read."""
        return trace_of(json.loads(self.text()), "trace.json")

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _event(self, kind: str, name: str, start: float, micros: float, pid: int, tid: int, **arguments: Any) -> None:
        event = {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": micros}
        self.events.append({**event, "args": arguments})


ROCPROF = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",\
"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count"
"KERNEL_DISPATCH","Agent 4",1,0,70,1,33,"__amd_rocclr_fillBufferAligned",119662,172352210005122,172352210008687,0,0,12
"KERNEL_DISPATCH","Agent 4",1,0,70,2,16,"{kernel}",119670,172352210061004,172352210081004,65536,0,256
"KERNEL_DISPATCH","Agent 4",1,0,70,3,17,"_fwd_kernel_stage2_asm",119671,172352210082004,172352210085004,0,0,32
"""
"""``rocprofv3 --kernel-trace`` (ROCprofiler-SDK, "Using rocprofv3"), with a kernel to be named."""
