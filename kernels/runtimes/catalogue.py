"""The runtimes by name: what each proves, and what can be told of its availability without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

ARCHES = ("gfx942", "gfx950")
"""AMD Instinct MI300X/MI325X and MI350X/MI355X."""


@dataclass(frozen=True)
class Runtime:
    """A way of executing an implementation."""

    name: str
    proves: str
    arches: tuple[str, ...]
    """Architectures that it is run for; ``("",)`` where the machine itself decides."""
    executes: bool = True
    """False where nothing runs and only what the compiler made is judged."""


RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        Runtime("cpu", "the algorithm, as torch on CPU tensors", ("",)),
        Runtime("interpret", "the kernel's program, in Triton's interpreter", ("",)),
        Runtime("compile", "that it compiles, and what it takes: registers, spills, LDS, scratch", ARCHES, False),
        Runtime("emulate", "the compiled machine code, on an emulated device", ARCHES),
        Runtime("hip", "everything, on the AMD GPU", ("",)),
        Runtime("cuda", "the same checks on an NVIDIA GPU, and golden capture", ("",)),
    )
}


class UnknownRuntime(LookupError):
    """No runtime goes by this name."""


def runtime_named(name: str) -> Runtime:
    """The runtime of that name.

    Raises:
        UnknownRuntime: names the runtimes that exist.
    """
    try:
        return RUNTIMES[name]
    except KeyError:
        raise UnknownRuntime(f"unknown runtime {name!r}; known: {', '.join(RUNTIMES)}") from None


def installed(package: str) -> bool:
    """Whether a top-level package could be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def package_folder(package: str) -> Path | None:
    """Folder of an installed top-level package, found without importing it; None where there is none.

    What lies on the path comes first: in ``sys.modules`` a skeleton may stand for the package.
    """
    try:
        spec = PathFinder.find_spec(package) or importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((Path(place) for place in places), None)


DISTRIBUTIONS = {"aiter": "amd-aiter"}
"""Distributions that go by another name than the package in them. PyPI's ``aiter`` is an unrelated one."""


def version_of(*distributions: str) -> str:
    """Version of the first of these that is installed; empty where none is."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def why_unavailable(runtime: str) -> str:
    """Why a runtime cannot be used on this machine, or an empty string; looks at files only.

    A device node without a working driver passes here and is found out when the runtime is opened.
    """
    if not installed("torch"):
        return "torch is not installed (python -m pip install torch==2.13.0)"
    if runtime in ("interpret", "compile", "emulate") and not installed("triton"):
        return "triton is not installed (python -m pip install triton==3.9.0)"
    if runtime == "emulate" and not installed("tinygrad"):
        # Its decoder of AMD instructions is what the emulator reads machine code with.
        return "tinygrad is not installed (python -m pip install tinygrad==0.14.0)"
    if runtime == "hip" and not Path("/dev/kfd").exists():
        return "no AMD GPU: /dev/kfd does not exist"
    if runtime == "cuda" and not any(Path(f"/dev/{node}").exists() for node in ("nvidiactl", "nvidia0")):
        return "no NVIDIA GPU: /dev/nvidiactl does not exist"
    return ""
