"""``waveproof startup``: logs with planted fallbacks, the rules on upstream's own lines, servers asked, the command."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from waveproof.fixtures.hip_branches import Sources
from waveproof.fixtures.servers import startup_rules
from waveproof.fixtures.servers.log_lines import messages
from waveproof.fixtures.servers.startup_info import NoServer, read_info
from waveproof.fixtures.servers.startup_required import (
    UnknownRequirement,
    Verdict,
    _meets,
    judged,
    overall,
    requirement,
)
from waveproof.fixtures.servers.startup_rules import BadRules, Logged, Rule, load_rules, settings
from waveproof.fixtures.servers.startup_sources import (
    Reviewed,
    _tree,
    audit,
    installed,
    judge_anchor,
    judge_audit,
    log_calls,
)
from waveproof.reports.cli import app
from waveproof.selftest.planted import Planted, planted
from waveproof.selftest.startup_logs import SETTINGS, aiter, broken, line, read, served, sglang, vllm

RULE = load_rules().rule("sglang-ready")
HEADERS: dict[str, Callable[[str], str]] = {"sglang": sglang, "aiter": aiter, "vllm": vllm, "any": str}


@pytest.mark.parametrize("case", planted("startup"), ids=lambda case: case.name)
def test_planted(case: Planted) -> None:
    found = list(case.broken())
    assert case.due in found if case.due else not found


@pytest.mark.parametrize("rule", load_rules().rules, ids=lambda rule: rule.id)
def test_upstreams_own_lines_are_known_by_their_rule_and_from_their_beginning_on(rule: Rule) -> None:
    for place, logged in enumerate(rule.logs):
        headed = HEADERS[logged.package or rule.engine]
        text = line(rule.id, place)
        assert [(one.rule, one.count) for one in read([headed(text)]).findings] == [(rule.id, 1)], text
        quoted = read([headed("He said: " + text), "> " + text])
        # A sentence that upstream puts in front may be any.
        assert logged.text.startswith("{reason}") or rule.id not in {one.rule for one in quoted.findings}, text


def test_a_reworded_upstream_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "a.py"
    file.parent.mkdir()
    gone = judge_anchor(Sources(tmp_path), RULE, Logged("b.py", "Disable"))
    assert not gone.holds
    assert gone.message.startswith("rule sglang-ready of rules/sglang.toml: sglang/b.py is gone")
    logged = Logged("a.py", "Disable the graph because {why}; using {other}.")
    for text, found in (
        ('logger.warning("Disable the graph because %s; using %s.", a, b)', True),
        ('logger.warning(f"Disable the graph because {a.b}; " f"using {b!r}. More.")', True),
        ('rank0_log("Disable the graph because {}; using {}.".format(a, b))', True),
        ('log_info_on_rank0(logger, "Disable the graph because %s; using %s." % (a, b))', True),
        ('logger.warning("Disable the graph because of %s; using %s.", a, b)', False),
        ('logger.warning("Disable the graph because %s; taking %s.", a, b)', False),
        ('x = "Disable the graph because %s; using %s."', False),
    ):
        file.write_text(text + "\n")
        assert judge_anchor(Sources(tmp_path), RULE, logged).holds == found, text
        log_calls.cache_clear()
        _tree.cache_clear()


def test_a_new_fallback_of_upstream_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "srt" / "speculative" / "new_worker.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        'def f():\n    logger.warning("New kernel is missing, "\n        "falling back to torch: %s", e)\n'
        '    logger.info("ok")\n'
    )
    found = audit(Sources(tmp_path), load_rules().rules, Reviewed({}))
    assert [(one.file, one.line, one.text) for one in found.new] == [
        ("srt/speculative/new_worker.py", 2, "New kernel is missing, falling back to torch: {}")
    ]
    judgement = judge_audit("sglang", found)
    assert (judgement.holds, judgement.figure) == (False, 1)
    assert f'"sglang/srt/speculative/new_worker.py" = ["{found.new[0].fingerprint}"]' in judgement.message
    read_by_hand = Reviewed({("sglang/srt/speculative/new_worker.py", found.new[0].fingerprint): "CUDA alone"})
    assert not audit(Sources(tmp_path), load_rules().rules, read_by_hand).new


def test_misses_are_added_up_by_shape_and_once_for_two_handlers() -> None:
    lines = []
    for place in range(37):
        text = line("aiter-gemm-untuned", M=f"{place % 12 + 1}", N="2688", K="7168")
        # AITER's logger writes each line itself, and hands it on to the root logger, which is sglang's.
        lines += [aiter(text), sglang(text, f"TP{place % 4}")]
    (found,) = read(lines).findings
    assert (found.count, len(found.distinct), found.line) == (37, 12, 1)
    assert found.distinct["M=1 N=2688 K=7168"] == 4
    assert found.speakers == {"TP0", "TP1", "TP2", "TP3"}


def test_build_seconds_are_added_up() -> None:
    text = [line("aiter-built", module=f"module_{place}", seconds=f"{place}.5") for place in (100, 200)]
    found = read(served(before=[one for built in text for one in (aiter(built), sglang(built, "TP0"))]))
    assert {one.rule: one.seconds for one in found.findings}["aiter-built"] == pytest.approx(301.0)


def test_settings_are_quoted_alone() -> None:
    found = read(served())
    assert "hush" in SETTINGS
    assert "hush" not in repr(found)
    assert [one.text for one in found.about("speculative")] == ["speculative_algorithm=EAGLE"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'x', 'attention_backend': 'aiter'}", "aiter"),
        ("ServerArgs(decode_attention_backend='y', attention_backend='aiter', b=1)", "aiter"),
        ('{"attention_backend": "aiter"}', "aiter"),
        ("attention_backend=None)", "None"),
        ("attention_backend=<Backend.AITER: 3>, x", "Backend.AITER: 3"),
        ("xattention_backend='no'", None),
    ],
)
def test_settings(text: str, value: str | None) -> None:
    assert settings(text, ["attention_backend"]).get("attention_backend") == value


def test_a_line_of_any_length_is_read_in_bounded_memory() -> None:
    long = b"x" * (1 << 22) + b"\n" + sglang("after").encode() + b"\n"
    first, second = messages(io.BytesIO(long))
    assert (len(first.text), first.line, second.text, second.line) == (1 << 16, 1, "after", 2)


def test_a_line_that_nearly_has_a_header_takes_no_time() -> None:
    started = time.monotonic()
    assert len(list(messages(io.BytesIO((b"x" * 65_000 + b"Warning: y\n") * 3)))) == 3
    assert time.monotonic() - started < 2, "time grows with the square of a line"


def test_rules_that_contradict_themselves_are_refused() -> None:
    table = {"id": "x", "engine": "sglang", "severity": "info", "means": "", "logs": [{"file": "", "text": "a {b}"}]}
    for wrong, says in (({"states": {"nothing": "1"}}, "topics are"), ({"key": "{c}"}, "no text fills in")):
        with pytest.raises(BadRules, match=says):
            startup_rules._rule(table | wrong)


def test_requirements() -> None:
    for text in ("foo", "attention=", "no-fallback=1", "foo=bar"):
        with pytest.raises(UnknownRequirement, match=rf"{re.escape(text)}.*aiter, no-fallback.*attention="):
            requirement(text)
    assert str(requirement("verify=rejection sampling")) == "verify=rejection sampling"


@pytest.mark.parametrize(
    ("value", "wanted", "meets"),
    [
        ("ROCM_AITER_MLA", "aiter", True), ("TRITON_MLA", "aiter", False), ("torch.float8_e4m3fnuz", "fp8", True),
        ("fp8_e4m3", "fp8", True), ("torch.bfloat16", "bf16", True), ("EAGLE3", "EAGLE", False),
        ("EAGLE", "eagle", True), ("none", "", False), ("off (0)", "on", False),
        ("['AITER_CUSTOM', 'PYNCCL']", "aiter", True),
    ],
)  # fmt: skip
def test_values(value: str, wanted: str, meets: bool) -> None:
    assert _meets(value, wanted) == meets


def test_a_message_cites_the_line() -> None:
    text = sglang(line("sglang-attention-overridden"), "TP1")
    lines = served(before=[text])
    outcome = judged(read(lines), [requirement("attention=aiter")])[-1]
    assert outcome.verdict is Verdict.BROKEN
    assert f"line {lines.index(text) + 1} (TP1): FlashAttention3 only supports" in outcome.message


def test_a_real_start_of_vllm() -> None:
    """vLLM 0.32.0 on a CPU with n-gram speculation, as it logged it; paths and most lines left out."""
    header = "(APIServer pid=1) WARNING 11-30 09:05:30"
    core = "(EngineCore pid=2) INFO 11-30 09:05:41 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    found = read(
        [
            "api_server.py:24: DeprecationWarning: `vllm.entrypoints.openai.api_server` is deprecated",
            "(APIServer pid=1) INFO 11-30 09:05:30 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
            f"{header} [vllm.py:1605] Async scheduling not supported with ngram-based speculative decoding and will be "
            "disabled.",
            f"{header} [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. "
            "This is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none and "
            "--kernel_config.enable_jit_warmup=False",
            f"{header} [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.",
            f"{core}model='/m', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=2), "
            "tokenizer='/m', dtype=torch.bfloat16, disable_custom_all_reduce=True, quantization=None, "
            "enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, compilation_config={'mode': "
            "<CompilationMode.NONE: 0>, 'cudagraph_mode': <CUDAGraphMode.NONE: 0>}",
            "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]",
            "",
            "(APIServer pid=1) INFO 11-30 09:06:20 [entry.py:140] Starting vLLM server on http://127.0.0.1:40941",
            "INFO:     Application startup complete.",
            'INFO:     127.0.0.1:59146 - "GET /health HTTP/1.1" 200 OK',
        ]
    )
    told = {one.topic: one.value for one in found.statements}
    assert told == {
        "version": "0.32.0", "speculative": "ngram", "graph": "off", "all-reduce": "off", "quantization": "none",
        "kv-dtype": "auto", "platform": "cpu",
    }  # fmt: skip
    assert {one.rule for one in found.of("fallback")} == {"vllm-speculation-slower", "vllm-runner-without-triton"}
    assert found.ready is not None
    assert (found.engine, found.ready.line, found.unknown.count) == ("vllm", 9, 0)


class _Answers(BaseHTTPRequestHandler):
    answers: ClassVar[Mapping[str, object]] = {}

    def do_GET(self) -> None:
        found = self.answers.get(self.path)
        body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(200 if found is not None else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Silent."""


