"""The table lint: its lookup against upstream's own code, its reading, catalogues, baseline and command."""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib
import logging
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from waveproof.fixtures.tables import lookup, padding
from waveproof.fixtures.tables.catalogue import catalogue
from waveproof.fixtures.tables.families import FAMILIES, FUSED_MOE, Family
from waveproof.fixtures.tables.lint import UnknownRule, lint, rule_named, target
from waveproof.fixtures.tables.models import GEMMS
from waveproof.fixtures.tables.reading import Value, merged, read_table
from waveproof.fixtures.tables.tree import TablesMissing, Tree, configured, installed, tree_at
from waveproof.reports.cli import app
from waveproof.selftest import tabular_stand_in
from waveproof.selftest.small_aiter import BLOCK, MOE, SIZES, cells, small_aiter, write


def _tree() -> Tree | None:
    try:
        return installed()
    except TablesMissing:
        return None


AITER = _tree()
needs_aiter = pytest.mark.skipif(AITER is None, reason="unavailable: amd-aiter is not installed")


# ---------------------------------------------------------------- upstream's own code


@pytest.fixture(scope="module")
def pandas() -> Iterator[ModuleType]:
    """pandas, or the part of it that is used; upstream imports it inside of functions too."""
    try:
        yield importlib.import_module("pandas")
    except ImportError:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "pandas", tabular_stand_in)
            yield tabular_stand_in


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """``getPaddedM`` and the rounding of ``rowwise_dispatch``, cut out of AITER's sources and compiled."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None or AITER is None:
        pytest.skip("unavailable: no C++ compiler or no amd-aiter")
    common = (AITER.csrc / "py_itfs_cu" / "gemm_common.cu").read_text(encoding="utf-8")
    common = "\n".join(line for line in common.splitlines() if not line.startswith("#include"))
    rowwise = (AITER.csrc / "ck_gemm_a8w8" / "gemm_a8w8.cu").read_text(encoding="utf-8")
    found = re.search(r"int padded_m = M;.*?(?=\n\s*// Second check)", rowwise, re.S)
    assert found is not None
    source = (
        f"#include <climits>\n{common}\n"
        'extern "C" int padded(int m, int n, int k, int level) { return getPaddedM(m, n, k, level); }\n'
        f'extern "C" int rowwise(int M) {{ {found.group(0)} return padded_m; }}\n'
    )
    folder = tmp_path_factory.mktemp("padding")
    (folder / "padding.cpp").write_text(source, encoding="utf-8")
    library = folder / "padding.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "padding.cpp"], check=True)
    return ctypes.CDLL(str(library))


def test_padding_is_that_of_upstreams_cpp(compiled: ctypes.CDLL) -> None:
    numbers = [*range(1, 1100), *range(1100, 70000, 37), 8192, 8193, 16384, 16385, 20480, 20481]
    for m in numbers:
        for n in (128, 4096, 4097):
            for level in (0, 1):
                assert padding.padded_m(m, n, level) == compiled.padded(m, n, 7168, level), (m, n, level)
        assert padding.rowwise(m, 128)[-1] == compiled.rowwise(m), m


def _functions(file: str, *names: str, **given: Any) -> dict[str, Any]:
    """Functions of an upstream file by name, run in a namespace of stand-ins; the rest of the file is not."""
    assert AITER is not None
    space: dict[str, Any] = {
        "functools": functools,
        "os": os,
        "re": re,
        "logger": logging.getLogger("upstream"),
        **given,
    }
    space["torch"] = SimpleNamespace(dtype=object, uint32="torch.uint32")
    text = AITER.text(file)
    if "tmp" in given:
        text = text.replace('f"/tmp/', f'f"{given["tmp"]}/')
    for node in ast.parse(text).body:
        defined = node.name if isinstance(node, ast.FunctionDef) else ""
        if isinstance(node, ast.Assign):
            defined = ast.unparse(node.targets[0])
        if defined in names:
            exec(compile(ast.Module([node], []), file, "exec"), space)
    return space


@pytest.fixture(scope="module")
def files(pandas: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The table of each variable as upstream's ``get_config_file`` makes it."""
    assert AITER is not None
    folder = tmp_path_factory.mktemp("merged")
    space = _functions(
        "aiter/jit/core.py", "get_config_file", "update_config_files", AITER_ROOT_DIR=str(AITER.root), tmp=folder
    )
    return {
        name: Path(space["get_config_file"](f"UNSET_{name}", str(AITER.configs / one.default), one.merge))
        for name, one in configured(AITER).items()
    }


