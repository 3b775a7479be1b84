"""Faults planted in AITER's tuned tables, in lists of code objects and in sglang's copies, in a small tree of ours."""

from __future__ import annotations

import json

from waveproof.selftest.emulate.tiny_code_object import code_object_bytes
from waveproof.selftest.mutants.aiter_tables_installed import PATCHED
from waveproof.selftest.mutants.aiter_tables_planting import (
    Change,
    columns,
    drop,
    fault,
    merged_with,
    put,
    right,
    slower,
    tflops_of,
    with_rows,
    without,
)
from waveproof.selftest.mutants.aiter_tables_unread import UNREAD
from waveproof.selftest.planted import Planted
from waveproof.selftest.small_aiter import (
    ASSEMBLY,
    BF16,
    BLOCK,
    CK_MOE,
    CONFIGS,
    CORE,
    FP4,
    HSA,
    LAUNCH,
    LAUNCHES,
    MOE,
    ROUTER,
    SGLANG,
    SHUFFLED,
    TOKEN,
    cells,
    edit,
    gemm_row,
)

_UNTUNED = CONFIGS + "a8w8_blockscale_untuned_gemm.csv"
_LIST = HSA + "gfx942/fmoe_2stages/fmoe_2stages.csv"


def _launch(**values: object) -> Change:
    return put(LAUNCHES, json.dumps({"1": {**LAUNCH, **values}}, indent=1))


def _router(*finals: str) -> Change:
    """A dispatcher with a branch for each form of two sizes: with and without log-sum-exps, ``NRFM`` as given."""
    arms = [
        f"    NUM_HEAD, 16, HEAD_DIM, {dim}, OUTPUT_LSE, {lse}, NRFM, {final}, NAME)\n"
        for dim in (128, 512)
        for lse in ("true", "false")
        for final in finals
    ]
    return put(ROUTER, "".join(arms))