@contextmanager
def _server(answers: dict[str, object]) -> Iterator[str]:
    handler = type("Handler", (_Answers,), {"answers": answers})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def _models(owner: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", "owned_by": owner}]}


SGLANG_INFO = {
    "attention_backend": "aiter", "speculative_algorithm": "EAGLE", "kv_cache_dtype": "fp8_e4m3", "version": "0.5.23",
    "cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}}, "api_key": "hush",
    "launch_command": "sglang serve --attention-backend triton",
}  # fmt: skip


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_is_asked(path: str) -> None:
    with _server({"/v1/models": _models("sglang"), path: SGLANG_INFO}) as url:
        found = read_info(url)
    told = {one.topic: one.value for one in found.statements}
    assert (found.engine, told["attention"], told["speculative"], told["version"]) == (
        "sglang",
        "aiter",
        "EAGLE",
        "0.5.23",
    )
    assert told["graph-prefill"] == "off"
    assert "hush" not in repr(found)
    verdicts = {
        one.rule: one.verdict
        for one in judged(found, map(requirement, ("attention=aiter", "no-fallback", "moe=aiter")))
    }
    assert verdicts["attention=aiter"] is Verdict.KEPT
    assert verdicts["no-fallback"] is Verdict.INCONCLUSIVE
    assert verdicts["moe=aiter"] is Verdict.BROKEN


METRICS = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{cache_dtype="fp8_e4m3",engine="0"} 1.0\n'
    "# TYPE vllm:spec_decode_num_drafts counter\n"
    'vllm:spec_decode_num_drafts_total{engine="0"} 3.0\n'
)


