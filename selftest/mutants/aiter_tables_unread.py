"""Faults that a lint passes over where it reads less than it seems to: cells that are no numbers, names of no known
form, sources and copies written in another way. In the small tree, as those of ``aiter_tables.py``.
"""

from __future__ import annotations

from waveproof.selftest.emulate.tiny_code_object import code_object_bytes
from waveproof.selftest.mutants.aiter_tables_planting import Change, columns, drop, fault, put, right
from waveproof.selftest.planted import Planted
from waveproof.selftest.small_aiter import (
    BF16,
    BLOCK,
    CONFIGS,
    CORE,
    HSA,
    LAUNCHES,
    MOE,
    MOE_CATALOGUE,
    ROUTER,
    SGLANG,
    TOKEN,
    cells,
    edit,
)

_CATALOGUE = "aiter_meta/csrc/ck_gemm_a8w8_blockscale/"


def _into_a_class(text: str) -> str:
    return "import os\nclass AITER_CONFIG:\n" + "".join(f"    {line}\n" for line in text.splitlines()[1:])


def _with_gfx(name: str, gfx942: str, gfx950: str) -> Change:
    """A column for the architecture, as later versions have it."""

    def change(text: str) -> str:
        header, *rows = text.splitlines()
        of_gfx950 = ("256", "128", "64", "32")
        named = [f"{row},{gfx950 if row.split(',')[0] in of_gfx950 else gfx942}" for row in rows]
        return "\n".join([f"{header},gfx", *named]) + "\n"

    return edit(name, change)


UNREAD: tuple[Planted, ...] = (
    fault("core-in-a-class", "core.py names tables in a class: none is read.", "device", edit(CORE, _into_a_class)),
    fault("core-gone", "There is no core.py: each rule holds of nothing.", "values", drop(CORE)),
    fault("gfx-of-another-size", "gfx950 beside 304 compute units.", "device", _with_gfx(BLOCK, "gfx950", "gfx950")),
    fault("more-than-all-experts", "999 experts a token of 256.", "unreachable", cells(MOE, 2, topk="999")),
    fault("half-a-row", "A row for 16.5 tokens.", "unreachable", cells(BLOCK, 2, M="16.5")),
    fault("tflops-nan", "A rate that is no number.", "values", cells(BLOCK, 2, tflops="nan")),
    fault("bandwidth-word", "A rate in words.", "values", cells(BLOCK, 2, bw="fast")),
    fault("time-infinite", "A time without end.", "values", cells(BLOCK, 2, us="inf")),
    fault(
        "expert-kernel-misspelled",
        "moe_kc2stages: neither a name of CK nor one of assembly.",
        "kernel",
        edit(MOE, lambda text: text.replace("moe_ck2stages_gemm2", "moe_kc2stages_gemm2", 1)),
    ),
    fault("expert-kernel-unnamed", "Two stages, and no name for the second.", "kernel", cells(MOE, 2, kernelName2="")),
    fault("no-column-of-names", "The column of the first stage's kernel is gone.", "kernel",
          columns(MOE, lambda names: [one for one in names if one != "kernelName1"])),
    fault("no-column-of-activations", "A column of the key is gone.", "reading",
          columns(MOE, lambda names: [one for one in names if one != "act_type"])),
    fault(
        "assembly-without-prefix",
        "ZN5aiter..., an underscore short: no name of a kernel.",
        "kernel",
        edit(BF16, lambda text: text.replace("_ZN5aiter5bf16gE", "ZN5aiter5bf16gE", 1)),
    ),
    fault("catalogue-cut-off", "The catalogue is no Python.", "kernel",
          edit(_CATALOGUE + "a8w8_blockscale_common.py", lambda text: text + "\ndef (:\n")),
    fault("generator-gone", "A catalogue without its generator.", "kernel", drop(_CATALOGUE + "gen_instances.py")),
    fault("expert-catalogue-gone", "The catalogue of the experts is not there.", "kernel", drop(MOE_CATALOGUE)),
    fault("object-for-gfx942-alone", "A host source names it for all; gfx950 has it no more.", "named object",
          drop(HSA + "gfx950/mla/decode.co")),
    fault("single-quotes", "A Python source names an object that is nowhere, in single quotes.", "named object",
          put("aiter/ops/x.py", "hsaco = 'mla/nothing.co'\n")),
    fault(
        "orphan-behind-a-name-of-holes",
        "A source fills a whole name in: that uses no object in particular.",
        "orphan",
        put("aiter/ops/x.py", 'hsaco = f"{name}.co"\n'),
        put(HSA + "gfx942/mla/forgotten.co", code_object_bytes([0xBF810000], "gfx942", "forgotten")),
    ),
    fault("heads-annotated", "The copy has a type beside it, and heads too many.", "heads",
          put(SGLANG, "_MLA_REDUCE_V1_HEADS: dict = {128: frozenset({16}), 512: frozenset({16, 12})}\n")),
    fault("heads-computed", "The copy is no literal.", "heads",
          put(SGLANG, "_MLA_REDUCE_V1_HEADS = dict([(512, frozenset({12}))])\n")),
    fault("heads-renamed", "The copy goes by another name.", "heads",
          put(SGLANG, "_MLA_REDUCE_V2_HEADS = {512: frozenset({12})}\n")),
    fault("router-gone", "The dispatcher is not where it was.", "heads", drop(ROUTER)),
    fault("configuration-empty", "A Triton configuration without a line.", "triton", put(LAUNCHES, "{}")),
    fault("configuration-no-text", "A Triton configuration that is no UTF-8.", "triton", put(LAUNCHES, b"\xff\xfe{}")),
    fault("group-of-none", "GROUP_SIZE_M 0, by which the kernel divides.", "triton",
          edit(LAUNCHES, lambda text: text.replace('"GROUP_SIZE_M": 1', '"GROUP_SIZE_M": 0', 1))),
    fault("endless-cell", "A cell of 200,000 characters.", "reading",
          edit(CONFIGS + "bf16_tuned_gemm.csv", lambda text: text + "x" * 200_000 + "\n")),
    right("byte-order-mark", "A mark before the header, which pandas passes over.",
          edit(BLOCK, lambda text: "\ufeff" + text)),
    right("gfx-beside-cu-num", "A column for the architecture, rightly filled.", _with_gfx(TOKEN, "gfx942", "gfx950")),
)  # fmt: skip
