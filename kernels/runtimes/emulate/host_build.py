"""AITER's host launchers, from the sources of the installed wheel, as a torch extension for CPU tensors.

The sources are those that AITER lists for the module in ``aiter/jit/optCompilerConfig.json``, unmodified; the HIP
headers are ours (``hip/include``) and so is the runtime that they link to (``hip/*.cpp``). A build is kept in
a cache folder under a key of everything that went into it, so that it is made once for an installed version.

A build takes about 15 s of one core. torch's Ninja machinery is not used: four compiler calls need none of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import filelock
import platformdirs

from waveproof.kernels.runtimes.catalogue import ARCHES

CACHE_VARIABLE = "WAVEPROOF_CACHE"
"""Environment variable with the folder to build in, instead of the platform's cache folder."""

MLA_MODULE = "module_mla_asm"
"""AITER's name of the module with ``mla_decode_stage1_asm_fwd`` and ``mla_prefill_asm_fwd``."""

_HIP = Path(__file__).parent / "hip"
_RUNTIME = "libwaveproof_hip.so"
_RUNTIME_SOURCES = (_HIP / "hip_runtime.cpp", _HIP / "waveproof_hip.cpp")
_MANIFEST = "build.json"
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-w")

_UNSET_BYTE = 0xFE
"""What GCC's ``-ftrivial-auto-var-init=pattern`` puts in each byte of a variable without initialiser (its manual)."""


class HostBuildUnavailable(RuntimeError):
    """Something that the build needs is not on this machine; the message says what, and what to install."""


class HostBuildFailed(RuntimeError):
    """The compiler refused a source, or the installed AITER is not laid out as expected; the message has its words."""


@dataclass(frozen=True)
class AiterInstallation:
    """Where the installed AITER keeps things."""

    package: Path
    """The Python package ``aiter``."""
    meta: Path
    """The folder with ``csrc`` (sources) and ``hsa`` (code objects)."""
    version: str

    def code_objects(self, arch: str) -> Path:
        """The folder that AITER gives its launchers as ``AITER_ASM_DIR``."""
        return self.meta / "hsa" / arch


@dataclass(frozen=True)
class HostBuild:
    """A finished build."""

    module: str
    folder: Path
    unset_byte: int | None
    """What uninitialised variables of the host code hold in every byte, where the compiler was able to say so."""
    seconds: float
    """Wall time that the build took when it was made."""

    @property
    def runtime(self) -> Path:
        """The HIP runtime; one in a process, whatever the architectures."""
        return self.folder / _RUNTIME

    def extension(self, arch: str) -> Path:
        """The extension for one architecture: a copy each, since a launcher keeps the first code object it loaded."""
        return self.folder / arch / f"{self.module}.so"


