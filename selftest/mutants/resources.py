"""Planted waste of registers, LDS and matrix units, edited budgets, and what must not be taken for one of them.

Kernels are compiled for gfx950 in a process of their own: sglang's decode of grouped queries, its launch changed from
outside, and small ones of ``resource_kernels.py``. What the unchanged one takes is its budget.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from waveproof.fixtures.baselines import BadBaseline
from waveproof.fixtures.resources.budgets import (
    Budget,
    Compilation,
    Figures,
    Kernel,
    accepted,
    load_baseline,
    save_baseline,
)
from waveproof.fixtures.resources.cases import LaunchCase
from waveproof.fixtures.resources.judging import (
    COMPILES,
    CURRENT,
    LDS_FITS,
    MATRIX_UNITS,
    WITHIN,
    WORKGROUP_FITS,
    broken_rules,
    judge,
)
from waveproof.fixtures.resources.process import Compiler
from waveproof.kernels.runtimes.catalogue import installed, why_unavailable
from waveproof.selftest.planted import Planted

ARCH = "gfx950"
BAD = "baseline is read"
"""Broken by one that is refused."""
_KERNELS = "waveproof.selftest.mutants.resource_kernels"
Rows = tuple[Budget, ...]


@functools.cache
def _compiler() -> Compiler:
    compiler = Compiler("planted", ARCH)
    atexit.register(compiler.close)
    return compiler


def compiled(function: str, **options: int | str) -> Compilation:
    """A launch of ``resource_kernels``, compiled once; kernels go by one name, as if each were edited in its place."""
    return _compiled(function, tuple(options.items()))


@functools.cache
def _compiled(function: str, options: tuple[tuple[str, int | str], ...]) -> Compilation:
    attention = function in ("attention", "upstream")
    case = LaunchCase("planted", "planted", f"{_KERNELS}:{function}", function, dict(options), (ARCH,), attention)
    found = replace(_compiler().compile(case), version="1.0", triton="3.9.0")
    return replace(found, kernels=tuple(map(_nameless, range(len(found.kernels)), found.kernels)))


def _nameless(index: int, kernel: Kernel) -> Kernel:
    return replace(kernel, name=f"kernel {index}", defined="file.py:1")


def budgets(granted: Compilation) -> Rows:
    """What is taken becomes the budget, exceptions included."""
    return accepted([granted], (), "as measured", "selftest", broken_rules(granted))


def rules(taken: Compilation, rows: Rows) -> Sequence[str]:
    """Names of the rules that are broken."""
    return [judgement.rule for judgement in judge(taken, rows) if not judgement.holds]


Launch = tuple[str, Mapping[str, int | str]]
UPSTREAM: Launch = ("upstream", {})
ATTENTION: Launch = ("attention", {})
STREAMING: Launch = ("streaming", {})
PRODUCT: Launch = ("product", {"size": 32, "num_warps": 4})


def wasteful(name: str, fault: str, due: str, base: Launch, function: str = "", **options: int | str) -> Planted:
    """A launch whose code is not what the base's budget grants."""

    def broken() -> Sequence[str]:
        return rules(compiled(function or base[0], **options), budgets(compiled(base[0], **base[1])))

    upstream = base is UPSTREAM
    return Planted(name, fault, due, broken, functools.partial(why_not, upstream))


def edited(name: str, fault: str, due: str, edit: Callable[[Rows], Rows], base: Launch = ATTENTION) -> Planted:
    """The base, unchanged, against a baseline that was edited and went through its file."""

    def broken() -> Sequence[str]:
        taken = compiled(base[0], **base[1])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "resources.json"
            save_baseline(edit(budgets(taken)), path)
            try:
                return rules(taken, load_baseline(path))
            except BadBaseline:
                return [BAD]

    return Planted(name, fault, due, broken, why_not)


def why_not(upstream: bool = False) -> str:
    """Why nothing can be compiled here, or nothing of sglang's."""
    return why_unavailable("compile") or ("sglang is not installed" if upstream and not installed("sglang") else "")


