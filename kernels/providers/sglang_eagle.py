"""Provider ``sglang``: ``eagle_sample``, the verifier of its EAGLE and n-gram drafts, as its HIP branch runs it.

Its module needs a GPU build to be imported, so the function and those of its module that it calls are taken from the
*installed source file*, unchanged. Stand-ins are: the platform (HIP), one GPU instead of a group, and the kernel that
walks a tree greedily (sglang's Triton kernel of that name instead of the one that it compiles with ``hipcc``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation
from waveproof.kernels.providers.sglang_accept import FILTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Verified = tuple["torch.Tensor", "torch.Tensor"]


def without_rejection_sampling(
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
) -> Verified:
    """As a server without ``--speculative-use-rejection-sampling`` verifies on HIP."""
    given = (candidates, target_logits, draft_probs, temperature, top_k, top_p, coins, final_coins)
    return eagle_sample(*given, verify_lens, block_verification, path, rejection_sampling=False)


def with_rejection_sampling(
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
) -> Verified:
    """As a server with ``--speculative-use-rejection-sampling`` verifies on HIP."""
    given = (candidates, target_logits, draft_probs, temperature, top_k, top_p, coins, final_coins)
    return eagle_sample(*given, verify_lens, block_verification, path, rejection_sampling=True)


def eagle_sample(
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
    rejection_sampling: bool,
) -> Verified:
    """``eagle_sample`` of a chain; arguments and results as of the operator ``accept_sampling``.

    Raises:
        ValueError: a sparse path, or a window that was cut off: it has neither.
        LookupError: the installed sglang has no such function.
    """
    from types import SimpleNamespace

    import torch

    batch, slots = candidates.shape
    if path != "dense":
        raise ValueError(f"path must be 'dense', got {path!r}")
    if bool((verify_lens != slots).any()):
        raise ValueError(f"verify_lens must be {slots} everywhere, got {verify_lens.tolist()}")
    slot_index = torch.arange(batch * slots, device=candidates.device).view(batch, slots)
    next_token = torch.where(torch.arange(slots, device=candidates.device) < slots - 1, slot_index[:1] + 1, -1)
    sampling_info = SimpleNamespace(
        is_all_greedy=False,
        temperatures=temperature[:, None],
        top_ks=top_k,
        top_ps=top_p,
        need_top_k_sampling=bool((top_k != 1 << 30).any()),
        need_top_p_sampling=bool((top_p != 1.0).any()),
        need_min_p_sampling=False,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=None,
        has_watermark_candidates=False,
        sampling_seed=None,
    )
    batch_state = SimpleNamespace(
        device=candidates.device,
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.full((batch,), 100, dtype=torch.int64, device=candidates.device),
        sampling_info=sampling_info,
        return_logprob=False,
    )
    verify_input = SimpleNamespace(
        draft_token=candidates.reshape(-1),
        draft_token_num=slots,
        max_tree_depth=slots,
        tree_topk=1,
        retrieve_index=slot_index,
        retrieve_next_token=next_token.expand(batch, slots).contiguous(),
        retrieve_next_sibling=torch.full_like(slot_index, -1),
        draft_probs=draft_probs,
    )
    options = SimpleNamespace(
        speculative_use_rejection_sampling=rejection_sampling,
        speculative_use_block_verification=block_verification,
        speculative_accept_threshold_single=1.0,
        speculative_accept_threshold_acc=1.0,
    )
    # sglang draws a coin for each slot; the chain sampler reads none for the last.
    spare = torch.zeros_like(final_coins)[:, None]
    verify = installed_eagle_sample(options, torch.cat([coins, spare], 1), final_coins)
    # It mends NaN logits in place.
    logits = target_logits.reshape(batch * slots, -1).clone()
    predicts, accept_lens, accept_index = verify(verify_input, batch_state, SimpleNamespace(next_token_logits=logits))
    accepted = accept_lens - 1
    slot = torch.arange(slots, device=candidates.device)
    written = slot <= accepted[:, None]
    return accepted.int(), torch.where(written, predicts[torch.where(written, accept_index, 0).long()], -1)


def installed_eagle_sample(options: Any, coins: torch.Tensor, final_coins: torch.Tensor) -> Callable[..., Any]:
    """``eagle_sample`` of the installed source on HIP, with these server options and random numbers.

    Raises:
        LookupError: sglang is not installed, or has no such function.
    """
    import __future__

    import ast
    import builtins
    from functools import partial
    from importlib.util import find_spec
    from pathlib import Path
    from types import SimpleNamespace

    import torch
    from sglang.kernels.ops.sampling import softmax
    from sglang.kernels.ops.sampling.renorm_triton import top_k_renorm_probs_triton, top_p_renorm_probs_triton
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    spec = find_spec("sglang")
    found = Path((spec.submodule_search_locations or [""])[0] if spec else "") / "srt" / "speculative"
    source = found / "eagle_utils.py"
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source)) if source.is_file() else ast.Module([], [])
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "eagle_sample" not in functions:
        raise LookupError("the installed sglang has no eagle_sample in srt/speculative/eagle_utils.py")
    waiting, taken = ["eagle_sample"], set()
    while waiting:
        name = waiting.pop()
        taken.add(name)
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        waiting += used & functions.keys() - taken
    tree.body = [node for name, node in functions.items() if name in taken]

    def verify_tree_greedy_func(
        predicts: Any, accept_index: Any, accept_token_num: Any, topk: int, **given: Any
    ) -> Any:
        verify_tree_greedy_triton(predicts, accept_index, accept_token_num, **given)
        return predicts, accept_index, accept_token_num

    one_gpu = SimpleNamespace(tp_group=SimpleNamespace(world_size=1))
    places = {
        "sglang.srt.layers.dp_attention": SimpleNamespace(is_dp_attention_enabled=lambda: False),
        "sglang.srt.runtime_context": SimpleNamespace(get_parallel=lambda: one_gpu),
        # Serving code that takes seconds to import, for penalties that no call has.
        "sglang.srt.sampling.penaltylib.repetition_penalty": SimpleNamespace(apply_scaling_penalties=None),
        "sglang.srt.speculative.spec_utils": SimpleNamespace(
            SIMULATE_ACC_LEN=-1, SIMULATE_ACC_TOKEN_MODE="", generate_simulated_accept_index=None
        ),
    }

    def importing(name: str, *given: Any) -> Any:
        return places[name] if name in places else builtins.__import__(name, *given)

    torch_here = SimpleNamespace(**vars(torch))
    torch_here.rand_like = lambda of, **options: _answer(coins, tuple(of.shape))
    torch_here.rand = lambda size, **options: _answer(final_coins, tuple(size))
    namespace: dict[str, Any] = {
        "__name__": "sglang.srt.speculative.eagle_utils",
        "__builtins__": {**vars(builtins), "__import__": importing},
        "torch": torch_here,
        "partial": partial,
        "sampling_softmax": softmax,
        "top_k_renorm_prob": top_k_renorm_probs_triton,
        "top_p_renorm_prob": top_p_renorm_probs_triton,
        "verify_tree_greedy_func": verify_tree_greedy_func,
        "chain_speculative_sampling_triton": chain_speculative_sampling_triton,
        "tree_speculative_sampling_target_only": None,  # as kernels/ops/speculative/verify_sampling.py binds it on HIP
        "get_spec": lambda: options,
        "_is_cuda": False,
        "_is_hip": True,
        "_is_xpu": False,
        "_is_cpu": False,
    }
    # Annotations name classes of the serving stack: they are left unevaluated.
    exec(compile(tree, str(source), "exec", __future__.annotations.compiler_flag), namespace)
    return namespace["eagle_sample"]


def _answer(coins: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(coins.shape) != shape:
        raise RuntimeError(f"{list(shape)} random numbers are drawn where {list(coins.shape)} coins are due")
    return coins.contiguous()


def _implementation(function: str, provider: str, kernel: str) -> Implementation:
    return Implementation(
        provider,
        "accept_sampling",
        "half-open",
        ("interpret", "emulate", "hip"),
        f"waveproof.kernels.providers.sglang_eagle:{function}",
        packages=("sglang", "triton"),
        distribution="sglang",
        origin="sglang/srt/speculative/eagle_utils.py:eagle_sample",
        launches=True,
        runs_as=(f"triton:{kernel}", *FILTERS),
        paths=(("dense", "half-open"),),
        asked="really samples",
    )


WITHOUT_REJECTION_SAMPLING = _implementation(
    "without_rejection_sampling", "sglang_eagle", "verify_tree_greedy_kernel_triton"
)
WITH_REJECTION_SAMPLING = _implementation("with_rejection_sampling", "sglang_eagle_rejecting", "speculative_sampling_*")
IMPLEMENTATIONS = (WITHOUT_REJECTION_SAMPLING, WITH_REJECTION_SAMPLING)
