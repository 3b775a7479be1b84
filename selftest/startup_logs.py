"""Logs of servers, made of lines that upstream's own format strings give."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from functools import cache

from waveproof.fixtures.servers.startup import Startup, read_startup
from waveproof.fixtures.servers.startup_required import Verdict, judged, requirement
from waveproof.fixtures.servers.startup_rules import Logged, load_rules
from waveproof.fixtures.servers.startup_sources import anchored, installed

DATE = "2026-01-31 10:00:00"

SETTINGS = (
    "{'model_path': '/models/m', 'attention_backend': 'aiter', 'decode_attention_backend': None, "
    "'prefill_attention_backend': None, 'sampling_backend': 'pytorch', 'moe_runner_backend': 'auto', "
    "'kv_cache_dtype': 'auto', 'quantization': 'fp8', 'quantization_param_path': None, 'device': 'cuda', "
    "'speculative_algorithm': 'EAGLE', 'speculative_use_rejection_sampling': True, 'disable_custom_all_reduce': False, "
    "'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 64}, 'prefill': {'backend': 'disabled'}}, "
    "'disable_cuda_graph': False, 'api_key': 'hush'}"
)


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process',
    "    scheduler.run()",
    '  File "sglang/srt/speculative/eagle_info_v2.py", line 323, in sample',
    "    target_probs = top_k_renorm_prob(target_probs, top_k)",
    "                   ^^^^^^^^^^^^^^^^^",
    "NameError: name 'top_k_renorm_prob' is not defined",
]

VLLM_SETTINGS = (
    "model='/m', speculative_config=SpeculativeConfig(method='eagle3', model='/d', num_spec_tokens=3), "
    "disable_custom_all_reduce=False, quantization=None, enforce_eager=False, kv_cache_dtype=fp8, device_config=cuda, "
    "compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}"
)

UNTUNED = "sglang-moe-untuned"


@cache
def _line(rule: str, place: int) -> tuple[Logged, str]:
    """A rule's text and a line for it: upstream's where the package is installed, else the text itself filled in."""
    found = load_rules().rule(rule)
    logged = found.logs[place]
    sources = installed(logged.package or found.engine) if logged.file else None
    call = anchored(sources, logged) if sources is not None else None
    if call is not None:
        return logged, call.line_of(Logged(logged.file, logged.text, fill={name: f"<{name}>" for name in logged.holes}))
    return logged, "".join(
        literal + hole
        for literal, hole in zip(logged.literals, [*(f"<{name}>" for name in logged.holes), ""], strict=True)
    )


def line(rule: str, place: int = 0, **filled: str) -> str:
    """A line that a rule knows, as upstream logs it.

    Args:
        rule: its id.
        place: which of its texts.
        filled: what to fill in, instead of what the rule says.
    """
    logged, template = _line(rule, place)
    for name in logged.holes:
        template = template.replace(f"<{name}>", filled.get(name) or logged.fill.get(name) or "x0", 1)
    # A rule's own text may be cut short within upstream's.
    return template + "..." if template.endswith(" ") else template


def sglang(text: str, rank: str = "") -> str:
    """With sglang's header."""
    return f"[{DATE}{' ' + rank if rank else ''}] {text}"


def aiter(text: str) -> str:
    """With AITER's header."""
    return f"[aiter] {text}"


def vllm(text: str, file: str = "core.py", process: str = "EngineCore pid=7", level: str = "INFO") -> str:
    """With vLLM's header."""
    return f"({process}) {level} 01-31 10:00:00 [{file}:1] {text}"


def start(settings: str = SETTINGS, more: Sequence[str] = (), ranks: int = 2) -> list[str]:
    """sglang on ROCm until just before it is ready; ``more`` comes between the ranks' lines."""
    lines = [
        "+ export SGLANG_USE_AITER=1",
        sglang(line("sglang-attention-default")),
        sglang(line("sglang-settings", settings=settings)),
        *[sglang(line("sglang-gpu-arch"), f"TP{rank}") for rank in range(ranks)],
        sglang(line("sglang-all-reduce-aiter"), "TP0"),
        *[
            aiter(line("aiter-module-loaded", module="module_moe", path="/aiter/jit/module_moe.so"))
            for _ in range(ranks)
        ],
    ]
    lines += more
    lines += [sglang(line("sglang-kv-allocated", dtype="torch.bfloat16"), f"TP{rank}") for rank in range(ranks)]
    lines += [sglang(line("sglang-graph-captured"), f"TP{rank}") for rank in range(ranks)]
    return lines


def served(
    settings: str = SETTINGS, before: Sequence[str] = (), after: Sequence[str] = (), ranks: int = 2
) -> list[str]:
    """sglang on ROCm, ready and serving; lines of its start and of its service are added."""
    requests = [
        sglang(line("sglang-decode-in-graph"), "TP0"),
        'INFO:     127.0.0.1:5000 - "POST /generate HTTP/1.1" 200 OK',
    ]
    return [*start(settings, before, ranks), sglang(line("sglang-ready")), *requests, *after, *requests]


def read(lines: Iterable[str] | bytes) -> Startup:
    """What is found in a log."""
    text = lines if isinstance(lines, bytes) else "".join(f"{one}\n" for one in lines).encode()
    return read_startup(io.BytesIO(text))


def broken(lines: Iterable[str] | bytes, *required: str) -> list[str]:
    """Rules that a log breaks: outcomes that are not kept, and rules of lines that are fallbacks or errors."""
    found = read(lines)
    outcomes = [one.rule for one in judged(found, map(requirement, required)) if one.verdict is not Verdict.KEPT]
    return [*outcomes, *(one.rule for one in (*found.of("error"), *found.of("fallback")))]


def broken_sglang(*required: str, before: Sequence[str] = (), after: Sequence[str] = (), ranks: int = 2) -> list[str]:
    """Rules that sglang's log breaks, with lines added to its start and to its service."""
    return broken(served(before=before, after=after, ranks=ranks), *required)


def untuned(rank: str = "", header: bool = True) -> str:
    """sglang's line for a MoE without a tuned configuration."""
    text = line(UNTUNED, file="/sglang/configs/E=256,N=256,device_name=AMD_Instinct_MI355X.json")
    return sglang(text, rank) if header else text


def changed_settings(old: str, new: str) -> str:
    """sglang's settings with one of them changed."""
    assert old in SETTINGS, f"{old} is a setting"
    return SETTINGS.replace(old, new)


def vllm_served(backend: str, *more: str) -> list[str]:
    """vLLM on ROCm with an attention backend, ready and serving; ``more`` comes between."""
    chosen = "vllm-attention-aiter" if backend.startswith("ROCM_AITER") else "vllm-attention-not-aiter"
    return [
        vllm(line("vllm-settings", settings=VLLM_SETTINGS)),
        vllm(line(chosen, backend=backend, list=f"['{backend}']"), "rocm.py", "Worker_TP0 pid=9"),
        *more,
        vllm(line("vllm-graph-captured", seconds="12"), "gpu_model_runner.py", "Worker_TP0 pid=9"),
        vllm(line("vllm-ready", address="http://0.0.0.0:8000"), "entry.py", "APIServer pid=1"),
        "INFO:     Application startup complete.",
    ]
