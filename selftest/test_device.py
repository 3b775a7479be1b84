"""The runtimes ``hip`` and ``cuda`` on trial, with a stand-in for the device: no GPU takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Implementation, Subject
from waveproof.kernels.runtimes import device, memory, process
from waveproof.kernels.runtimes.process import Crashed, Worker
from waveproof.selftest import pretended_device

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretends that there is a device, for the length of a test."""

    def patch(owner: Any, name: str, value: Any) -> None:
        monkeypatch.setattr(owner, name, value)

    return lambda **what: pretended_device.install(patch, **what)


class TestOpening:
    def test_hip(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")
        assert (gpu.runtime, gpu.arch) == ("hip", "gfx942")
        assert gpu.facts.pop("driver", "") == device._driver_version("hip")
        assert gpu.facts == {"device": "Pretended"}
        assert gpu.launches() == []

    def test_cuda(self, install: Install) -> None:
        install(hip=None, cuda="12.8")
        assert device.open_device("cuda").arch == "sm_90"

    def test_another_gfx_is_allowed_and_reported(self, install: Install) -> None:
        install(arch="gfx90a:sramecc+:xnack-")
        gpu = device.open_device("hip")
        assert gpu.arch == "gfx90a"
        assert gpu.facts["arch"].startswith("gfx90a, which is none of those")
        assert "gfx942, gfx950" in gpu.facts["arch"]

    @pytest.mark.parametrize(
        ("runtime", "hip", "cuda", "words"),
        [
            ("hip", None, "12.8", ["is built for CUDA", "needs ROCm", "rocm/pytorch"]),
            ("cuda", "7.0.0", None, ["is built for ROCm", "needs CUDA"]),
            ("hip", None, None, ["without GPU support", "needs ROCm"]),
            ("cuda", None, None, ["without GPU support", "needs CUDA"]),
        ],
    )
    def test_torch_for_something_else(
        self, install: Install, runtime: str, hip: str | None, cuda: str | None, words: list[str]
    ) -> None:
        install(hip=hip, cuda=cuda)
        with pytest.raises(device.DeviceUnavailable) as refusal:
            device.open_device(runtime)
        assert torch.__version__ in str(refusal.value)
        for word in words:
            assert word in str(refusal.value)

    def test_no_device_visible(self, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
        install()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for name in device.VISIBILITY:
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(device.DeviceUnavailable, match=r"sees no hip device; see that .*/dev/kfd.*groups render"):
            device.open_device("hip")
        monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "9")
        with pytest.raises(device.DeviceUnavailable, match="ROCR_VISIBLE_DEVICES='9'"):
            device.open_device("hip")

    def test_a_device_that_does_not_answer(self, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
        install()

        def broken(*_: object) -> None:
            raise RuntimeError("HIP error: invalid device function\nCompile with TORCH_USE_HIP_DSA")

        monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
        with pytest.raises(device.DeviceUnavailable, match=r"does not answer: HIP error: invalid device function$"):
            device.open_device("hip")

    def test_this_machine(self) -> None:
        """Unpatched: either there is a GPU and torch for it, or the refusal says what is missing."""
        for runtime, version in (("hip", torch.version.hip), ("cuda", torch.version.cuda)):
            if version is None:
                with pytest.raises(device.DeviceUnavailable, match=f"the runtime {runtime} needs"):
                    device.open_device(runtime)


class TestKernelNames:
    def test_only_kernels_in_order_of_their_start(self) -> None:
        def event(start: int, name: str, **other: Any) -> SimpleNamespace:
            shown = {"device_type": DeviceType.CUDA, "activity_type": "kernel", "is_user_annotation": False, **other}
            return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start), **shown)

        events = [
            event(9, "_normalize_kernel"),
            event(1, "_mask_and_partial_sum_kernel"),
            event(2, "hipLaunchKernel", device_type=DeviceType.CPU, activity_type="cuda_runtime"),
            event(3, "Memcpy HtoD (Pageable -> Device)", activity_type="gpu_memcpy"),
            event(4, "Memset (Device)", activity_type="gpu_memset"),
            event(5, "__amd_rocclr_fillBufferAligned"),
            event(6, "a range of the user's", activity_type="gpu_user_annotation"),
            event(7, "Memcpy DtoD (Device -> Device)", activity_type=None),
            event(8, "older torch", activity_type=None),
        ]
        assert device.kernel_names(events) == ["_mask_and_partial_sum_kernel", "older torch", "_normalize_kernel"]

    def test_a_template_is_cut(self) -> None:
        (name,) = device.kernel_names(
            [SimpleNamespace(name="k" * 5000, device_type=DeviceType.CUDA, time_range=SimpleNamespace(start=0))]
        )
        assert name == "k" * device.LONGEST_NAME

    def test_what_runs_within_a_watch_is_on_record(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")
        pretended_device.launch("before")
        with gpu.watch():
            pretended_device.launch("within")
        pretended_device.launch("after")
        assert gpu.launches() == [{"kernel": "within"}]
        gpu.clear_launches()
        assert gpu.launches() == []

    def test_also_where_the_function_raises(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")

        def refuse() -> None:
            pretended_device.launch("within")
            raise ValueError("refused")

        with pytest.raises(ValueError, match="refused"), gpu.watch():
            refuse()
        assert gpu.launches() == [{"kernel": "within"}]

    def test_the_guards_own_fills_are_not(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")
        with gpu.watch(), memory.guarded_allocations(memory.POISONS[0], lambda tensor: tensor) as allocator:
            torch.empty(100).add_(1)
        assert len(allocator.allocations) == 1
        assert [launch["kernel"].split("::")[-1] for launch in gpu.launches()] == ["empty<float>", "add_<float>"]

    @pytest.mark.parametrize("how", ["unsupported", "blind", "failing"])
    def test_a_profiler_that_sees_nothing_is_reported(
        self, install: Install, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        install()
        if how == "unsupported":
            monkeypatch.setattr(torch.profiler, "supported_activities", set)
        elif how == "blind":
            monkeypatch.setattr(pretended_device.Profile, "events", lambda self: None)
        else:

            def start(self: object) -> None:
                raise RuntimeError("CUPTI is not permitted")

            monkeypatch.setattr(pretended_device.Profile, "start", start)
        gpu = device.open_device("hip")
        reason = {"unsupported": "cannot see the device", "blind": "saw none", "failing": "CUPTI is not permitted"}[how]
        assert reason in gpu.facts["kernel names"]
        with gpu.watch():  # and no call of an implementation fails for it
            pretended_device.launch("within")
        assert gpu.launches() == []


class TestFaults:
    def test_a_sticky_fault_surfaces_within_the_watch_and_loses_the_device(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")
        assert gpu.lost() == ""
        with pytest.raises(RuntimeError, match="illegal memory access"), gpu.watch():
            pretended_device.fault("an illegal memory access was encountered", sticky=True)
        assert gpu.lost() == "AcceleratorError: CUDA error: an illegal memory access was encountered"

    def test_a_pending_error_does_not(self, install: Install) -> None:
        install()
        gpu = device.open_device("hip")
        pretended_device.fault("invalid configuration argument", sticky=False)
        assert gpu.lost() == ""

    def test_nor_does_a_full_memory(self, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
        install()
        gpu = device.open_device("hip")

        def full(*_: object, **__: object) -> None:
            raise torch.cuda.OutOfMemoryError("HIP out of memory")

        monkeypatch.setattr(torch, "zeros", full)
        assert gpu.lost() == ""


def test_an_input_keeps_its_layout_on_a_device_that_is_not_the_cpu() -> None:
    """As far as ``meta`` shows: storages move, and views of them are made on the device itself."""
    tensor = torch.rand(64)[3:].as_strided((3, 4), (9, 2))
    guarded = memory.guard_input("probs", tensor, "meta")
    view = guarded.view
    assert view.device.type == "meta"
    assert (view.shape, view.stride(), view.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert view.storage_offset() * 4 == guarded.lead
    assert guarded.lead % 16 == tensor.storage_offset() * 4 % 16
    assert guarded.before is not None
    assert guarded.before.device.type == "meta"


PROVIDER = """
import torch
from waveproof.selftest import pretended_device

def top_k(probs, top_k):
    pretended_device.launch("my_kernel")
    if top_k == 13:
        pretended_device.fault("an illegal memory access was encountered", sticky=True)
    if top_k == 14:
        pretended_device.fault("invalid configuration argument", sticky=False)
    return torch.empty_like(probs).copy_(probs)
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A real worker process of the runtime ``hip``, on a pretended device."""
    boot, _, main = process._BOOT.partition("from waveproof")
    pretend = "from waveproof.selftest import pretended_device; pretended_device.install(); "
    monkeypatch.setattr(process, "_BOOT", f"{boot}{pretend}from waveproof{main}")
    started = Worker("hip", "")
    yield started
    started.close()


def test_a_lost_device_is_a_crash_and_the_next_call_gets_a_new_process(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PROVIDER)
    subject = Subject(Implementation("mine", "top_k_renorm_prob", "threshold", ("hip",), f"{path}:top_k"), "hip")
    probs = torch.rand(2, 50)

    def call(top_k: int) -> Call:
        return Call("top_k_renorm_prob", {"probs": probs, "top_k": top_k}, repeats=2)

    right = worker.call(subject, call(1), 60)
    assert right.error is None
    assert torch.equal(right.outputs[0], probs)
    kernels = [launch["kernel"] for launch in right.launches]
    assert kernels == ["my_kernel", *(f"void at::native::{name}<float>" for name in ("empty_like", "copy_"))], kernels
    assert worker.arch == "gfx942"
    assert worker.versions["device"] == "Pretended"
    first = worker.process

    survived = worker.call(subject, call(14), 60)
    assert survived.error is not None
    assert "invalid configuration argument" in survived.error["message"]
    assert worker.process is first, "an error that is not sticky costs no process"

    with pytest.raises(Crashed) as crash:
        worker.call(subject, call(13), 60)
    assert "exit status 71" in str(crash.value)
    assert "the hip device is lost to this process: AcceleratorError" in str(crash.value)

    again = worker.call(subject, call(1), 60)
    assert again.error is None
    assert torch.equal(again.outputs[0], probs)
    assert worker.process is not first
