"""Runs of serving measurements without a server: resuming, failing servers, commands, the load generator."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from waveproof.golden.judges.acceptance import Acceptance
from waveproof.perf import serving, serving_client
from waveproof.perf.serving import BadState, ServerSilent, load, run_plan
from waveproof.perf.serving_client import Aiperf, AiperfMissing, ClientFailed, arguments, find_aiperf, send
from waveproof.perf.serving_log import BadLog
from waveproof.perf.serving_plan import Prompts, Target, plan_json, sweep_plan
from waveproof.perf.serving_privacy import without_places
from waveproof.perf.serving_prompts import prompts_of, request_body
from waveproof.perf.serving_refusals import SAME_SERVER
from waveproof.reports import cli_serving
from waveproof.reports.cli_serving import app
from waveproof.selftest.serving_records import (
    OUTPUT,
    TARGET,
    failed,
    records,
    small_plan,
    write_plan,
    write_point,
)

STAND_IN = """#!{python}
# Writes the log that aiperf would, from what it is told on its command line.
import json, pathlib, sys, time
told = dict(zip(sys.argv[2:], sys.argv[3:]))
out = pathlib.Path(told["--artifact-dir"]); out.mkdir(parents=True)
if (wait := pathlib.Path(__file__).with_name("wait")).exists() and told["--concurrency"] == wait.read_text():
    time.sleep(60)
sessions = json.loads(pathlib.Path(told["--input-file"]).read_text())["data"]
lines = json.loads(pathlib.Path(__file__).with_name("lines.json").read_text())[told["--concurrency"]]
for line, session in zip(lines, sessions):
    line["payload"] = session["payloads"][0]