def test_vllm_is_asked() -> None:
    answers = {"/v1/models": _models("vllm"), "/version": {"version": "0.32.0"}, "/metrics": METRICS}
    with _server(answers) as url:
        found = read_info(url)
    told = {one.topic: one.value for one in found.statements}
    assert told == {"version": "0.32.0", "kv-dtype": "fp8_e4m3", "speculative": "on"}
    assert judged(found, [requirement("speculative")])[-1].verdict is Verdict.KEPT
    assert judged(found, [requirement("speculative=eagle")])[-1].verdict is Verdict.BROKEN
    dev = {"vllm_config": "quantization=fp8, enforce_eager=True", "vllm_env": {"VLLM_ROCM_USE_AITER": False}}
    with _server({**answers, "/server_info": dev}) as url:
        found = read_info(url)
    verdicts = [one.verdict for one in judged(found, map(requirement, ("aiter", "graph", "quantization=fp8")))[-3:]]
    assert verdicts == [Verdict.BROKEN, Verdict.BROKEN, Verdict.KEPT]


def test_llama_cpp_has_no_contract() -> None:
    with _server({"/v1/models": _models("llamacpp"), "/props": {}}) as url:
        outcomes = judged(read_info(url))
    assert overall(outcomes) is Verdict.INCONCLUSIVE
    assert "engine llama.cpp has no start-up contract" in outcomes[1].message


