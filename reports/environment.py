"""What a reader of a bug report needs to know of the machine, and nothing that says whose machine it is."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import site
import socket
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

_DISTRIBUTIONS = ("torch", "triton", "sglang", "sgl-kernel", "amd-aiter", "aiter", "flashinfer-python")

_ANYBODY = frozenset(
    {"admin", "build", "builder", "ci", "docker", "github", "gitlab", "jenkins", "localhost", "nobody", "rocm", "root"}
    | {"runner", "test", "ubuntu", "user", "vllm"}
)
"""Account and host names that identify nobody; replacing them would only garble text such as 'root mean square'."""

_SECRETS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bhf_[A-Za-z0-9]{8,}", "<hidden>"),
        (r"\b(?:gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|pypi-[\w-]{16,})", "<hidden>"),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}", "<hidden>"),
        (r"\b(?:sk|xox[abprs])-[\w-]{12,}", "<hidden>"),
        (r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*", "<hidden>"),
        (r"(?<=://)[^\s/@:]+(?::[^\s/@]*)?@", "<hidden>@"),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.=~-]{8,}", r"\1 <hidden>"),
        (r"(?i)((?:password|passwd|secret)\w*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+", r"\1<hidden>"),
        (r"(?i)((?:token|key)[\"']?\s*[=:]\s*[\"']?)(?=[^\s\"']*\d)[A-Za-z0-9+/_=-]{12,}", r"\1<hidden>"),
    )
)


def environment_lines(versions: Mapping[str, str] | None = None) -> dict[str, str]:
    """Label and value of everything worth reporting, in reading order; what is not there is left out.

    Args:
        versions: versions that the process under test reported (``python``, ``torch``, ``rocm``, a distribution);
            they take precedence over what is found here.

    """
    versions = dict(versions or {})
    lines = {"OS": _operating_system(), "CPU": processor(), "GPU": _gpus()}
    lines["Python"] = versions.pop("python", platform.python_version())
    for name in _DISTRIBUTIONS:
        found = versions.pop(name, "")
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = found or metadata.version(name)
        lines[name] = found
    lines["ROCm"] = versions.pop("rocm", "") or _first_line("/opt/rocm/.info/version")
    lines["CUDA"] = versions.pop("cuda", "")
    lines["amdgpu driver"] = versions.pop("driver", "") or _first_line("/sys/module/amdgpu/version")
    nvidia = re.search(r"\d+\.\d+(?:\.\d+)?", _first_line("/proc/driver/nvidia/version"))
    lines["NVIDIA driver"] = nvidia.group() if nvidia else ""
    return {label: scrub(value) for label, value in {**lines, **versions}.items() if value}


def scrub(text: str) -> str:
    """The text without secrets, home directories, user and host names, and with source paths shortened.

    ``/any/where/site-packages/torch/x.py`` becomes ``site-packages/torch/x.py``, a file of this suite or below the
    working directory is named from there, and other files in a traceback by their names alone.
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for folder in _package_folders():
        text = text.replace(folder, "site-packages/")
    for folder in (str(CHECKOUT), os.getcwd()):
        if folder.count("/") > 1:
            text = text.replace(folder + "/", "")
    for home in sorted(_homes(), key=len, reverse=True):
        text = re.sub(rf"(?<![\w./-]){re.escape(home)}(?![\w-])", "~", text)
    # Homes of other accounts, as they occur in paths that were compiled into packages.
    text = re.sub(r"(?<![\w.-])(?:/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s\"':,)]+", "~", text)
    text = re.sub(r"[^\s\"'()<>:,=]*/(?:site|dist)-packages/", "site-packages/", text)
    text = re.sub(r'File "(?:/|~)[^"]*/([^"/]+)"', r'File "\1"', text)
    for name, replacement in _identities().items():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", replacement, text)
    return text


def _package_folders() -> list[str]:
    """Folders of installed packages, longest first, each with its closing slash."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    with contextlib.suppress(Exception):
        folders.add(site.getusersitepackages())
    return sorted((folder.rstrip("/") + "/" for folder in folders if folder), key=len, reverse=True)


def _homes() -> set[str]:
    homes = {os.environ.get("HOME", ""), os.path.expanduser("~")}
    with contextlib.suppress(RuntimeError):
        homes.add(str(Path.home()))
    return {home.rstrip("/") for home in homes if home.startswith("/") and home.rstrip("/")}


def _identities() -> dict[str, str]:
    """Names that must not appear, longest first, and what stands for them."""
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    with contextlib.suppress(Exception):
        users.add(getpass.getuser())
    users |= {Path(home).name for home in _homes()}
    hosts = {socket.gethostname(), platform.node(), os.environ.get("HOSTNAME", "")}
    hosts |= {host.split(".")[0] for host in hosts}
    found = {**dict.fromkeys(hosts, "<host>"), **dict.fromkeys(users, "<user>")}
    return {
        name: found[name]
        for name in sorted(found, key=len, reverse=True)
        if len(name) > 1 and not name.isdigit() and name.lower() not in _ANYBODY
    }


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _operating_system() -> str:
    name = platform.system()
    with contextlib.suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME", name)
    return f"{name}, {platform.system()} {platform.release()}, {platform.machine()}"


def processor() -> str:
    """The CPU's model and how many logical cores it has, as far as the system says."""
    with contextlib.suppress(OSError):
        models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if models:
            return f"{models[0]}, {len(models)} logical cores"
    return platform.processor()


def _gpus() -> str:
    """Names and architectures of the GPUs; torch is only asked where a device node says that there is one."""
    arches = []
    for path in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        with contextlib.suppress(OSError):
            version = re.search(r"^gfx_target_version (\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            if version and int(version.group(1)):
                arches.append(gfx_name(int(version.group(1))))
    if arches:
        return ", ".join(f"{arches.count(arch)} x {arch}" for arch in dict.fromkeys(arches))
    if not any(Path(f"/dev/{node}").exists() for node in ("kfd", "nvidiactl", "nvidia0")):
        return ""
    try:
        import torch

        return ", ".join(
            f"{torch.cuda.get_device_name(index)} {getattr(torch.cuda.get_device_properties(index), 'gcnArchName', '')}"
            for index in range(torch.cuda.device_count())
        ).strip()
    except Exception as error:  # a driver that does not answer is itself worth reporting
        return f"present, but it does not answer ({type(error).__name__})"


def gfx_name(target_version: int) -> str:
    """``gfx942`` for 90402: the kernel driver packs major, minor and stepping in two decimal digits each.

    Stepping is a hexadecimal digit in the name: 90010 is ``gfx90a`` (Linux, drivers/gpu/drm/amd/amdkfd/kfd_device.c).
    """
    major, minor, stepping = target_version // 10_000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{stepping:x}"
