"""Building AITER's host code: once for the same inputs, safely from several processes, with words where it cannot.

A compiler of the test's own notes how it is called and makes empty files, so that a build takes no time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

from waveproof.kernels.runtimes.catalogue import ARCHES
from waveproof.kernels.runtimes.emulate import host_build as building
from waveproof.kernels.runtimes.emulate.host_build import HostBuildFailed, HostBuildUnavailable, host_build

CALLS_OF_A_BUILD = 4
"""The runtime, AITER's two sources, and the link."""


class Compiler:
    """A compiler script, its notes and a cache of their own."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "calls"
        self.cache = folder / "cache"
        self.command = folder / "c++"
        self.write("")

    def write(self, body: str) -> None:
        self.command.write_text(
            "#!/bin/sh\n"
            'case "$*" in *--version*) echo "test compiler"; exit 0;; *-fsyntax-only*) exit 0;; esac\n'
            f'echo "$*" >> {self.notes}\n'
            f"{body}\n"
            'while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n'
        )
        self.command.chmod(0o755)

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(made.command))
    monkeypatch.setenv(building.CACHE_VARIABLE, str(made.cache))
    return made


def without_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))


def test_a_second_call_takes_what_the_first_built(compiler: Compiler) -> None:
    first = host_build()
    assert len(compiler.calls()) == CALLS_OF_A_BUILD
    assert first.runtime.exists()
    assert all(first.extension(arch).exists() for arch in ARCHES)
    assert first.extension("gfx942").stat().st_ino != first.extension("gfx950").stat().st_ino
    assert host_build() == first
    assert len(compiler.calls()) == CALLS_OF_A_BUILD
    assert compiler.cache in first.folder.parents


def test_other_inputs_are_built_anew(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host_build()
    monkeypatch.setattr(building, "_version", lambda *names: "99")
    assert host_build().folder != first.folder
    compiler.command.write_text(compiler.command.read_text().replace("test compiler", "newer compiler"))
    host_build()
    assert len(compiler.calls()) == 3 * CALLS_OF_A_BUILD


def test_processes_at_once_build_once(compiler: Compiler) -> None:
    compiler.write("sleep 0.2")
    program = "from waveproof.kernels.runtimes.emulate.host_build import host_build; print(host_build().folder)"
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(folders) == 1
    assert len(compiler.calls()) == CALLS_OF_A_BUILD


def test_no_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch, tmp_path)
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(HostBuildUnavailable, match=r"no C\+\+ compiler \(looked for \$CXX, g\+\+, c\+\+, clang\+\+\)"):
        host_build()


def test_a_cached_build_needs_no_compiler(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = host_build()
    without_compiler(monkeypatch, tmp_path / "empty")
    assert host_build() == built


def test_what_the_compiler_says_is_told_and_nothing_is_left(compiler: Compiler) -> None:
    compiler.write(
        'case "$*" in *asm_mla.cu*) echo "asm_mla.cu:9: error: \'hipNew\' was not declared" >&2; exit 1;; esac'
    )
    with pytest.raises(HostBuildFailed, match="'hipNew' was not declared"):
        host_build()
    of_source = [call for call in compiler.calls() if "asm_mla.cu" in call]
    assert ["/lean" in call for call in of_source] == [True, False], "torch's own headers are tried after the lean ones"
    assert [path.suffix for path in (compiler.cache / "aiter-host").iterdir()] == [".lock"]


def test_missing_aiter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(HostBuildUnavailable, match="amd-aiter is not installed"):
        host_build()


def test_missing_torch_headers_are_named(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_torch", lambda: tmp_path)
    with pytest.raises(HostBuildUnavailable, match=r"torch has no C\+\+ headers at"):
        host_build()
    assert compiler.calls() == []


def test_missing_python_headers_are_named(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(HostBuildUnavailable, match=r"no Python\.h at .*python3-dev"):
        host_build()
    assert compiler.calls() == []


def test_a_cache_that_cannot_be_written_is_named(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(building.CACHE_VARIABLE, str(compiler.command))
    with pytest.raises(HostBuildUnavailable, match="set WAVEPROOF_CACHE to a folder"):
        host_build()


def test_an_unknown_module_is_told(compiler: Compiler) -> None:
    with pytest.raises(HostBuildFailed, match="lists no module module_none"):
        host_build("module_none")


def test_another_package_called_aiter_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(HostBuildUnavailable, match="amd-aiter is not installed"):
        building.aiter_installation()


def test_the_cache_is_the_platforms_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(building.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert building.cache_folder() == tmp_path / "waveproof"
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "own"))
    assert building.cache_folder() == tmp_path / "own"


def test_the_manifest_says_what_was_built(compiler: Compiler) -> None:
    entries = json.loads((host_build().folder / "build.json").read_text())
    assert entries["compiler"] == "test compiler"
    assert entries["module"] == building.MLA_MODULE
    assert set(entries) == {"module", "unset_byte", "seconds", "aiter", "torch", "compiler"}
