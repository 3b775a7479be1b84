"""The rooms are importable below ``waveproof`` alone: PyPI's ``kernels``, which sglang imports, stays what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kernels", "golden", "fixtures", "conformance", "perf", "reports", "selftest")

PROBE = """
import importlib.util
import waveproof.kernels.operators.registry

def test_probe():
    import kernels
    assert "site-packages" in kernels.__file__, kernels.__file__
    assert kernels.get_kernel
    assert "site-packages" not in waveproof.kernels.operators.registry.__file__
    for room in {rooms}:
        spec = importlib.util.find_spec(room)
        assert spec is None or spec.origin is not None or room not in ("kernels",), room
"""


def test_no_room_is_a_package() -> None:
    assert not [room for room in ROOMS if (ROOT / room / "__init__.py").exists()]


@pytest.mark.parametrize("start", [["pytest"], ["python", "-m", "pytest"]], ids=["pytest", "python -m pytest"])
def test_pypi_kernels_is_found(start: list[str], tmp_path: Path) -> None:
    pytest.importorskip("kernels", reason="PyPI's kernels is not installed (python -m pip install kernels==0.14.1)")
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE.format(rooms=ROOMS))
    folder = Path(sys.executable).parent
    done = subprocess.run(
        [str(folder / start[0]), *start[1:], "-q", "-c", str(ROOT / "pyproject.toml"), str(probe)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_runs_from_a_clone_without_installation(tmp_path: Path) -> None:
    """With ``waveproof`` hidden from the import system, conftest.py maps the clone to the namespace."""
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in getattr(f, '__module__', '').lower()"
        " and 'editable' not in getattr(f, '__name__', '').lower()]\n"
        "sys.path_hooks[:] = [h for h in sys.path_hooks if 'editable' not in repr(h).lower()]\n"
        "sys.path[:] = [p for p in sys.path if '__editable__' not in p]\n"
    )
    probe = "import importlib.util; print(importlib.util.find_spec('waveproof'))"
    # What is installed also announces an entry point, which a machine that only has the clone does not know.
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    hidden = subprocess.run(
        [sys.executable, "-c", probe], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    if "None" not in hidden.stdout:
        pytest.skip("waveproof is installed in a way that this test cannot hide")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "conformance", "--runtime=cpu", "-k", "row_alone"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_collection_imports_no_kernel_library() -> None:
    """Neither triton nor sglang nor aiter is imported before a test needs it, and collecting takes under 3 seconds."""
    program = (
        "import sys, pytest\n"
        "class Watch:\n"
        "    def pytest_collection_finish(self, session):\n"
        "        heavy = {'triton', 'sglang', 'aiter', 'flashinfer'} & set(sys.modules)\n"
        "        print('HEAVY', sorted(heavy), 'ITEMS', len(session.items))\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-m', 'rocm', 'conformance'], plugins=[Watch()]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "HEAVY []" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert "ITEMS 0" not in done.stdout
