"""Faults planted in a copy of the installed tables, held against the reviewed baseline."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from waveproof.fixtures.tables.baseline import compare, read_baseline, shipped_baseline
from waveproof.fixtures.tables.lint import lint, rule_named
from waveproof.fixtures.tables.tree import TablesMissing, installed, tree_at
from waveproof.selftest.mutants.aiter_tables_planting import slower
from waveproof.selftest.planted import Planted

_ROW_RULES = ("device", "unreachable", "reading", "duplicate", "merge", "values", "fit", "kernel")


def _installed(change: Callable[[Path], None], rules: Sequence[str]) -> Callable[[], Sequence[str]]:
    """Rules with findings that the reviewed baseline has not, in a copy of the installed tables after a change."""

    def broken() -> Sequence[str]:
        real = installed()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            shutil.copytree(real.configs, root / "aiter" / "configs")
            for name in ("jit/core.py", "fused_moe.py"):
                (root / "aiter" / name).parent.mkdir(exist_ok=True)
                shutil.copy(real.package / name, root / "aiter" / name)
            (root / "aiter_meta").symlink_to(real.meta, target_is_directory=True)
            change(root / "aiter" / "configs")
            results = lint(tree_at(root), None, [rule_named(name) for name in rules])
        findings = [one for result in results for one in result.findings]
        compared = compare(findings, read_baseline(shipped_baseline()), rules)
        return [known.rule for known, _ in compared.new]

    return broken


def _absent() -> str:
    """Why the installed tables cannot be patched."""
    try:
        found = installed().version
    except TablesMissing as error:
        return str(error)
    reviewed = read_baseline(shipped_baseline()).versions.get("amd-aiter")
    return "" if found == reviewed else f"amd-aiter {found} is installed, the baseline is of {reviewed}"


def _line(name: str, line: int, change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(configs: Path) -> None:
        lines = (configs / name).read_text(encoding="utf-8").splitlines(keepends=True)
        before, lines[line - 1] = lines[line - 1], change(lines[line - 1])
        assert before != lines[line - 1]
        (configs / name).write_text("".join(lines), encoding="utf-8")

    return apply


def _append(name: str, change: Callable[[list[str]], str]) -> Callable[[Path], None]:
    def apply(configs: Path) -> None:
        lines = (configs / name).read_text(encoding="utf-8").splitlines()
        (configs / name).write_text("\n".join([*lines, change(lines)]) + "\n", encoding="utf-8")

    return apply


def patched(name: str, text: str, due: str, change: Callable[[Path], None]) -> Planted:
    """A change of a copy of the installed tables."""
    rules = _ROW_RULES if due in ("", "kernel") else [one for one in _ROW_RULES if one != "kernel"]
    return Planted(name, text, due, _installed(change, rules), _absent)


def _reverse(path: Path) -> None:
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, *rows[::-1]]) + "\n", encoding="utf-8")


PATCHED: tuple[Planted, ...] = (
    patched(
        "installed-cu-305",
        "A row of the installed tuned_fmoe.csv for 305 compute units.",
        "device",
        _line("tuned_fmoe.csv", 9, lambda row: row.replace("256,", "305,", 1)),
    ),
    patched(
        "installed-kernel-99",
        "A row of a8w8_blockscale with a kernelId that the catalogue has not.",
        "kernel",
        _line("a8w8_blockscale_tuned_gemm.csv", 2, lambda row: row.replace(",8,0,", ",99,0,", 1)),
    ),
    patched(
        "installed-duplicate",
        "The first row of a8w8_tuned_gemm.csv again, slower.",
        "duplicate",
        _append("a8w8_tuned_gemm.csv", lambda lines: slower(lines[1])),
    ),
    patched(
        "installed-time-0",
        "A time of 0 in a4w4_blockscale_tuned_gemm.csv.",
        "values",
        _line("a4w4_blockscale_tuned_gemm.csv", 2, lambda row: row.replace(",8.5995,", ",0,")),
    ),
    patched(
        "installed-wrong-quant",
        "A per-token row of the experts whose kernel is for a scale a tensor.",
        "fit",
        _line("tuned_fmoe.csv", 3, lambda row: row.replace("QuantType.per_Tensor", "QuantType.per_Token")),
    ),
    patched(
        "installed-known-error-grows",
        "A row with a reviewed error of 16 % of the elements has one of 95 %.",
        "values",
        _line("a8w8_bpreshuffle_tuned_gemm.csv", 668, lambda row: row.replace(",0.1606", ",0.95")),
    ),
    patched("installed-as-it-is", "The installed tables.", "", lambda configs: None),
    patched(
        "installed-reversed",
        "The rows of a table in the opposite order: the findings are the same.",
        "",
        lambda configs: _reverse(configs / "a8w8_blockscale_tuned_gemm.csv"),
    ),
)
