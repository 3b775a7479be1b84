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
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as tensor_image

from waveproof.kernels.operators.contract import Call, Value
from waveproof.kernels.operators.registry import operator_named

SCHEMA: Final = 1
"""Raised by one whenever a field changes its meaning or goes."""

MANIFEST = "manifest.json"

COMMITTED = Path(__file__).resolve().parent / "data"
"""The goldens that come with the suite."""

_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_HEADER_KEY = "golden"
"""Name under which a tensor file's header holds what the manifest says of it."""


class UnknownGolden(LookupError):
    """The store holds no golden of this id."""


class BadManifest(ValueError):
    """The manifest, or an entry that is to go into it, breaks a rule of the store; names the entry and the rule."""


class TamperedGolden(ValueError):
    """A tensor file is not the one that the manifest describes; names the file and what differs."""


Scalar = StrictInt | Annotated[FiniteFloat, Field(strict=True)] | StrictStr | None
Dtype = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(_Frozen):
    """What a tensor in a golden's file must be."""

    shape: tuple[Annotated[StrictInt, Field(ge=0)], ...]
    dtype: Dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The specification that this tensor meets."""
        return cls.model_validate({"shape": tuple(tensor.shape), "dtype": _dtype_name(tensor)})

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class ArgumentSpec(_Frozen):
    """One argument of the call: a tensor, whose elements are in the file, or a scalar, which stands here."""

    name: str
    tensor: TensorSpec | None = None
    scalar: Scalar = None

    @model_validator(mode="after")
    def _one_of_both(self) -> ArgumentSpec:
        if self.tensor is not None and self.scalar is not None:
            raise ValueError(f"argument {self.name!r} is a tensor and a scalar at once")
        return self


class Provenance(_Frozen):
    """Who made the outputs, on what, with what."""

    library: str
    """The library that implements the operator, e.g. ``flashinfer``."""
    version: str
    device: str
    """Product name of the GPU, or ``cpu`` and the machine's architecture."""
    runtime: str
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    """Day of capture, UTC."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of what took part: python, torch, triton, cuda, rocm."""

    @field_validator("versions")
    @classmethod
    def _names_torch(cls, versions: dict[str, str]) -> dict[str, str]:
        if not versions.get("torch"):
            raise ValueError("the version of torch is missing")
        return versions


class Golden(_Frozen):
    """One call and what came of it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,150}$")
    operator: str
    variant: str
    """The semantic variant that the implementation declares."""
    provider: str
    """``float64`` for the reference."""
    case: str
    """The case's name within its generator."""
    generator: str
    """Name and version of what made the inputs, e.g. ``renorm-cases/1``."""
    seed: int
    arguments: tuple[ArgumentSpec, ...]
    """In calling order."""
    outputs: dict[str, TensorSpec]
    """By the names of the operator's returns."""
    provenance: Provenance

    @model_validator(mode="after")
    def _fits_the_contract(self) -> Golden:
        try:
            contract = operator_named(self.operator)
        except LookupError as error:
            raise ValueError(str(error)) from None
        if self.variant not in contract.variants:
            raise ValueError(f"{self.operator} has no variant {self.variant!r}; it has: {', '.join(contract.variants)}")
        for what, given, due in (
            ("arguments", tuple(item.name for item in self.arguments), contract.argument_names),
            ("outputs", tuple(self.outputs), tuple(item.name for item in contract.returns)),
        ):
            if given != due:
                raise ValueError(f"{what} are {', '.join(given) or 'none'}; {self.operator} has {', '.join(due)}")
        return self

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Every tensor that the file must hold, and no other, by its name there."""
        inputs = {_input(item.name): item.tensor for item in self.arguments if item.tensor is not None}
        return {**inputs, **{_output(name): spec for name, spec in self.outputs.items()}}


class Entry(_Frozen):
    """One line of the manifest: a golden and the file that holds its tensors."""

    golden: Golden
    file: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*\.safetensors$")
    """A bare name inside the store's folder."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=1)
    """Bytes."""