(out / "profile_export_raw.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
(out / "profile_export_aiperf.json").write_text("{{}}")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aiperf:
    """A stand-in for aiperf, and a server that tells its models."""
    path = tmp_path / "bin" / "aiperf"
    path.parent.mkdir()
    path.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    lines = {point.concurrency: records(point) for point in small_plan((1, 2)).points}
    path.with_name("lines.json").write_text(json.dumps(lines), encoding="utf-8")
    told = {"data": [{"id": "tiny", "owned_by": "fake"}]}
    monkeypatch.setattr(serving, "ask_models", lambda target: (("tiny of fake",), told))
    monkeypatch.setattr(serving, "server_version", lambda target, models: "fake 1")
    monkeypatch.setattr(serving, "acceptance_so_far", lambda target: Acceptance(drafts=4.0, accepted=6.0))
    return Aiperf(str(path), "0")


def test_run_that_was_killed_half_way_gives_the_same_points(program: Aiperf, tmp_path: Path) -> None:
    plan, folder, wait = small_plan((1, 2)), tmp_path / "run", Path(program.path).with_name("wait")
    wait.write_text("2")
    driver = os.fork()
    if not driver:
        try:
            run_plan(plan, folder, program)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 20
    while not (folder / "points" / "concurrency-0002.part" / "aiperf").is_dir() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(driver, signal.SIGKILL)
    assert os.waitpid(driver, 0)[1] == signal.SIGKILL
    wait.unlink()
    half = load(folder)
    assert [one.point.name for one in half.points] == ["concurrency-0001"]
    assert half.stopped == "not measured yet: concurrency-0002; --resume goes on"
    assert half.exit_status == 4
    with pytest.raises(BadState, match="--resume goes on with it"):
        run_plan(plan, folder, program)
    with pytest.raises(BadState, match="seed was 0, is 9"):
        run_plan(replace(plan, seed=9), folder, program, resume=True)
    result = run_plan(plan, folder, program, resume=True)
    assert [one.point for one in result.reported] == list(plan.points)
    # The server may remember what it was sent before the kill.
    assert [one.facts.attempt for one in result.points] == [0, 1]
    again = {
        hashlib.sha256(json.dumps(one.content).encode()).hexdigest() for one in prompts_of(plan, "concurrency-0002", 1)
    }
    assert {one.prompt_hash for one in result.points[1].requests} < again
    assert [len(one.requests) for one in result.points] == [3, 6]
    assert result.exit_status == 0
    assert [one.acceptance_length for one in result.points] == [None, None]
    assert not list((folder / "points").glob("*.part"))


def test_nobody_else_runs_in_the_folder(tmp_path: Path) -> None:
    with serving._held(tmp_path), pytest.raises(BadState, match="a run is under way"):
        run_plan(small_plan(), tmp_path, Aiperf("none", "0"))


def test_server_that_failed_is_asked_again_and_its_log_kept(program: Aiperf, tmp_path: Path) -> None:
    plan = small_plan((1,))
    point, folder = plan.points[0], write_plan(tmp_path / "run", plan)
    write_point(folder, point, records(point, spoil=lambda number, one: failed(one) if number else one))
    before = load(folder)
    assert before.exit_status == 4
    assert before.stopped == f"{point.name}: the server {before.points[0].failure}"
    assert run_plan(plan, folder, program, resume=True).exit_status == 0
    assert (folder / "failed" / "concurrency-0001-1" / "requests.jsonl.gz").is_file()


def test_full_disk_is_told_and_what_is_finished_stays(
    program: Aiperf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        if path.name == "point.json" and "concurrency-0002" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text)

    write = serving._written
    monkeypatch.setattr(serving, "_written", full)
    with pytest.raises(BadState, match=r"run: cannot be written: No space left on device; mend that, --resume goes on"):
        run_plan(small_plan((1, 2)), tmp_path / "run", program)
    monkeypatch.setattr(serving, "_written", write)
    assert len(load(tmp_path / "run").reported) == 1
    assert run_plan(small_plan((1, 2)), tmp_path / "run", program, resume=True).exit_status == 0


def test_neither_key_nor_folders_are_kept(program: Aiperf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server repeats the key in its error, and aiperf tells where it wrote."""
    monkeypatch.setenv("SOME_KEY", "very-secret")
    plan = replace(small_plan((1,)), target=replace(TARGET, api_key_env="SOME_KEY"))
    lines = {
        1: [{**one, "status": 401, "error": {"message": "no key: very-secret"}} for one in records(plan.points[0])]
    }
    Path(program.path).with_name("lines.json").write_text(json.dumps(lines), encoding="utf-8")
    script = Path(program.path)
    script.write_text(script.read_text() + "print(out, 'very-secret')\n")
    result = run_plan(plan, tmp_path / "run", program)
    assert "no key: <API key>" in result.stopped
    home = tmp_path / "run" / "points" / "concurrency-0001"
    kept = gzip.decompress((home / "requests.jsonl.gz").read_bytes()).decode() + (home / "aiperf.txt").read_text()
    assert "very-secret" not in kept
    assert str(tmp_path) not in kept
    assert "<run>/points/concurrency-0001.part" in kept


def test_names_of_machines_are_not_shown() -> None:
    target = Target("http://node17.corp.example:30000/v1", "m")
    said = f"cannot connect to node17.corp.example:30000 ({Path.home()}/x)"
    assert without_places(said, target) == "cannot connect to <server>:30000 (<home>/x)"
    assert without_places("at http://127.0.0.1:1", TARGET) == "at http://127.0.0.1:1"


@pytest.mark.parametrize(
    "spoil", [lambda whole: whole[:-9], lambda _: b"no gzip", lambda whole: whole[:20] + b"?" * 40]
)
def test_damaged_log_is_named(tmp_path: Path, spoil: Any) -> None:
    plan = small_plan((1,))
    write_plan(tmp_path / "run", plan)
    write_point(tmp_path / "run", plan.points[0], records(plan.points[0]))
    log = tmp_path / "run" / "points" / "concurrency-0001" / "requests.jsonl.gz"
    log.write_bytes(spoil(log.read_bytes()))
    with pytest.raises(BadLog, match=r"concurrency-0001: its log requests.jsonl.gz is missing or damaged"):
        load(tmp_path / "run")
    log.with_name("point.json").write_text('{"models": 3}')
    with pytest.raises(BadState, match=r"take the folder away and --resume"):
        load(tmp_path / "run")


def test_points_of_two_servers_are_not_one_sweep(tmp_path: Path) -> None:
    plan = small_plan((1, 2, 3))
    write_plan(tmp_path / "run", plan)
    for point, server, aiperf in zip(plan.points, ("1", "2", "1"), ("a", "a", "b"), strict=True):
        versions = {"server": server, "aiperf": aiperf}
        write_point(tmp_path / "run", point, records(point), versions=versions)
    first, second, third = load(tmp_path / "run").points
    assert first.figures is not None
    assert first.warnings == ()
    assert [one.rule for one in second.refusals] == [SAME_SERVER]
    assert second.figures is None
    assert third.figures is not None
    assert third.warnings == ("driven by aiperf b, concurrency-0001 by a",)


ASKED = ["sweep", "--base-url", TARGET.base_url, "--model", "tiny", "--input", "16", "--output", "8", "--concurrency"]


@pytest.fixture
def here(program: Aiperf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a command, which finds the stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving_client, "find_aiperf", lambda path: program)
    monkeypatch.setattr(cli_serving, "_vocabulary", lambda *_: (1024, 4096))
    return tmp_path


def begun(*more: str) -> tuple[int, str]:
    """Status and output of a command; its exception's message where it is refused."""
    found = CliRunner().invoke(app, list(more))
    return found.exit_code, found.output if found.exception is None else f"{found.output}{found.exception}"


def test_run_goes_on_under_its_options(here: Path) -> None:
    """Told no folder the newest; what is given may repeat an option and not change it."""
    status, said = begun(*ASKED, "1,2", "--per-stream", "3")
    assert status == 0, said
    (state,) = here.glob("serving-2*-*")
    shutil.rmtree(state / "points" / "concurrency-0002")
    status, said = begun("sweep", "--resume")
    assert (status, f"run in {state.name}" in said) == (0, True)
    assert [one.point.name for one in load(state).reported] == ["concurrency-0001", "concurrency-0002"]
    assert begun("sweep", "--resume", "--state", state.name, "--concurrency", "1,2")[0] == 0
    status, said = begun("sweep", "--resume", "--concurrency", "1,4", "--input", "17", "--base-url", "http://a:b@c")
    assert "--base-url is another; --concurrency was 1,2, is 1,4; --input was 16, is 17; left out" in said
    assert "a:b" not in said
    assert load(state).plan.options["endpoint"] == "completions"
    assert "a run of serving sweep was begun there" in begun("prefill", "--resume", "--state", state.name)[1]
    assert "no folder serving-YYYYMMDD-HHMM here has a run of serving mixed" in begun("mixed", "--resume")[1]
    assert "Missing option --model" in begun("sweep", "--base-url", "http://h")[1]
    assert "Missing option --base-url, --model: no run to go on" in begun("sweep", "--resume", "--state", "none")[1]


def test_command_that_is_stopped_says_how_to_go_on(here: Path, program: Aiperf) -> None:
    Path(program.path).with_name("wait").write_text("2")
    handler = signal.getsignal(signal.SIGTERM)
    part = here / "a run" / "points" / "concurrency-0002.part" / "aiperf"

    def end() -> None:
        deadline = time.monotonic() + 20
        while not part.is_dir() and time.monotonic() < deadline:
            time.sleep(0.01)
        # Of the tests themselves where the command does not hold it.
        if part.is_dir():
            os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end)
    killer.start()
    status, said = begun(*ASKED, "1,2", "--per-stream", "3", "--state", "a run")
    killer.join()
    assert status == 143
    assert "go on with: waveproof serving sweep --state 'a run' --resume" in said
    assert signal.getsignal(signal.SIGTERM) is handler
    Path(program.path).with_name("wait").unlink()
    assert begun("sweep", "--state", "a run", "--resume")[0] == 0


def test_seed_is_drawn_anew_unless_a_run_goes_on(here: Path) -> None:
    def seed(folder: str) -> int:
        begun("sweep", "--state", folder, "--resume", *ASKED[1:], "1")
        return load(here / folder).plan.seed

    write_plan(here / "made", sweep_plan(TARGET, (1,), 16, 8, prompts=Prompts((1024, 4096)), seed=77))
    assert seed("made") == 77
    assert seed("one") != seed("another")
    assert seed("one") == seed("one")


def test_key_in_place_of_its_variable_is_not_repeated(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["sweep", "--base-url", "http://h", "--model", "m", "--state", str(tmp_path / "s"),
                                     "--api-key-env", "sk-123"])  # fmt: skip
    assert "none of that name" in str(found.exception)
    assert "sk-123" not in str(found.exception) + found.output


def test_silent_server_ends_the_run(program: Aiperf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(target: Target) -> Any:
        raise ServerSilent("connection refused")

    monkeypatch.setattr(serving, "ask_models", silent)
    result = run_plan(small_plan(), tmp_path / "run", program)
    assert (result.exit_status, result.stopped) == (4, "concurrency-0002: connection refused")


def test_aiperf_that_is_missing_or_says_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WAVEPROOF_AIPERF", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    with pytest.raises(
        AiperfMissing, match=r"\(not set\) nor in PATH nor at .*env/aiperf/bin/aiperf: .*install aiperf=="
    ):
        find_aiperf()
    beside = tmp_path / "env" / "aiperf" / "bin" / "aiperf"
    beside.parent.mkdir(parents=True)
    beside.write_text("#!/bin/sh\necho 9.9\n")
    beside.chmod(0o755)
    assert find_aiperf() == Aiperf(str(beside), "9.9")
    wrong = tmp_path / "aiperf"
    wrong.write_text("#!/bin/sh\necho cannot go on; exit 3\n")
    wrong.chmod(0o755)
    plan = small_plan()
    prompts = prompts_of(plan, plan.points[0].name)
    with pytest.raises(ClientFailed, match=r"status 3\): cannot go on"):
        send(plan, plan.points[0], prompts, Aiperf(str(wrong), "0"), tmp_path / "point")


def test_log_in_parts_is_a_log_too(program: Aiperf, tmp_path: Path) -> None:
    """Where every request failed, aiperf ends with an error and leaves the parts of its log as they are."""
    script = Path(program.path)
    parts = STAND_IN.replace('(out / "profile', '(out / "raw_records").mkdir(); (out / "raw_records" / "a.jsonl', 1)
    script.write_text(parts.replace("_export_raw.jsonl", "").format(python=sys.executable), encoding="utf-8")
    lines = {2: [failed(one) for one in records(small_plan().points[0])]}
    script.with_name("lines.json").write_text(json.dumps(lines), encoding="utf-8")
    result = run_plan(small_plan(), tmp_path / "run", program)
    assert "fails from request 1 of 6" in result.stopped
    assert result.exit_status == 4


def test_api_key_is_in_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "very-secret")
    plan = replace(small_plan(), target=replace(TARGET, api_key_env="SOME_KEY"))
    made = arguments(plan, plan.points[0], tmp_path / "inputs.json", tmp_path, tmp_path)
    config = Path(made[made.index("--config") + 1]).read_text(encoding="utf-8")
    assert "very-secret" not in " ".join(made) + config + plan_json(plan)
    assert "${SOME_KEY}" in config
    # A kept connection that a server closes is a failed request, and no fault of the server.
    assert made[made.index("--connection-reuse-strategy") + 1] == "never"


def test_chat_gets_text_and_completions_get_ids() -> None:
    plan = small_plan()
    prompt = prompts_of(plan, plan.points[0].name)[0]
    assert request_body(plan, prompt)["prompt"] == list(prompt.content)
    chat = replace(plan, target=replace(TARGET, endpoint="chat"), prompts=replace(plan.prompts, tokenizer="t"))
    body = request_body(chat, replace(prompt, content="words"))
    assert body["messages"] == [{"role": "user", "content": "words"}]
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (OUTPUT, True, True)


def test_load_generator_ends_with_its_driver(tmp_path: Path) -> None:
    from waveproof.kernels.runtimes.child import ROOT, boot

    command = [sys.executable, "-c", boot("waveproof.perf.serving_process"), str(ROOT), str(tmp_path / "said")]
    with subprocess.Popen([*command, "sh", "-c", "echo $$; sleep 60"], stdin=subprocess.PIPE) as held:
        assert held.stdin is not None
        deadline = time.monotonic() + 20
        while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        held.stdin.close()
        assert held.wait(20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "said").read_text()), 0)
