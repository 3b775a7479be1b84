"""A launch of AITER's host code with something else in it: what a host that decides otherwise would have launched.

The host is asked for a call that it accepts; the launch that it makes is then changed field by field before it runs.
So a question about the shipped *kernel* can be put although the shipped *host* refuses the call, and all that is not
changed stays AITER's own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from waveproof.kernels.runtimes.emulate import abi_aiter
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch, Launcher

POINTER_OF = {
    "splitData": "ptr_R",
    "splitLse": "ptr_LSE",
    "Q": "ptr_Q",
    "KV": "ptr_KV",
    "kv_indptr": "ptr_LTP",
    "kv_page_indices": "ptr_LTD",
    "kv_last_page_lens": "ptr_LTL",
    "qo_indptr": "ptr_QTP",
    "num_kv_splits_indptr": "ptr_STP",
    "output": "ptr_RP",
}
"""Field of the argument block that holds the address of a tensor, by parameter of the entry points (asm_mla.cu)."""

Edit = Callable[[HipLaunch], HipLaunch]


class NoSuchArgument(LookupError):
    """A tensor is to be replaced that the launch has no pointer to, or a field that the block does not have."""


def edited(
    launch: HipLaunch,
    tensors: Mapping[str, torch.Tensor] | None = None,
    fields: Mapping[str, int | float] | None = None,
) -> HipLaunch:
    """The launch with other tensors and other values in its argument block.

    Args:
        launch: as AITER's host made it; unchanged.
        tensors: by parameter name of the entry point; the kernel sees the new tensor and the old one no longer.
        fields: by name in :data:`waveproof.kernels.runtimes.emulate.abi_aiter.FIELDS`.

    Raises:
        NoSuchArgument: a name is unknown.
    """
    values: dict[str, int | float] = dict(fields or {})
    for name, tensor in (tensors or {}).items():
        if name not in POINTER_OF:
            raise NoSuchArgument(f"no pointer to {name!r}; there are those to {', '.join(POINTER_OF)}")
        values[POINTER_OF[name]] = tensor.data_ptr()
    known = {field.name: field for field in abi_aiter.FIELDS}
    block = bytearray(launch.kernarg)
    for name, value in values.items():
        if name not in known:
            raise NoSuchArgument(f"no field {name!r}; there are {', '.join(known)}")
        struct.pack_into("<" + known[name].format, block, known[name].offset, value)
    return replace(launch, kernarg=bytes(block), buffers={**launch.buffers, **(tensors or {})})


def editing(launcher: Launcher, edit: Edit) -> Launcher:
    """A launcher that changes each launch before ``launcher`` runs it."""
    return lambda launch: launcher(edit(launch))
