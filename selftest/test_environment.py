"""What must never be in a report, however it comes in, and what must survive."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest

from waveproof.reports import environment
from waveproof.reports.environment import environment_lines, gfx_name, scrub


@pytest.fixture(autouse=True)
def _somebody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/data/people/jane doe")
    monkeypatch.setenv("USER", "jdoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "mi355x-07.lab.example.org")
    monkeypatch.setattr(platform, "node", lambda: "mi355x-07.lab.example.org")
    monkeypatch.setattr(os, "getcwd", lambda: "/data/people/jane doe/sglang")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/people/jane doe/x.py failed", "~/x.py failed"),
        ("/data/people/jane doe/sglang/python/x.py", "python/x.py"),
        ("owner jdoe, pytest-of-jdoe/0, jdoe@mi355x-07", "owner <user>, pytest-of-<user>/0, <user>@<host>"),
        ("ssh mi355x-07.lab.example.org", "ssh <host>"),
        ("the jdoes and ajdoe are others", "the jdoes and ajdoe are others"),
        ("/home/alice/venv/lib/python3.11/site-packages/torch/x.py", "site-packages/torch/x.py"),
        ("/data/people/jane doe/.venv/lib/python3.11/site-packages/torch/x.py", "site-packages/torch/x.py"),
        ("built in /home/alice/src", "built in ~/src"),
        ("/Users/bob/x and C:\\Users\\carol\\x", "~/x and ~\\x"),
        ('File "/srv/build/kernels/mla.py", line 3', 'File "mla.py", line 3'),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "site-packages/numpy/core.py"),
        ("HF_TOKEN=hf_AbCdEfGhIjKlMnOp", "HF_TOKEN=<hidden>"),
        ("remote https://me:s3cr3t@git.example.org/x.git", "remote https://<hidden>@git.example.org/x.git"),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "<hidden>"),
        ("github_pat_11ABCDEFG0_abcdef", "<hidden>"),
        ("id AKIAIOSFODNN7EXAMPLE", "id <hidden>"),
        ("Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer <hidden>"),
        ("token=9f86d081884c7d659a2feaa0c55ad015", "token=<hidden>"),
        ('"api_key": "Zm9vYmFyYmF6cXV4MTIzNA=="', '"api_key": "<hidden>"'),
        ("password = hunter2", "password = <hidden>"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF", "<hidden>"),
    ],
)
def test_nothing_personal_is_left(text: str, expected: str) -> None:
    assert scrub(text) == expected
    assert scrub(scrub(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "probs[0, 3]: expected 0.2857143, got 0.2222222",
        "root mean square of a test by any user",
        "sorted(rows, key=operator.itemgetter(1))",
        "key = top_k_renorm_prob",
        "sglang/kernels/ops/sampling/renorm_triton.py:top_k_renorm_probs_triton",
        "ROCm 7.0.2, commit 9f86d081884c",
        "top_k_renorm_prob-sglang-hip-gfx942",
    ],
)
def test_what_a_reader_needs_survives(text: str) -> None:
    assert scrub(text) == text


def test_root_is_a_home_but_not_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("USER", "root")
    assert scrub("/root/x, /opt/root/x, root cause") == "~/x, /opt/root/x, root cause"


def test_environment_prefers_what_the_process_under_test_reported() -> None:
    lines = environment_lines(
        {"python": "3.10.1", "torch": "2.9.0+rocm7.0", "rocm": "7.0.2", "mykernels": "1.0 by jdoe"}
    )
    assert lines["Python"] == "3.10.1"
    assert lines["torch"] == "2.9.0+rocm7.0"
    assert lines["ROCm"] == "7.0.2"
    assert lines["mykernels"] == "1.0 by <user>"
    assert lines["OS"]
    assert all(lines.values())


def test_environment_finds_the_driver_and_survives_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_first_line", lambda path: "6.14.4" if "amdgpu" in path else "")
    assert environment_lines()["amdgpu driver"] == "6.14.4"
    assert "NVIDIA driver" not in environment_lines()


@pytest.mark.parametrize(
    ("packed", "name"), [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (120001, "gfx1201")]
)
def test_gpu_names_are_unpacked(packed: int, name: str) -> None:
    assert gfx_name(packed) == name
