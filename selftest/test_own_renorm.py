"""Our sort-free renorm kernel against float64 and a sort, in Triton's interpreter and through its AMD back end.

Triton is imported by children only: this file, run as a script, is the child. Parent and child build the same cases
from fixed seeds, so nothing but results passes between them.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from waveproof.kernels.operators.renorm import SMALLEST_NORMAL, mass_band, value_tolerance

Row = npt.NDArray[np.float32]

VOCABULARIES = (1, 2, 31, 1000, 32_000)
FULL_VOCABULARY = 151_936
MASSES = (1e-6, 0.1, 0.5, 0.9, 0.999, 1.0)
LAYOUTS = ("padded", "transposed", "expanded", "offset", "strided", "distant")
ARCHITECTURES = ("gfx942", "gfx950")


@dataclass(frozen=True)
class Case:
    """One call: `limit` is one number for all rows or an array of one a row."""

    probs: npt.NDArray[np.float32]
    count: bool
    limit: int | float | npt.NDArray[Any]
    layout: str = "contiguous"

    def alone(self, row: int) -> Case:
        limit = self.limit
        if isinstance(limit, np.ndarray) and len(limit) > 1:
            limit = limit[row : row + 1]
        return replace(self, probs=self.probs[row : row + 1], limit=limit)


def _normalised(weights: npt.ArrayLike) -> Row:
    weights = np.asarray(weights, np.float64)
    return (weights / weights.sum()).astype(np.float32)


def _laws(size: int) -> dict[str, Row]:
    """Rows of every shape that a filter meets: smooth, tied, flat, peaked, tiny, wide."""
    random = np.random.default_rng(size)
    bell = np.exp(3.0 * random.standard_normal(size))
    tied = _normalised(bell).view(np.uint32) & np.uint32(0xFFFF0000)  # bfloat16's bits
    peak = np.zeros(size, np.float32)
    peak[size // 2] = 1.0
    return {
        "bell": _normalised(bell),
        "tied": tied.view(np.float32),
        "flat": np.full(size, 1.0 / size, np.float32),
        "peak": peak,
        "wide": _normalised(10.0 ** random.uniform(-30.0, 0.0, size)),
        "subnormal": random.integers(0, 1 << 20, size).astype(np.uint32).view(np.float32),
    }


def _one_lane(size: int) -> Row:
    """The largest values all in column 7 of a tile, so that its lane has to drop some of them."""
    random = np.random.default_rng(7)
    weights = random.uniform(0.0, 1e-6, size)
    weights[7::4096] = random.uniform(0.5, 1.0, len(weights[7::4096]))
    return _normalised(weights)


def _degenerate() -> npt.NDArray[np.float32]:
    """Good rows between rows that are no law, each of another kind."""
    good = _laws(1000)["bell"]
    rows = [good]
    for pattern in (0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000, 0xBE800000):  # NaN, -NaN, inf, -inf, -0.25
        bad = good.copy()
        bad.view(np.uint32)[617] = pattern
        rows += [bad, good]
    return np.stack([*rows, np.zeros_like(good), np.full_like(good, -0.0), good])


@functools.cache
def cases() -> dict[str, Case]:
    """Every call that is judged, by name."""
    named: dict[str, Case] = {}
    for size in VOCABULARIES:
        laws = _laws(size)
        rows = np.stack([laws[name] for name in (laws if size in (31, 1000) else ("bell", "tied", "subnormal"))])
        for k in sorted({-1, 0, 1, 2, size - 1, size, size + 1, 2**30}):
            named[f"k={k} V={size}"] = Case(rows, True, k)
        for p in MASSES:
            named[f"p={p} V={size}"] = Case(rows, False, p)
    full = np.stack([_laws(FULL_VOCABULARY)["bell"], _one_lane(FULL_VOCABULARY)])
    for k in (50, 30_000):
        named[f"k={k} V={FULL_VOCABULARY}"] = Case(full, True, k)
    for p in (0.5, 0.95):
        named[f"p={p} V={FULL_VOCABULARY}"] = Case(full, False, p)

    mixed = np.stack([_laws(1000)[name] for name in ("bell", "tied", "wide", "flat", "bell")])
    named["k a row"] = Case(mixed, True, np.array([1, 37, 0, 999, 2**40], np.int64))
    named["k a row, int32"] = Case(mixed, True, np.array([1, 37, 0, 999, 2**30], np.int32))
    named["k=37"] = Case(mixed, True, 37)
    named["k=37 in a tensor"] = Case(mixed, True, np.array([37], np.int32))
    named["p a row"] = Case(mixed, False, np.array([0.9, 0.3, 1.0, 0.5, 2.0], np.float32))
    named["p=0.9"] = Case(mixed, False, 0.9)
    named["p=0.9 in a tensor"] = Case(mixed, False, np.array([0.9], np.float32))
    for layout in LAYOUTS:
        rows = np.broadcast_to(mixed[:1], mixed.shape) if layout == "expanded" else mixed
        named[f"k=37 {layout}"] = Case(rows, True, 37, layout)
        named[f"p=0.9 {layout}"] = Case(rows, False, 0.9, layout)
    named["k=5 degenerate"] = Case(_degenerate(), True, 5)
    named["p=0.8 degenerate"] = Case(_degenerate(), False, 0.8)
    named["p a row, illegal"] = Case(mixed, False, np.array([np.nan, 0.0, -1.0, 0.9, -np.inf], np.float32))
    halves = np.array([[0.5, 0.25, 0.125, 0.0625, 0.0625]], np.float32)
    for p in (0.25, 0.5, 0.5 + 2.0**-24, 0.5 + 2.0**-23, 0.875, 0.9375, 1.0 - 2.0**-24):
        named[f"halves p={p}"] = Case(halves, False, p)
    named["nearly all in one"] = Case(np.array([[1 - 20e-9] + [1e-9] * 20], np.float32), False, 1.0)
    named["p above one"] = Case(mixed, False, 1.5)
    return named


REPEATED = ("k=2 V=1000", "k=37", "k a row", "p=0.5 V=1000", "p a row", "p=0.9 transposed", "k=5 degenerate")
"""Cases that run a second time, and then row by row."""


# --- the children -------------------------------------------------------------------------------------

REFUSALS = {
    "top_k_renorm_prob(probs[0], 2)": "(8,)",
    "top_k_renorm_prob(probs.double(), 2)": "torch.float64",
    "top_k_renorm_prob(probs.bfloat16(), 2)": "torch.bfloat16",
    "top_k_renorm_prob(probs, 2.0)": "2.0",
    "top_k_renorm_prob(probs, True)": "True",
    "top_k_renorm_prob(probs, None)": "None",
    "top_k_renorm_prob(probs, torch.tensor([2.0]))": "torch.float32",
    "top_k_renorm_prob(probs, torch.tensor([True]))": "torch.bool",
    "top_k_renorm_prob(probs, torch.tensor([1, 2]))": "2 elements for 4 rows",
    "top_p_renorm_prob(probs[None], 0.5)": "(1, 4, 8)",
    "top_p_renorm_prob(probs.half(), 0.5)": "torch.float16",
    "top_p_renorm_prob(probs, math.nan)": "nan",
    "top_p_renorm_prob(probs, 0.0)": "0.0",
    "top_p_renorm_prob(probs, -0.5)": "-0.5",
    "top_p_renorm_prob(probs, None)": "None",
    "top_p_renorm_prob(probs, torch.tensor([1]))": "torch.int64",
    "top_p_renorm_prob(probs, torch.tensor([.1, .2, .3]))": "3 elements for 4 rows",
}
"""Calls that must raise ValueError, with what its message must name."""


def _laid_out(torch: Any, case: Case) -> Any:
    dense = torch.from_numpy(np.ascontiguousarray(case.probs))
    rows, size = dense.shape
    if case.layout == "padded":
        return torch.full((rows, size + 13), torch.nan)[:, :size].copy_(dense)
    if case.layout == "transposed":
        return dense.t().contiguous().t()
    if case.layout == "expanded":
        return dense[:1].expand(rows, size)
    if case.layout == "offset":
        return torch.full((rows * size + 3,), torch.nan)[3:].view(rows, size).copy_(dense)
    if case.layout == "distant":  # the fifth row starts 2^31 elements on: 8 GiB of addresses, next to no memory
        return torch.empty((rows - 1) * 2**29 + size).as_strided((rows, size), (2**29, 1)).copy_(dense)
    if case.layout == "strided":
        return torch.full((2 * rows, 3 * size), torch.nan)[1::2, 2::3].copy_(dense)
    return dense


def _run_in_interpreter(directory: Path) -> None:
    torch: Any = importlib.import_module("torch")
    renorm: Any = importlib.import_module("waveproof.kernels.own.renorm")
    builder: Any = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    load, empty, tiles = builder.create_masked_load, torch.empty, [0]

    def counting_load(*arguments: Any) -> Any:
        tiles[0] += 1  # each is one tile of a row: what is loaded without a mask is a row's own limit
        return load(*arguments)

    builder.create_masked_load = counting_load

    def poisoned(*sizes: Any, **options: Any) -> Any:
        return empty(*sizes, **options).fill_(-7.0)  # what is not written shows

    def call(case: Case, probs: Any) -> Any:
        limit = torch.from_numpy(case.limit.copy()) if isinstance(case.limit, np.ndarray) else case.limit
        return (renorm.top_k_renorm_prob if case.count else renorm.top_p_renorm_prob)(probs, limit)

    results: dict[str, npt.NDArray[np.float32]] = {}
    facts: dict[str, Any] = {"reads": {}, "refusals": {}, "max_reads": renorm.MAX_READS}
    for name, case in cases().items():
        probs = _laid_out(torch, case)
        before = probs.numpy().tobytes()
        tiles[0], torch.empty = 0, poisoned
        out = call(case, probs)
        torch.empty = empty
        lanes, _ = renorm.launch_shape(probs.shape[1])
        facts["reads"][name] = tiles[0] / -(-probs.shape[1] // lanes) / len(probs)
        assert probs.numpy().tobytes() == before, f"{name}: probs changed"
        assert out.is_contiguous(), f"{name}: strides {out.stride()}"
        assert out.dtype == torch.float32, f"{name}: {out.dtype}"
        results[name] = out.numpy()
        if name in REPEATED:
            results[f"{name}: again"] = call(case, probs).numpy()
            for row in range(len(probs)):
                results[f"{name}: row {row} alone"] = call(case.alone(row), probs[row : row + 1]).numpy()
    for shape in ((0, 8), (4, 0), (0, 0)):
        for out in (renorm.top_k_renorm_prob(torch.empty(shape), 3), renorm.top_p_renorm_prob(torch.empty(shape), 0.5)):
            assert (out.shape, out.dtype) == (shape, torch.float32), f"{shape} became {tuple(out.shape)}, {out.dtype}"
    names = {**vars(renorm), "probs": torch.full((4, 8), 0.125)}
    for expression in REFUSALS:
        try:
            eval(expression, names)
        except ValueError as error:
            facts["refusals"][expression] = str(error)
    np.savez(directory / "results.npz", **results)  # type: ignore[arg-type]
    (directory / "facts.json").write_text(json.dumps(facts))


def _compile(directory: Path) -> None:
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    renorm = importlib.import_module("waveproof.kernels.own.renorm")
    resources: dict[str, dict[str, int]] = {}
    for arch, size, count, strided in [
        (arch, size, count, strided)
        for arch in ARCHITECTURES
        for count in (True, False)
        for size, strided in ((FULL_VOCABULARY, False), (FULL_VOCABULARY, True), (1000, False))
    ]:
        lanes, warps = renorm.launch_shape(size)
        constants = {"COUNT": count, "PER_ROW": strided, "PIVOTS": renorm.PIVOTS, "LANES": lanes}
        signature = {
            "probs_ptr": "*fp32",
            "renormed_ptr": "*fp32",
            "limit": ("*" if strided else "") + (("i64" if strided else "i32") if count else "fp32"),
            **dict.fromkeys(("stride_row", "stride_column", "stride_limit", "length"), "i32"),
            **dict.fromkeys(constants, "constexpr"),
        }
        aligned = ["probs_ptr", "renormed_ptr"]
        if not strided:  # what Triton's launcher makes of a contiguous tensor
            constants["stride_column"], signature["stride_column"] = 1, "constexpr"
            aligned += ["stride_row", "length"] if size % 16 == 0 else []
        names = renorm.renorm_kernel.arg_names
        source = compiler.ASTSource(
            fn=renorm.renorm_kernel,
            signature={name: signature[name] for name in names},
            constexprs=constants,
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )
        code = compiler.compile(source, target=target("hip", arch, 64), options={"num_warps": warps})
        found = dict(
            re.findall(r"\.(vgpr_count|\w+_spill_count|private_segment_fixed_size): +(\d+)", code.asm["amdgcn"])
        )
        label = f"{arch} {'top-k' if count else 'top-p'} V={size}{' strided' if strided else ''}"
        resources[label] = {**{key: int(value) for key, value in found.items()}, "lds": code.metadata.shared}
    (directory / "resources.json").write_text(json.dumps(resources))


def _child(task: str, directory: Path, **environment: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, __file__, task, str(directory)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]


# --- the judges ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, Any]]:
    directory = tmp_path_factory.mktemp("own_renorm")
    _child("interpret", directory, TRITON_INTERPRET="1")
    return dict(np.load(directory / "results.npz")), json.loads((directory / "facts.json").read_text())


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    directory = tmp_path_factory.mktemp("own_renorm_code")
    _child("compile", directory, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(directory / "cache"))
    return json.loads((directory / "resources.json").read_text())


def _must_and_may_keep(row: Row, case: Case, limit: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which values of `row` an exact filter keeps, and which it keeps where rounding of masses is against it."""
    size = len(row)
    ordered = np.sort(row)
    if case.count:
        exact = np.ones(size, np.bool_) if not 0 < limit < size else row >= ordered[-int(limit)]
        return exact, exact
    if np.float32(limit) >= 1.0:
        return np.ones(size, np.bool_), np.ones(size, np.bool_)
    mass_from = np.append(np.cumsum(ordered[::-1].astype(np.float64))[::-1], 0.0)
    larger = mass_from[np.searchsorted(ordered, row, side="right")]
    band = mass_band(size) if size > 5 else 0.0  # sums of so few halves are exact
    p = float(np.float32(limit))
    largest = row == ordered[-1]
    return (larger < p - band) | largest, (larger < p + band) | largest


