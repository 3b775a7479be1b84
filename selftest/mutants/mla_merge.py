"""Planted faults of ``merge_state``, ``pad_heads`` and ``unpad_heads``: each is right but for what its docstring says.

For use as ``--provider merge_state=selftest/mutants/mla_merge.py:NAME``; those of the other two operators have names
that begin with ``pads_`` and ``unpads_``. The table is ``mla.py``.
"""

from __future__ import annotations

import torch

from waveproof.selftest.mutants.correct_mla import merge_by_maximum, pad_by_copy, require_padding, unpad_by_index
from waveproof.selftest.mutants.mla_steps import LOG2_E, Result, as_if_contiguous

Tensor = torch.Tensor

# Merge ----------------------------------------------------------------------------------------------------------------


def zeros(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Nothing but zeros, with the right LSE."""
    return torch.zeros_like(out_a), merge_by_maximum(out_a, lse_a, out_b, lse_b)[1]


def scale_percent(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Outputs 1 % too small."""
    out, lse = merge_by_maximum(out_a.float(), lse_a, out_b.float(), lse_b)
    return (out * 0.99).to(out_a.dtype), lse


def powers_of_two(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Takes both LSE for logarithms to base 2 (sglang#40903, B7)."""
    out, lse = merge_by_maximum(out_a, lse_a / LOG2_E, out_b, lse_b / LOG2_E)
    return out, lse * LOG2_E


def one_side_in_base_two(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Converts the LSE of the second side, which is natural already (sglang#40903, B7)."""
    return merge_by_maximum(out_a, lse_a, out_b, lse_b * LOG2_E)


def lse_in_base_two(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """The right output, and an LSE to base 2."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    return out, lse * LOG2_E


def nan_for_two_empty_sides(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Takes the larger LSE off, also if it is -inf: NaN for a query without keys."""
    top = torch.maximum(lse_a, lse_b)
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    return torch.where((top - top).isnan()[..., None], torch.nan, out), lse + (top - top)


def zero_lse_for_two_empty_sides(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """LSE 0 instead of -inf for a query without keys, which the next merge takes for real (flashinfer#4975, B8)."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    return out, torch.where(lse == -torch.inf, 0.0, lse)


def empty_side_times_zero(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Gives the output of a side without keys a weight of 0: NaN stays NaN (B8)."""
    lse = torch.logaddexp(lse_a, lse_b)
    none = lse == -torch.inf
    shares = [torch.exp(side - torch.where(none, 0.0, lse))[..., None] for side in (lse_a, lse_b)]
    out = out_a.float() * shares[0] + out_b.float() * shares[1]
    return torch.where(none[..., None], 0.0, out).to(out_a.dtype), lse


def sides_swapped(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Each side has the other's weight."""
    return merge_by_maximum(out_a, lse_b, out_b, lse_a)


def mean_of_sides(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Both sides with keys count the same."""
    flat = [torch.where(lse == -torch.inf, lse, 0.0) for lse in (lse_a, lse_b)]
    return merge_by_maximum(out_a, flat[0], out_b, flat[1])[0], merge_by_maximum(out_a, lse_a, out_b, lse_b)[1]


def larger_side_alone(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """The side of the larger LSE counts, the other does not."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    larger = torch.where((lse_a >= lse_b)[..., None], out_a, out_b)
    return torch.where((lse == -torch.inf)[..., None], out, larger), lse


def far_side_dropped(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """A side whose LSE is 4 below the other's is dropped."""
    near = [torch.where(x < y - 4.0, -torch.inf, x) for x, y in ((lse_a, lse_b), (lse_b, lse_a))]
    return merge_by_maximum(out_a, near[0], out_b, near[1])[0], merge_by_maximum(out_a, lse_a, out_b, lse_b)[1]


def not_normalised(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Weights below the larger LSE are not divided by their sum."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    top = torch.maximum(lse_a, lse_b)
    total = torch.where(lse == -torch.inf, 1.0, torch.exp(lse - top))
    return (out.float() * total[..., None]).to(out_a.dtype), lse


def without_maximum(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Weights are exp(LSE), which overflows from 89 on and vanishes below -104."""
    a, b = lse_a.exp()[..., None], lse_b.exp()[..., None]
    out = torch.where(a > 0, out_a.float() * a, 0.0) + torch.where(b > 0, out_b.float() * b, 0.0)
    total = a + b
    return torch.where(total > 0, out / total, 0.0).to(out_a.dtype), torch.log(total)[..., 0]


def lse_is_larger(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Passes the larger LSE on."""
    return merge_by_maximum(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


def lse_is_sum(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Adds the LSE up."""
    return merge_by_maximum(out_a, lse_a, out_b, lse_b)[0], lse_a + lse_b


def bfloat16_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Both LSE pass through bfloat16."""
    return merge_by_maximum(out_a, lse_a.bfloat16().float(), out_b, lse_b.bfloat16().float())


def bfloat16_weights(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Products and sums in bfloat16, for float32 and float16 outputs too."""
    out, lse = merge_by_maximum(out_a.bfloat16(), lse_a, out_b.bfloat16(), lse_b)
    return out.to(out_a.dtype), lse


def first_heads_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """All heads of a token have the weights of its first head."""
    firsts = [lse[:, :1].expand_as(lse) for lse in (lse_a, lse_b)]
    return merge_by_maximum(out_a, firsts[0], out_b, firsts[1])[0], merge_by_maximum(out_a, lse_a, out_b, lse_b)[1]


def lse_of_heads_by_tokens(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Takes the memory of LSE for [H, T] (vllm#57012, B7)."""
    turned = [lse.contiguous().reshape(lse.shape[::-1]).T for lse in (lse_a, lse_b)]
    out, lse = merge_by_maximum(out_a, turned[0], out_b, turned[1])
    return out, lse.T.reshape(lse.shape)


def rest_of_head_from_first(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Merges the first 256 numbers of a head and copies the rest from the first side."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    return torch.cat([out[..., :256], out_a[..., 256:]], -1), lse


def ignores_strides(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Takes the outputs' heads to lie one after the other."""
    return merge_by_maximum(as_if_contiguous(out_a), lse_a, as_if_contiguous(out_b), lse_b)


def merges_in_place(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """Leaves the merged output in the first side as well."""
    out, lse = merge_by_maximum(out_a, lse_a, out_b, lse_b)
    out_a.copy_(out)
    return out, lse


def returns_float32(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """float32 output whatever the sides are."""
    out, lse = merge_by_maximum(out_a.float(), lse_a, out_b.float(), lse_b)
    return out, lse


def first_side_if_second_is_empty(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Result:
    """One query whose second side is empty makes all queries skip the merge."""
    if (lse_b == -torch.inf).any():
        return torch.where((lse_a == -torch.inf)[..., None], 0.0, out_a.float()).to(out_a.dtype), lse_a.clone()
    return merge_by_maximum(out_a, lse_a, out_b, lse_b)


# Pad ------------------------------------------------------------------------------------------------------------------


def pads_by_whole_times(x: Tensor, target: int, mode: str) -> Tensor:
    """Repeats heads target // H times whatever the mode: once for 12 of 16, 15 for 5 (sglang#36356, B3)."""
    require_padding(x.shape[1], target, mode)
    if mode == "tile":
        return pad_by_copy(x, target, mode)
    repeated = x[:, torch.arange(x.shape[1]).repeat_interleave(target // max(1, x.shape[1]))]
    return pad_by_copy(x, target, mode) if mode == "zero" and repeated.shape[1] == target else repeated


def pads_with_garbage(x: Tensor, target: int, mode: str) -> Tensor:
    """Leaves the added heads of mode zero as they were allocated."""
    padded = pad_by_copy(x, target, mode)
    if mode == "zero":
        fresh = torch.empty_like(padded)
        fresh[:, : x.shape[1]] = x
        return fresh
    return padded


def pads_with_ones(x: Tensor, target: int, mode: str) -> Tensor:
    """Fills the added heads of mode zero with ones."""
    padded = pad_by_copy(x, target, mode)
    if mode == "zero":
        padded[:, x.shape[1] :] = torch.ones((), dtype=x.dtype)
    return padded


def pads_with_last_head(x: Tensor, target: int, mode: str) -> Tensor:
    """Fills the added heads of mode tile with the last one."""
    if mode != "tile":
        return pad_by_copy(x, target, mode)
    require_padding(x.shape[1], target, mode)
    return x[:, torch.arange(target).clamp(max=x.shape[1] - 1)]


def pads_at_front(x: Tensor, target: int, mode: str) -> Tensor:
    """Puts the zeros before the real heads."""
    padded = pad_by_copy(x, target, mode)
    return padded[:, torch.arange(target) - (target - x.shape[1])] if mode == "zero" else padded


def pads_tile_as_repeat(x: Tensor, target: int, mode: str) -> Tensor:
    """Repeats each head where all heads should be, one after the other."""
    if mode != "tile" or target % x.shape[1]:
        return pad_by_copy(x, target, mode)
    return pad_by_copy(x, target, "repeat")


def pads_repeat_as_tile(x: Tensor, target: int, mode: str) -> Tensor:
    """All heads one after the other, where each should be repeated."""
    require_padding(x.shape[1], target, mode)
    return pad_by_copy(x, target, "tile" if mode == "repeat" else mode)


def pads_tile_uncut(x: Tensor, target: int, mode: str) -> Tensor:
    """Whole tiles, more heads than the target where they do not fit."""
    padded = pad_by_copy(x, target, mode)
    return x.clone().repeat(1, -(-target // x.shape[1]), 1) if mode == "tile" else padded


def pads_nothing_where_it_fits(x: Tensor, target: int, mode: str) -> Tensor:
    """Returns its input where that has the target's number of heads already."""
    return x if x.shape[1] == target else pad_by_copy(x, target, mode)


def pads_in_bfloat16(x: Tensor, target: int, mode: str) -> Tensor:
    """float32 and float16 pass through bfloat16."""
    padded = pad_by_copy(x, target, mode)
    return padded.bfloat16().to(x.dtype) if x.dtype.itemsize > 1 else padded


def pads_from_strides_ignored(x: Tensor, target: int, mode: str) -> Tensor:
    """Takes heads to lie one after the other."""
    return pad_by_copy(as_if_contiguous(x), target, mode)


def pads_by_cutting(x: Tensor, target: int, mode: str) -> Tensor:
    """Drops heads where there are more than the target."""
    return pad_by_copy(x[:, : max(1, target)], target, mode)


def pads_repeat_uneven(x: Tensor, target: int, mode: str) -> Tensor:
    """Repeats heads that do not divide the target too, some more often than others."""
    if mode == "repeat" and 0 < x.shape[1] <= target:
        return x[:, torch.arange(target) * x.shape[1] // target]
    return pad_by_copy(x, target, mode)


def pads_unknown_mode_with_zeros(x: Tensor, target: int, mode: str) -> Tensor:
    """Takes a mode that it does not know for zero."""
    return pad_by_copy(x, target, mode if mode in ("repeat", "tile") else "zero")


# Unpad ----------------------------------------------------------------------------------------------------------------


def unpads_first_heads(x: Tensor, heads: int, mode: str) -> Tensor:
    """Takes the first heads for the real ones, also where they were repeated."""
    require_padding(heads, x.shape[1], mode)
    return x[:, :heads].clone()


def unpads_last_heads(x: Tensor, heads: int, mode: str) -> Tensor:
    """Takes the last heads for the real ones."""
    require_padding(heads, x.shape[1], mode)
    return x[:, x.shape[1] - heads :].clone()


def unpads_with_fixed_step(x: Tensor, heads: int, mode: str) -> Tensor:
    """Steps over the heads as if they were repeated, whatever the mode."""
    require_padding(heads, x.shape[1], mode)
    return x[:, :: x.shape[1] // heads][:, :heads].clone()


def unpads_mean_of_copies(x: Tensor, heads: int, mode: str) -> Tensor:
    """Averages the copies of a repeated head, which need not be equal."""
    if mode != "repeat":
        return unpad_by_index(x, heads, mode)
    require_padding(heads, x.shape[1], mode)
    return x.float().unflatten(1, (heads, x.shape[1] // heads)).mean(2).to(x.dtype)


def unpads_outputs_only(x: Tensor, heads: int, mode: str) -> Tensor:
    """Takes three dimensions: an LSE, which has two, gets refused."""
    if x.dim() != 3:
        raise RuntimeError(f"expected three dimensions, got {x.dim()}")
    return unpad_by_index(x, heads, mode)


def unpads_tokens_of_two_dimensions(x: Tensor, heads: int, mode: str) -> Tensor:
    """Cuts the first dimension of an LSE as if tokens were heads."""
    return unpad_by_index(x.T, min(heads, x.shape[0]), mode).T if x.dim() == 2 else unpad_by_index(x, heads, mode)


def unpads_more_than_there_are(x: Tensor, heads: int, mode: str) -> Tensor:
    """Gives as many heads as there are where more are asked for."""
    return unpad_by_index(x, min(heads, x.shape[1]), mode)


def unpads_unknown_mode_as_zero(x: Tensor, heads: int, mode: str) -> Tensor:
    """Takes a mode that it does not know for zero."""
    return unpad_by_index(x, heads, mode if mode in ("repeat", "tile") else "zero")
