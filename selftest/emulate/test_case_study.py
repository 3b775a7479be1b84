"""The machinery of the case study on trial: edited launches, planted dependence on the pads, racing pairs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

import torch

from waveproof.fixtures import lds_order
from waveproof.fixtures.padded_heads import FILLINGS, Batch, examine
from waveproof.golden.references.mla import attend
from waveproof.kernels.runtimes.emulate import abi_aiter
from waveproof.kernels.runtimes.emulate.aiter_mla import MlaCall, MlaResult
from waveproof.kernels.runtimes.emulate.edited_launch import NoSuchArgument, edited, editing
from waveproof.kernels.runtimes.emulate.hip_runtime import HipLaunch
from waveproof.kernels.runtimes.emulate.lds_pairs import Racing
from waveproof.kernels.runtimes.emulate.scheduler import Schedule
from waveproof.reports.lds_order import render


def a_launch(**fields: Any) -> HipLaunch:
    return HipLaunch("gfx950", Path("a.co"), b"", "k", (1, 1, 1), (256, 1, 1), 0, abi_aiter.pack(fields, 0x5A), 0)


def test_an_edit_changes_what_it_names_and_nothing_else() -> None:
    launch, q = a_launch(s_MQA=16, ptr_Q=64, s_Bs=1152), torch.zeros(3)
    changed = edited(launch, {"Q": q}, {"s_MQA": 12})
    before, after = abi_aiter.unpack(launch.kernarg), abi_aiter.unpack(changed.kernarg)
    assert after == before | {"s_MQA": 12, "ptr_Q": q.data_ptr()}
    assert changed.buffers["Q"] is q
    assert before["s_MQA"] == 16, "the launch itself is as it was"
    seen: list[HipLaunch] = []
    editing(seen.append, lambda one: edited(one, fields={"s_Bs": 1}))(launch)
    assert abi_aiter.unpack(seen[0].kernarg)["s_Bs"] == 1


def test_an_edit_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(NoSuchArgument, match="no pointer to 'K'"):
        edited(a_launch(), {"K": torch.zeros(1)})
    with pytest.raises(NoSuchArgument, match="no field 's_mqa'"):
        edited(a_launch(), fields={"s_mqa": 1})


class FloatDevice:
    """Plays the device: float64 attention, and a kernel whose real heads feel one filling of the pads."""

    def __init__(self, felt: str = "", error: float = 0.0) -> None:
        self.felt, self.error = felt, error

    def prefill(self, call: MlaCall) -> MlaResult:
        outputs = []
        for number in range(len(call.qo_indptr) - 1):
            begin, end = call.qo_indptr[number : number + 2].tolist()
            rows = call.kv_indices[call.kv_indptr[number] : call.kv_indptr[number + 1]].long()
            output = attend(call.q[begin:end], call.kv[rows, 0, 0], call.scale).output + self.error
            output = output.bfloat16()
            if list(FILLINGS)[number % len(FILLINGS)] == self.felt:
                output[0, 11, 511] = torch.nextafter(output[0, 11, 511], torch.tensor(9.0, dtype=output.dtype))
            outputs.append(output)
        output = torch.cat(outputs)
        return MlaResult(output, output, torch.full((len(output), 1, 16), math.nan), ())


SMALL = Batch("prefill", ((2, 5), (1, 3)))


def test_right_heads_pass() -> None:
    found = examine(FloatDevice(), SMALL)  # type: ignore[arg-type]
    assert (found.different, found.output.holds, found.lse, found.unpadded) == ((), True, None, None)


@pytest.mark.parametrize("felt", list(FILLINGS)[1:])
def test_one_bit_that_depends_on_a_filling_is_seen(felt: str) -> None:
    assert examine(FloatDevice(felt), SMALL).different == (felt,)  # type: ignore[arg-type]


def test_an_error_of_all_fillings_is_seen() -> None:
    found = examine(FloatDevice(error=0.05), SMALL)  # type: ignore[arg-type]
    assert not found.output.holds
    assert found.different == ()


def test_labels_of_batches_are_distinct() -> None:
    from waveproof.fixtures.padded_heads import BATCHES

    for batches in BATCHES.values():
        labels = [batch.label for batch in batches]
        assert len(set(labels)) == len(labels)


FEW = ("lockstep", "turns of 2", "wave by wave")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_the_fp8_decode_races_for_lds_and_would_not_with_an_area_for_p(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence that the order dependence is in the binary; see fixtures/lds_order.py."""
    monkeypatch.setattr(lds_order, "ORDERS", {name: lds_order.ORDERS[name] for name in FEW})
    lockstep, turns, apart = runs = list(lds_order.in_orders(arch))
    assert lockstep.conflicts == turns.conflicts == {"write after read": 256}
    assert turns.same_bits
    assert not apart.same_bits
    assert apart.error > 1
    assert apart.lse_error < 1e-5
    assert apart.conflicts["read after write"] > 0
    assert sum(turns.report.pairs.values()) >= 256
    pair = min(turns.report.pairs, key=lambda p: abs(p.later - p.earlier))
    lines = lds_order.disassembly(arch, lds_order.FP8[arch], pair)
    reads = [i for i, line in enumerate(lines) if "ds_read_b64" in line and ", v6" in line]
    writes = [i for i, line in enumerate(lines) if "ds_write_b32 v20" in line]
    assert max(reads) < min(writes)
    assert not any("s_barrier" in line for line in lines[max(reads) : min(writes)])

    mended = list(lds_order.in_orders(arch, lds_order.with_own_area))
    assert all(run.same_bits and not run.conflicts for run in mended)
    assert mended[0].error == lockstep.error
    text = render(arch, "1.0", (77, 2), runs, mended, lines, lds_order.OWN_AREA)
    assert all(line in text for line in lines)
    assert f"| wave by wave | {apart.error:.3g} |" in text
    assert "{" not in text


def test_the_fp8_decode_of_two_tokens_loads_queries_over_each_other() -> None:
    """Wave 3's overhang and wave 0's row of the second token: two LDS-DMA with no barrier between them."""
    lockstep, _ = lds_order.two_tokens("gfx950", Schedule())
    turns, report = lds_order.two_tokens("gfx950", Schedule(2))
    assert torch.equal(lockstep, turns)
    pair = Racing(0x3EC, 0x40C, "write after write")
    assert report.bytes[pair] == set(range(0x3000, 0x3060, 4))
    other, _ = lds_order.two_tokens("gfx950", Schedule(16))
    different = (other != lockstep).any(-1)
    assert {(token, head) for token, _, head in different.nonzero().tolist()} == {(1, 0)}


def test_batches_survive_the_way_through_a_process() -> None:
    import json

    from waveproof.fixtures.padded_heads_process import _read

    found = examine(FloatDevice("inf"), SMALL)  # type: ignore[arg-type]
    (again,) = _read(json.dumps(dataclasses.asdict(found)))
    assert again == found
