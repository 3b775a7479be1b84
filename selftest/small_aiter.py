"""A small AITER, and what sglang keeps about it, written by us: every rule of the table lint holds in it.

Only what the rules read: tables with rows for each device, catalogues of two kernels, lists with code objects, the
lines of the host sources that name them. As a dictionary of files, so that a fault is an edit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from waveproof.fixtures.tables.models import EXPERTS, GEMMS, TOKENS
from waveproof.fixtures.tables.rules_rows import AMD
from waveproof.selftest.emulate.tiny_code_object import code_object_bytes

Files = dict[str, "str | bytes"]
"""Content by path, relative to the folder that the packages lie in."""

SIZES: tuple[tuple[str, int], ...] = tuple(sorted({(one.gfx, cu_num) for one in AMD for cu_num in one.sizes}))
"""Architecture and compute units of each device and partition."""

FP8 = {"gfx942": "torch.float8_e4m3fnuz", "gfx950": "torch.float8_e4m3fn"}
CORE = "aiter/jit/core.py"
CONFIGS = "aiter/configs/"
BLOCK, SHUFFLED = CONFIGS + "a8w8_blockscale_tuned_gemm.csv", CONFIGS + "a8w8_blockscale_bpreshuffle_tuned_gemm.csv"
TOKEN, BF16, FP4 = (
    CONFIGS + "a8w8_bpreshuffle_tuned_gemm.csv", CONFIGS + "bf16_tuned_gemm.csv",
    CONFIGS + "a4w4_blockscale_tuned_gemm.csv",
)  # fmt: skip
MOE = CONFIGS + "tuned_fmoe.csv"
HSA = "aiter_meta/hsa/"
SGLANG = "sglang/srt/layers/attention/aiter_backend.py"
TRITON = "sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/"
MOE_CATALOGUE = "aiter_meta/csrc/ck_gemm_moe_2stages_codegen/gemm_moe_ck2stages_common.py"
ROUTER = "aiter_meta/csrc/kernels/mla/reduce.cu"

_TABLES = {
    "GEMM_A8W8_BLOCKSCALE": BLOCK, "GEMM_A8W8_BLOCKSCALE_BPRESHUFFLE": SHUFFLED, "GEMM_A8W8_BPRESHUFFLE": TOKEN,
    "GEMM_BF16": BF16, "GEMM_A4W4": FP4, "FMOE": MOE,
}  # fmt: skip
_CATALOGUES = {
    BLOCK: "ck_gemm_a8w8_blockscale", SHUFFLED: "ck_gemm_a8w8_blockscale_bpreshuffle",
    TOKEN: "ck_gemm_a8w8_bpreshuffle", FP4: "ck_gemm_a4w4_blockscale",
}  # fmt: skip
ASSEMBLY = {"bf16gemm": "_ZN5aiter5bf16gE", "f4gemm": "_ZN5aiter4fp4gE", "fmoe_2stages": "_ZN5aiter15moe_g1u1_64x128_E"}
"""The kernel of each list."""

CK_MOE = (
    "moe_ck2stages_gemm1_256x64x128x128_1x4_MulABScaleExpertWeightA8W8blkscale_v3_Nswizzle0_Quant4_MulRoutedWeight0_silu"
    "_F8_F8_B16",
    "moe_ck2stages_gemm2_256x64x128x128_1x4_MulABScaleExpertWeightA8W8blkscale_v3_Nswizzle0_Quant4_MulRoutedWeight1"
    "_F8_F8_B16",
)


_FUSED_MOE = """fused_moe_1stage_dict = {"gfx942": {}, "gfx950": {}}
# Fmoe tuning not support
if cfg is None:
    pass
