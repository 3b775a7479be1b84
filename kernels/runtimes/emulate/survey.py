"""Coverage of many code objects: a folder, or all that an installed package ships."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from waveproof.kernels.runtimes.emulate.coverage import Coverage, Examiner
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid
from waveproof.kernels.runtimes.emulate.loader import load

SUFFIXES = (".co", ".hsaco")


class NoCodeObjects(RuntimeError):
    """What was named holds no code objects; the message says what was looked at."""


@dataclass(frozen=True)
class Source:
    """Where code objects lie."""

    root: Path
    files: tuple[Path, ...]
    """Sorted, below ``root``."""


@dataclass(frozen=True)
class Examined:
    """One file: its coverage, or why it could not be loaded."""

    path: Path
    coverage: Coverage | None
    refusal: str = ""


@dataclass
class Family:
    """Sums over the code objects of one folder and architecture."""

    name: str
    arch: str
    objects: int = 0
    complete: int = 0
    """Objects of which every instruction can be executed."""
    instructions: int = 0
    undecoded: int = 0
    unhandled: Counter[str] = field(default_factory=Counter)

    def add(self, coverage: Coverage) -> None:
        """Count one object."""
        self.objects += 1
        self.complete += coverage.complete
        self.instructions += coverage.instructions
        self.undecoded += coverage.undecoded
        self.unhandled.update(coverage.unhandled)


def locate(name: str) -> Source:
    """Code objects of a folder, an installed distribution (``amd-aiter``) or an importable package (``aiter_meta``).

    Raises:
        NoCodeObjects: there is no such thing, or no code object in it.
    """
    if Path(name).is_dir():
        return _below([Path(name)], name)
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        found = sorted(Path(str(file.locate())) for file in files if file.suffix in SUFFIXES)
        if not found:
            raise NoCodeObjects(f"the distribution {name} ships no {' or '.join(SUFFIXES)} file")
        return Source(_common_folder(found), tuple(found))
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise NoCodeObjects(f"{name} is no file, folder, installed distribution or package")
    return _below([Path(place) for place in spec.submodule_search_locations], name)


def _below(folders: Sequence[Path], name: str) -> Source:
    found = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not found:
        raise NoCodeObjects(f"{name} holds no {' or '.join(SUFFIXES)} file")
    return Source(_common_folder(found), tuple(found))


def _common_folder(files: Sequence[Path]) -> Path:
    folder = files[0].parent
    while not all(folder in file.parents for file in files):
        folder = folder.parent
    return folder


_examiners: dict[str, Examiner] = {}
"""Of this worker process: they know what earlier files held."""


def examine_file(path: Path) -> Examined:
    """Load and examine one file; a file that does not load is reported, not raised."""
    try:
        code = load(path.read_bytes(), path.name)
    except CodeObjectInvalid as error:
        return Examined(path, None, str(error))
    if code.arch not in _examiners:
        _examiners[code.arch] = Examiner(code.arch)
    return Examined(path, _examiners[code.arch].examine(code))


def survey(files: Sequence[Path], processes: int = 2) -> Iterator[Examined]:
    """Examine files in ``processes`` processes; results come in the order of the files, as they are ready."""
    if processes <= 1 or len(files) <= 8:
        yield from map(examine_file, files)
        return
    # "spawn": the caller may have threads (torch), which a forked child would not.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(examine_file, files, chunksize=8)


def family_of(path: Path, root: Path, arch: str) -> str:
    """The folder below the one that is named like the architecture; without one, two levels below the root."""
    parts = path.relative_to(root).parts[:-1]
    if arch in parts:
        below = parts[parts.index(arch) + 1 :]
        return below[0] if below else "(top)"
    return "/".join(parts[:2]) or "(top)"


def by_family(examined: Sequence[Examined], root: Path) -> list[Family]:
    """Sums by folder and architecture, in the order of their names."""
    found: dict[tuple[str, str], Family] = {}
    for one in examined:
        if one.coverage is None:
            continue
        key = (family_of(one.path, root, one.coverage.arch), one.coverage.arch)
        found.setdefault(key, Family(*key)).add(one.coverage)
    return [found[key] for key in sorted(found)]