def cache_folder() -> Path:
    """Where builds are kept: ``$WAVEPROOF_CACHE``, or the user's cache folder of this platform."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_path("waveproof"))


def aiter_installation() -> AiterInstallation:
    """The installed AITER, found without importing it.

    Raises:
        HostBuildUnavailable: it is not installed, or without its sources and code objects.
    """
    # Not importlib.util.find_spec: that looks into sys.modules, where a skeleton may stand for the package.
    spec = PathFinder.find_spec("aiter")
    package = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    # The package called `aiter` on PyPI is an unrelated one.
    if package is None or not (package / "jit" / "optCompilerConfig.json").exists():
        raise HostBuildUnavailable("amd-aiter is not installed (python -m pip install --no-deps --pre amd-aiter)")
    # A wheel has aiter_meta beside the package, a checkout has csrc and hsa there (aiter/jit/core.py: AITER_META_DIR).
    for meta in (package.parent / "aiter_meta", package.parent):
        if (meta / "csrc").is_dir() and (meta / "hsa").is_dir():
            return AiterInstallation(package, meta, _version("amd-aiter", "aiter"))
    raise HostBuildUnavailable(f"AITER at {package} comes without csrc and hsa; install the wheel, or a full checkout")


def host_build(module: str = MLA_MODULE) -> HostBuild:
    """The build of an AITER module, from the cache or made now; safe to call from several processes at once.

    Without a compiler a build that another one left in the cache for the same inputs is used.

    Raises:
        HostBuildUnavailable: a compiler, the headers of torch or Python, AITER or a place to write is missing.
        HostBuildFailed: the sources do not compile, or AITER lists none for ``module``.
    """
    aiter = aiter_installation()
    sources = _sources(aiter, module)
    inputs = _digest_of_inputs(aiter, module, sources)
    folder = cache_folder() / "aiter-host"
    compiler = _compiler()
    if compiler is None:
        for manifest in sorted(folder.glob(f"{inputs}-*/{_MANIFEST}")):
            return _read(manifest)
        raise HostBuildUnavailable(
            f"no C++ compiler (looked for {', '.join(('$CXX', *_COMPILERS))}) to build {module} of AITER "
            f"{aiter.version}; install one (apt-get install g++)"
        )
    target = folder / f"{inputs}-{_digest([*compiler, _identity(compiler)])}"
    if (target / _MANIFEST).exists():
        return _read(target / _MANIFEST)
    includes = _torch_includes() + _python_includes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / f"{target.name}.lock"):
            if not (target / _MANIFEST).exists():
                _build(target, aiter, module, sources, compiler, includes)
    except OSError as error:
        raise HostBuildUnavailable(f"cannot write to {folder} ({error}); set {CACHE_VARIABLE} to a folder") from error
    return _read(target / _MANIFEST)


def _read(manifest: Path) -> HostBuild:
    entries = json.loads(manifest.read_text())
    return HostBuild(entries["module"], manifest.parent, entries["unset_byte"], entries["seconds"])


def _build(
    target: Path,
    aiter: AiterInstallation,
    module: str,
    sources: Sequence[Path],
    compiler: Sequence[str],
    torch_and_python: Sequence[Path],
) -> None:
    """Build beside ``target`` and move there, so that what stands there is always whole."""
    began = time.monotonic()
    flags, unset_byte = _flags_of(compiler)
    command = [*compiler, *_FLAGS, *flags, f"-DTORCH_EXTENSION_NAME={module}"]
    headers = [aiter.meta / "csrc" / "include", aiter.meta / "csrc" / "include" / "torch", *torch_and_python]
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        work = Path(temporary) / "build"
        work.mkdir()
        runtime = work / _RUNTIME
        with ThreadPoolExecutor(max_workers=2) as pool:
            # Without a soname the extension would look for the runtime in the folder of this build.
            ours = [*compiler, *_FLAGS, "-shared", f"-Wl,-soname,{_RUNTIME}", *_include([_HIP, _HIP / "include"])]
            made = pool.submit(_run, [*ours, *map(str, _RUNTIME_SOURCES), "-o", str(runtime)])
            objects = [
                pool.submit(_compile, command, headers, source, work / f"{number}.o")
                for number, source in enumerate(sources)
            ]
            made.result()
            compiled = [future.result() for future in objects]
        _run(
            [
                *(*compiler, "-shared", *map(str, compiled), str(runtime), "-Wl,-rpath,$ORIGIN/..", "-Wl,-Bsymbolic"),
                *(f"-L{_torch() / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"),
                *("-o", str(work / f"{module}.so")),
            ]
        )
        for arch in ARCHES:
            (work / arch).mkdir()
            shutil.copyfile(work / f"{module}.so", work / arch / f"{module}.so")
        for leftover in (work / f"{module}.so", *compiled):
            leftover.unlink()
        manifest = {
            "module": module,
            "unset_byte": unset_byte,
            "seconds": round(time.monotonic() - began, 1),
            "aiter": aiter.version,
            "torch": _version("torch"),
            "compiler": _identity(compiler),
        }
        (work / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        os.replace(work, target)


def _compile(command: Sequence[str], headers: Sequence[Path], source: Path, target: Path) -> Path:
    """Compile with the lean stand-ins of torch's largest headers, or where these do not suffice with torch's own."""
    rest = [*_include(headers), "-x", "c++", "-c", str(source), "-o", str(target)]
    try:
        _run([*command, *_include([_HIP / "include", _HIP / "lean"]), *rest])
    except HostBuildFailed:
        _run([*command, *_include([_HIP / "include"]), *rest])
    return target


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        words = "\n".join((errors or done.stderr.splitlines())[:8])
        raise HostBuildFailed(f"{shlex.join(command)} ended with status {done.returncode}:\n{words}")


def _include(folders: Sequence[Path]) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def _sources(aiter: AiterInstallation, module: str) -> list[Path]:
    """The sources that AITER's own build takes for a module."""
    table = json.loads((aiter.package / "jit" / "optCompilerConfig.json").read_text())
    if module not in table:
        raise HostBuildFailed(f"AITER {aiter.version} lists no module {module} in optCompilerConfig.json")
    # The entries are Python f-strings, which AITER evaluates.
    listed = [re.fullmatch(r"f'\{AITER_CSRC_DIR\}/([\w./-]+)'", entry) for entry in table[module]["srcs"]]
    sources = [aiter.meta / "csrc" / match[1] for match in listed if match]
    missing = [str(source) for source in sources if not source.exists()]
    if not all(listed) or missing:
        raise HostBuildFailed(f"sources of {module} that are not understood or missing: {table[module]['srcs']}")
    return sources


