"""Sound logs in which the words of a fallback stand all the same: none of them may be rejected."""

from __future__ import annotations

import json

from waveproof.selftest.planted import Planted
from waveproof.selftest.startup_logs import (
    TRACEBACK,
    aiter,
    broken,
    broken_sglang,
    changed_settings,
    line,
    served,
    sglang,
    untuned,
    vllm,
    vllm_served,
)

ASKED = "Receive: obj=GenerateReqInput(text='What does [2026-01-31 10:00:00 TP0] {} mean?')"

RIGHT = (
    Planted(
        "sound",
        "every requirement at once",
        "",
        lambda: broken_sglang(
            "aiter",
            "no-fallback",
            "graph",
            "kv-scales",
            "attention=aiter",
            "speculative=EAGLE",
            "all-reduce=aiter",
            "platform=rocm",
            "arch=gfx950",
            "quantization=fp8",
            "kv-dtype=bf16",
        ),
    ),
    Planted(
        "in a prompt",
        "a user asks about the line, header and all",
        "",
        lambda: broken_sglang("no-fallback", after=[sglang(ASKED.format(untuned(header=False)))]),
    ),
    Planted(
        "in a request's body",
        "a JSON body with the line as its text, and stream",
        "",
        lambda: broken_sglang(
            "no-fallback", after=[json.dumps({"text": untuned("TP0"), "stream": True, "timeout": 3})]
        ),
    ),
    Planted(
        "in an answer",
        "printed text that begins like a rule's",
        "",
        lambda: broken_sglang("no-fallback", after=[untuned(header=False)]),
    ),
    Planted(
        "in a file's name",
        "a model in a folder called falling-back",
        "",
        lambda: broken_sglang(
            "no-fallback", before=[sglang("Loading /models/falling-back/fallback_to_cpu.safetensors", "TP0")]
        ),
    ),
    Planted(
        "in quotation marks",
        "a model that is served under the name 'falling back to earth'",
        "",
        lambda: broken_sglang(
            "no-fallback", before=[sglang("served_model_name='falling back to earth', which isn't a path", "TP0")]
        ),
    ),
    Planted(
        "in a URL",
        "an access line with fallback in its path",
        "",
        lambda: broken_sglang(
            "no-fallback", after=['INFO:     127.0.0.1:1 - "GET /v1/falling back to HTTP/1.1" 404 Not Found']
        ),
    ),
    Planted(
        "fallback is disabled",
        "a line that says that nothing falls back",
        "",
        lambda: broken_sglang(
            "no-fallback",
            before=[
                sglang("Fallback to the CPU sampler is disabled.", "TP0"),
                sglang("Running without any fallback to torch.", "TP0"),
            ],
        ),
    ),
    Planted(
        "tokenizer",
        "a tokenizer's warning is no kernel's",
        "",
        lambda: broken_sglang(
            "no-fallback",
            before=[
                sglang(line("sglang-no-kernel")),
                "/transformers/tokenizer.py:433: UserWarning: " + line("sglang-no-kernel", 1),
            ],
        ),
    ),
    Planted(
        "Triton by flag on CUDA",
        "--attention-backend triton on an NVIDIA GPU",
        "",
        lambda: broken(
            [
                sglang(line("sglang-settings", settings=changed_settings("'aiter'", "'triton'"))),
                sglang(line("sglang-graph-captured"), "TP0"),
                sglang(line("sglang-ready")),
            ],
            "attention=triton",
            "no-fallback",
            "graph",
        ),
    ),
    Planted(
        "Triton by default on CUDA",
        "the default of a GPU that is none of AMD's",
        "",
        lambda: broken(
            [
                sglang(line("sglang-attention-generic", backend="triton")),
                sglang(line("sglang-settings", settings=changed_settings("'aiter'", "'triton'"))),
                sglang(line("sglang-ready")),
            ],
            "attention=triton",
            "no-fallback",
        ),
    ),
    Planted(
        "decided in the end",
        "an early default of triton, then settings of aiter",
        "",
        lambda: broken([sglang(line("sglang-attention-for-model", backend="triton")), *served()], "attention=aiter"),
    ),
    Planted(
        "built before ready",
        "AITER compiles during the start",
        "",
        lambda: broken_sglang(
            "no-fallback", before=[aiter(line("aiter-build", module="m")), aiter(line("aiter-built", module="m"))]
        ),
    ),
    Planted(
        "first start fell back",
        "stopped, mended and started again in the same log",
        "",
        lambda: broken(
            [*served(before=[untuned("TP0")]), sglang(line("stopping", signum="15")), *served()], "no-fallback"
        ),
    ),
    Planted(
        "raised while stopping",
        "vLLM's client raises when its engine has gone at the end",
        "",
        lambda: broken(
            [
                *vllm_served("ROCM_AITER_MLA"),
                vllm(line("stopping", 2), "launcher.py", "APIServer pid=1"),
                *[vllm(one, "async_llm.py", "APIServer pid=1", "ERROR") for one in TRACEBACK],
            ],
            "no-fallback",
        ),
    ),
    Planted(
        "vLLM with AITER",
        "AITER's attention, graphs, EAGLE",
        "",
        lambda: broken(
            vllm_served("ROCM_AITER_MLA"),
            "aiter",
            "attention=aiter",
            "graph",
            "speculative=eagle3",
            "kv-dtype=fp8",
            "no-fallback",
            "version=0.32.0",
        ),
    ),
)
