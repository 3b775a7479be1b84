"""Provider ``sglang``: how it gives AITER's MLA a number of heads that it takes, and takes the real ones back.

Both rules stand inside methods of serving backends that cannot be imported on a small machine. The methods are taken
from the *installed source file*, unchanged, and run with an attention that only records what it is given:

- ``AiterAttnBackend._mla_decode_fwd_with_head_pad`` pads with zeros (``zero``), or with all heads over and over
  (``tile``; sglang's own name for it is "repeat");
- ``DeepseekSparseAttnBackend._forward_aiter`` repeats each head in place (``repeat``).

The mode is not the methods' decision but the constructors': ``zero`` for 12 heads, ``tile`` for other numbers below 16,
``repeat`` where the attention is sparse. Here each takes any number of heads.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from waveproof.kernels.providers.registry import Implementation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch


def pad_heads(x: torch.Tensor, target: int, mode: str) -> torch.Tensor:
    """The queries that ``mla_decode_fwd`` gets for ``x``."""
    seen: list[torch.Tensor] = []
    through_the_padding(x, target, mode, lambda padded, output: seen.append(padded))
    return seen[0]


def unpad_heads(x: torch.Tensor, heads: int, mode: str) -> torch.Tensor:
    """What the method returns where ``mla_decode_fwd`` writes ``x``; an LSE goes through it as vectors of one entry."""
    result = x.reshape(*x.shape[:2], -1)

    def write(padded: torch.Tensor, output: torch.Tensor) -> None:
        if output.shape != result.shape:
            raise ValueError(f"mode {mode} of {heads} heads has room for {output.shape[1]}, not for {result.shape[1]}")
        output.copy_(result)

    queries = x.new_zeros((x.shape[0], heads, result.shape[2]))
    real = through_the_padding(queries, x.shape[1], mode, write)
    return real.reshape(*real.shape[:2], *x.shape[2:])


def through_the_padding(
    q: torch.Tensor, target: int, mode: str, attention: Callable[[torch.Tensor, torch.Tensor], object]
) -> torch.Tensor:
    """Run sglang's padding, ``attention(padded queries, output to write)``, and sglang's cut.

    Args:
        q: [T, H, D]; values have the dimension of keys here.
        target: heads that the kernel takes.
        mode: ``zero``, ``tile`` or ``repeat``.
        attention: what stands in for ``mla_decode_fwd``.

    Raises:
        ValueError: sglang has no such mode.
    """
    from types import SimpleNamespace

    import torch

    rows, heads, dimension = q.shape
    layer = SimpleNamespace(
        tp_q_head_num=heads, head_dim=dimension, v_head_dim=dimension, qk_head_dim=dimension, scaling=1.0, logit_cap=0.0
    )

    def mla_decode_fwd(padded: torch.Tensor, cache: object, output: torch.Tensor, *others: Any, **named: Any) -> None:
        attention(padded, output)

    if mode in ("zero", "tile"):
        methods = installed_methods(
            "srt/layers/attention/aiter_backend.py",
            "AiterAttnBackend",
            ("pad_heads", "_mla_decode_fwd_with_head_pad"),
        )
        backend = SimpleNamespace(
            head_pad_mode="repeat" if mode == "tile" else "zero",
            num_head=heads,
            num_head_padded=target,
            mla_kernel_num_head_padded=target,
            kv_cache_dtype=None,
            input_dtype=q.dtype,
        )
        found = methods(
            torch=torch, mla_decode_fwd=mla_decode_fwd, _use_mla_ps_kernel=False, fp8_dtype="an 8-bit cache"
        )
        backend.pad_heads = lambda x, padded: found["pad_heads"](backend, x, padded)
        return found["_mla_decode_fwd_with_head_pad"](backend, q, None, layer)
    if mode == "repeat":
        methods = installed_methods(
            "srt/layers/attention/dsa_backend.py", "DeepseekSparseAttnBackend", ("_forward_aiter",)
        )
        backend = SimpleNamespace(
            need_pad_heads=True,
            head_repeat_factor=target // heads,  # 16 // num_q_heads in its constructor
            kv_indptr=torch.zeros(rows + 1, dtype=torch.int32, device=q.device),
            kv_indices=None,
        )
        found = methods(
            torch=torch,
            mla_decode_fwd=mla_decode_fwd,
            get_valid_kv_indices=lambda *given: None,
            fp8_dtype="an 8-bit cache",
        )
        metadata = SimpleNamespace(cu_seqlens_q=None, max_seq_len_q=1)
        pages = torch.zeros((rows, 1), dtype=torch.int32, device=q.device)
        pool = torch.zeros((1, 1, dimension), dtype=torch.bfloat16, device=q.device)
        return found["_forward_aiter"](backend, q, pool, pages, layer, metadata, rows)
    raise ValueError(f"sglang pads heads by zero, tile or repeat, not by {mode!r}")


def installed_source(file: str) -> Path:
    """A source file of the installed sglang, by its path below the package.

    Raises:
        LookupError: sglang is not installed, or has no such file.
    """
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise LookupError("sglang is not installed")
    source = Path(spec.submodule_search_locations[0]) / file
    if not source.is_file():
        raise LookupError(f"sglang has no {file}")
    return source


@cache
def installed_methods(file: str, owner: str, methods: tuple[str, ...]) -> Callable[..., dict[str, Callable[..., Any]]]:
    """Methods of a class in an installed sglang source file, without importing the module.

    Args:
        file: path below the package.
        owner: the class.
        methods: their names.

    Returns:
        A function that takes, by keyword, the names that the methods find in their module and gives the methods by
        name. These take ``self`` as any object that has what they ask for.

    Raises:
        LookupError: sglang is not installed, or the file defines no such method.
    """
    import __future__

    import ast

    source = installed_source(file)
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    body = [line for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner for line in node.body]
    tree.body = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in methods]
    missing = set(methods) - {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing:
        raise LookupError(f"sglang/{file} defines no {owner}.{', '.join(sorted(missing))}")
    # Annotations name classes of the serving stack: they are left unevaluated.
    code = compile(tree, str(source), "exec", __future__.annotations.compiler_flag)

    def bind(**given: Any) -> dict[str, Callable[..., Any]]:
        namespace: dict[str, Any] = {"__name__": f"sglang.{file[:-3].replace('/', '.')}", **given}
        exec(code, namespace)
        return {name: namespace[name] for name in methods}

    return bind


IMPLEMENTATIONS = tuple(
    Implementation(
        "sglang",
        operator,
        "exact",
        ("cpu", "hip", "cuda"),
        f"waveproof.kernels.providers.sglang_heads:{operator}",
        packages=("sglang",),
        distribution="sglang",
        origin="sglang/srt/layers/attention/aiter_backend.py:_mla_decode_fwd_with_head_pad, "
        "dsa_backend.py:_forward_aiter",
    )
    for operator in ("pad_heads", "unpad_heads")
)
