"""What a store's manifest says of its goldens, and how it is read and written.

Every model is frozen and knows no field beyond its own; a golden that does not fit its operator's contract cannot be
made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from waveproof.kernels.operators.contract import Argument, Call, Operator
from waveproof.kernels.operators.registry import operator_named

SCHEMA: Final = 1
"""Raised by one whenever a field changes its meaning or goes; a dtype more is refused by name where it is not known."""

MANIFEST = "manifest.json"


class BadManifest(ValueError):
    """The manifest, or an entry that is to go into it, breaks a rule of the store; names the entry and the rule."""


Scalar = StrictInt | Annotated[FiniteFloat, Field(strict=True)] | StrictStr | None
Dtype = Literal["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "int64", "int32"]


_SCALAR: TypeAdapter[Any] = TypeAdapter(Scalar)
_FLAG: TypeAdapter[bool] = TypeAdapter(StrictBool)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorSpec(_Frozen):
    """What a tensor in a golden's file must be."""

    shape: tuple[Annotated[StrictInt, Field(ge=0)], ...]
    dtype: Dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The specification that this tensor meets."""
        return cls.model_validate({"shape": tuple(tensor.shape), "dtype": dtype_name(tensor)})

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class ArgumentSpec(_Frozen):
    """One argument of the call: a tensor, whose elements are in the file, or a scalar, which stands here."""

    name: str
    tensor: TensorSpec | None = None
    scalar: StrictBool | Scalar = None
    """A bool where the operator's argument is a flag, and nowhere else."""

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
    """By the names of the operator's returns, in their order; optional ones that the provider omits are not there."""
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
            ("outputs", tuple(self.outputs), tuple(item.name for item in _given(contract, self.outputs))),
        ):
            if given != due:
                raise ValueError(f"{what} are {', '.join(given) or 'none'}; {self.operator} has {', '.join(due)}")
        for item, argument in zip(self.arguments, contract.arguments, strict=True):
            if isinstance(item.scalar, bool) != (argument.scalar == "bool"):
                raise ValueError(f"argument {item.name!r} is {item.scalar!r}; {_flag_rule(argument)}")
        return self

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """Every tensor that the file must hold, and no other, by its name there."""
        inputs = {input_name(item.name): item.tensor for item in self.arguments if item.tensor is not None}
        return {**inputs, **{output_name(name): spec for name, spec in self.outputs.items()}}


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


def describe_arguments(call: Call) -> tuple[ArgumentSpec, ...]:
    """What a golden says of a call's arguments.

    Raises:
        BadManifest: an argument has a dtype or value that a store does not hold.
    """
    flags = {item.name for item in operator_named(call.operator).arguments if item.scalar == "bool"}
    try:
        return tuple(
            ArgumentSpec(name=name, tensor=TensorSpec.of(value))
            if isinstance(value, torch.Tensor)
            else ArgumentSpec(name=name, scalar=(_FLAG if name in flags else _SCALAR).validate_python(value))
            for name, value in call.arguments.items()
        )
    except ValidationError as error:
        raise BadManifest(f"call of {call.operator}: {_first(error)}") from None


def describe_outputs(
    call: Call, outputs: tuple[torch.Tensor, ...], omitted: tuple[str, ...] = ()
) -> dict[str, TensorSpec]:
    """What a golden says of a call's outputs, by the names of the operator's returns but those omitted.

    Raises:
        BadManifest: an output has a dtype that a store does not hold, or there are not as many as the operator returns.
    """
    names = tuple(item.name for item in operator_named(call.operator).returns if item.name not in omitted)
    if len(outputs) != len(names):
        raise BadManifest(f"{call.operator} returns {len(names)} tensors, here are {len(outputs)}")
    try:
        return {name: TensorSpec.of(tensor) for name, tensor in zip(names, outputs, strict=True)}
    except ValidationError as error:
        raise BadManifest(f"outputs of {call.operator}: {_first(error)}") from None


def parse_manifest(content: bytes) -> tuple[Entry, ...]:
    """The entries of a manifest, in its order.

    Raises:
        BadManifest: it is not JSON, of an unknown schema, or breaks a rule of the store.
    """
    try:
        document = json.loads(content.decode(), object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadManifest(f"{MANIFEST} is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{MANIFEST} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA:
        found = document.get("schema_version") if isinstance(document, dict) else type(document).__name__
        raise BadManifest(f"{MANIFEST} has schema {found!r}; this version reads {SCHEMA}")
    try:
        return Manifest.model_validate(document).goldens
    except ValidationError as error:
        raise BadManifest(f"{MANIFEST}: {_first(error)}") from None


def canonical(golden: Golden) -> str:
    """One text for one golden, the same wherever it is written."""
    return json.dumps(golden.model_dump(mode="json"), sort_keys=True)


def manifest_text(manifest: Manifest) -> str:
    """JSON with one golden a line, so that a change of one is a change of one line."""
    lines = ",\n".join(entry.model_dump_json(exclude_none=True) for entry in manifest.goldens)
    return f'{{"schema_version": {manifest.schema_version}, "goldens": [\n{lines}\n]}}\n'


def input_name(name: str) -> str:
    """An argument's name in a tensor file."""
    return f"input.{name}"


def output_name(name: str) -> str:
    """A result's name in a tensor file."""
    return f"output.{name}"


def dtype_name(tensor: torch.Tensor) -> str:
    """``float32`` for ``torch.float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def _given(contract: Operator, outputs: Mapping[str, TensorSpec]) -> tuple[Argument, ...]:
    """The operator's returns without the optional ones that are not there."""
    return tuple(item for item in contract.returns if item.name in outputs or not item.optional)


def _flag_rule(argument: Argument) -> str:
    return "True or False is due" if argument.scalar == "bool" else "it is no flag"


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
