"""Frames between the suite and the processes that run kernels: a JSON header and tensors as safetensors, never
pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import torch
from safetensors.torch import load, save

from waveproof.kernels.operators.contract import Call, Embedding, Value
from waveproof.kernels.runtimes.memory import extent

Header = dict[str, Any]


class WireError(RuntimeError):
    """What came is no frame."""


_LENGTHS = struct.Struct("<4sQQ")
_MAGIC = b"wvpf"


def send(stream: IO[bytes], header: Header, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write one frame and flush."""
    text = json.dumps(header).encode("utf-8", "backslashreplace")
    image = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}) if tensors else b""
    stream.write(_LENGTHS.pack(_MAGIC, len(text), len(image)))
    stream.write(text)
    stream.write(image)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Header, dict[str, torch.Tensor]]:
    """Read one frame.

    Raises:
        EOFError: the other side has gone.
        WireError: what came is no frame.
    """
    head = stream.read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        raise EOFError("the other process closed the pipe")
    magic, text_length, image_length = _LENGTHS.unpack(head)
    if magic != _MAGIC:
        raise WireError(f"a frame begins with {magic!r}, not {_MAGIC!r}: something else wrote to the pipe")
    text, image = stream.read(text_length), stream.read(image_length)
    if len(text) < text_length or len(image) < image_length:
        raise EOFError("the other process closed the pipe within a frame")
    return json.loads(text), load(image) if image else {}


def encode_call(call: Call) -> tuple[Header, dict[str, torch.Tensor]]:
    """A call as header and tensors; a strided tensor travels as the span of memory that it addresses."""
    arguments: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor):
            arguments[name] = {"value": value}
            continue
        shape, stride = tuple(value.shape), tuple(value.stride())
        shift = value.storage_offset() % 16
        arguments[name] = {"shape": shape, "stride": stride, "shift": shift}
        tensors[name] = torch.as_strided(value, (extent(shape, stride),), (1,))
    embedding = call.embedding
    header: Header = {
        "operator": call.operator,
        "arguments": arguments,
        "repeats": call.repeats,
        "embedding": None if embedding is None else [embedding.argument, embedding.rows, embedding.row, embedding.pool],
        "labels": dict(call.labels),
    }
    return header, tensors


def decode_call(header: Header, tensors: Mapping[str, torch.Tensor]) -> Call:
    """The call that :func:`encode_call` wrote, strides and 16-byte alignment restored."""
    arguments: dict[str, Value] = {}
    for name, item in header["arguments"].items():
        if "value" in item:
            arguments[name] = item["value"]
            continue
        flat, shift = tensors[name], item["shift"]
        storage = torch.zeros(shift + max(flat.numel(), 1), dtype=flat.dtype)
        storage[shift : shift + flat.numel()] = flat
        arguments[name] = torch.as_strided(storage, item["shape"], item["stride"], shift)
    embedding = None if header["embedding"] is None else Embedding(*header["embedding"])
    return Call(header["operator"], arguments, header["repeats"], embedding, header["labels"])