@needs_aiter
def test_merging_keeps_what_upstream_keeps(files: dict[str, Path], pandas: ModuleType) -> None:
    assert AITER is not None
    for name, one in configured(AITER).items():
        own = merged(AITER, one)
        if not files[name].exists():
            assert own.table.refused
            continue
        theirs = pandas.read_csv(str(files[name]))
        keys = [
            column
            for column in ("cu_num", "M", "N", "K", "token", "model_dim", "inter_dim", "us")
            if column in own.table.columns
        ]
        rows = theirs.drop_duplicates(keys).set_index(keys).to_dict("index")
        assert sorted(rows) == sorted({tuple(row.keys[key] for key in keys) for row in own.table.rows}), name


Finder = Callable[[int, int, int], "Mapping[str, Any] | None"]


def _finder(family: Family, cu_num: int, dtype: str, files: dict[str, Path], pandas: ModuleType, padded: Any) -> Finder:
    """Upstream's Python lookup of a family on a device with so many compute units."""
    file = str(files[family.variable])
    given = {
        "pd": pandas, "get_cu_num": lambda: cu_num, "get_padded_m": padded, "AITER_LOG_TUNED_CONFIG": 0,
        "Optional": None, "AITER_ROOT_DIR": "", "AITER_CONFIG_GEMM_A4W4_FILE": file,
        "AITER_CONFIG_GEMM_BF16_FILE": file,
        "_CKGEMM_CONFIG_CACHE": None, "dtypes": SimpleNamespace(fp16=None, bf16=None),
    }  # fmt: skip
    if family.name == "a4w4_blockscale":
        return _functions("aiter/ops/gemm_op_a4w4.py", "get_GEMM_config", **given)["get_GEMM_config"]
    if family.name == "a8w8_bpreshuffle":
        own = _functions("aiter/ops/gemm_op_a8w8.py", "get_bpreshuffle_GEMM_config", **given)[
            "get_bpreshuffle_GEMM_config"
        ]
        return lambda m, n, k: own(m, n, k, dtype, file)
    if family.name == "bf16":
        names = ("get_GEMM_A16W16_config", "get_GEMM_A16W16_config_")
        space = _functions("aiter/tuned_gemm.py", *names, **given)

        def bf16(m: int, n: int, k: int) -> Mapping[str, Any] | None:
            found = space["get_GEMM_A16W16_config"](m, n, k, False, "torch.bfloat16", "torch.bfloat16", False)
            return found if "us" in found else None

        return bf16
    own = _functions("aiter/ops/gemm_op_a8w8.py", "get_CKGEMM_config", **given)["get_CKGEMM_config"]
    return lambda m, n, k: own(m, n, k, file)