def test_nobody_answers() -> None:
    with pytest.raises(NoServer, match=r"127.0.0.1:9: no answer"):
        read_info("http://127.0.0.1:9", patience=2.0)


def test_a_server_that_goes_away_between_two_answers() -> None:
    class Leaving(_Answers):
        answers: ClassVar[dict[str, object]] = {"/v1/models": _models("sglang")}

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                super().do_GET()
            else:
                self.connection.close()

    with HTTPServer(("127.0.0.1", 0), Leaving) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(NoServer, match="no answer"):
            read_info(f"http://127.0.0.1:{server.server_port}", patience=2.0)
        server.shutdown()


def test_the_command(tmp_path: Path) -> None:
    good, bad, output = tmp_path / "good.log", tmp_path / "bad.log", tmp_path / "out.json"
    good.write_text("\n".join(served()) + "\n")
    bad.write_text("\n".join(served(before=[sglang(line("sglang-moe-untuned", file="/c/E=8.json"), "TP3")])) + "\n")
    run = CliRunner().invoke
    for arguments, status, says in (
        ([str(good), "--require", "attention=aiter", "--require", "no-fallback"], 0, "kept"),
        ([str(bad)], 0, "sglang-moe-untuned"),
        ([str(bad), "--require", "no-fallback", "--json", str(output)], 1, "E=8.json"),
        ([str(bad), "--require", "fast"], 2, ""),
        ([], 2, ""),
    ):
        done = run(app, ["startup", *arguments])
        assert done.exit_code == status, done.output
        assert says in done.output
    written = json.loads(output.read_text())
    assert written["verdict"] == "broken"
    assert [one["keys"] for one in written["findings"] if one["severity"] == "fallback"] == [{"/c/E=8.json": 1}]
    assert run(app, ["startup", "-"], input=good.read_bytes()).exit_code == 0
    assert run(app, ["startup", "-"], input=b"nothing\n").exit_code == 3


def test_the_rules_are_read_without_heavy_imports() -> None:
    """A log is looked at on any machine."""
    code = (
        "import io, sys; from waveproof.fixtures.servers.startup import read_startup; read_startup(io.BytesIO(b'x'));"
        "print([name for name in ('torch', 'triton', 'sglang', 'aiter', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_that_is_not_installed_has_no_sources() -> None:
    assert installed("waveproof_has_no_such_package") is None


def test_an_empty_log_says_nothing() -> None:
    assert broken([]) == ["ready", "recognised"]
