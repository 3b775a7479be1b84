"""Provider ``sglang``: the verifiers of its block-diffusion drafts from logits on, and the law that they start from.

Their modules (``srt/speculative/dflash_utils.py``, ``kernels/ops/speculative/dspark/dspark_accept.py``) import a
serving stack that needs a GPU build. Where that import fails, the functions of the first are taken from the *installed
source file*, unchanged, and given the names that sglang's HIP branch binds (``kernels/ops/sampling/renorm.py``); the
second is imported as it is, with these functions in the place of the modules that it cannot import.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation
from waveproof.kernels.providers.sglang_kernels import KERNELS as RENORM_KERNELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType, SimpleNamespace

    import torch

TOP_K_ALL = 1 << 30
"""As in ``sglang/srt/sampling/sampling_params.py``."""


def target_probs(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, path: str
) -> torch.Tensor:
    """``build_speculative_verify_target_probs``, one draft token a request, flags as sglang's scheduler sets them.

    logits [B, V], temperature float32[B], top_k int[B], top_p float32[B] to float32[B, V].
    """
    if path not in ("dense", "sparse"):
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")
    law = dflash_utils().build_speculative_verify_target_probs(
        next_token_logits=logits,
        sampling_info=sampling_info_of(temperature, top_k, top_p),
        draft_token_num=1,
        bs=logits.shape[0],
        use_sparse_topk=path == "sparse",
    )
    return law[:, 0]


def accept_sampling(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    verify_lens: torch.Tensor,
    block_verification: bool,
    path: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``AcceptSampling`` of DSpark, its two draws of random numbers answered with the coins.

    It has no switch between the paths: ``sparse`` states the largest top_k as DSpark's draft input does, ``dense``
    states none, as for a batch in which one request has no top-k.
    """
    from types import SimpleNamespace

    if path not in ("dense", "sparse"):
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")
    batch, slots = candidates.shape
    vocab_size = target_logits.shape[-1]
    limits = set(top_k.tolist()) if path == "sparse" else {TOP_K_ALL}
    stated = SimpleNamespace(max_top_k=max(limits), uniform_top_k_value=limits.pop() if len(limits) == 1 else None)
    verify = dspark_accept().AcceptSampling
    # Kept from call to call upstream: made anew, so that what a call reads of them it has written.
    dflash_utils()._DFLASH_CHAIN_VERIFY_BUFFERS.clear()
    with torch_rand_answered(coins, final_coins):
        accepted, last, _ = verify.execute(
            candidates=candidates,
            target_logits=target_logits.reshape(batch * slots, vocab_size),
            draft_probs=draft_probs,
            sampling_info=sampling_info_of(temperature, top_k, top_p),
            draft_input=stated,
            gamma=slots - 1,
            verify_num_draft_tokens=slots,
            cutoff_verify_lens=verify_lens,
            block_verification=block_verification,
        )
    return accepted, committed(candidates, accepted, last)


