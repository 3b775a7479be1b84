"""Stored goldens: tensors as safetensors beside one ``manifest.json`` with provenance and sha256.

A golden is one call and what somebody's implementation, or the float64 reference, made of it. Inputs are stored with
the outputs, so that a golden can be judged without the generator that once made it. What the manifest says of a golden
is also written into the header of its tensor file, where the sha256 covers it: neither can be edited without the other.

Nothing is parsed before its sha256 is known to be right, nothing is ever unpickled, and no file outside the store's own
folder is opened. One writer at a time; any number of readers.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_image

from waveproof.golden.manifest import (
    MANIFEST,
    BadManifest,
    Entry,
    Golden,
    Manifest,
    canonical,
    describe_arguments,
    dtype_name,
    input_name,
    manifest_text,
    output_name,
    parse_manifest,
)
from waveproof.kernels.operators.contract import Call, Value

COMMITTED = Path(__file__).resolve().parent / "data"
"""The goldens that come with the suite."""

_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_HEADER_KEY = "golden"
"""Name under which a tensor file's header holds what the manifest says of it."""


class UnknownGolden(LookupError):
    """The store holds no golden of this id."""


class TamperedGolden(ValueError):
    """A tensor file is not the one that the manifest describes; names the file and what differs."""


@dataclass(frozen=True)
class StoredGolden:
    """A golden with its tensors."""

    golden: Golden
    call: Call
    outputs: tuple[torch.Tensor, ...]
    """In the order of the operator's returns, on the CPU."""


class GoldenStore:
    """A folder of goldens."""

    def __init__(self, root: Path | str = COMMITTED) -> None:
        self.root = Path(root)

    def entries(self) -> tuple[Entry, ...]:
        """What the manifest lists, in its order; nothing where there is no manifest yet.

        Raises:
            BadManifest: the manifest is not JSON, of an unknown schema, or breaks a rule of the store.
        """
        try:
            content = _read(self.root / MANIFEST, BadManifest)
        except FileNotFoundError:
            return ()
        return parse_manifest(content)

    def entry(self, identifier: str) -> Entry:
        """The manifest's entry of that id.

        Raises:
            UnknownGolden: no entry has it.
            BadManifest: see :meth:`entries`.
        """
        entries = self.entries()
        for entry in entries:
            if entry.golden.id == identifier:
                return entry
        raise UnknownGolden(f"no golden {identifier!r} among the {len(entries)} in {self.root.name}/")

    def load(self, identifier: str) -> StoredGolden:
        """The golden of that id, its file held against the manifest first.

        Raises:
            UnknownGolden: the store does not hold it.
            TamperedGolden: the file is gone, a link, of another size or sha256, no safetensors, or holds other tensors.
            BadManifest: see :meth:`entries`.
        """
        return self._open(self.entry(identifier))

    def add(self, golden: Golden, call: Call, outputs: tuple[torch.Tensor, ...]) -> Entry:
        """Store one golden: the tensor file first, then the manifest, each whole or not at all.

        Tensors are stored contiguously: a golden is about values, not about layout.

        Raises:
            BadManifest: the id is taken, or call or outputs are not what the golden says.
        """
        entries = self.entries()
        if any(entry.golden.id == golden.id for entry in entries):
            raise BadManifest(f"golden {golden.id!r} is already stored")
        _refuse_other_scalars(golden, call)
        tensors = {input_name(n): v for n, v in call.arguments.items() if isinstance(v, torch.Tensor)}
        if len(outputs) != len(golden.outputs):
            raise BadManifest(f"golden {golden.id!r}: {len(outputs)} outputs, {len(golden.outputs)} are due")
        tensors |= {output_name(n): v for n, v in zip(golden.outputs, outputs, strict=True)}
        different = _difference(golden, tensors)
        if different:
            raise BadManifest(f"golden {golden.id!r}: {different}")
        # A copy of its own for each: safetensors refuses tensors that share memory.
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        image = tensor_image(own, {_HEADER_KEY: canonical(golden)})
        entry = Entry(
            golden=golden,
            file=golden.id + _SUFFIX,
            sha256=hashlib.sha256(image).hexdigest(),
            size=len(image),
        )
        manifest = Manifest(goldens=tuple(sorted((*entries, entry), key=lambda item: item.golden.id)))
        self.root.mkdir(parents=True, exist_ok=True)
        _write_whole(self.root / entry.file, image)
        _write_whole(self.root / MANIFEST, manifest_text(manifest).encode())
        return entry

    def verify(self) -> tuple[str, ...]:
        """Everything that is wrong with the store, one line each; empty where all is right.

        Beyond what :meth:`load` refuses this names every file in the folder that the manifest does not know.
        """
        if not self.root.is_dir():
            return (f"{self.root} is not a folder",)
        try:
            entries = self.entries()
        except BadManifest as error:
            return (str(error),)
        problems = []
        for entry in entries:
            try:
                self._open(entry)
            except TamperedGolden as error:
                problems.append(str(error))
        known = {MANIFEST, *(entry.file for entry in entries)}
        problems += [
            f"{path.relative_to(self.root)}: not in the manifest"
            for path in sorted(self.root.rglob("*"))
            if str(path.relative_to(self.root)) not in known and not (path.is_dir() and not path.is_symlink())
        ]
        return tuple(problems)

    def _open(self, entry: Entry) -> StoredGolden:
        try:
            image = _read(self.root / entry.file, TamperedGolden, entry.size)
        except FileNotFoundError:
            raise TamperedGolden(f"{entry.file}: the file is missing") from None
        digest = hashlib.sha256(image).hexdigest()
        if digest != entry.sha256:
            raise TamperedGolden(f"{entry.file}: sha256 {digest[:16]}..., the manifest has {entry.sha256[:16]}...")
        try:
            tensors = parse_tensors(image)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise TamperedGolden(f"{entry.file}: not safetensors: {error}") from None
        golden = entry.golden
        different = _difference(golden, tensors)
        if different:
            raise TamperedGolden(f"{entry.file}: {different}")
        if _header(image) != canonical(golden):
            raise TamperedGolden(f"{entry.file}: its header does not say of {golden.id} what the manifest says")
        arguments: dict[str, Value] = {
            item.name: item.scalar if item.tensor is None else tensors[input_name(item.name)]
            for item in golden.arguments
        }
        labels: dict[str, str | int | float] = {"generator": golden.generator, "case": golden.case, "seed": golden.seed}
        return StoredGolden(
            golden=golden,
            call=Call(golden.operator, arguments, labels=labels),
            outputs=tuple(tensors[output_name(name)] for name in golden.outputs),
        )


