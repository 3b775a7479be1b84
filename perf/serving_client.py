"""Drives a server with aiperf, NVIDIA's successor of GenAI-Perf, a program in an environment of its own.

aiperf (https://github.com/ai-dynamo/aiperf) keeps every request and every chunk of its answer with its time
(``--export-level raw``): figures are taken from that log and from nothing else. It is given finished request bodies
(its dataset format ``inputs-json``), so that what is sent is what the plan says: token ids, unique first tokens.

What to know of it (0.13.0): it loads a tokenizer even where the server counts tokens, and its ``builtin`` one is
fetched from a network; so it is given a folder with a vocabulary of two words. Under ``HF_HUB_OFFLINE`` it looks
for that folder in the hub's cache only, and fails. Some five seconds go into its start and end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waveproof.kernels.runtimes.child import ROOT, boot
from waveproof.perf.serving_plan import Plan, Point
from waveproof.perf.serving_prompts import Prompt, request_body

AIPERF_VERSION = "0.13.0"
"""That was tried; others are used and named."""

_VARIABLE = "WAVEPROOF_AIPERF"
_LOOK_SECONDS = 0.2
_SHARE_OF_FAILURES = 0.2
"""Of requests, from the tenth (or as many as run at once) on, at which aiperf stops asking."""


class AiperfMissing(RuntimeError):
    """There is no aiperf here; the message says how to get one."""


class ClientFailed(RuntimeError):
    """aiperf ended without a log of requests; the message holds the end of what it said."""


@dataclass(frozen=True)
class Aiperf:
    """The program."""

    path: str
    version: str


def find_aiperf(path: str = "") -> Aiperf:
    """The program at ``path``, else at ``$WAVEPROOF_AIPERF``, in ``PATH``, or where tox puts it beside this Python.

    Raises:
        AiperfMissing: it is at none of these, or does not tell its version.
    """
    beside = Path(sys.prefix, "aiperf", "bin", "aiperf")
    found = path or os.environ.get(_VARIABLE, "") or shutil.which("aiperf") or (str(beside) if beside.is_file() else "")
    remedy = (
        f"python -m venv ENV && ENV/bin/pip install aiperf=={AIPERF_VERSION} (an environment of its own: its pins "
        f"conflict with others), then --aiperf ENV/bin/aiperf or {_VARIABLE}=ENV/bin/aiperf"
    )
    if not found or not os.access(found, os.X_OK):
        looked = f"not at {found}" if found else f"neither at ${_VARIABLE} (not set) nor in PATH nor at {beside}"
        raise AiperfMissing(f"aiperf drives the server and is {looked}: {remedy}")
    # Its own --version takes a second, most of it imports; the distribution's folder names the version at once.
    home = Path(found).resolve().parent.parent
    named = sorted(home.glob("[Ll]ib*/**/site-packages/aiperf-*.dist-info"))
    version = named[-1].name.removeprefix("aiperf-").removesuffix(".dist-info") if named else _asked_version(found)
    if not version:
        raise AiperfMissing(f"{found} does not tell its version: {remedy}")
    return Aiperf(found, version)


def _asked_version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.split()[-1] if said.split() else ""


def send(
    plan: Plan,
    point: Point,
    prompts: Sequence[Prompt],
    program: Aiperf,
    folder: Path,
    watch: Callable[[int], None] = lambda _: None,
) -> Path:
    """Send a point's requests and wait for all answers.

    Args:
        plan: the plan that the point is of.
        point: which.
        prompts: of its warm-up, then of its requests.
        program: from :func:`find_aiperf`.
        folder: empty; gets aiperf's files, among them what it said.
        watch: called with the number of answers on record, warm-up included, as it grows.

    Returns:
        the raw log, JSON lines.

    Raises:
        ClientFailed: there is no log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said, artifacts = folder / "aiperf.txt", folder / "aiperf"
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Path(scratch, "inputs.json")
        sessions = [
            {"session_id": f"{number:06}", "payloads": [request_body(plan, prompt)]}
            for number, prompt in enumerate(prompts)
        ]
        inputs.write_text(json.dumps({"data": sessions}), encoding="utf-8")
        command = [program.path, *arguments(plan, point, inputs, _two_words(Path(scratch)), artifacts)]
        with _running(command, said, scratch) as process:
            seen = 0
            while process.poll() is None:
                time.sleep(_LOOK_SECONDS)
                if (now := _answers(artifacts)) > seen:
                    seen = now
                    watch(now)
    log = artifacts / "profile_export_raw.jsonl"
    if not log.is_file() and _answers(artifacts) > len(point.warmup):
        # Where every request failed it leaves the parts as they are.
        log.write_bytes(b"".join(part.read_bytes() for part in sorted(artifacts.glob("raw_records/*.jsonl"))))
    if not log.is_file():
        end = said.read_text(encoding="utf-8", errors="replace")[-1500:].strip() if said.is_file() else "nothing"
        raise ClientFailed(f"aiperf {program.version} kept no log of requests (status {process.returncode}): {end}")
    watch(_answers(artifacts))
    return log