def _figures(**changes: object) -> Callable[[Rows], Rows]:
    """Every row with other figures."""

    def edit(rows: Rows) -> Rows:
        return tuple(
            replace(row, figures=replace(row.figures, **changes))  # type: ignore[arg-type]
            for row in rows if row.figures is not None
        )  # fmt: skip

    return edit


def _added(rows: Rows) -> Rows:
    return (*rows, replace(rows[0], kernel="a kernel that went away"))


def _other_triton(**changes: int) -> Callable[[Rows], Rows]:
    """The rows of another version of Triton, with other figures."""
    edit = _figures(**changes)
    return lambda rows: tuple(replace(row, triton="3.8.1") for row in edit(rows))


def _exempt(rows: Rows) -> Rows:
    return tuple(replace(row, known=("no scratch",), because="out of habit") for row in rows)


def _said_to_fail(rows: Rows) -> Rows:
    fault = replace(
        rows[0], kernel="", figures=None, config={}, fault="an error", known=(COMPILES,), because="so it was"
    )
    return (*rows, fault)


def recompiled() -> Sequence[str]:
    """Against what was measured before."""
    return rules(_compiled.__wrapped__("upstream", ()), budgets(compiled(*UPSTREAM[:1])))


def growing_spill() -> Sequence[str]:
    """Registers that are known to spill, and more of them."""
    taken = compiled("product", size=128, num_warps=1)
    return rules(taken, tuple(_figures(vgpr_spill=10, scratch_bytes=40)(budgets(taken))))


def shuffled() -> Sequence[str]:
    """Kernels and rows in another order, among those of other cases."""
    taken = compiled(*UPSTREAM[:1])
    rows = budgets(taken)
    others = tuple(replace(row, case="another") for row in rows)
    return rules(replace(taken, kernels=taken.kernels[::-1]), (*others, *rows[::-1]))


def spill_as_known() -> Sequence[str]:
    """A spill with a reviewed exception."""
    taken = compiled("product", size=128, num_warps=1)
    return rules(taken, budgets(taken))


def fewer_registers() -> Sequence[str]:
    """A kernel of a later package that takes less than the row of the earlier one."""
    taken = compiled(*ATTENTION[:1])
    newer = Kernel(taken.kernels[0].name, _less(taken.kernels[0].figures), {"BLOCK_N": 16})
    return rules(replace(taken, version="1.1", kernels=(newer,)), budgets(taken))


def vanished() -> Sequence[str]:
    """A later release of which no kernel is seen."""
    taken = compiled(*ATTENTION[:1])
    return rules(replace(taken, version="1.1", kernels=()), budgets(taken))


def other_fault() -> Sequence[str]:
    """Against a row for another message."""
    old = Compilation("planted", ARCH, "planted", "1.0", "3.9.0", fault="CompileFailed: one error")
    return rules(replace(old, version="1.1", fault="NameError: another"), budgets(old))


def absent() -> Sequence[str]:
    """What a launch case imports is not there."""
    found = compiled("absent_launcher")
    assert found.absent, found.fault
    return rules(found, ())


def _unexplained(rows: Rows) -> Rows:
    return tuple(replace(row, known=("no scratch",), because="") for row in rows)