def target_only_accept_sampling(
    candidates: torch.Tensor,
    target_logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    coins: torch.Tensor,
    final_coins: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    path: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``compute_dflash_sampling_correct_drafts_and_bonus`` of DFlash; needs the whole of sglang, on CUDA."""
    from sglang.srt.speculative.dflash_utils import compute_dflash_sampling_correct_drafts_and_bonus

    if path not in ("dense", "sparse"):
        raise ValueError(f"path must be 'dense' or 'sparse', got {path!r}")
    accepted, last = compute_dflash_sampling_correct_drafts_and_bonus(
        candidates=candidates.contiguous(),
        next_token_logits=target_logits.reshape(-1, target_logits.shape[-1]),
        sampling_info=sampling_info_of(temperature, top_k, top_p),
        threshold_single=threshold_single,
        threshold_acc=threshold_acc,
        uniform_samples=coins.contiguous(),
        uniform_samples_for_final_sampling=final_coins.contiguous(),
        use_sparse_topk=path == "sparse",
    )
    # A buffer that sglang keeps from call to call.
    return accepted.clone(), committed(candidates, accepted, last)


def committed(candidates: torch.Tensor, accepted: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """What a worker commits: draft tokens up to ``accepted``, then the last one, then -1; int32[B, S]."""
    import torch

    slot = torch.arange(candidates.shape[1], device=candidates.device)
    drafts = torch.where(slot < accepted[:, None], candidates.roll(-1, 1), -1)
    return torch.where(slot == accepted[:, None], last[:, None], drafts).int()


def sampling_info_of(temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> SimpleNamespace:
    """What the verifiers ask of a ``SamplingBatchInfo``, flags as sglang's scheduler sets them."""
    from types import SimpleNamespace

    return SimpleNamespace(
        temperatures=temperature[:, None],
        top_ks=top_k,
        top_ps=top_p,
        need_top_k_sampling=bool((top_k != TOP_K_ALL).any()),
        need_top_p_sampling=bool((top_p != 1.0).any()),
    )


@contextmanager
def torch_rand_answered(*answers: torch.Tensor) -> Iterator[None]:
    """Within it, the n-th call of ``torch.rand`` gives the n-th answer; all must be asked for.

    Raises:
        RuntimeError: it is called once more or less, or for another shape or dtype: the coins are used otherwise than
            was assumed.
    """
    import torch

    waiting = list(answers)
    drawn = torch.rand

    def answered(*size: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        if not waiting or (tuple(waiting[0].shape), waiting[0].dtype) != (shape, dtype):
            raise RuntimeError(f"{dtype}{list(shape)} random numbers are drawn where none of these coins are due")
        return waiting.pop(0).contiguous()

    vars(torch)["rand"] = answered
    try:
        yield
    finally:
        vars(torch)["rand"] = drawn
    if waiting:
        raise RuntimeError(f"{len(waiting)} of {len(answers)} sets of coins were not asked for")


def dspark_accept() -> ModuleType:
    """``sglang.kernels.ops.speculative.dspark.dspark_accept``, imported.

    Raises:
        ImportError: for another reason than the serving stack behind it.
    """
    import sys
    from importlib import import_module
    from types import ModuleType

    # What fails here lacks another package: it is told, and not taken for the serving stack.
    import_module("sglang")
    name = "sglang.kernels.ops.speculative.dspark.dspark_accept"
    try:
        return import_module(name)
    except ImportError:
        pass
    state = ModuleType("sglang.srt.speculative.dflash_info_v2")
    vars(state)["DFlashDraftInputV2"] = object  # an annotation there
    places = {"sglang.srt.speculative.dflash_info_v2": state, "sglang.srt.speculative.dflash_utils": dflash_utils()}
    sys.modules.update(places)
    try:
        return import_module(name)
    finally:
        for place in places:
            del sys.modules[place]


_taken: dict[str, ModuleType] = {}


def dflash_utils() -> ModuleType:
    """``sglang.srt.speculative.dflash_utils``, imported, or what the verifiers use of its installed source."""
    import ast
    from importlib import import_module
    from pathlib import Path
    from types import ModuleType

    name = "sglang.srt.speculative.dflash_utils"
    if name in _taken:
        return _taken[name]
    try:
        return import_module(name)
    except ImportError:
        pass
    import sglang
    import torch
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton

    wanted = {
        "build_speculative_verify_target_probs",
        "_dflash_top_k_renorm_prob",
        "_dflash_top_p_renorm_prob",
        "_get_or_create_chain_verify_buffers",
        "_DFLASH_CHAIN_VERIFY_BUFFERS",
    }
    source = Path(sglang.__path__[0]) / "srt" / "speculative" / "dflash_utils.py"
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    tree.body = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name in wanted)
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in wanted)
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
    ]
    module = ModuleType(name)
    vars(module).update(
        torch=torch,
        F=torch.nn.functional,
        top_k_renorm_prob=top_k_renorm_probs_triton,
        top_p_renorm_prob=top_p_renorm_probs_triton,
    )
    exec(compile(tree, str(source), "exec"), vars(module))
    _taken[name] = module
    return module


_RUNTIMES = ("interpret", "compile", "emulate", "hip", "cuda")
_MODULE = "waveproof.kernels.providers.sglang_accept"
_DFLASH = "sglang/srt/speculative/dflash_utils.py"
_DSPARK = "sglang/kernels/ops/speculative/dspark/dspark_accept.py"

_LAW = ("torch:softmax?", "torch:sort?", "torch:scan?", "torch:topk?")
"""What torch does for the target's law."""
FILTERS = (*(f"{kernel}?" for kernel in RENORM_KERNELS), *_LAW)
"""What makes the target's law before a verifier is called; the kernels run where top-p filters."""


def _implementation(
    operator: str,
    variants: tuple[str, str],
    origin: str,
    runtimes: tuple[str, ...],
    launches: bool,
    runs_as: tuple[str, ...] = (),
) -> Implementation:
    """``variants``: on the dense and on the sparse path."""
    return Implementation(
        "sglang",
        operator,
        variants[0],
        runtimes,
        f"{_MODULE}:{operator}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin=origin,
        launches=launches,
        runs_as=runs_as,
        paths=(("dense", variants[0]), ("sparse", variants[1])),
    )


IMPLEMENTATIONS = (
    # The sparse path without top-p is torch alone.
    _implementation(
        "target_probs",
        ("threshold", "any-k"),
        f"{_DFLASH}:build_speculative_verify_target_probs",
        _RUNTIMES,
        launches=False,
        runs_as=(*RENORM_KERNELS, *_LAW),
    ),
    _implementation(
        "accept_sampling",
        ("half-open", "half-open"),
        f"{_DSPARK}:AcceptSampling",
        _RUNTIMES,
        launches=True,
        runs_as=(
            "triton:speculative_sampling_*",
            "triton:_cap_correct_len_kernel?",
            "triton:_gather_two_level_bonus_kernel",
            *FILTERS,
        ),
    ),
    # On HIP sglang binds the kernel behind it to nothing: fixtures/greedy_impostor.py reads that from any release.
    _implementation(
        "target_only_accept_sampling",
        ("half-open", "half-open"),
        f"{_DFLASH}:compute_dflash_sampling_correct_drafts_and_bonus",
        ("cuda",),
        launches=False,
    ),
)