def arguments(plan: Plan, point: Point, inputs: Path, tokenizer: Path, artifacts: Path) -> list[str]:
    """The command line after the program's name."""
    warm = ["--warmup-request-count", str(len(point.warmup))] if point.warmup else []
    keyed = ["--config", str(_with_key(plan, point, inputs))] if plan.target.api_key_env else []
    return [
        "profile",
        *("--model", plan.target.model),
        *("--url", plan.target.root),
        *("--endpoint-type", plan.target.endpoint),
        "--streaming",
        *("--input-file", str(inputs)),
        *("--custom-dataset-type", "inputs-json"),
        *("--dataset-sampling-strategy", "sequential"),
        *("--concurrency", str(point.concurrency)),
        *("--request-count", str(len(point.shapes))),
        *warm,
        *("--tokenizer", str(tokenizer)),
        "--use-server-token-count",
        *("--export-level", "raw"),
        *("--artifact-dir", str(artifacts)),
        *("--ui", "none"),
        "--no-server-metrics",
        "--no-gpu-telemetry",
        # A kept connection that the server closes just then is a failed request, and no fault of the server.
        *("--connection-reuse-strategy", "never"),
        *("--request-timeout-seconds", str(plan.request_seconds)),
        *("--failed-request-threshold", str(_SHARE_OF_FAILURES)),
        *("--random-seed", str(plan.seed)),
        *keyed,
    ]


@contextlib.contextmanager
def _running(command: Sequence[str], said: Path, scratch: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a group that ends with this process, whatever ends it."""
    # Local folders are looked for in the hub's cache alone when it is told that there is no network.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    environment["AIPERF_RECORD_RAW_EXPORT_BATCH_SIZE"] = "1"
    # Prompts are not kept in its user's home; and its mapped data set is left where it is killed.
    environment["AIPERF_DATASET_MMAP_CACHE_ENABLED"] = "false"
    environment["TMPDIR"] = scratch
    process = subprocess.Popen(
        [sys.executable, "-c", boot("waveproof.perf.serving_process"), str(ROOT), str(said), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _answers(artifacts: Path) -> int:
    """Records that aiperf has written so far."""
    done = artifacts / "profile_export_raw.jsonl"
    parts = [done] if done.is_file() else list(artifacts.glob("raw_records/*.jsonl"))
    count = 0
    for part in parts:
        with contextlib.suppress(OSError), part.open("rb") as lines:
            count += sum(1 for _ in lines)
    return count


def _with_key(plan: Plan, point: Point, inputs: Path) -> Path:
    """A configuration that has aiperf read the API key from the environment: a command line is everybody's to read.

    Its phases and data are there since they must be; the options of the command line go before them.
    """
    path = inputs.with_name("key.yaml")
    phase = {
        "name": "profiling",
        "type": "concurrency",
        "concurrency": point.concurrency,
        "requests": len(point.shapes),
    }
    data = {"name": "main", "type": "file", "path": str(inputs), "format": "inputs_json"}
    endpoint = {"api_key": f"${{{plan.target.api_key_env}}}"}
    whole = {"benchmark": {"endpoint": endpoint, "phases": [phase], "datasets": [data]}}
    # JSON is YAML.
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def _two_words(scratch: Path) -> Path:
    """A folder with the smallest tokenizer that ``transformers`` loads; what it counts is used nowhere."""
    folder = scratch / "two-words"
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
    whole: dict[str, object] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