_SMALL_FAULTS: tuple[Planted, ...] = (
    fault("cu-305", "A row for 305 compute units, which no device has.", "device", cells(BLOCK, 5, cu_num="305")),
    fault(
        "types-of-gfx942",
        "A row for 256 compute units with gfx942's fp8 type.",
        "device",
        with_rows(TOKEN, lambda rows: [*rows, gemm_row(TOKEN, "gfx942", 256, 7, 2048, 4096)]),
    ),
    fault(
        "fp4-on-gfx942",
        "A 4-bit row for the MI300X, which has no such arithmetic.",
        "device",
        cells(FP4, 2, cu_num="304"),
    ),
    fault(
        "no-rows-for-mi300x",
        "All rows for 304 compute units are gone from a table.",
        "products",
        with_rows(MOE, lambda rows: [row for row in rows if not row.startswith("304,")]),
    ),
    fault(
        "no-branch-for-mi300a",
        "Host code loads an object for 304 and 80 compute units and nothing for others.",
        "products",
        edit(HSA + "gfx942/fmha_v3_bwd/codegen.py", lambda text: text + "if (cu_num == 304 || cu_num == 80) { }\n"),
    ),
    fault("tokens-8", "A row for 8 tokens, which are looked up as 16.", "unreachable", cells(MOE, 2, token="8")),
    fault(
        "tokens-2048", "A row for 2048 tokens, which are looked up as 1024.", "unreachable", cells(MOE, 8, token="2048")
    ),
    fault(
        "dtype-misspelled",
        "torch.bfloat instead of torch.bfloat16 in a key.",
        "unreachable",
        cells(BF16, 2, dtype="torch.bfloat"),
    ),
    fault(
        "quant-with-a-space",
        "A space before the quantisation, which upstream's key has not.",
        "unreachable",
        cells(MOE, 2, q_type=" QuantType.per_1x128"),
    ),
    fault(
        "comment-line",
        "A comment in a table: pandas makes text of the column of the comment.",
        "unreachable",
        with_rows(BLOCK, lambda rows: ["# tuned on MI300X", *rows]),
    ),
    fault("negative-m", "A row for -16 tokens.", "unreachable", cells(BLOCK, 3, M="-16")),
    fault(
        "table-renamed",
        "core.py names a table that is not there, as for bf16 in 0.1.7.",
        "reading",
        edit(CORE, lambda text: text.replace("configs/bf16_tuned_gemm.csv", "configs/tuned_gemm.csv")),
    ),
    fault(
        "cell-missing",
        "A row with a cell too few: the rest moves to the left.",
        "reading",
        with_rows(BLOCK, lambda rows: [rows[0].replace(",0,", ",", 1), *rows[1:]]),
    ),
    fault(
        "columns-of-model-file",
        "A file of model_configs with columns in another order: merging asserts.",
        "reading",
        put(
            CONFIGS + "model_configs/a8w8_blockscale_tuned_gemm_x.csv",
            "M,cu_num,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n",
        ),
    ),
    fault(
        "duplicate-slower",
        "The same key again with a slower time: the lookup of every shape raises.",
        "duplicate",
        with_rows(BLOCK, lambda rows: [*rows, slower(rows[0])]),
    ),
    fault(
        "duplicate-equal",
        "The same row of the experts twice: their table is not freed of copies.",
        "duplicate",
        with_rows(MOE, lambda rows: [*rows, rows[0]]),
    ),
    fault(
        "copy-of-a-row",
        "A row of a GEMM twice, cell for cell.",
        "duplicate",
        with_rows(BLOCK, lambda rows: [*rows, rows[0]]),
    ),
    fault(
        "merge-across-devices",
        "The untuned table knows no cu_num, so that merging keeps one device of each shape.",
        "merge",
        put(_UNTUNED, "M,N,K\n"),
        merged_with(BLOCK, "a8w8_blockscale_tuned_gemm_x.csv", lambda rows: [rows[0].replace(",7168,", ",7167,")]),
    ),
    fault(
        "merge-overlap",
        "A file of model_configs has a key that the table has.",
        "merge",
        merged_with(BLOCK, "a8w8_blockscale_tuned_gemm_x.csv", lambda rows: [slower(rows[0])]),
    ),
    fault("time-0", "A time of 0.", "values", cells(BLOCK, 4, us="0")),
    fault("time-negative", "A tuner's -1 for a kernel that failed.", "values", cells(MOE, 4, us1="-1")),
    fault(
        "tflops-x10",
        "Ten times the TFLOP/s that shape and time give.",
        "values",
        edit(BLOCK, lambda text: text.replace(f",{tflops_of(text)},", f",{10 * tflops_of(text):.2f},", 1)),
    ),
    fault(
        "too-fast",
        "A row of 256 MiB at twice the memory's rate.",
        "values",
        cells(BF16, 2, N="65536", us="2", bw="800000"),
    ),
    fault("half-the-elements-wrong", "An error ratio of a half.", "values", cells(BLOCK, 6, errRatio="0.5")),
    fault("error-of-3", "An error ratio of 3.", "values", cells(BLOCK, 6, errRatio="3")),
    fault("run-1stage-419", "The time's digits in run_1stage, as in 0.1.7.", "values", cells(MOE, 4, run_1stage="419")),
    fault(
        "falls-with-m",
        "1024 rows in a tenth of the time of 256.",
        "values",
        with_rows(
            BF16,
            lambda rows: [
                ",".join([*row.split(",")[:10], "1", *row.split(",")[11:]]) if row.split(",")[1] == "1024" else row
                for row in rows
            ],
        ),
    ),
    fault("splitk-half", "A splitK of 0.5.", "values", cells(BLOCK, 3, splitK="0.5")),
    fault("block-m-32", "block_m 32 beside a kernel with blocks of 64 rows.", "fit", cells(MOE, 5, block_m="32")),
    fault("gelu-row", "A row for GELU with the kernel for SiLU.", "fit", cells(MOE, 7, act_type="ActivationType.Gelu")),
    fault("kernel-beyond", "kernelId 2 of a catalogue of two.", "kernel", cells(BLOCK, 2, kernelId="2")),
    fault(
        "kernel-at-the-end",
        "kernelId equal to the number of kernels, which `kid > len(...)` lets through.",
        "kernel",
        cells(TOKEN, 2, kernelId="2"),
    ),
    fault(
        "kernel-of-another-name", "kernelId 1 under the name of kernel 0.", "kernel", cells(SHUFFLED, 2, kernelId="1")
    ),
    fault(
        "assembly-misspelled",
        "An assembly kernel that no list has.",
        "kernel",
        edit(BF16, lambda text: text.replace(ASSEMBLY["bf16gemm"], "_ZN5aiter5bf16hE", 1)),
    ),
    fault(
        "assembly-for-one-arch",
        "A list of gfx950 without the kernel that its rows name.",
        "kernel",
        edit(HSA + "gfx950/f4gemm/f4gemm.csv", lambda text: text.splitlines()[0] + "\n"),
        drop(HSA + "gfx950/f4gemm/f4gemm_one.co"),
    ),
    fault(
        "expert-kernel-not-built",
        "A CK kernel of the experts with an epilogue that is not generated.",
        "kernel",
        edit(MOE, lambda text: text.replace(CK_MOE[1], CK_MOE[1].replace("MulABScale", "TypeCast"), 1)),
    ),
    fault(
        "object-missing",
        "A list names an object that is not shipped.",
        "listed object",
        drop(HSA + "gfx942/fmoe_2stages/fmoe_2stages_one.co"),
    ),
    fault(
        "symbol-misspelled",
        "A list names a kernel that the object does not have.",
        "listed object",
        edit(_LIST, lambda text: text.replace("moe_g1u1", "moe_glu1")),
    ),
    fault(
        "object-of-gfx950",
        "An object for gfx950 in the folder of gfx942.",
        "listed object",
        put(HSA + "gfx942/bf16gemm/bf16gemm_one.co", code_object_bytes([0xBF810000], "gfx950", ASSEMBLY["bf16gemm"])),
    ),
    fault(
        "object-cut-off",
        "Half an object.",
        "listed object",
        put(HSA + "gfx942/bf16gemm/bf16gemm_one.co", code_object_bytes([0xBF810000], "gfx942", "x")[:40]),
    ),
    fault(
        "kernel-listed-twice",
        "A kernel twice in a list.",
        "listed object",
        edit(_LIST, lambda text: text + text.splitlines()[1] + "\n"),
    ),
    fault(
        "source-names-none",
        "A host source names an object that is nowhere.",
        "named object",
        edit("aiter_meta/csrc/py_itfs_cu/asm_mla.cu", lambda text: text.replace("decode.co", "decodes.co")),
    ),
    fault(
        "source-symbol",
        "A host source names another kernel of the object.",
        "named object",
        edit("aiter_meta/csrc/py_itfs_cu/asm_mla.cu", lambda text: text.replace("decode_kernel", "decoder_kernel")),
    ),
    fault(
        "trait-names-none",
        "A trait of a generator names an object that is not shipped, in a branch that is taken.",
        "named object",
        edit(HSA + "gfx950/fmha_v3_bwd/codegen.py", lambda text: text.replace('"bwd.co"', '"bwd_a16.co"')),
    ),
    fault(
        "orphan",
        "An object that nobody names.",
        "orphan",
        put(HSA + "gfx942/mla/forgotten.co", code_object_bytes([0xBF810000], "gfx942", "forgotten")),
    ),
    fault(
        "n-2624",
        "The rows for N=2112 are for 2048, as 2624 for 2688.",
        "shapes",
        edit(BLOCK, lambda text: text.replace(",2112,7168,", ",2048,7168,")),
    ),
    fault(
        "experts-without-shared",
        "No rows for experts with the shared one fused in.",
        "shapes",
        with_rows(MOE, without(",257,9,")),
    ),
    fault(
        "model-list",
        "A list of shapes in model_configs that no row is for.",
        "shapes",
        put(CONFIGS + "model_configs/llama_untuned_gemm.csv", "M,N,K\n16,1280,8192\n"),
    ),
    fault(
        "head-more",
        "sglang's copy has heads that AITER's kernel is not built for.",
        "heads",
        edit(SGLANG, lambda text: text.replace("512: frozenset({16})", "512: frozenset({16, 12})")),
    ),
    fault(
        "head-less",
        "sglang's copy lacks heads that AITER's kernel is built for.",
        "heads",
        edit(SGLANG, lambda text: text.replace("512: frozenset({16})", "512: frozenset()")),
    ),
    fault(
        "branch-twice",
        "One branch of the reduce dispatcher twice, its neighbour missing.",
        "heads",
        _router("true", "true"),
    ),
    fault(
        "device-name",
        "A Triton configuration for a device that there is not.",
        "triton",
        put(LAUNCHES.replace("MI300X", "MI301X"), "{}"),
    ),
    fault(
        "lds",
        "Tiles of 192 KiB for 64 KiB of LDS.",
        "triton",
        _launch(BLOCK_SIZE_M=256, BLOCK_SIZE_N=512, BLOCK_SIZE_K=128, num_stages=2),
    ),
    fault("scale-of-two-blocks", "BLOCK_SIZE_K 256 with a scale for each 128.", "triton", _launch(BLOCK_SIZE_K=256)),
    fault("block-48", "A block of 48 rows.", "triton", _launch(BLOCK_SIZE_M=48)),
    fault("mfma-64", "matrix_instr_nonkdim 64.", "triton", _launch(matrix_instr_nonkdim=64)),
)