def _assert_renormed(name: str, row: Row, got: Row, case: Case, limit: float) -> None:
    must, may = _must_and_may_keep(row, case, limit)
    kept = got != 0.0
    assert not (must & (row > 0) & ~kept).any(), f"{name}: dropped {np.flatnonzero(must & (row > 0) & ~kept)[:5]}"
    assert not (kept & ~may).any(), f"{name}: kept {np.flatnonzero(kept & ~may)[:5]}"
    if kept.any() and not kept.all():
        assert row[kept].min() > row[~kept].max(), f"{name}: kept {row[kept].min()} but not {row[~kept].max()}"
    want = np.where(kept, row.astype(np.float64), 0.0)
    want /= want.sum()
    error = np.abs(got - want) - value_tolerance(len(row)) * want
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    assert error[worst] <= SMALLEST_NORMAL, f"{name}, column {worst}: expected {want[worst]}, got {got[worst]}"


def _same_bits(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


LEGAL = [name for name in cases() if "degenerate" not in name and "illegal" not in name]


@pytest.mark.parametrize("name", LEGAL)
def test_rows_match_float64_and_a_sort(interpreted: Any, name: str) -> None:
    case, got = cases()[name], interpreted[0][name]
    assert got.shape == case.probs.shape
    limits = np.broadcast_to(case.limit, len(got))
    for row, (probs, renormed, limit) in enumerate(zip(case.probs, got, limits, strict=True)):
        if not probs.any():
            assert not renormed.any()
        else:
            _assert_renormed(f"{name}, row {row}", probs, renormed, case, limit.item())


@pytest.mark.parametrize("name", REPEATED)
def test_bits_repeat_and_do_not_depend_on_other_rows(interpreted: Any, name: str) -> None:
    results = interpreted[0]
    assert _same_bits(results[name], results[f"{name}: again"])
    for row in range(len(results[name])):
        assert _same_bits(results[name][row : row + 1], results[f"{name}: row {row} alone"]), f"row {row}"


@pytest.mark.parametrize("limit", ["k=37", "p=0.9"])
def test_one_limit_in_a_tensor_and_every_layout_give_the_same_bits(interpreted: Any, limit: str) -> None:
    results = interpreted[0]
    assert _same_bits(results[limit], results[f"{limit} in a tensor"])
    for layout in LAYOUTS:
        want = np.repeat(results[limit][:1], 5, axis=0) if layout == "expanded" else results[limit]
        assert _same_bits(results[f"{limit} {layout}"], want), layout


def test_per_row_limits_are_each_row_s_own(interpreted: Any) -> None:
    results = interpreted[0]
    assert _same_bits(results["k a row"][1], results["k=37"][1])
    assert _same_bits(results["k a row, int32"], results["k a row"])
    assert _same_bits(results["p a row"][0], results["p=0.9"][0])


@pytest.mark.parametrize("name", ["k=5 degenerate", "p=0.8 degenerate"])
def test_degenerate_rows_end_in_nan_or_zeros_and_disturb_no_other(interpreted: Any, name: str) -> None:
    case, got = cases()[name], interpreted[0][name]
    good = got[0]
    _assert_renormed(name, case.probs[0], good, case, np.float64(case.limit).item())
    for row, probs in enumerate(case.probs):
        if not probs.any():
            assert _same_bits(got[row], np.zeros_like(good)), f"row {row} sums to zero"
        elif not (np.isfinite(probs).all() and (probs >= 0).all()):
            assert np.isnan(got[row]).all(), f"row {row} holds {probs[617]}"
        else:
            assert _same_bits(got[row], good), f"row {row}"


def test_per_row_top_p_that_is_illegal(interpreted: Any) -> None:
    case, got = cases()["p a row, illegal"], interpreted[0]["p a row, illegal"]
    assert np.isnan(got[0]).all()
    for row in (1, 2, 4):  # not above zero: the largest value only, with its equals
        assert np.array_equal(got[row] > 0, case.probs[row] == case.probs[row].max()), f"row {row}"


def test_exact_boundaries_and_nothing_lost_at_one(interpreted: Any) -> None:
    results = interpreted[0]
    sizes = {name: int((results[name] > 0).sum()) for name in cases() if name.startswith("halves")}
    assert list(sizes.values()) == [1, 1, 2, 2, 3, 5, 5], sizes
    assert (results["nearly all in one"] > 0).all()
    assert results["halves p=0.25"].tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]