def _questions(family: Family, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Ms, Ns and Ks in and around the table's keys."""
    assert AITER is not None
    rows = merged(AITER, configured(AITER)[family.variable]).table.rows
    shapes = sorted({(row.keys["M"], row.keys["N"], row.keys["K"]) for row in rows}, key=repr) or [(64, 256, 5120)]
    for _ in range(150):
        m, n, k = (int(value) for value in rng.choice(shapes) if isinstance(value, int))
        yield (
            rng.choice((m, max(1, m - rng.randrange(16)), m + 1, rng.randrange(1, 40000))),
            n,
            rng.choice((k, k, k + 64)),
        )


_PYTHON = [one for one in FAMILIES if "batched" not in one.name]


@needs_aiter
@pytest.mark.parametrize("family", _PYTHON, ids=lambda one: one.name)
def test_lookup_finds_what_upstreams_python_finds(
    family: Family, files: dict[str, Path], pandas: ModuleType, compiled: ctypes.CDLL
) -> None:
    assert AITER is not None
    rng, hits = random.Random(7), 0
    for gfx, cu_num in (("gfx942", 304), ("gfx942", 80), ("gfx950", 256), ("gfx942", 228)):
        find = _finder(family, cu_num, lookup.E4M3[gfx], files, pandas, compiled.padded)
        table = lookup.loaded(AITER, family)
        for m, n, k in _questions(family, rng):
            theirs = find(m, n, k)
            fixed: dict[str, Value] = {
                "cu_num": cu_num, "N": n, "K": k, "q_dtype_w": lookup.E4M3[gfx], "bias": False, "scaleAB": False,
                "dtype": "torch.bfloat16", "outdtype": "torch.bfloat16",
            }  # fmt: skip
            own = lookup.asked(family, table, m, fixed)
            assert (own is None) == (theirs is None), (family.name, cu_num, m, n, k)
            if own is not None and theirs is not None:
                hits += 1
                assert (own.values["kernelName"], own.number("us")) == (theirs["kernelName"], theirs["us"])
    assert hits > 20 or family.name == "bf16"


class _Word(str):
    """A member of one of upstream's enumerations, which the tables have as text."""

    __slots__ = ()


@needs_aiter
@pytest.mark.parametrize("quant", sorted(lookup.QUANTS))
def test_experts_are_looked_up_as_upstream_does(quant: str, files: dict[str, Path], pandas: ModuleType) -> None:
    assert AITER is not None
    said: list[str] = []
    logger = SimpleNamespace(info=said.append, warning=said.append)
    kinds = {
        name: _Word(f"QuantType.{name}")
        for name in ("No", "per_Tensor", "per_Token", "per_1x32", "per_1x128", "per_128x128")
    }
    acts = {name: _Word(f"ActivationType.{name}") for name in ("Silu", "Gelu", "Swiglu")}
    rows = merged(AITER, configured(AITER)[FUSED_MOE.variable]).table.rows
    shapes = sorted(
        {tuple(int(str(row.keys[name])) for name in ("model_dim", "inter_dim", "expert", "topk")) for row in rows}
    )
    rng, hits = random.Random(11), 0
    for gfx, cu_num in (("gfx942", 80), ("gfx950", 256), ("gfx942", 304)):
        types = SimpleNamespace(
            bf16="torch.bfloat16", fp16="torch.float16", fp8=lookup.E4M3[gfx], i8="torch.int8",
            fp4x2="torch.float4_e2m1fn_x2", i4x2="torch.int4",
        )  # fmt: skip
        space = _functions(
            "aiter/fused_moe.py", "get_2stage_cfgs", "get_padded_M", "nextPow2", "get_block_size_M",
            "fused_moe_1stage_dict", logger=logger, aiter=MagicMock(), dtypes=types,
            AITER_CONFIG_FMOE_FILE=str(files[FUSED_MOE.variable]),
            get_cu_num=lambda cu_num=cu_num: cu_num, get_gfx=lambda gfx=gfx: gfx, QuantType=SimpleNamespace(**kinds),
            ActivationType=SimpleNamespace(**acts), cfg_2stages=None, BLOCK_SIZE_M=32, MOEMetadata=MagicMock(),
            cktile_moe_stage1=MagicMock(), cktile_moe_stage2=MagicMock(), asm_stage1=MagicMock(),
            fused_moe_1stage=MagicMock(),
        )  # fmt: skip
        for _ in range(60):
            shape, count = rng.choice(shapes), rng.choice((1, 7, 16, 33, 64, 500, 1024, 1025, 9000))
            q_type, dtype = lookup.QUANTS[quant]
            dtype = types.fp8 if dtype == "fp8" else dtype
            said.clear()
            space["get_2stage_cfgs"](
                space["get_padded_M"](count), *shape, types.bf16, dtype, dtype, kinds[q_type.rpartition(".")[2]], True,
                acts["Silu"], False, 0, 0, None, None,
            )  # fmt: skip
            if not said:  # functools.lru_cache
                continue
            model_dim, inter_dim, experts, top_k = shape
            found = lookup.fused_moe(gfx, cu_num, model_dim, inter_dim, experts, top_k, quant, [count], AITER)
            default = " default for " in said[-1]
            assert default == bool(found.misses), said[-1]
            hits += not default
            if default:
                stages = found.falls_to.partition(",")[0]
                wanted = "1stage" if "using 1stage" in said[-1] else "2stage"
                small = {"one stage above 32 tokens": count > 32, "one stage below 256 tokens": count < 256}
                own = small.get(stages, stages.startswith("one stage"))
                assert own == (wanted == "1stage"), (stages, said[-1])
    assert hits or quant in ("int8_per_token", "mxfp4")


@needs_aiter
def test_rows_of_a_c_lookup_are_those_of_the_device() -> None:
    found = lookup.gemm("gfx950", 256, "a8w8_blockscale_bpreshuffle", 2112, 7168, [16, 17, 100_000])
    assert len(found.rows) == 2
    assert found.misses == (100_000,)
    assert all(place.endswith(f":{line}") for place, line in zip(found.where, found.rows, strict=True))
    assert "gemm_a8w8_blockscale_bpreshuffle.cu:" in found.falls_to
    assert lookup.gemm("gfx942", 304, "a4w4_blockscale", 7168, 2048, [16]).misses == (16,)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(LookupError, match="known: bf16, a8w8"):
        lookup.gemm("gfx942", 304, "a9w9", 1, 1, [1], tree=MagicMock())
    with pytest.raises(lookup.LookupUnknown, match="fp8_block"):
        lookup.fused_moe("gfx942", 304, 1, 1, 1, 1, "fp9", [1], tree=MagicMock())
    with pytest.raises(UnknownRule, match="merge"):
        rule_named("nonsense")
    with pytest.raises(TablesMissing, match="aiter/configs"):
        tree_at(Path(__file__).parent)


# ---------------------------------------------------------------- reading


def test_columns_are_typed_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "aiter" / "configs").mkdir(parents=True)
    path = tmp_path / "aiter" / "configs" / "x.csv"
    path.write_text("cu_num,M,us,bias\n256,16,1.5,True\n\n304, 32,2,False\n", encoding="utf-8")
    table = read_table(tree_at(tmp_path), path)
    assert [(row.line, dict(row.keys)) for row in table.rows] == [
        (2, {"cu_num": 256, "M": 16, "us": 1.5, "bias": True}),
        (4, {"cu_num": 304, "M": 32, "us": 2.0, "bias": False}),
    ]
    path.write_text("cu_num,M\n# tuned\n256,16\n304,16,17\n", encoding="utf-8")
    table = read_table(tree_at(tmp_path), path)
    assert [row.keys["cu_num"] for row in table.rows] == ["# tuned", "256", "304"]
    assert [line for line, _ in table.broken] == [2, 4]
    assert "x.csv:4" in table.refused