_SMALL_RIGHT: tuple[Planted, ...] = (
    right("as-it-is", "The small tree."),
    right("rows-reversed", "All rows in the opposite order.", with_rows(BLOCK, lambda rows: rows[::-1])),
    right(
        "row-added",
        "A row more for the MI308X, M no power of two.",
        with_rows(TOKEN, lambda rows: [*rows, gemm_row(TOKEN, "gfx942", 80, 33, 2048, 4096)]),
    ),
    right(
        "columns-reordered",
        "Columns in another order in a table that is not merged: keys go by name.",
        columns(BLOCK, lambda names: [*names[4:], *names[:4]]),
    ),
    right("crlf", "Lines end as on Windows.", edit(BLOCK, lambda text: text.replace("\n", "\r\n"))),
    right("blank-lines", "Blank lines, which pandas passes over.", edit(MOE, lambda text: text.replace("\n", "\n\n"))),
    right(
        "comments-in-the-catalogue",
        "Comments and an entry that is commented out in a kernels_list.",
        edit(
            "aiter_meta/csrc/ck_gemm_a8w8_blockscale/a8w8_blockscale_common.py",
            lambda text: text.replace("    1: kernel", "    # 7: kernelInstance(256, 32),\n    1: kernel"),
        ),
    ),
    right(
        "model-file",
        "A file of model_configs without a key that the table has.",
        merged_with(
            BLOCK, "a8w8_blockscale_tuned_gemm_x.csv", lambda _: [gemm_row(BLOCK, "gfx942", 304, 48, 2624, 7168)]
        ),
    ),
    right(
        "untuned-model-file",
        "A file without times beside it: not merged.",
        put(CONFIGS + "model_configs/a8w8_blockscale_untuned_gemm_x.csv", "M,N,K\n"),
    ),
    right(
        "quoted-cells",
        "Cells in quotation marks.",
        edit(BF16, lambda text: text.replace("torch.bfloat16", '"torch.bfloat16"')),
    ),
    right(
        "object-in-a-comment",
        "A commented line names an object that is gone.",
        edit("aiter_meta/csrc/py_itfs_cu/asm_mla.cu", lambda text: text + '// impl("old", "/mla/old.co");\n'),
    ),
    right(
        "heads-switched",
        "A dispatcher with all four branches of each form.",
        _router("true", "false"),
    ),
    right(
        "launch-of-one-stage",
        "One stage, two kpacks and MFMA of 16.",
        _launch(num_stages=1, kpack=2, matrix_instr_nonkdim=16),
    ),
)


PLANTED: tuple[Planted, ...] = (*_SMALL_FAULTS, *_SMALL_RIGHT, *UNREAD, *PATCHED)
