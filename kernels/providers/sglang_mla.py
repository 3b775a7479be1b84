"""Provider ``sglang``: its Triton kernels of latent attention, called as its Triton attention backend calls them.

The kernels (``kernels/ops/attention``) can be imported anywhere; ``srt/layers/attention/triton_backend.py``, which
prepares their arguments, needs a serving stack. So three things are prepared here as it does:

- pages become token slots: its ``kv_indices`` name one row of the pool a token, at any page size;
- V is a view of the K cache, ``get_value_buffer`` of ``MLATokenToKVPool``;
- the number of KV splits comes from its ``get_num_kv_splits``, for a server whose context length is what this call
  holds and with the default of ``--triton-attention-num-kv-splits``.

Queries carry no scale anywhere in sglang's Triton path: another one than 1 is refused.

Several implementations have names of their own, since one has one variant and one path: ``sglang_fp8`` are the same
functions on an 8-bit cache, which round *queries and* softmax weights to its type; ``sglang_verify`` and
``sglang_verify_shared`` are the two ways of verifying drafts; ``sglang_dense`` prefills more keys than queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waveproof.kernels.providers.sglang_attention import EXTEND, EXTEND_KERNELS, attention

if TYPE_CHECKING:
    import torch

Pair = tuple["torch.Tensor", "torch.Tensor"]


def mla_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> Pair:
    """``decode_attention_fwd`` as ``TritonAttnBackend.forward_decode``; LSE as its branch for context parallelism.

    That branch fills the LSE of the splits with -inf before the launch, since splits without tokens are not written,
    and takes their logsumexp. Lean attention is off, as it is below 8 requests of 4096 tokens; it writes no LSE.

    Raises:
        ValueError: not one query a request, or ``q_scale`` is not 1.
    """
    import torch
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    requests, heads = kv_indptr.shape[0] - 1, q.shape[1]
    if q.shape[0] != requests:
        raise ValueError(f"forward_decode takes one query a request; {q.shape[0]} queries of {requests} requests")
    refuse_scale("q_scale", q_scale)
    keys, values = key_and_value_buffer(kv_cache)
    page_size = kv_cache.shape[1]
    lengths = tokens_cached(kv_indptr, kv_last_page_len, page_size)
    indptr, slots = token_slots(kv_indptr, kv_indices, lengths, page_size)
    num_kv_splits, max_kv_splits, uneven = kv_splits(lengths, heads, kv_indices.shape[0] * page_size)
    parts = torch.empty((requests, heads, max_kv_splits, values.shape[-1]), dtype=torch.float32, device=q.device)
    lse = torch.full((requests, heads, max_kv_splits), -torch.inf, dtype=torch.float32, device=q.device)
    q = q.reshape(requests, -1).view(requests, heads, -1)
    out = q.new_empty((requests, heads, values.shape[-1]))
    decode_attention_fwd(
        q,
        keys,
        values,
        out,
        indptr,
        slots,
        parts,
        lse,
        num_kv_splits,
        max_kv_splits,
        sm_scale,
        kv_scale,
        kv_scale,
        has_mla=True,
        page_size=page_size,
        uneven_batch=uneven,
    )
    return out, torch.logsumexp(lse, -1)


def mla_extend(
    q: torch.Tensor,
    kv_new: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    kv_scale: float,
) -> Pair:
    """``extend_attention_fwd`` as ``TritonAttnBackend.forward_extend`` calls it for absorbed MLA, asked for its LSE."""
    import torch
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    keys, values = key_and_value_buffer(kv_cache)
    page_size = kv_cache.shape[1]
    lengths = tokens_cached(kv_indptr, kv_last_page_len, page_size)
    indptr, slots = token_slots(kv_indptr, kv_indices, lengths, page_size)
    new = (qo_indptr[1:] - qo_indptr[:-1]).tolist()
    out = q.new_empty((*q.shape[:2], values.shape[-1]))
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    extend_attention_fwd(
        q,
        kv_new.contiguous(),
        kv_new[..., : values.shape[-1]].contiguous(),
        out,
        keys,
        values,
        qo_indptr.long(),
        indptr,
        slots,
        None,
        True,
        None,
        max(new),
        kv_scale,
        kv_scale,
        sm_scale,
        lse_extend=lse,
        page_size=page_size,
        extend_seq_lens_cpu=new,
    )
    return out, lse


def mla_verify(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> Pair:
    """``extend_attention_fwd`` as in ``forward_extend`` for ``target_verify``, asked for its LSE.

    The last tokens are the new ones. Their latents come from the cache, as ``forward_extend`` takes them where it is
    given none; no scale goes with them. A chain of drafts has no tree mask (``custom_mask`` None, as DFlash has it).

    Raises:
        ValueError: a scale is not 1, or a request has fewer cached tokens than queries.
    """
    import torch
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    refuse_scale("q_scale", q_scale)
    refuse_scale("kv_scale", kv_scale)
    keys, values = key_and_value_buffer(kv_cache)
    page_size = kv_cache.shape[1]
    prefix, slots, cache_loc = prefix_and_new(qo_indptr, kv_indptr, kv_indices, kv_last_page_len, q, page_size)
    new = (qo_indptr[1:] - qo_indptr[:-1]).tolist()
    out = q.new_empty((*q.shape[:2], values.shape[-1]))
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    extend_attention_fwd(
        q,
        keys[cache_loc].contiguous(),
        values[cache_loc].contiguous(),
        out,
        keys,
        values,
        qo_indptr,
        prefix,
        slots,
        None,
        True,
        None,
        max(new),
        kv_scale,
        kv_scale,
        sm_scale,
        lse_extend=lse,
        page_size=page_size,
    )
    return out, lse


def mla_verify_shared(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    sm_scale: float,
    q_scale: float,
    kv_scale: float,
) -> torch.Tensor:
    """``verify_shared_kv_fwd``, which ``forward_extend`` tries first for ``target_verify`` of Kimi K3 on gfx950.

    Where it declines (requests of unequal queries; no token before any), ``forward_extend`` goes on as
    :func:`mla_verify`, and so does this.

    Raises:
        ValueError: as :func:`mla_verify`.
    """
    from sglang.kernels.ops.attention.verify_mla import verify_shared_kv_fwd

    refuse_scale("q_scale", q_scale)
    refuse_scale("kv_scale", kv_scale)
    keys, values = key_and_value_buffer(kv_cache)
    requests = qo_indptr.shape[0] - 1
    prefix, slots, cache_loc = prefix_and_new(
        qo_indptr, kv_indptr, kv_indices, kv_last_page_len, q, kv_cache.shape[1], trimmed=True
    )
    new = (qo_indptr[1:] - qo_indptr[:-1]).tolist()
    out = q.new_empty((*q.shape[:2], values.shape[-1]))
    if not verify_shared_kv_fwd(
        q,
        keys[cache_loc].contiguous(),
        values[cache_loc].contiguous(),
        out,
        keys,
        values,
        qo_indptr,
        prefix,
        slots,
        None,
        True,
        None,
        max(new),
        kv_scale,
        kv_scale,
        sm_scale,
        max_bs=requests,
    ):
        out, _ = mla_verify(
            q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale, q_scale, kv_scale
        )
    return out


def refuse_scale(name: str, scale: float) -> None:
    """Refuse a scale that the called function has no argument for.

    Raises:
        ValueError: it is not 1.
    """
    if scale != 1.0:
        raise ValueError(f"{name} is {scale}, and sglang takes none here: it must be 1.0")


def key_and_value_buffer(kv_cache: torch.Tensor) -> Pair:
    """[pages, page_size, 1, 576] as K [slots, 1, 576] and V [slots, 1, 512], one the view of the other."""
    keys = kv_cache.view(-1, *kv_cache.shape[2:])
    return keys, keys[..., :512]


def tokens_cached(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """``seq_lens``: int64[B], tokens of each request."""
    pages = (kv_indptr[1:] - kv_indptr[:-1]).long()
    return (pages - 1).clamp(min=0) * page_size + kv_last_page_len


def token_slots(
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    lengths: torch.Tensor,
    page_size: int,
    first: torch.Tensor | None = None,
    room: int | None = None,
) -> Pair:
    """Rows of the pool in which tokens lie, as sglang's ``kv_indptr`` int32[B+1] and ``kv_indices`` int64[room].

    Sizes come from shapes alone, so nothing waits for the device; what follows the last token means nothing, as in the
    buffers that sglang allocates where it knows no lengths.

    Args:
        kv_indptr: as the operators have it.
        kv_indices: as the operators have it.
        lengths: int64[B], tokens of each request to be listed.
        page_size: tokens in a page.
        first: int64[B], which token of the request comes first; the very first where None.
        room: how many may be listed; all tokens of all pages where None.
    """
    import torch

    room = kv_indices.shape[0] * page_size if room is None else room
    ends = torch.cumsum(lengths, 0)
    indptr = torch.cat([torch.zeros_like(ends[:1]), ends])
    if kv_indices.shape[0] == 0:
        return indptr.int(), kv_indices.long()
    position = torch.arange(room, device=kv_indices.device)
    request = torch.searchsorted(ends, position, right=True).clamp(max=lengths.shape[0] - 1)
    token = position - indptr[request]
    if first is not None:
        token = token + first[request]
    page = (kv_indptr[request] + token // page_size).clamp(max=kv_indices.shape[0] - 1)
    return indptr.int(), kv_indices[page].long() * page_size + token % page_size


def prefix_and_new(
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    q: torch.Tensor,
    page_size: int,
    trimmed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``kv_indptr`` and ``kv_indices`` of what comes before the new tokens, and ``out_cache_loc``, their own slots.

    With ``trimmed`` the indices are cut to their number, as where sglang knows the lengths.

    Raises:
        ValueError: a request has fewer cached tokens than queries.
    """
    lengths = tokens_cached(kv_indptr, kv_last_page_len, page_size)
    new = (qo_indptr[1:] - qo_indptr[:-1]).long()
    before = lengths - new
    if bool((before < 0).any()):
        raise ValueError("target_verify takes a cached token for each query; a request has fewer")
    prefix, slots = token_slots(kv_indptr, kv_indices, before, page_size)
    _, cache_loc = token_slots(kv_indptr, kv_indices, new, page_size, before, q.shape[0])
    return prefix, slots[: int(prefix[-1])] if trimmed else slots, cache_loc


