"""How a launch of AITER's reaches the emulated machine: addresses, names, protection, the table of a persistent one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

import torch

from waveproof.kernels.runtimes.emulate import abi_aiter, aiter_host, aiter_launch
from waveproof.kernels.runtimes.emulate.launch import Machine
from waveproof.selftest.emulate import aiter_calls

POINTERS = {
    "ptr_R": "splitData",
    "ptr_LSE": "splitLse",
    "ptr_Q": "Q",
    "ptr_KV": "KV",
    "ptr_LTP": "kv_indptr",
    "ptr_LTD": "kv_page_indices",
    "ptr_LTL": "kv_last_page_lens",
    "ptr_QTP": "qo_indptr",
    "ptr_STP": "num_kv_splits_indptr",
    "ptr_RP": "output",
}

Look = Callable[[Machine, dict[str, Any]], None]


def looking(monkeypatch: pytest.MonkeyPatch, look: Look) -> list[dict[str, Any]]:
    """Replace :meth:`Machine.launch` by a look at what it was given; the list gets the arguments of each launch."""
    launches: list[dict[str, Any]] = []

    def launch(self: Machine, code: Any, grid: Any, block: Any, kernarg: bytes, **named: Any) -> None:
        given = {"code": code, "grid": grid, "block": block, "kernarg": kernarg, **named}
        launches.append(given)
        look(self, given)

    monkeypatch.setattr(Machine, "launch", launch)
    return launches


def content(machine: Machine, address: int, size: int) -> bytes:
    buffer = machine.memory.find(address)
    assert buffer is not None, hex(address)
    return buffer.data[address - buffer.base :][:size].tobytes()


def image(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_pointers_are_device_addresses_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    call = aiter_calls.decode(16)

    def look(machine: Machine, given: dict[str, Any]) -> None:
        fields = abi_aiter.unpack(given["kernarg"])
        for pointer, name in POINTERS.items():
            assert content(machine, int(fields[pointer]), call[name].nbytes) == image(call[name]), pointer
            buffer = machine.memory.find(int(fields[pointer]))
            assert buffer is not None
            assert (buffer.name, buffer.size) == (name, call[name].nbytes)
            assert buffer.read_only == (name not in aiter_launch.OUTPUTS)
        written = machine.memory.find(int(fields["ptr_R"]))
        assert written is not None
        written.data[:4] = list(struct.pack("<f", 7.0))

    launches = looking(monkeypatch, look)
    machine = Machine("gfx950")
    told: list[Any] = []
    launcher = aiter_launch.launcher(machine, lambda launch, statistics: told.append(launch.kernel))
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call)
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call)
    assert call["splitData"].flatten()[0] == 7.0, "the tensor itself is device memory"
    assert machine.memory.allocations == [], "buffers leave the device after the launch"
    assert launches[0]["grid"] == (1, 3, 1)
    assert launches[0]["code"] is launches[1]["code"], "a code object is read once"
    assert told == [launches[0]["kernel"]] * 2


def test_an_output_that_is_also_the_split_data_is_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    call = aiter_calls.decode(16, dtype=torch.float8_e4m3fn)
    call["splitData"] = call["output"].view(3, 1, 16, 512)

    def look(machine: Machine, given: dict[str, Any]) -> None:
        fields = abi_aiter.unpack(given["kernarg"])
        assert fields["ptr_R"] == fields["ptr_RP"]
        buffer = machine.memory.find(int(fields["ptr_R"]))
        assert buffer is not None
        assert (set(buffer.name.split(", ")), buffer.read_only) == ({"output", "splitData"}, False)

    looking(monkeypatch, look)
    aiter_host.launch("gfx950", aiter_host.DECODE, aiter_launch.launcher(Machine("gfx950")), **call)


def test_the_table_of_a_persistent_launch_points_into_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    call = aiter_calls.persistent(16)
    call["work_indptr"] += torch.arange(81, dtype=torch.int32)
    call["work_info_set"] += 5

    def look(machine: Machine, given: dict[str, Any]) -> None:
        table = int(abi_aiter.unpack(given["kernarg"])["ptr_STP"])
        indptr, info = struct.unpack("<QQ", content(machine, table, 16))
        assert content(machine, indptr, call["work_indptr"].nbytes) == image(call["work_indptr"])
        assert content(machine, info, call["work_info_set"].nbytes) == image(call["work_info_set"])

    launches = looking(monkeypatch, look)
    launcher = aiter_launch.launcher(Machine("gfx950"))
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call)
    # The table may be a tensor as well, and must keep what the host wrote into it.
    addresses = [call["work_indptr"].data_ptr(), call["work_info_set"].data_ptr()]
    call["work_meta_data"] = torch.tensor(addresses, dtype=torch.uint64)
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call)
    assert call["work_meta_data"].tolist() == addresses
    assert len(launches) == 2


def test_a_pointer_to_nothing_stays_where_no_buffer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    call = aiter_calls.decode(16)

    def look(machine: Machine, given: dict[str, Any]) -> None:
        fields = abi_aiter.unpack(given["kernarg"])
        assert machine.memory.find(int(fields["ptr_KVSCALE"])) is None
        assert (fields["s_MQA"], fields["s_Bs"]) == (16, 1152)

    assert not looking(monkeypatch, look)
    aiter_host.launch("gfx950", aiter_host.DECODE, aiter_launch.launcher(Machine("gfx950")), **call)


def test_buffers_leave_the_device_when_the_launch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(machine: Machine, given: dict[str, Any]) -> None:
        raise RuntimeError("out of bounds")

    looking(monkeypatch, look)
    machine = Machine("gfx950")
    with pytest.raises(RuntimeError, match="out of bounds"):
        aiter_host.launch("gfx950", aiter_host.DECODE, aiter_launch.launcher(machine), **aiter_calls.decode(16))
    assert machine.memory.allocations == []
