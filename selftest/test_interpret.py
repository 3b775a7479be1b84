"""The interpret runtime on trial: what it mends, what its canary refuses, what it records and lets a kernel reach.

Triton decides at import whether it interprets, so everything that needs it runs in `interpreted_checks`, in a process
of its own; here its figures are held to what they must be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from waveproof.kernels.runtimes import narrow_floats

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    child = run_python("-m", "waveproof.selftest.interpreted_checks")
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.fixture
def figures(request: pytest.FixtureRequest, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the check named like the test found."""
    found = results[request.node.originalname.removeprefix("test_")]
    assert "error" not in found, found["error"]
    if "unavailable" in found:
        pytest.skip(found["unavailable"])
    return found


def test_canary_as_shipped(figures: dict[str, Any]) -> None:
    """Every part of the canary has refused something, and fp16, fp32, fp64 and integers pass untouched."""
    subjects = ("widening", "rounding", "float arithmetic", "reduction", "dot")
    assert [fault.split(":")[0] for fault in figures.pop("bfloat16")] == [f"bfloat16 {subject}" for subject in subjects]
    for name in [name for name in figures if name.startswith("float8")]:
        faults = [fault.split(":")[0] for fault in figures.pop(name)]
        assert faults == [f"{name} {subject}" for subject in subjects[:4]]
    assert figures == {name: [] for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64")}


def test_canary_mended(figures: dict[str, Any]) -> None:
    assert figures.pop("launches") == 0, "the canary's own launches are on the record"
    assert len(figures) == 12
    assert set(figures.values()) == {None}


def test_refusal(figures: dict[str, Any]) -> None:
    assert "bfloat16 rounding: store of float32" in figures["message"]
    assert "values wrong" in figures["message"]


def test_rounding(figures: dict[str, Any]) -> None:
    assert figures == {"values": 2**19, "differing": 0, "toward zero": 0}


def test_widening(figures: dict[str, Any]) -> None:
    assert figures == {"differing": 0}


def test_conversions(figures: dict[str, Any]) -> None:
    assert len(figures) == 7
    assert set(figures.values()) == {0}


def test_arithmetic(figures: dict[str, Any]) -> None:
    """A * b, a + b, a - b, (a < b) as a number and |a| over all 65,536 patterns, each against two others."""
    assert figures == {"first": [0] * 5, "second": [0] * 5}


def test_dot(figures: dict[str, Any]) -> None:
    assert 0 < figures["error over bound"] <= 1


def test_scaled_dot(figures: dict[str, Any]) -> None:
    assert 0 < figures["error over bound"] <= 1


def test_scans(figures: dict[str, Any]) -> None:
    assert figures == {"differing": 0, "index": 37}


def test_atomics(figures: dict[str, Any]) -> None:
    """Sixteen lanes add 0..15 to one bfloat16 that holds 1; reads are sixteen loads and sixteen atomics of 2 B."""
    assert figures == {"sum": 121.0, "read": 64, "written": 32}


def test_integers(figures: dict[str, Any]) -> None:
    """An argument past 2**31 is 64-bit; program id times vocabulary in 32 bits wraps as on a device."""
    assert figures["square"] == (2**31 + 5) ** 2
    assert figures["wrapped"] == [13_108 * 163_840 + lane - 2**32 for lane in range(4)]


def test_device_view(figures: dict[str, Any]) -> None:
    assert figures == {
        "is_cuda": True,
        "results": [True] * 4,
        "sorted": True,
        "device": "cpu",
        "made on its device": False,
        "same memory": True,
        "strides": [1, 4],
        "plain": [False, True],
        "plain memory": True,
    }


def test_views(figures: dict[str, Any]) -> None:
    assert figures["differing"] == 0
    # The 3 x 5 view has strides 1 and 4, so its 15 elements are distinct.
    assert figures["written"] == 15


def test_strays(figures: dict[str, Any]) -> None:
    """Past the view but in its storage a store lands; past the storage it raises, and is not a finished launch."""
    assert figures["canary beyond the view"] == figures["others"] == 7.0
    assert "kernel store_at, program (0, 0, 0): store of 4 B 0 B past the end" in figures["past"]
    assert "store of 4 B 4 B before the start of the nearest storage (128 B)" in figures["before"]
    assert figures["launches past"] == figures["launches before"] == 0


def test_record(figures: dict[str, Any]) -> None:
    """Three rows of five enabled lanes of eight: 2 B read and 4 B written each."""
    assert figures["launches"] == [
        ["double_strided", [3, 1, 1], 3 * 5 * 2, 3 * 5 * 4, 3],
        ["store_at", [1, 1, 1], 0, 4, 1],
    ]
    assert figures["seconds positive"]
    assert figures["after clearing"] == 0


def test_selection(figures: dict[str, Any]) -> None:
    """Each program marks its own cell with 100 * num_programs(0) + program_id(1)."""
    assert figures["predicate"] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 302, 303]]
    assert figures["select"] == [[0, 301, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert figures["asked"] == [["mark", [3, 4, 1]]]
    assert figures["after"] == [[300, 301, 302, 303]] * 3
    assert figures["outside"] == "program (3, 0, 0) is not in the grid (3, 4, 1) of kernel mark"
    assert "exactly one" in figures["neither"]


def test_huge(figures: dict[str, Any]) -> None:
    """Offsets past 2**31: right with 64 bits at the cost of one row, caught at chunk 32 of the row with 32 bits."""
    assert figures["differing"] == 0
    assert figures["programs"] == 160
    assert figures["read"] == 163_840 * 4
    assert figures["resident growth"] < 64 * 2**20
    assert "program (13107, 32, 0)" in figures["in 32 bits"]
    assert "before the start of the nearest storage (8590458880 B)" in figures["in 32 bits"]
    assert figures["chunks before the fault"] == (2**31 - 13_107 * 163_840) // 1024 == 32


def test_sglang_renorm(figures: dict[str, Any]) -> None:
    assert figures["in the subclass"]
    assert figures["support"] == 0
    # A sum of 2000 in any order, then one division: 2000 roundings to float32.
    assert figures["relative error"] <= 2000 * 2.0**-24
    assert figures["kernels"] == ["_mask_and_partial_sum_kernel", "_normalize_kernel"]
    # Each of 3 x 2 programs reads its row's pivot and writes a partial sum; then value and row sum per element.
    assert figures["read"] == [3 * 2000 * 4 + 6 * 4, 3 * 2000 * 8]
    assert figures["written"] == [3 * 2000 * 4 + 6 * 4, 3 * 2000 * 4]


@needs_triton
def test_preparing_after_triton_was_imported_to_compile_is_refused() -> None:
    child = run_python("-c", "import triton\nfrom waveproof.kernels.runtimes import interpret\ninterpret.prepare()")
    assert child.returncode == 1
    assert "InterpreterUnavailable: Triton was imported in compile mode" in child.stderr


def test_preparing_without_triton_says_what_to_install() -> None:
    """Importing the runtime does not import Triton; where it cannot be found, prepare() names it."""
    program = (
        "import importlib.util, sys\n"
        "from waveproof.kernels.runtimes import interpret\n"
        "assert 'triton' not in sys.modules\n"
        "importlib.util.find_spec = lambda name: None\n"
        "interpret.prepare()"
    )
    child = run_python("-c", program)
    assert child.returncode == 1
    assert "InterpreterUnavailable: Triton is not installed; `pip install triton" in child.stderr


def every_pattern(form: narrow_floats.NarrowFloat) -> np.ndarray[Any, Any]:
    return np.arange(2**form.bits).astype(form.storage)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_pattern_widens_as_torch_has_it(name: str) -> None:
    form, dtype = narrow_floats.BY_TRITON_NAME[name], TORCH_DTYPES[name]
    pattern = every_pattern(form)
    np.testing.assert_array_equal(
        narrow_floats.widen(pattern, form), torch.from_numpy(pattern.copy()).view(dtype).float().numpy(), strict=True
    )


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_every_value_narrows_to_its_own_pattern(name: str) -> None:
    form = narrow_floats.BY_TRITON_NAME[name]
    value = narrow_floats.widen(every_pattern(form), form)
    number = ~np.isnan(value)
    for toward_zero in (False, True):
        narrowed = narrow_floats.narrow(value, form, toward_zero)
        np.testing.assert_array_equal(narrowed[number], every_pattern(form)[number])
        assert np.isnan(narrow_floats.widen(narrowed[~number], form)).all()


@pytest.mark.parametrize("name", [name for name in TORCH_DTYPES if name != "bf16"])
def test_eight_bit_overflow(name: str) -> None:
    form = narrow_floats.BY_TRITON_NAME[name]
    value = narrow_floats.values(form)
    largest = value[np.isfinite(value)].max()
    got = narrow_floats.widen(narrow_floats.narrow(np.array([1e30, -1e30, np.inf], np.float32), form), form)
    assert got[0] == -got[1] == largest
    assert got[2] == np.inf if form.nans == "ieee" else np.isnan(got[2])


def test_float64_is_rounded_once() -> None:
    """On, a hair above and a hair below each of the ties round 1; through float32 all three would be the tie."""
    tie = 1 + np.arange(128) * 2.0**-7 + 2.0**-8
    for number, up in ((tie + 2.0**-40, 1), (tie - 2.0**-40, 0)):
        np.testing.assert_array_equal(
            narrow_floats.narrow(number, narrow_floats.BFLOAT16), 0x3F80 + np.arange(128) + up
        )
    even = np.arange(128) + np.arange(128) % 2
    np.testing.assert_array_equal(narrow_floats.narrow(tie, narrow_floats.BFLOAT16), 0x3F80 + even)
