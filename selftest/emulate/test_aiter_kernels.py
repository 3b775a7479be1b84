"""AITER's shipped MLA code objects on the machine: exact instruction counts, values against float64, host mistakes.

Bounds are the study's: twice to three times what the formats cost. The probabilities are rounded to bf16 (2**-9
relative) or fp8 (2**-4) before they meet V, of up to 4 in size; LSE is float32 arithmetic on scores up to 20.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

from waveproof.kernels.runtimes.emulate.fault import Fault
from waveproof.kernels.runtimes.emulate.scheduler import Schedule
from waveproof.selftest.emulate import shipped_mla
from waveproof.selftest.emulate.shipped_mla import Case, Mistake

DECODE_ERROR, PREFILL_ERROR, FP8_ERROR, LSE_ERROR = 4e-3, 1.2e-2, 5e-2, 2e-6

DECODES = [
    ("gfx950", Case(64), 5236),
    ("gfx950", Case(77), 6240),
    ("gfx950", Case(200, 3), 16712),
    ("gfx950", Case(1), 4516),
    ("gfx942", Case(64), 5236),
    ("gfx942", Case(77, 2), 9752),
    ("gfx950", Case(130, 3, 2), 29976),
    ("gfx950", Case(300, 2), 14868),
    ("gfx950", Case(40, 2), None),
]


@pytest.mark.parametrize(("arch", "case", "instructions"), DECODES)
def test_decode_bf16(arch: str, case: Case, instructions: int | None) -> None:
    outcome = shipped_mla.decode(arch, case)
    if instructions is not None:
        assert outcome.statistics.wave_instructions == instructions
    assert outcome.error < DECODE_ERROR
    assert outcome.lse_error < LSE_ERROR
    assert outcome.cosine > 0.999999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "case", "instructions"),
    [
        ("gfx950", Case(40, queries=5), 18068),
        ("gfx942", Case(40, queries=5), 18068),
        ("gfx950", Case(77, queries=20), 68352),
        ("gfx950", Case(77, 2, queries=20), 81252),
    ],
)
def test_prefill_bf16(arch: str, case: Case, instructions: int) -> None:
    outcome = shipped_mla.prefill(arch, case)
    assert outcome.statistics.wave_instructions == instructions
    assert outcome.error < PREFILL_ERROR
    assert outcome.cosine > 0.99999
    assert (outcome.lse is None) == (case.splits == 1)
    if case.splits > 1:
        assert outcome.lse_error < LSE_ERROR
        assert outcome.error < DECODE_ERROR  # partial outputs are float32


FP8 = [
    ("gfx950", Case(77, 2), 1, 9112),
    ("gfx950", Case(64, 2), 1, 5212),
    ("gfx950", Case(130, 2), 8, 10512),
    ("gfx950", Case(256, 2), 1, 12504),
    ("gfx950", Case(64), 1, 5328),
    ("gfx950", Case(200), 1, 8828),
    ("gfx942", Case(77, 2), 1, 9360),
]


@pytest.mark.parametrize(("arch", "case", "quantum", "instructions"), FP8)
def test_decode_fp8(arch: str, case: Case, quantum: int, instructions: int) -> None:
    """OCP e4m3 on gfx950, e4m3fnuz on gfx942. One split: bf16 output, no LSE."""
    outcome = shipped_mla.decode(arch, case, fp8=True, schedule=Schedule(quantum=quantum))
    assert outcome.statistics.wave_instructions == instructions
    assert outcome.error < FP8_ERROR
    assert outcome.cosine > 0.9998
    assert (outcome.lse is None) == (case.splits == 1)
    if outcome.lse is not None:
        assert outcome.lse_error < LSE_ERROR


@pytest.mark.parametrize(
    ("arch", "case", "instructions", "mfma"),
    [
        ("gfx942", Case(77, 2, queries=2), None, {"V_MFMA_F32_16X16X32_FP8_FP8"}),
        ("gfx942", Case(77, 2, queries=4), 14076, {"V_MFMA_F32_16X16X32_FP8_FP8"}),
        ("gfx950", Case(77, 2, queries=2), 12092, {"V_MFMA_F32_16X16X32_FP8_FP8"}),
        ("gfx950", Case(200, queries=4), 10592, {"V_MFMA_F32_16X16X128_F8F6F4", "V_MFMA_F32_32X32X64_F8F6F4"}),
        ("gfx950", Case(77, queries=4), None, {"V_MFMA_F32_16X16X128_F8F6F4", "V_MFMA_F32_32X32X64_F8F6F4"}),
    ],
)
def test_decode_fp8_of_several_tokens(arch: str, case: Case, instructions: int | None, mfma: set[str]) -> None:
    """The four-token object of gfx950 is the one with 128- and 64-deep MFMA and transposing reads of 8 bits."""
    outcome = shipped_mla.decode(arch, case, fp8=True)
    if instructions is not None:
        assert outcome.statistics.wave_instructions == instructions
    assert {name for name in outcome.statistics.by_mnemonic if "MFMA" in name} == mfma
    assert outcome.error < FP8_ERROR
    assert outcome.cosine > 0.9998
    assert (outcome.lse is None) == (case.splits == 1)
    if outcome.lse is not None:
        assert outcome.lse_error < LSE_ERROR


def test_four_tokens_of_gfx950_lose_their_split() -> None:
    """With two splits LSE is right, but both outputs go to the cells of one split; half of the tensor stays unwritten.

    At .text+0x6ab4 the object computes the offset of token and split into v5, and overwrites it at 0x6df8, unused, by
    one that knows neither the split nor their number. The gfx942 object of the same name is right (above).
    """
    outcome = shipped_mla.decode("gfx950", Case(200, 2, queries=4), fp8=True)
    assert outcome.lse_error < LSE_ERROR
    assert outcome.unwritten == 4 * 2 * 16 * 512 // 2


def test_decode_fp8_depends_on_the_order_of_waves() -> None:
    """Waves far apart overwrite LDS that others have yet to read: no barrier lies between (the study, section 5)."""
    outcome = shipped_mla.decode("gfx950", Case(77, 2), fp8=True, schedule=Schedule(quantum=100_000))
    assert outcome.statistics.wave_instructions == 9112
    assert outcome.error > 1
    assert outcome.lse_error < LSE_ERROR


@pytest.mark.parametrize("schedule", [Schedule(quantum=7), Schedule(quantum=100_000), Schedule(quantum=5, seed=3)])
def test_decode_bf16_does_not(schedule: Schedule) -> None:
    want = shipped_mla.decode("gfx950", Case(77, 2))
    outcome = shipped_mla.decode("gfx950", Case(77, 2), schedule=schedule)
    np.testing.assert_array_equal(outcome.out, want.out)
    assert outcome.statistics.wave_instructions == want.statistics.wave_instructions


def _out_of_range(indices: np.ndarray) -> np.ndarray:
    changed = indices.copy()
    changed[10] = 1 << 20
    return changed


WRONG_VALUES = {
    "page stride in elements": (Mistake({"s_Bs": 576}), 2.51),
    "page stride of the values": (Mistake({"s_Bs": 512 * 2}), 2.88),
    "scale of the whole head": (Mistake({"scalar": 576**-0.5}), 1.67),
    "one split in two": (Mistake({"s_kv_split": 1}), 0.47),
    "indices of 64 bits": (Mistake(indices=lambda indices: indices.astype(np.int64)), 3.25),
}
UNWRITTEN = {
    "two splits, a grid of one": (Mistake(splits_of_grid=1), 8192),
    "heads not counted": (Mistake({"s_MQA": 1}), 15360),
}
FAULTS = {
    "indices and their offsets exchanged": (Mistake(swapped=("ptr_LTD", "ptr_LTP")), "load of .* bytes at"),
    "queries and pool exchanged": (Mistake(swapped=("ptr_Q", "ptr_KV")), "load of .* of ptr_Q "),
    "output and LSE exchanged": (Mistake(swapped=("ptr_R", "ptr_LSE")), "store of .* of ptr_LSE "),
    "an index out of range": (Mistake(indices=_out_of_range), "load of .* bytes at"),
    "pool missing": (Mistake({"ptr_KV": 0}), "load of .* bytes at 0x"),
}
HARMLESS = {
    "page size of two": Mistake({"s_log2_plen": 1}),
    "last pages empty": Mistake({"ptr_LTL": 0}),
}


@pytest.mark.parametrize(("mistake", "error"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_mistakes_that_show_in_the_values(mistake: Mistake, error: float) -> None:
    assert shipped_mla.decode("gfx950", Case(77, 2), mistake=mistake).error == pytest.approx(error, abs=0.006)


@pytest.mark.parametrize(("mistake", "cells"), UNWRITTEN.values(), ids=UNWRITTEN)
def test_mistakes_that_leave_cells_unwritten(mistake: Mistake, cells: int) -> None:
    outcome = shipped_mla.decode("gfx950", Case(77, 2), mistake=mistake)
    assert outcome.unwritten == cells
    assert np.isnan(outcome.error)


@pytest.mark.parametrize(("mistake", "says"), FAULTS.values(), ids=FAULTS)
def test_mistakes_that_fault(mistake: Mistake, says: str) -> None:
    with pytest.raises(Fault, match=says):
        shipped_mla.decode("gfx950", Case(77, 2), mistake=mistake)


@pytest.mark.parametrize("mistake", HARMLESS.values(), ids=HARMLESS)
def test_what_these_objects_ignore(mistake: Mistake) -> None:
    """They take pages of one token: its size and the fill of the last page change nothing, not even a fault."""
    right = shipped_mla.decode("gfx950", Case(77, 2))
    np.testing.assert_array_equal(shipped_mla.decode("gfx950", Case(77, 2), mistake=mistake).out, right.out)