"""


def small_aiter() -> Files:
    """All files of it."""
    files: Files = {
        CORE: _core(),
        "aiter/fused_moe.py": _FUSED_MOE,
        ROUTER: "    NUM_HEAD, 16, HEAD_DIM, 128) \\\n    NUM_HEAD, 16, HEAD_DIM, 512)\n",
        SGLANG: "_MLA_REDUCE_V1_HEADS = {\n    128: frozenset({16}),\n    512: frozenset({16}),\n}\n",
        "aiter_meta/csrc/py_itfs_cu/asm_mla.cu": 'static AiterAsmKernel impl("decode_kernel", "/mla/decode.co");\n',
        MOE_CATALOGUE: (
            "a8w8_gemm1_blockscale_kernels_list = {0: K(256, 64, 128, 128, 1, 4, 3)}\n"
            "a8w8_gemm2_blockscale_kernels_list = {0: K(256, 64, 128, 128, 1, 4, 3)}\n"
        ),
        CONFIGS + "a8w8_blockscale_untuned_gemm.csv": "cu_num,M,N,K\n",
    }
    for table, folder in _CATALOGUES.items():
        files[f"aiter_meta/csrc/{folder}/{folder[8:]}_common.py"] = _catalogue(folder)
        files[f"aiter_meta/csrc/{folder}/gen_instances.py"] = (
            "if kid < 0 or kid > len(kernels_list):\n    continue\n" if table in (TOKEN, FP4) else "kernels_list[kid]\n"
        )
    shapes = sorted({(one.n, one.k) for one in GEMMS})
    files[BLOCK] = _gemm(BLOCK, shapes)
    files[SHUFFLED] = _gemm(SHUFFLED, shapes)
    files[TOKEN] = _gemm(TOKEN, [(2048, 4096)])
    files[BF16] = _gemm(BF16, [(256, 5120)])
    files[FP4] = _gemm(FP4, [(2048, 4096)])
    files[MOE] = _experts()
    files.update(dict(_objects()))
    for product in AMD:
        files[_launches(product.name)] = json.dumps({"1": LAUNCH, "64": {**LAUNCH, "BLOCK_SIZE_M": 64}}, indent=1)
    return files


def _launches(product: str) -> str:
    """Where sglang looks for the launches of the experts on a device."""
    return TRITON + f"E=8,N=4096,device_name=AMD_Instinct_{product},dtype=fp8_w8a8,block_shape=[128, 128].json"


LAUNCHES = _launches("MI300X")
"""Of the MI300X."""
LAUNCH: Mapping[str, int] = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2,
    "waves_per_eu": 0,
}  # fmt: skip


def _core() -> str:
    lines = ["import os"]
    for name, path in _TABLES.items():
        variable = f"AITER_CONFIG_{name}"
        lines.append(f'{variable} = os.getenv("{variable}", f"{{AITER_ROOT_DIR}}/{path}")')
        merge = path.rpartition("/")[2].removesuffix(".csv")
        lines.append(f'{variable}_FILE = get_config_file("{variable}", {variable}, "{merge}")')
    return "\n".join(lines) + "\n"


def _catalogue(folder: str) -> str:
    return f'''from dataclasses import dataclass


@dataclass
class kernelInstance:
    BLOCK: int
    ROWS: int
    SCHEDULE: str = "Intrawave"

    @property
    def name(self) -> str:
        return ("_").join(
            ["{folder}", ("x").join(map(lambda x: str(x), [self.BLOCK, self.ROWS])), self.SCHEDULE.lower()]
        )


kernels_list = {{
    0: kernelInstance(256, 16),
    1: kernelInstance(256, 64),
}}
'''


def kernel_name(table: str, number: int) -> str:
    """Name of a kernel in the catalogue of a table."""
    return f"{_CATALOGUES[table]}_256x{(16, 64)[number]}_intrawave"


def measured(operations: float, moved: float) -> tuple[float, float, float]:
    """Time in us, TFLOP/s and GB/s of a device that is slow enough for all of them."""
    us = round(20 + operations / 2e8, 4)
    return us, round(operations / us / 1e6, 2), round(moved / us / 1e3, 2)


def _gemm(table: str, shapes: list[tuple[int, int]]) -> str:
    special = {TOKEN: ",q_dtype_w", BF16: ",bias,dtype,outdtype,scaleAB"}.get(table, "")
    lines = [f"cu_num,M,N,K{special},kernelId,splitK,us,kernelName,tflops,bw,errRatio"]
    for gfx, cu_num in SIZES:
        if table == FP4 and gfx == "gfx942":
            continue
        for n, k in shapes:
            lines += [gemm_row(table, gfx, cu_num, m, n, k) for m in TOKENS]
    return "\n".join(lines) + "\n"


def gemm_row(table: str, gfx: str, cu_num: int, m: int, n: int, k: int) -> str:
    """One line of a table of GEMMs."""
    us, tflops, bandwidth = measured(2.0 * m * n * k, m * k + n * k + 2.0 * m * n)
    own, kernel, name = _picked(table, gfx, m)
    return f"{cu_num},{m},{n},{k}{own},{kernel},0,{us},{name},{tflops},{bandwidth},0.0"


def _picked(table: str, gfx: str, m: int) -> tuple[str, int, str]:
    """Further cells of the key, kernel id and name."""
    if table == BF16:
        return ",False,torch.bfloat16,torch.float32,False", 1, ASSEMBLY["bf16gemm"]
    if table == FP4 and m > 64:
        return "", 9, ASSEMBLY["f4gemm"]
    number = int(m > 64)
    return f",{FP8[gfx]}" if table == TOKEN else "", number, kernel_name(table, number)


def _experts() -> str:
    lines = [
        "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1,"
        "block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,tflops,bw"
    ]
    for gfx, cu_num in SIZES:
        for layer in EXPERTS:
            for token in (16, 32, 64, 128, 256, 512, 1024):
                operations = 6.0 * token * layer.model_dim * layer.inter_dim * layer.top_k
                us, tflops, bandwidth = measured(operations, 3.0 * layer.experts * 256)
                key = (
                    f"{cu_num},{token},{layer.model_dim},{layer.inter_dim},{layer.experts},{layer.top_k}"
                    f",ActivationType.Silu,torch.bfloat16,{FP8[gfx]},{FP8[gfx]},QuantType.per_1x128,1,0"
                )
                first = ASSEMBLY["fmoe_2stages"] if token <= 64 else CK_MOE[0]
                half = us / 2
                lines.append(f"{key},64,0,{half},{first},0.0%,{half},{CK_MOE[1]},0.0%,{us},0,{tflops},{bandwidth}")
    return "\n".join(lines) + "\n"


def _objects() -> Iterator[tuple[str, str | bytes]]:
    for arch in ("gfx942", "gfx950"):
        for folder, kernel in ASSEMBLY.items():
            name = f"{folder}_one.co"
            yield f"{HSA}{arch}/{folder}/{folder}.csv", f"tile_m,tile_n,knl_name,co_name\n64,128,{kernel},{name}\n"
            yield f"{HSA}{arch}/{folder}/{name}", code_object_bytes([0xBF810000], arch, kernel)
        yield f"{HSA}{arch}/mla/decode.co", code_object_bytes([0xBF810000], arch, "decode_kernel")
        yield f"{HSA}{arch}/fmha_v3_bwd/codegen.py", _traits(arch)
        yield f"{HSA}{arch}/fmha_v3_bwd/bwd.co", code_object_bytes([0xBF810000], arch, "_ZN5aiter3bwdE")


def _traits(arch: str) -> str:
    arguments = f"traits_<64, 64, Bf16, true, GPUArch::{arch}>"
    return (
        f'template<> struct BwdV3Name<{arguments}> {{ static constexpr const char * name = "bwd"; }};\n'
        f'template<> struct BwdV3Buf<{arguments}> {{ static constexpr const char * file = "bwd.co"; }};\n'
        f'// template<> struct BwdV3Buf<{arguments}> {{ static constexpr const char * file = "gone.co"; }};\n'
        f"using picked = {arguments};\n"
    )


def write(files: Files, folder: Path) -> Path:
    """Write it below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_bytes(content.encode())
    return folder


def edit(name: str, change: Callable[[str], str]) -> Callable[[Files], None]:
    """The change of one file's text; it must change something."""

    def apply(files: Files) -> None:
        before = files[name]
        assert isinstance(before, str)
        after = change(before)
        assert after != before, f"nothing to change in {name}"
        files[name] = after

    return apply


def cells(name: str, line: int, **values: str) -> Callable[[Files], None]:
    """Other cells in one line of a table, the header being line 1."""

    def change(text: str) -> str:
        lines = text.splitlines()
        header, row = lines[0].split(","), lines[line - 1].split(",")
        for column, value in values.items():
            row[header.index(column)] = value
        lines[line - 1] = ",".join(row)
        return "\n".join(lines) + "\n"

    return edit(name, change)