def _header(image: bytes) -> str | None:
    """What the file says of itself; the image is known to parse (8 bytes of length, then JSON)."""
    length = int.from_bytes(image[:8], "little")
    metadata = json.loads(image[8 : 8 + length]).get("__metadata__") or {}  # safetensors lets null pass
    return metadata.get(_HEADER_KEY)


def _difference(golden: Golden, tensors: Mapping[str, torch.Tensor]) -> str:
    """How tensors differ from what the golden says of them, or an empty string."""
    due = golden.tensors
    if set(due) != set(tensors):
        return f"tensors {', '.join(sorted(tensors)) or 'none'}; due are {', '.join(sorted(due))}"
    for name, spec in due.items():
        tensor = tensors[name]
        if (tuple(tensor.shape), dtype_name(tensor)) != (spec.shape, spec.dtype):
            return f"{name} is {dtype_name(tensor)}{list(tensor.shape)}, {spec} is due"
    return ""


def _refuse_other_scalars(golden: Golden, call: Call) -> None:
    if call.operator != golden.operator:
        raise BadManifest(f"golden {golden.id!r}: a call of {call.operator}, {golden.operator} is due")
    given = {item.name: item for item in describe_arguments(call)}
    for spec in golden.arguments:
        if spec.tensor is None and spec != given.get(spec.name):
            raise BadManifest(
                f"golden {golden.id!r}: {spec.name} is {call.arguments.get(spec.name)!r}, {spec.scalar!r} is due"
            )


def _read(path: Path, refusal: type[ValueError], size: int | None = None) -> bytes:
    """A regular file's bytes, never through a link at its end (which could lead anywhere) and never from a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "is a symbolic link" if path.is_symlink() else f"cannot be opened: {error.strerror}"
        raise refusal(f"{path.name}: {reason}") from None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise refusal(f"{path.name}: not a regular file")
        if size is not None and status.st_size != size:
            raise refusal(f"{path.name}: {status.st_size} bytes, the manifest has {size}")
        return stream.read()


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: a neighbour first, then renamed over it.

    A killed process leaves the old file. What a power failure may leave is found by its sha256.
    """
    temporary = path.with_name(path.name + _PARTIAL)
    temporary.unlink(missing_ok=True)  # what an interrupted writer left, or a link that would be followed
    with temporary.open("xb") as stream:
        stream.write(content)
    temporary.replace(path)