def test_reads_of_the_row(interpreted: Any) -> None:
    reads, most = interpreted[1]["reads"], interpreted[1]["max_reads"]
    assert max(reads.values()) <= most, max(reads, key=reads.get)
    assert {reads[f"p=1.0 V={size}"] for size in VOCABULARIES} == {2.0}
    assert {reads[f"k={k} V=1000"] for k in (-1, 0, 1, 2, 999, 1000)} == {2.0}
    assert reads["k=1 V=32000"] == 2.0
    assert reads[f"k=30000 V={FULL_VOCABULARY}"] > 3.0  # or the narrowing was never tried


@pytest.mark.parametrize("expression", REFUSALS)
def test_illegal_calls_are_refused_by_value(interpreted: Any, expression: str) -> None:
    messages = interpreted[1]["refusals"]
    assert expression in messages, "no ValueError"
    assert REFUSALS[expression] in messages[expression]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_without_spills_or_scratch(resources: dict[str, dict[str, int]], arch: str) -> None:
    ours = {label: found for label, found in resources.items() if label.startswith(arch)}
    assert len(ours) == 6
    for label, found in ours.items():
        print(label, found)
        spilled = ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
        assert [found[key] for key in spilled] == [0, 0, 0], f"{label}: {found}"
        assert found["vgpr_count"] <= 128, f"{label}: 16 wavefronts share a SIMD's 512 registers four ways: {found}"
        assert found["lds"] <= 16_384, f"{label}: {found}"


if __name__ == "__main__":
    {"interpret": _run_in_interpreter, "compile": _compile}[sys.argv[1]](Path(sys.argv[2]))
