"""Provider ``sglang``: its Triton renorm for ROCm, and the two paths of its accept-sampling verifier.

The verifier's module (``srt/speculative/dflash_utils.py``) imports a serving stack that needs a GPU build. Where that
import fails, the functions that make up the verifier's target distribution are taken from the *installed source file*,
unchanged, and given the names that sglang's HIP branch binds (``kernels/ops/sampling/renorm.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: int | torch.Tensor) -> torch.Tensor:
    """``top_k_renorm_probs_triton``: sglang binds ``top_k_renorm_prob`` to it on HIP."""
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton

    return top_k_renorm_probs_triton(probs, top_k)


def top_p_renorm_prob(probs: torch.Tensor, top_p: float | torch.Tensor) -> torch.Tensor:
    """``top_p_renorm_probs_triton``: sglang binds ``top_p_renorm_prob`` to it on HIP."""
    from sglang.kernels.ops.sampling.renorm_triton import top_p_renorm_probs_triton

    return top_p_renorm_probs_triton(probs, top_p)


def target_probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """``build_speculative_verify_target_probs``, one draft token a request, flags as sglang's scheduler sets them.

    logits [B, V], temperature float32[B], top_k int[B], top_p float32[B] to float32[B, V].
    """
    from types import SimpleNamespace

    if path not in ("dense", "sparse"):
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")
    build = verify_target_probs_builder()
    sampling_info = SimpleNamespace(
        temperatures=temperature[:, None],
        top_ks=top_k,
        top_ps=top_p,
        # 1 << 30 is TOP_K_ALL in sglang/srt/sampling/sampling_params.py.
        need_top_k_sampling=bool((top_k != 1 << 30).any()),
        need_top_p_sampling=bool((top_p != 1.0).any()),
    )
    law = build(
        next_token_logits=logits,
        sampling_info=sampling_info,
        draft_token_num=1,
        bs=logits.shape[0],
        use_sparse_topk=path == "sparse",
    )
    return law[:, 0]


def verify_target_probs_builder() -> Callable[..., Any]:
    """sglang's function, imported, or read from its installed source where its module cannot be imported."""
    try:
        from sglang.srt.speculative.dflash_utils import build_speculative_verify_target_probs
    except ImportError:
        pass
    else:
        return build_speculative_verify_target_probs
    import ast
    from pathlib import Path

    import sglang
    import torch
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    wanted = {"build_speculative_verify_target_probs", "_dflash_top_k_renorm_prob", "_dflash_top_p_renorm_prob"}
    source = Path(sglang.__path__[0]) / "srt" / "speculative" / "dflash_utils.py"
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    tree.body = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name in wanted)
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    namespace: dict[str, Any] = {
        "__name__": "sglang.srt.speculative.dflash_utils",
        "torch": torch,
        "F": torch.nn.functional,
        "top_k_renorm_prob": top_k_renorm_probs_triton,
        "top_p_renorm_prob": top_p_renorm_probs_triton,
    }
    exec(compile(tree, str(source), "exec"), namespace)
    return namespace["build_speculative_verify_target_probs"]


_RUNTIMES = ("interpret", "compile", "emulate", "hip", "cuda")
_MODULE = "waveproof.kernels.providers.sglang_kernels"
_RENORM = "sglang/kernels/ops/sampling/renorm_triton.py"
_VERIFY = "sglang/srt/speculative/dflash_utils.py:build_speculative_verify_target_probs"


def _implementation(operator: str, origin: str, paths: tuple[tuple[str, str], ...] = ()) -> Implementation:
    return Implementation(
        "sglang",
        operator,
        "threshold",
        _RUNTIMES,
        f"{_MODULE}:{operator}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=origin,
        launches=operator != "target_probs",  # its sparse path without top-p is torch alone
        paths=paths,
    )


IMPLEMENTATIONS = (
    _implementation("top_k_renorm_prob", f"{_RENORM}:top_k_renorm_probs_triton"),
    _implementation("top_p_renorm_prob", f"{_RENORM}:top_p_renorm_probs_triton"),
    _implementation("target_probs", _VERIFY, (("dense", "threshold"), ("sparse", "any-k"))),
)
