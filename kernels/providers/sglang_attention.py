"""Provider ``sglang``: how its Triton attention kernels are declared, whichever adapter calls them."""

from __future__ import annotations

from typing import Any

from waveproof.kernels.providers.registry import Implementation

KERNELS = "sglang/kernels/ops/attention"
ATTENTION_RUNTIMES = ("interpret", "compile", "emulate", "hip", "cuda")
EXTEND, EXTEND_KERNELS = "extend_attention.py:extend_attention_fwd", ("triton:_fwd_kernel",)
"""Where prefill and verification by it are launched, and what it launches."""
_SIXTEEN_BIT = ("bfloat16/bfloat16", "float16/float16")
_EIGHT_BIT_CACHE = (
    "bfloat16/float8_e4m3fn",
    "float16/float8_e4m3fn",
    "bfloat16/float8_e4m3fnuz",
    "float16/float8_e4m3fnuz",
)
_PROVIDERS = "waveproof.kernels.providers"


def attention(
    provider: str,
    operator: str,
    load: str,
    origin: str,
    runs_as: tuple[str, ...],
    narrow: bool = False,
    **declared: Any,
) -> Implementation:
    """An attention kernel of sglang.

    Args:
        provider: name under which it is judged.
        operator: that it implements.
        load: ``module:function`` below this folder.
        origin: ``file:function`` below sglang's attention kernels.
        runs_as: kernels that compute it.
        narrow: whether it is judged on 8-bit caches, where it rounds the weights to 8 bits.
        declared: other fields of ``Implementation``.
    """
    return Implementation(
        provider,
        operator,
        "narrow" if narrow else "wide",
        ATTENTION_RUNTIMES,
        f"{_PROVIDERS}.{load}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=f"{KERNELS}/{origin}",
        launches=True,
        runs_as=runs_as,
        heads_apart=True,
        dtypes=_EIGHT_BIT_CACHE if narrow else _SIXTEEN_BIT,
        **declared,
    )