def _less(figures: Figures) -> Figures:
    return replace(figures, vgpr=figures.vgpr // 2, lds_bytes=0, waves_per_simd=8, waves_per_cu=32)


PLANTED: tuple[Planted, ...] = (
    wasteful("more warps", "The launcher asks for 8 waves a workgroup, 4 before.", CURRENT, UPSTREAM, num_warps=8),
    wasteful(
        "fewer warps", "The launcher asks for 2 waves, and each holds twice as much.", WITHIN, UPSTREAM, num_warps=2
    ),
    wasteful("bigger block", "The launcher takes 128 keys at once, 32 before.", WITHIN, UPSTREAM, BLOCK_N=128),
    wasteful("deeper pipeline", "The launcher asks for 3 stages, each with LDS of its own.", WITHIN, UPSTREAM,
             num_stages=3),
    wasteful("bigger head block", "The launcher's constant for heads is 64, and 16 before.", WITHIN, UPSTREAM,
             "heads_of_a_block", block_h=64),
    wasteful("fewer waves", "64 keys at once leave room for 4 waves on a SIMD, 32 left it for 5.", WITHIN, ATTENTION,
             block_n=64),
    wasteful("accumulators doubled", "A second accumulator in fp32 lives through the loop.", WITHIN, ATTENTION,
             kernel="attend_twice"),
    wasteful("live tensor", "A second vector is kept across a reduction.", WITHIN, STREAMING, kernel="add_and_keep"),
    wasteful("sum of products", "tl.dot became a sum over a product: no matrix instruction.", MATRIX_UNITS, ATTENTION,
             kernel="attend_lane_by_lane"),
    wasteful("spill", "One wave for a tile of 128 x 128.", "no spills", PRODUCT, size=128, num_warps=1),
    wasteful("scratch", "The same: what spills lies in scratch.", "no scratch", PRODUCT, size=128, num_warps=1),
    wasteful("LDS beyond the arch", "Tiles of 256 x 256 in fp32.", LDS_FITS, PRODUCT, size=256, num_warps=8),
    wasteful("workgroup beyond the limit", "32 waves a workgroup.", WORKGROUP_FITS, STREAMING, num_warps=32),
    wasteful("does not compile", "A name that is defined nowhere.", COMPILES, STREAMING, kernel="undefined_name"),
    wasteful("refused by the assembler", "An instruction that there is not.", COMPILES, STREAMING,
             kernel="unknown_instruction"),
    wasteful("launches nothing", "The launcher takes a fallback in torch.", COMPILES, STREAMING, "empty"),
    Planted("known spill grows", "An exception for 10 spilled registers hides 312.", WITHIN, growing_spill, why_not),
    edited("budget cut", "The row grants less LDS than the kernel takes.", WITHIN, _figures(lds_bytes=2048)),
    edited("budget padded", "The row grants LDS that the kernel does not take.", CURRENT, _figures(lds_bytes=65536)),
    edited("waves overstated", "The row counts more waves than there is room for.", WITHIN, _figures(waves_per_cu=32)),
    edited("row missing", "A kernel has no row.", CURRENT, lambda rows: rows[1:]),
    edited("row left over", "A row has no kernel.", CURRENT, _added),
    edited("exception without need", "A rule is waived that is not broken.", CURRENT, _exempt),
    edited("mended fault", "The baseline says that it does not compile, and it does.", CURRENT, _said_to_fail),
    edited("worse than another Triton", "There is a row for Triton 3.8.1 alone, with less scratch.", WITHIN,
           _other_triton(scratch_bytes=16, vgpr_spill=4), ("product", {"size": 128, "num_warps": 1})),
    Planted("unchanged", "It is compiled once more.", "", recompiled, functools.partial(why_not, True)),
    wasteful("renamed", "Variables have other names, and there are comments.", "", STREAMING, kernel="add_renamed"),
    Planted("shuffled", "Kernels and rows come in another order.", "", shuffled, functools.partial(why_not, True)),
    Planted("spill as known", "It spills, as the baseline grants with a reason.", "", spill_as_known, why_not),
    edited("another Triton", "There is a row for Triton 3.8.1 alone, and other registers.", "", _other_triton(vgpr=99)),
    Planted("fewer registers", "A later release takes less, and no row says so yet.", "", fewer_registers, why_not),
    wasteful("upstream import broken", "sglang itself imports a name that is gone.", COMPILES, STREAMING,
             "broken_upstream"),
    Planted("nothing compiled", "A later release launches none of the kernels.", COMPILES, vanished, why_not),
    Planted("another fault", "It is known not to compile; a later release fails otherwise.", COMPILES, other_fault),
    edited("exception without reason", "A rule is waived, and nobody says why.", BAD, _unexplained),
    edited("figure in words", "A figure of the baseline is a text.", BAD, _figures(vgpr="12")),
    Planted("launcher gone", "The package has no such launcher, and never had a row.", "", absent, why_not),
    # Last, since the next compilation starts another process.
    wasteful("compiler aborts", "LLVM takes the process down.", COMPILES, STREAMING, "abort"),
)  # fmt: skip
