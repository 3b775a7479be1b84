"""Helpers that pad attention heads to a number that a kernel takes, and find the real ones again, bit by bit.

Which head stands where: ``golden/references/padded_heads.py``. What kernels make of padded heads: ``test_mla.py`` and
``test_padded_heads.py``.
"""

from __future__ import annotations

import pytest
import torch

from waveproof.fixtures.bench import Bench
from waveproof.golden.judges.relations import judge_refused
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.operators.mla import PAD_MODES

pytestmark = pytest.mark.rocm

PAD, UNPAD = "pad_heads", "unpad_heads"


EVEN = [(heads, mode) for heads in range(1, 17) for mode in PAD_MODES if mode != "repeat" or 16 % heads == 0]


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)
WIDTHS, TARGETS = (576, 64, 1), (16, 32, 128, 256)


def heads_of(count: int, width: tuple[int, ...], dtype: torch.dtype, tokens: int, seed: int) -> torch.Tensor:
    """[tokens, count, *width] with what arithmetic would lose: NaN, infinities and -0, where the dtype has them."""
    x = torch.randn(tokens, count, *width, generator=torch.Generator().manual_seed(seed))
    flat = x.view(-1)
    flat[::7], flat[1::11] = -0.0, torch.nan
    if dtype.itemsize > 1:
        flat[2::13], flat[3::17] = torch.inf, -torch.inf
    return x.to(dtype)


def call_of(heads: int, mode: str, seed: int) -> Call:
    """``heads`` heads to be padded to 16, in one dtype and width or another."""
    x = heads_of(heads, (WIDTHS[heads % 3],), DTYPES[heads % 4], (3, 70)[heads % 2], seed)
    return Call(PAD, {"x": x, "target": 16, "mode": mode})


@pytest.mark.operator(PAD)
@pytest.mark.parametrize(("heads", "mode"), EVEN)
def test_padded_heads(bench: Bench, heads: int, mode: str, seed: int) -> None:
    bench.conforms(call_of(heads, mode, seed))


@pytest.mark.operator(PAD)
@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("heads", [12, 20])
def test_other_targets(bench: Bench, heads: int, target: int, seed: int) -> None:
    x = heads_of(heads, (576,), torch.bfloat16, 3, seed)
    bench.conforms(Call(PAD, {"x": x, "target": target, "mode": "zero"}))


@pytest.mark.operator(PAD)
def test_strided_heads(bench: Bench, seed: int) -> None:
    call = call_of(12, "zero", seed)
    x = call.tensor("x")
    bench.conforms(call.with_arguments(x=torch.cat([x, x], -1)[..., :64]))


@pytest.mark.operator(PAD)
@pytest.mark.parametrize("heads", [heads for heads in range(1, 17) if 16 % heads])
def test_uneven_repeat(bench: Bench, heads: int, seed: int) -> None:
    # repeat_interleave(16 // 12) pads nothing (sgl-project/sglang#36356): what does not come out even is refused.
    call = call_of(heads, "repeat", seed)
    bench.hold(judge_refused(bench.run(call).error, f"{heads} heads repeated to 16", call))


@pytest.mark.operator(UNPAD)
@pytest.mark.parametrize("mode", PAD_MODES)
@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("width", [(), (512,)], ids=["lse", "out"])
def test_unpadded_heads(bench: Bench, heads: int, mode: str, width: tuple[int, ...], seed: int) -> None:
    x = heads_of(16, width, DTYPES[heads % 3], (3, 70)[heads % 2], seed)
    call = Call(UNPAD, {"x": x, "heads": heads, "mode": mode})
    if mode == "repeat" and 16 % heads:
        bench.hold(judge_refused(bench.run(call).error, f"{heads} heads repeated to 16", call))
    else:
        bench.conforms(call)


@pytest.mark.operator(UNPAD)
def test_strided_heads_of_a_kernel(bench: Bench, seed: int) -> None:
    x = torch.cat([heads_of(128, (512,), torch.bfloat16, 3, seed)] * 2, -1)[..., :512]
    bench.conforms(Call(UNPAD, {"x": x, "heads": 20, "mode": "zero"}))


@pytest.mark.operator(PAD, UNPAD)
@pytest.mark.parametrize(("count", "mode"), [(8, "zero"), (16, "mirror")], ids=["fewer", "unknown-mode"])
def test_refusal_of_padding(bench: Bench, count: int, mode: str) -> None:
    # 12 heads cannot be padded to 8, nor 16 be found among 12.
    name, count = ("target", count) if bench.operator == PAD else ("heads", 24 - count)
    call = Call(bench.operator, {"x": torch.zeros(2, 12, 4), name: count, "mode": mode})
    bench.hold(judge_refused(bench.run(call).error, f"{count} of 12 heads, mode {mode}", call))