def kv_splits(lengths: torch.Tensor, heads: int, context: int) -> tuple[torch.Tensor, int, torch.Tensor]:
    """``num_kv_splits`` int32[B], ``max_kv_splits`` and ``uneven_batch`` int32[1] of the backend's forward metadata.

    Args:
        lengths: int64[B], ``seq_lens``.
        heads: query heads of this rank.
        context: ``--context-length``.
    """
    import torch
    import triton
    from sglang.kernels.ops.attention.metadata import get_num_kv_splits_triton
    from sglang.srt.utils import is_gfx942_supported, is_hip

    # get_device_core_count would ask torch.cuda.is_available(), which an emulated device leaves false.
    seen = torch.version.hip is not None or torch.cuda.is_available()
    cores = torch.cuda.get_device_properties(lengths.device.index or 0).multi_processor_count if seen else 0
    # --triton-attention-num-kv-splits: 16 on AMD (arg_groups/platform_hook.py), else 8 (arg_groups/fields/exec_.py).
    most = 16 if is_hip() else 8
    if cores:  # _mla_decode_kv_splits_cap, then what TritonAttnBackend.__init__ does on gfx942
        most = max(most, min(*(triton.next_power_of_2(count) for count in (cores, triton.cdiv(context, 32)))))
        most = min(most, 256) if is_gfx942_supported() else most
    uneven = torch.zeros(1, dtype=torch.int32, device=lengths.device)
    if not cores:
        return torch.full_like(lengths, most, dtype=torch.int32), most, uneven
    splits = torch.empty(lengths.shape, dtype=torch.int32, device=lengths.device)
    requests = lengths.shape[0]
    get_num_kv_splits_triton[(1,)](
        splits,
        lengths,
        requests,
        1,
        heads,
        1,
        most,
        cores,
        MAX_NUM_SEQ=max(256, triton.next_power_of_2(requests)),
        uneven_batch_ptr=uneven,
    )
    return splits, most, uneven


_DECODE = (
    "mla_decode",
    "sglang_mla:mla_decode",
    "decode_attention.py:decode_attention_fwd",
    ("triton:_fwd_grouped_kernel_stage1", "triton:_fwd_kernel_stage2", "triton:get_num_kv_splits_triton?"),
)
_EXTEND = ("mla_extend", "sglang_mla:mla_extend", EXTEND, EXTEND_KERNELS)

IMPLEMENTATIONS = (
    attention("sglang", *_DECODE, longest_query=1),
    attention("sglang_fp8", *_DECODE, narrow=True, longest_query=1),
    attention("sglang_verify", "mla_decode", "sglang_mla:mla_verify", EXTEND, EXTEND_KERNELS),
    attention(
        "sglang_verify_shared",
        "mla_decode",
        "sglang_mla:mla_verify_shared",
        "verify_mla.py:verify_shared_kv_fwd",
        ("triton:_verify_mla_prefix_stage1", "triton:_verify_mla_combine_stage2"),
        omits=("lse",),
    ),
    attention("sglang", *_EXTEND),
    attention("sglang_fp8", *_EXTEND, narrow=True),
)