@needs_aiter
def test_catalogues_are_those_that_upstream_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the ``*_common.py`` run as Python: they import dataclasses only."""
    assert AITER is not None
    for family in FAMILIES:
        if family.catalogue:
            own = catalogue(AITER, family.catalogue)
            space: dict[str, Any] = {"__name__": "instances"}
            monkeypatch.setitem(sys.modules, "instances", ModuleType("instances"))
            exec(AITER.text(own.file), space)
            assert own.names == {number: one.name for number, one in space["kernels_list"].items()}, own.file


# ---------------------------------------------------------------- command


def test_command(tmp_path: Path) -> None:
    files = dict(small_aiter())
    clean, faulty = write(files, tmp_path / "clean"), tmp_path / "faulty"
    assert CliRunner().invoke(app, ["tables", str(clean)]).exit_code == 0
    cells(BLOCK, 4, us="0")(files)
    write(files, faulty)
    report, baseline = tmp_path / "found.json", tmp_path / "known.toml"
    run = CliRunner().invoke(app, ["tables", str(faulty), "--rule", "values", "--json", str(report)])
    assert run.exit_code == 1
    assert "1 of them not reviewed" in run.output
    assert '"line": 4' in report.read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["tables", str(faulty), "--accept", "--baseline", str(baseline)]).exit_code == 0
    assert CliRunner().invoke(app, ["tables", str(faulty), "--baseline", str(baseline)]).exit_code == 1
    baseline.write_text(baseline.read_text(encoding="utf-8").replace('note = ""', 'note = "ours"'), encoding="utf-8")
    assert CliRunner().invoke(app, ["tables", str(faulty), "--baseline", str(baseline)]).exit_code == 0
    twice = baseline.read_text(encoding="utf-8").partition("[[known]]")[2]
    baseline.write_text(f"[[known]]{twice}\n[[known]]{twice}", encoding="utf-8")
    for path in (baseline, tmp_path / "nowhere.toml", tmp_path):
        assert CliRunner().invoke(app, ["tables", str(faulty), "--baseline", str(path)]).exit_code == 2
    assert CliRunner().invoke(app, ["tables", str(faulty), "--rule", "no"]).exit_code == 2
    assert CliRunner().invoke(app, ["tables", str(tmp_path / "nowhere")]).exit_code == 2


def test_a_checkout_is_looked_at_as_wheels_are(tmp_path: Path) -> None:
    """There ``csrc`` and ``hsa`` lie beside the package."""
    files = {name.removeprefix("aiter_meta/"): content for name, content in small_aiter().items()}
    results = lint(*target(str(write(files, tmp_path))))
    assert not [one.findings[0] for one in results if one.findings]
    assert {one.rule.name for one in results if not one.looked_at} == {"merge", "intree"}


def test_small_tree_is_looked_at(tmp_path: Path) -> None:
    """Each rule that is not about sglang's in-tree rows or merged files has something to look at, and finds nothing."""
    results = lint(*target(str(write(dict(small_aiter()), tmp_path))))
    assert not [one.findings[0] for one in results if one.findings]
    assert {one.rule.name for one in results if not one.looked_at} == {"merge", "intree"}
    tree = tree_at(tmp_path)
    gemm = GEMMS[0]
    for gfx, cu_num in SIZES:
        found = lookup.gemm(gfx, cu_num, "a8w8_blockscale", gemm.n, gemm.k, [16, 200], tree)
        assert (len(found.rows), found.misses) == (2, ())
    assert read_table(tree, tmp_path / MOE).rows
