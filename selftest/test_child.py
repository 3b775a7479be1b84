"""Processes that answer in lines of JSON: what they answer, how they end, and that none outlives its caller."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from waveproof.kernels.runtimes import child
from waveproof.kernels.runtimes.child import Child, ChildFailed, ChildTimedOut

SECONDS = 60.0

SCRIPT = """
import json, os, subprocess, sys, time
from waveproof.kernels.runtimes.child import answers_to_parent

def main(what, *rest):
    answers = answers_to_parent()
    print("to stdout, from Python")
    os.system("echo to stdout, from a program")
    tell = lambda value: answers.write(json.dumps(value) + "\\n")
    if what == "echo":
        for line in sys.stdin:
            request = json.loads(line)
            if request == "die":
                os.abort()
            if request == "hang":
                print("half", end="", file=answers, flush=True)
                time.sleep(600)
            tell([request, *rest, os.environ.get("TRITON_INTERPRET"), os.environ.get("PLANTED")])
    if what == "three":
        for number in range(3):
            tell(number)
    if what == "raise":
        tell("first")
        raise LookupError("the last words")
    if what == "linger":
        tell(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that only the child can import."""
    (tmp_path / "planted_child.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return "planted_child"


def test_requests_are_answered_and_nothing_else_is_taken_for_an_answer(module: str) -> None:
    with Child(module, "echo", "argument", environment={"PLANTED": "yes"}) as one:
        for request in (1, {"two": ["lines\n"]}, None):
            assert one.ask(request, SECONDS) == [request, "argument", None, "yes"]
        assert one.alive
    assert not one.alive


def test_answers_come_until_the_process_ends(module: str) -> None:
    with Child(module, "three") as one:
        assert list(one.answers(SECONDS)) == [0, 1, 2]
        with pytest.raises(ChildFailed, match="exit status 0"):
            one.answer(SECONDS)


def test_last_words_are_told(module: str) -> None:
    with Child(module, "raise") as one:
        answers = one.answers(SECONDS)
        assert next(answers) == "first"
        with pytest.raises(ChildFailed, match=r"exit status 1\n(?s:.*)LookupError: the last words"):
            next(answers)


def test_an_abort_is_told(module: str) -> None:
    with Child(module, "echo") as one:
        one.ask(1, SECONDS)
        with pytest.raises(ChildFailed, match="signal SIGABRT") as told:
            one.ask("die", SECONDS)
        assert "from Python" not in str(told.value), "written before the request"


def test_a_process_that_hangs_is_killed(module: str) -> None:
    with Child(module, "echo") as one:
        one.ask(1, SECONDS)
        with pytest.raises(ChildTimedOut, match=r"no answer after 0\.2 s"):
            one.ask("hang", 0.2)
        assert not one.alive


def test_what_it_started_ends_with_it(module: str) -> None:
    with Child(module, "linger") as one:
        grandchild = one.answer(SECONDS)
        assert Path(f"/proc/{grandchild}").exists()
    for _ in range(100):
        if not _runs(grandchild):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {grandchild} still runs")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_root_is_the_folder_of_the_rooms() -> None:
    assert {"kernels", "golden", "fixtures"} <= {entry.name for entry in os.scandir(child.ROOT)}