def _digest_of_inputs(aiter: AiterInstallation, module: str, sources: Sequence[Path]) -> str:
    """Of all that goes into a build but the compiler."""

    def parts() -> Iterator[str | bytes]:
        yield from (module, aiter.version, _version("torch"), str(sysconfig.get_config_var("SOABI")))
        yield from (platform.machine(), *_FLAGS, *ARCHES)
        ours = sorted(path for path in _HIP.rglob("*") if path.suffix in (".h", ".hpp", ".cpp"))
        theirs = sorted((aiter.meta / "csrc" / "include").glob("*.h*"))
        for path in (*ours, *theirs, *sources):
            yield path.name
            yield path.read_bytes()
        yield Path(__file__).read_bytes()

    return _digest(parts())


def _digest(parts: Sequence[str | bytes] | Iterator[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        image = part.encode() if isinstance(part, str) else part
        digest.update(len(image).to_bytes(8, "little") + image)
    return digest.hexdigest()[:16]


def _compiler() -> tuple[str, ...] | None:
    """The command of a C++ compiler: ``$CXX``, which may have arguments, or the first of the usual names."""
    for candidate in (os.environ.get("CXX", ""), *_COMPILERS):
        words = shlex.split(candidate)
        if words and (found := shutil.which(words[0])):
            return (found, *words[1:])
    return None


def _identity(compiler: Sequence[str]) -> str:
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0]


def _flags_of(compiler: Sequence[str]) -> tuple[list[str], int | None]:
    """Flags that this compiler has, and the byte that its uninitialised variables hold.

    The launchers leave fields of the argument block unset and send what was on the stack. With a pattern the block is
    the same on every call, and a kernel that reads such a field can be found.
    """
    flags = ["-ftrivial-auto-var-init=pattern", "-fno-gnu-unique"]
    supported = [flag for flag in flags if _accepts(compiler, flag)]
    is_gcc = "clang" not in _identity(compiler).lower()
    return supported, _UNSET_BYTE if is_gcc and flags[0] in supported else None


def _accepts(compiler: Sequence[str], flag: str) -> bool:
    probe = [*compiler, "-Werror", flag, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _torch() -> Path:
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        raise HostBuildUnavailable("torch is not installed (python -m pip install torch==2.13.0)")
    return Path(spec.origin).parent


def _torch_includes() -> list[Path]:
    include = _torch() / "include"
    if not (include / "torch" / "csrc" / "utils" / "pybind.h").exists():
        raise HostBuildUnavailable(f"torch has no C++ headers at {include}; install the wheel from PyPI or pytorch.org")
    return [include, include / "torch" / "csrc" / "api" / "include"]


def _python_includes() -> list[Path]:
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise HostBuildUnavailable(f"no Python.h at {include}; install the headers (apt-get install python3-dev)")
    return [include]


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