class Manifest(_Frozen):
    """All goldens of a store."""

    schema_version: Literal[1] = SCHEMA
    goldens: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _nothing_twice(self) -> Manifest:
        for what, values in (
            ("id", [entry.golden.id for entry in self.goldens]),
            ("file", [entry.file for entry in self.goldens]),
        ):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} stands there twice")
        return self


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
            text = _read(self.root / MANIFEST, BadManifest).decode()
        except FileNotFoundError:
            return ()
        except UnicodeDecodeError as error:
            raise BadManifest(f"{MANIFEST} is not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            document = json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BadManifest(f"{MANIFEST} cannot be read: {error}") from None
        if not isinstance(document, dict) or document.get("schema_version") != SCHEMA:
            found = document.get("schema_version") if isinstance(document, dict) else type(document).__name__
            raise BadManifest(f"{MANIFEST} has schema {found!r}; this version reads {SCHEMA}")
        try:
            return Manifest.model_validate(document).goldens
        except ValidationError as error:
            raise BadManifest(f"{MANIFEST}: {_first(error)}") from None

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
        tensors = {_input(n): v for n, v in call.arguments.items() if isinstance(v, torch.Tensor)}
        if len(outputs) != len(golden.outputs):
            raise BadManifest(f"golden {golden.id!r}: {len(outputs)} outputs, {len(golden.outputs)} are due")
        tensors |= {_output(n): v for n, v in zip(golden.outputs, outputs, strict=True)}
        different = _difference(golden, tensors)
        if different:
            raise BadManifest(f"golden {golden.id!r}: {different}")
        # A copy of its own for each: safetensors refuses tensors that share memory.
        own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        image = tensor_image(own, {_HEADER_KEY: _canonical(golden)})
        entry = Entry(
            golden=golden,
            file=golden.id + _SUFFIX,
            sha256=hashlib.sha256(image).hexdigest(),
            size=len(image),
        )
        manifest = Manifest(goldens=tuple(sorted((*entries, entry), key=lambda item: item.golden.id)))
        self.root.mkdir(parents=True, exist_ok=True)
        _write_whole(self.root / entry.file, image)
        _write_whole(self.root / MANIFEST, _manifest_text(manifest).encode())
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
        if _header(image) != _canonical(golden):
            raise TamperedGolden(f"{entry.file}: its header does not say of {golden.id} what the manifest says")
        arguments: dict[str, Value] = {
            item.name: item.scalar if item.tensor is None else tensors[_input(item.name)] for item in golden.arguments
        }
        labels: dict[str, str | int | float] = {"generator": golden.generator, "case": golden.case, "seed": golden.seed}
        return StoredGolden(
            golden=golden,
            call=Call(golden.operator, arguments, labels=labels),
            outputs=tuple(tensors[_output(name)] for name in golden.outputs),
        )


def describe_arguments(call: Call) -> tuple[ArgumentSpec, ...]:
    """What a golden says of a call's arguments.

    Raises:
        BadManifest: an argument has a dtype or value that a store does not hold.
    """
    try:
        return tuple(
            ArgumentSpec(name=name, tensor=TensorSpec.of(value))
            if isinstance(value, torch.Tensor)
            else ArgumentSpec(name=name, scalar=TypeAdapter(Scalar).validate_python(value))
            for name, value in call.arguments.items()
        )
    except ValidationError as error:
        raise BadManifest(f"call of {call.operator}: {_first(error)}") from None


def describe_outputs(call: Call, outputs: tuple[torch.Tensor, ...]) -> dict[str, TensorSpec]:
    """What a golden says of a call's outputs, by the names of the operator's returns.

    Raises:
        BadManifest: an output has a dtype that a store does not hold, or there are not as many as the operator returns.
    """
    names = tuple(item.name for item in operator_named(call.operator).returns)
    if len(outputs) != len(names):
        raise BadManifest(f"{call.operator} returns {len(names)} tensors, here are {len(outputs)}")
    try:
        return {name: TensorSpec.of(tensor) for name, tensor in zip(names, outputs, strict=True)}
    except ValidationError as error:
        raise BadManifest(f"outputs of {call.operator}: {_first(error)}") from None


def _input(name: str) -> str:
    return f"input.{name}"


def _output(name: str) -> str:
    return f"output.{name}"


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _canonical(golden: Golden) -> str:
    return json.dumps(golden.model_dump(mode="json"), sort_keys=True)


def _manifest_text(manifest: Manifest) -> str:
    """JSON with one golden a line, so that a change of one is a change of one line."""
    lines = ",\n".join(entry.model_dump_json(exclude_none=True) for entry in manifest.goldens)
    return f'{{"schema_version": {manifest.schema_version}, "goldens": [\n{lines}\n]}}\n'


def _header(image: bytes) -> str | None:
    """What the file says of itself; the image is known to parse (8 bytes of length, then JSON)."""
    length = int.from_bytes(image[:8], "little")
    return json.loads(image[8 : 8 + length]).get("__metadata__", {}).get(_HEADER_KEY)


def _difference(golden: Golden, tensors: Mapping[str, torch.Tensor]) -> str:
    """How tensors differ from what the golden says of them, or an empty string."""
    due = golden.tensors
    if set(due) != set(tensors):
        return f"tensors {', '.join(sorted(tensors)) or 'none'}; due are {', '.join(sorted(due))}"
    for name, spec in due.items():
        tensor = tensors[name]
        if (tuple(tensor.shape), _dtype_name(tensor)) != (spec.shape, spec.dtype):
            return f"{name} is {_dtype_name(tensor)}{list(tensor.shape)}, {spec} is due"
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


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key {key!r} stands there twice")
    return dict(pairs)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return re.sub(r"\s+", " ", f"{where}: {message}" if where else message)
