"""Logs of servers that fell back, and how that was hidden; and right ones in which the words of a fallback stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from waveproof.selftest.mutants.correct_startup import RIGHT
from waveproof.selftest.planted import Planted
from waveproof.selftest.startup_logs import (
    TRACEBACK,
    UNTUNED,
    aiter,
    broken,
    broken_sglang,
    changed_settings,
    line,
    served,
    sglang,
    start,
    untuned,
    vllm,
    vllm_served,
)

GEMM = "aiter-gemm-untuned"


def _json(text: str, rank: str = "TP1", name: str = "sglang.srt.layers.moe") -> str:
    return json.dumps({"asctime": "2026-01-31", "levelname": "WARNING", "name": name, "rank": rank, "message": text})


def _docker(text: str) -> str:
    return json.dumps({"log": text + "\n", "stream": "stderr", "time": "2026-01-31T10:00:00Z"})


def _bytes(lines: Sequence[str], end: str = "\n") -> bytes:
    return "".join(one + end for one in lines).encode()


FAULTS = (
    Planted(
        "default config", "the MoE has no tuned configuration", UNTUNED, lambda: broken_sglang(before=[untuned("TP0")])
    ),
    Planted(
        "colours",
        "the same, coloured in the middle of the header",
        UNTUNED,
        lambda: broken_sglang(
            before=[f"\x1b[33m[2026-01-31 10:00:00 \x1b[1mTP0]\x1b[0m \x1b[31m{untuned(header=False)}\x1b[0m"]
        ),
    ),
    Planted("rank 3 of 8", "one rank of eight alone", UNTUNED, lambda: broken_sglang(before=[untuned("TP3")], ranks=8)),
    Planted(
        "after 100,000 lines",
        "late, between a hundred thousand lines of service",
        UNTUNED,
        lambda: broken_sglang(after=[*[sglang("Prefill batch, #new-seq: 1", "TP0")] * 100_000, untuned("TP1")]),
    ),
    Planted(
        "progress bar",
        "written onto the line of a progress bar, after a carriage return",
        UNTUNED,
        lambda: broken_sglang(
            before=[
                f"Loading:  50%|#####     | 1/2\rLoading: 100%|##########| 2/2 {sglang(untuned(header=False), 'TP1')}"
            ]
        ),
    ),
    Planted(
        "ranks at once",
        "two ranks write at once, and no line ends between them",
        UNTUNED,
        lambda: broken_sglang(before=[sglang("Load weight begin.", "TP0") + untuned("TP1")]),
    ),
    Planted(
        "JSON logging", "one JSON object a line", UNTUNED, lambda: broken_sglang(before=[_json(untuned(header=False))])
    ),
    Planted(
        "Docker's JSON",
        "whole lines with their headers inside Docker's JSON",
        UNTUNED,
        lambda: broken([_docker(one) for one in served(before=[untuned("TP1")])]),
    ),
    Planted(
        "Kubernetes",
        "behind Kubernetes' own header",
        UNTUNED,
        lambda: broken([f"2026-01-31T10:00:00.1Z stderr F {one}" for one in served(before=[untuned()])]),
    ),
    Planted(
        "another format",
        "SGLANG_LOGGING_CONFIG_PATH with a format of its own",
        UNTUNED,
        lambda: broken_sglang(
            before=[f"2026-01-31 10:00:00,123 - sglang.srt.layers - WARNING - {untuned(header=False)}"]
        ),
    ),
    Planted(
        "CRLF and no UTF-8",
        "lines of another system, with bytes that are no text",
        UNTUNED,
        lambda: broken(b"\xff\xfe\x00\r\n" + _bytes(served(before=[untuned("TP1")]), "\r\n")),
    ),
    Planted(
        "untuned GEMM",
        "AITER's miss, at INFO and without a word of falling back",
        GEMM,
        lambda: broken_sglang(before=[aiter(line(GEMM, M="16", N="2688", K="7168"))]),
    ),
    Planted(
        "AITER_LOG_MORE",
        "the same with AITER's longer header, the message on the next line",
        GEMM,
        lambda: broken_sglang(
            before=[
                "[aiter INFO] 2026-01-31 10:00:00.123 - SpawnProcess-1:9 - /aiter/tuned_gemm.py:90 - get_config",
                line(GEMM, M="16", N="2688", K="7168"),
            ]
        ),
    ),
    Planted(
        "untuned fused MoE",
        "AITER's `using 2stage default`",
        "aiter-moe-untuned",
        lambda: broken_sglang(
            "no-fallback", before=[aiter(line("aiter-moe-untuned", stage="2stage", keys="(256, 64, 7168, 256)"))]
        ),
    ),
    Planted(
        "cut off",
        "the log ends before the server is ready",
        "ready",
        lambda: broken(start(), "attention=aiter", "graph"),
    ),
    Planted(
        "cut in a traceback",
        "the log ends in a traceback, its last line missing",
        "ready",
        lambda: broken([*start(), sglang("Scheduler hit an exception: " + TRACEBACK[0], "TP1"), *TRACEBACK[1:5]]),
    ),
    Planted("empty", "nothing in it", "recognised", lambda: broken([])),
    Planted(
        "another server's",
        "a log in which nothing is recognised",
        "recognised",
        lambda: broken(["main: server is listening on http://127.0.0.1:8080", "srv  update_slots: all slots are idle"]),
    ),
    Planted(
        "built at the first request",
        "AITER compiles after the server said that it is ready",
        "aiter-build",
        lambda: broken_sglang(after=[aiter(line("aiter-build", module="module_rmsnorm", path="/jit/build"))]),
    ),
    Planted(
        "contradicted later",
        "settings say aiter, one rank takes triton in the end",
        "attention=aiter",
        lambda: broken_sglang("attention=aiter", before=[sglang(line("sglang-attention-overridden"), "TP1")]),
    ),
    Planted(
        "prefill is generic",
        "decode runs in AITER, prefill in Triton",
        "attention=aiter",
        lambda: broken_sglang("attention=aiter", before=[sglang(line("sglang-attention-hybrid"), "TP0")]),
    ),
    Planted("never mentioned", "no line says which MoE runs", "moe=aiter", lambda: broken_sglang("moe=aiter")),
    Planted(
        "switched off",
        "the environment is echoed with SGLANG_USE_AITER=0",
        "aiter",
        lambda: broken(['declare -x SGLANG_USE_AITER="0"', *served()[1:]], "aiter"),
    ),
    Planted(
        "AITER missing",
        "AITER cannot be imported, and a bare print says so",
        "aiter",
        lambda: broken_sglang("aiter", before=[line("sglang-aiter-missing")]),
    ),
    Planted(
        "generic attention on ROCm",
        "nobody chose, and sglang took Triton on an MI355X",
        "sglang-attention-generic",
        lambda: broken([one.replace("Use aiter backend", "Use triton backend") for one in served()]),
    ),
    Planted(
        "scales of 1.0",
        "fp8 KV cache without scales",
        "kv-scales",
        lambda: broken_sglang("kv-scales", before=[sglang(line("sglang-kv-scales-defaulted"), "TP0")]),
    ),
    Planted(
        "scales in silence",
        "fp8_e5m2, which becomes e4m3 on HIP without a word on scales",
        "kv-scales",
        lambda: broken(
            [
                one.replace("torch.bfloat16", "torch.float8_e4m3fn")
                for one in served(changed_settings("'kv_cache_dtype': 'auto'", "'kv_cache_dtype': 'fp8_e5m2'"))
            ],
            "kv-scales",
        ),
    ),
    Planted(
        "graphs switched off",
        "graphs are off by a setting's side effect",
        "graph",
        lambda: broken_sglang("graph", after=[sglang(line("sglang-graph-off"), "TP0")]),
    ),
    Planted(
        "outside the graph",
        "graphs were captured, and nearly all steps run outside",
        "graph",
        lambda: broken_sglang("graph", after=[sglang(line("sglang-decode-outside-graph"), "TP0")] * 9),
    ),
    Planted(
        "no speculation",
        "the settings say that nothing is drafted",
        "speculative=EAGLE",
        lambda: broken(
            served(changed_settings("'speculative_algorithm': 'EAGLE'", "'speculative_algorithm': None")),
            "speculative=EAGLE",
        ),
    ),
    Planted(
        "greedy verification",
        "draft tokens are verified greedily",
        "verify=rejection sampling",
        lambda: broken_sglang("verify=rejection sampling", after=[sglang(line("sglang-verify-greedy"), "TP0")]),
    ),
    Planted(
        "NameError at a request",
        "the case study: the scheduler dies of a name without a binding",
        "no-error",
        lambda: broken_sglang(after=[sglang("Scheduler hit an exception: " + TRACEBACK[0], "TP1"), *TRACEBACK[1:]]),
    ),
    Planted(
        "two tracebacks at once",
        "a rank's traceback with lines of another between",
        "no-error",
        lambda: broken_sglang(
            after=[
                sglang("Scheduler hit an exception: " + TRACEBACK[0], "TP1"),
                *TRACEBACK[1:4],
                sglang("Decode batch, #running-req: 1", "TP0"),
                *TRACEBACK[4:],
            ]
        ),
    ),
    Planted(
        "watchdog",
        "a step takes longer than the watchdog allows",
        "sglang-watchdog",
        lambda: broken_sglang(after=[sglang(line("sglang-watchdog"), "TP0")]),
    ),
    Planted(
        "unknown words",
        "an upstream of tomorrow falls back in words of its own",
        "no-fallback",
        lambda: broken_sglang(
            "no-fallback", before=[sglang("KDA kernel v9 missing, falling back to eager attention.", "TP0")]
        ),
    ),
    Planted(
        "second start",
        "a good start, a stop, and a start that falls back",
        UNTUNED,
        lambda: broken([*served(), sglang(line("stopping", signum="15")), *served(before=[untuned("TP0")])]),
    ),
    Planted(
        "older settings",
        "0.5.9 writes its settings as a dataclass; attention is triton",
        "attention=aiter",
        lambda: broken(
            [
                sglang("server_args=ServerArgs(model_path='/m', attention_backend='triton', quantization=None)"),
                sglang(line("sglang-ready")),
            ],
            "attention=aiter",
        ),
    ),
    Planted(
        "vLLM without AITER",
        "the official image: Triton attention on ROCm (vllm#56945)",
        "vllm-attention-not-aiter",
        lambda: broken(vllm_served("TRITON_MLA"), "attention=aiter"),
    ),
    Planted(
        "vLLM, MoE refused",
        "AITER's MoE was asked for and refuses the model",
        "vllm-moe-aiter-refused",
        lambda: broken(
            vllm_served("ROCM_AITER_MLA", vllm(line("vllm-moe-aiter-refused"), "unquantized.py", level="WARNING"))
        ),
    ),
    Planted(
        "vLLM, scales of 1.0",
        "fp8 KV cache without scales",
        "kv-scales",
        lambda: broken(
            vllm_served("ROCM_AITER_MLA", vllm(line("vllm-kv-scales-defaulted"), "kv_cache.py", "Worker_TP3 pid=4")),
            "kv-scales",
        ),
    ),
    Planted(
        "GPU memory fault",
        "the runtime prints a fault of the GPU and the process is gone, with no line of Python's",
        "gpu-fault",
        lambda: broken_sglang(after=[line("gpu-fault"), "Aborted (core dumped)"]),
    ),
    Planted(
        "hardware exception",
        "the runtime's queue is aborted",
        "gpu-fault",
        lambda: broken_sglang(after=[line("gpu-fault", 2)]),
    ),
    Planted(
        "segmentation fault",
        "Python's fault handler speaks last",
        "process-died",
        lambda: broken_sglang(
            after=[line("process-died", what="Segmentation fault"), "", "Current thread (most recent"]
        ),
    ),
    Planted(
        "collective timed out",
        "one rank has gone, and torch's watchdog ends the others",
        "process-died",
        lambda: broken_sglang(after=[line("process-died", 1, rank="3", source="131 10:00:00.1 NCCL.cpp:6", again="3")]),
    ),
    Planted(
        "killed child",
        "the scheduler is killed, and the server says so in one line",
        "sglang-child-died",
        lambda: broken_sglang(after=[sglang(line("sglang-child-died", 1, signum="3", frame="None"))]),
    ),
    *(
        Planted(
            f"other words {number}",
            "a fallback without the word",
            "no-fallback",
            partial(broken_sglang, "no-fallback", before=[sglang(text, "TP0")]),
        )
        for number, text in enumerate(
            (
                "MLA for 12 heads is unavailable, using the slow reference path.",
                "AITER's MLA does not take num_heads=12; using triton attention instead",
                "Unsupported head count 12, reverting to torch",
                "aiter is not available, MoE will use another library",
            ),
            start=1,
        )
    ),
    Planted(
        "behind a long progress bar",
        "eight ranks' progress bars are one line of 200,000 bytes, and the message stands behind it",
        UNTUNED,
        lambda: broken_sglang(before=["\r".join(["Loading:  50%|#####     | 1/2"] * 7000) + f"\r{untuned('TP1')}"]),
    ),
)

PLANTED = (*FAULTS, *RIGHT)
