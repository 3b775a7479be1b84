"""The HIP runtime of the emulated device, from C++: what it does, and that every failure names its function."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

from waveproof.kernels.runtimes.emulate import host_build as building

PROGRAM = Path(__file__).with_name("hip_calls.cpp")
KERNEL = "_ZN5aiter39mla_dec_stage1_bf16_a16w16_subQ16_mqa16E"
CODE_OBJECT = "mla/mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co"

EXPECTED = {
    "no device yet": "hipGetDeviceCount: hipErrorNoDevice: no emulated device has been set",
    "count": "done",
    "second device": "hipSetDevice: hipErrorInvalidDevice: device 1 of 1",
    "properties of a second device": "hipGetDeviceProperties: hipErrorInvalidDevice: device 1 of 1",
    "properties": "Emulated gfx950:sramecc+:xnack- 256 64 163840 1",
    "error": "hipErrorInvalidDevice, invalid device ordinal, then no error",
    "fresh memory": "11",
    "copied": "99 7 10",
    "copy over the end": "hipMemcpy: hipErrorInvalidValue: 91 bytes of the target from byte 10 of an allocation of 100",
    "copy from over the end": "hipMemcpyAsync: hipErrorInvalidValue: 2 bytes of the source from byte 99 of an "
    "allocation of 100",
    "set over the end": "hipMemset: hipErrorInvalidValue: 101 bytes of the target from byte 0 of an allocation of 100",
    "copy to null": "hipMemcpy: hipErrorInvalidValue: target is a null pointer",
    "copy of no kind": "hipMemcpy: hipErrorInvalidValue: unknown hipMemcpyKind",
    "too much memory": "hipMalloc: hipErrorOutOfMemory: 2147483648 bytes of 1073741824",
    "free of something else": "hipFree: hipErrorInvalidValue: the pointer is not from hipMalloc, or was freed before",
    "file that is not there": "hipModuleLoad: hipErrorFileNotFound: no.co",
    "file that is no code": "hipModuleLoad: hipErrorInvalidImage: {program}: ELF for machine {machine}, not AMDGPU "
    "(224)",
    "code for another device": "hipModuleLoad: hipErrorNoBinaryForGpu: {gfx942} is for EF_AMDGPU_MACH 0x4c, the device "
    "gfx950:sramecc+:xnack- is 0x4f",
    "load": "done",
    "kernel that is not there": "hipModuleGetFunction: hipErrorNotFound: no kernel nothing in {gfx950}",
    "function": "done",
    "load from memory": "done",
    "load nothing from memory": "hipModuleLoadData: hipErrorInvalidImage: the image is not an ELF file of 64 bits",
    "half a file": "hipModuleLoad: hipErrorInvalidImage: cut.co: cut short: the section headers lie beyond its end",
    "no launcher": "hipModuleLaunchKernel: hipErrorLaunchFailure: no launcher has been set",
    "launch": "done",
    "seen": f"{KERNEL} 2 256 48 arguments, allocations 1",
    "launcher that fails": f"hipModuleLaunchKernel: hipErrorLaunchFailure: the launcher answered 5 for {KERNEL}",
    "empty grid": "hipModuleLaunchKernel: hipErrorInvalidConfiguration: a dimension of 0 in grid 0 x 1 x 1",
    "negative grid": "hipModuleLaunchKernel: hipErrorInvalidConfiguration: a dimension of -1 in grid -1 x 1 x 1",
    "large workgroup": "hipModuleLaunchKernel: hipErrorInvalidConfiguration: 1025 work-items in a workgroup",
    "much LDS": "hipModuleLaunchKernel: hipErrorInvalidConfiguration: 163841 bytes of LDS",
    "parameters one by one": "hipModuleLaunchKernel: hipErrorNotSupported: arguments come through "
    "HIP_LAUNCH_PARAM_BUFFER_POINTER only",
    "no arguments": "hipModuleLaunchKernel: hipErrorNotSupported: arguments come through "
    "HIP_LAUNCH_PARAM_BUFFER_POINTER only",
    "unknown key": "hipModuleLaunchKernel: hipErrorInvalidValue: unknown key in extra",
    "arguments without address": "hipModuleLaunchKernel: hipErrorInvalidValue: HIP_LAUNCH_PARAM_BUFFER_POINTER is a "
    "null pointer",
    "stream": "done",
    "launch on the stream": "done",
    "event": "done",
    "time": "hipEventElapsedTime: hipErrorNotSupported: the emulated device has no clock",
    "end of event and stream": "done",
    "event after its end": "hipEventRecord: hipErrorInvalidHandle: not an event of this runtime",
    "launch on a stream after its end": "hipModuleLaunchKernel: hipErrorInvalidHandle: not a stream of this runtime",
    "free": "done",
    "free again": "hipFree: hipErrorInvalidValue: the pointer is not from hipMalloc, or was freed before",
    "unload": "done",
    "launch after unloading": "hipModuleLaunchKernel: hipErrorInvalidHandle: not a function of this runtime",
    "unload again": "hipModuleUnload: hipErrorInvalidHandle: not a module of this runtime",
    "failure": "1 hipModuleUnload: hipErrorInvalidHandle: not a module of this runtime, then 0",
}


def test_every_function(tmp_path: Path) -> None:
    build, folder = building.host_build(), Path(building.__file__).parent / "hip"
    compiler = building._compiler()
    assert compiler is not None
    program = tmp_path / "hip_calls"
    subprocess.run(
        [
            *(*compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{folder / 'include'}", f"-I{folder}"),
            *(str(PROGRAM), str(build.runtime), f"-Wl,-rpath,{build.folder}", "-o", str(program)),
        ],
        check=True,
    )
    aiter = building.aiter_installation()
    files = {arch: str(aiter.code_objects(arch) / CODE_OBJECT) for arch in ("gfx942", "gfx950")}
    done = subprocess.run(
        [str(program), files["gfx950"], KERNEL, files["gfx942"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    got = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    machine = int.from_bytes(program.read_bytes()[18:20], "little")
    places = {"program": str(program), "machine": machine, **files}
    assert got == {name: text.format(**places) for name, text in EXPECTED.items()}
