"""Atomics on global memory by GLOBAL, FLAT and BUFFER instructions, and FLAT loads and stores, lane after lane."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import AccessViolation
from waveproof.kernels.runtimes.emulate.registers import Group
from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble, opcode
from waveproof.selftest.emulate.float_trial import EXEC_MASKS
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

CELLS = 24


def signed(bits: int, width: int) -> int:
    """Two's complement."""
    return bits - (bits >> (width - 1) << width)


def integer_updates(width: int) -> dict[str, Callable[[int, int], int]]:
    """New content from the old one and the data (AMD pseudocode of GLOBAL_ATOMIC_*)."""
    mask = (1 << width) - 1
    return {
        "SWAP": lambda old, data: data,
        "ADD": lambda old, data: old + data & mask,
        "SUB": lambda old, data: old - data & mask,
        "SMIN": lambda old, data: min(old, data, key=lambda n: signed(n, width)),
        "UMIN": min,
        "SMAX": lambda old, data: max(old, data, key=lambda n: signed(n, width)),
        "UMAX": max,
        "AND": lambda old, data: old & data,
        "OR": lambda old, data: old | data,
        "XOR": lambda old, data: old ^ data,
        "INC": lambda old, data: 0 if old >= data else old + 1,
        "DEC": lambda old, data: data if old == 0 or old > data else old - 1,
    }


def both_halves(old: int, data: int, form: sf.Form) -> int:
    """Two 16-bit sums."""
    return sum(sf.add(old >> at & 0xFFFF, data >> at & 0xFFFF, form) << at for at in (0, 16))


UPDATES: dict[str, tuple[int, Callable[[int, int], int]]] = {
    **{name: (32, update) for name, update in integer_updates(32).items()},
    **{f"{name}_X2": (64, update) for name, update in integer_updates(64).items()},
    "ADD_F32": (32, functools.partial(sf.add, form=sf.FORMS["f32"])),
    "ADD_F64": (64, functools.partial(sf.add, form=sf.FORMS["f64"])),
    "PK_ADD_F16": (32, functools.partial(both_halves, form=sf.FORMS["f16"])),
    "PK_ADD_BF16": (32, functools.partial(both_halves, form=sf.FORMS["bf16"])),
}

PATTERNS = [0, 1, 2, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00010001, 0x3F803F80, 0x40490FDB, 0xBF7FC2A3, 0x3C003C00]
"""Old contents and data: integer extremes that are also finite numbers or, in 16-bit halves, denormals."""


def telling(count: int, width: int, seed: int, floats: bool) -> list[int]:
    """Random picks; NaN patterns left out for floats, since which NaN comes out is not specified."""
    patterns = [p for p in PATTERNS if not floats or p not in (0x7FFFFFFF, 0xFFFFFFFF)]
    picks = np.random.default_rng(seed).integers(0, len(patterns), (2, count))
    high = 0x3FF00000 if floats else 0
    return [
        patterns[a] | ((high or patterns[b]) << 32 if width == 64 else 0) for a, b in zip(*picks, strict=True)
    ]  # fmt: skip


def flat_words(mnemonic: str, **fields: int) -> tuple[int, int]:
    """FLAT: as GLOBAL, but segment 0 and a 12-bit unsigned offset (CDNA3 ISA, "FLAT")."""
    op = opcode("GLOBAL", mnemonic.replace("FLAT", "GLOBAL"))
    assert op is not None
    low = 0b110111 << 26 | op << 18 | fields.get("sc0", 0) << 16 | fields.get("offset", 0)
    return low, fields["addr"] | fields.get("data", 0) << 8 | fields.get("vdst", 0) << 24


def put(group: Group, row: int, values: list[int], width: int) -> None:
    """64 lanes into one register or two."""
    for at in range(width // 32):
        group.v[row + at][0] = np.array([value >> 32 * at & 0xFFFFFFFF for value in values], np.uint32)


def prepare(width: int, floats: bool = False) -> tuple[Group, np.ndarray, list[int], list[int], int]:
    """A wave with data in v[6:7] and cell indices with many duplicates; memory with old contents."""
    group = bare_group()
    dtype: type[np.unsignedinteger[Any]] = np.uint32 if width == 32 else np.uint64
    memory = np.array(telling(CELLS, width, 1, floats), dtype)
    data = telling(64, width, 2, floats)
    cells = [int(c) for c in np.random.default_rng(3).integers(0, CELLS, 64)]
    put(group, 6, data, width)
    put(group, 10, [0xAAAA5555AAAA5555] * 64, width)
    return group, memory, data, cells, group.memory.add("cells", memory)


@pytest.mark.parametrize("space", ["GLOBAL", "GLOBAL saddr", "FLAT", "BUFFER"])
@pytest.mark.parametrize("masks", EXEC_MASKS)
@pytest.mark.parametrize("name", [*UPDATES, "CMPSWAP", "CMPSWAP_X2", "MIN_F64", "MAX_F64"])
def test_lanes_take_turns_in_ascending_order(name: str, masks: str, space: str) -> None:
    update: Callable[[int, int], int] | None
    floats = "F" in name.replace("SWAP", "")
    if name.startswith("CMPSWAP"):
        width, update = (64 if name.endswith("X2") else 32), None
    elif name in ("MIN_F64", "MAX_F64"):
        width = 64
        update = functools.partial(sf.smaller, form=sf.FORMS["f64"], ieee=False, greater=name == "MAX_F64")
    else:
        width, update = UPDATES[name]
    group, memory, data, cells, base = prepare(width, floats)
    size = width // 8
    expected_values = [int(x) for x in memory]
    wanted = [expected_values[cells[lane]] if lane % 3 else 0x77 for lane in range(64)]
    if update is None:
        put(group, 6 + size // 4, wanted, width)
    set_exec(group, EXEC_MASKS[masks])
    found = [0xAAAA5555AAAA5555 & ((1 << width) - 1)] * 64
    for lane in range(64):
        if EXEC_MASKS[masks] >> lane & 1:
            old = found[lane] = expected_values[cells[lane]]
            if update is None:
                expected_values[cells[lane]] = data[lane] if old == wanted[lane] else old
            else:
                expected_values[cells[lane]] = update(old, data[lane])
    fields: dict[str, Any]
    mnemonic = f"{space.split()[0]}_ATOMIC_{name}"
    offsets = [c * size for c in cells]
    if space == "BUFFER":
        put(group, 2, offsets, 32)
        # The result replaces the data here.
        put(group, 10, [int(x) for x in group.v[6][0]], 32)
        for at, word in enumerate((base & 0xFFFFFFFF, base >> 32, memory.nbytes, 0)):
            group.s[8 + at][:] = word
        fields = {"vaddr": 2, "vdata": 6, "srsrc": 2, "soffset": 128, "offen": 1, "sc0": 1}
        before = [int(x) for x in group.v[6][0]], [int(x) for x in group.v[7][0]]
        execute(group, *assemble("MUBUF", mnemonic, **fields))
        kept = [a | (b << 32 if width == 64 else 0) for a, b in zip(*before, strict=True)]
        found = [found[n] if EXEC_MASKS[masks] >> n & 1 else kept[n] for n in range(64)]
        row = 6
    elif space == "GLOBAL saddr":
        put(group, 2, [o + 64 for o in offsets], 32)
        group.s64[10][:] = np.uint64(base - 48)
        fields = {"addr": 2, "data": 6, "saddr": 20, "vdst": 10, "sc0": 1, "offset": -16}
        execute(group, *assemble("GLOBAL", mnemonic, **fields))
        row = 10
    else:
        put(group, 2, [base + o - 40 for o in offsets], 64)
        fields = {"addr": 2, "data": 6, "vdst": 10, "sc0": 1, "offset": 40}
        words = (
            flat_words(mnemonic, **fields) if space == "FLAT" else assemble("GLOBAL", mnemonic, saddr=0x7F, **fields)
        )
        execute(group, *words)
        row = 10
    assert [int(x) for x in memory] == expected_values
    got = [sum(int(group.v[row + at][0, lane]) << 32 * at for at in range(size // 4)) for lane in range(64)]
    assert got == found


def test_without_sc0_nothing_is_returned() -> None:
    group, _, _, cells, base = prepare(32)
    put(group, 2, [base + 4 * c for c in cells], 64)
    kept = group.state.v.copy()
    execute(group, *assemble("GLOBAL", "GLOBAL_ATOMIC_ADD", addr=2, data=6, saddr=0x7F, vdst=10))
    assert (group.state.v == kept).all()


def test_buffer_lanes_out_of_range_change_nothing_and_get_zero() -> None:
    group, memory, _, _, base = prepare(32)
    old = memory.copy()
    put(group, 2, [4 * (lane % 32) for lane in range(64)], 32)
    group.v[6][:] = 1
    for at, word in enumerate((base & 0xFFFFFFFF, base >> 32, 4 * 8, 0)):
        group.s[8 + at][:] = word
    execute(group, *assemble("MUBUF", "BUFFER_ATOMIC_ADD", vaddr=2, vdata=6, srsrc=2, soffset=128, offen=1, sc0=1))
    assert (memory == old + np.where(np.arange(CELLS) < 8, 2, 0).astype(np.uint32)).all()
    inside = np.arange(64) % 32 < 8
    expected = np.where(inside, old[np.arange(64) % 8] + (np.arange(64) >= 32).astype(np.uint32), 0)
    assert (group.v[6][0] == expected).all()


@pytest.mark.parametrize("shift", [2, 4 * CELLS])
def test_misaligned_or_outside_is_a_fault(shift: int) -> None:
    group, memory, _, _, base = prepare(32)
    old = memory.copy()
    put(group, 2, [base + shift] * 64, 64)
    set_exec(group, 1 << 9)
    with pytest.raises(AccessViolation) as caught:
        execute(group, *assemble("GLOBAL", "GLOBAL_ATOMIC_ADD", addr=2, data=6, saddr=0x7F))
    assert caught.value.access.lane == 9
    assert (memory == old).all()


@pytest.mark.parametrize("name", ["UBYTE", "SBYTE", "USHORT", "SSHORT", "DWORD", "DWORDX2", "DWORDX3", "DWORDX4"])
def test_flat_load(name: str) -> None:
    group = bare_group()
    octets = np.random.default_rng(4).integers(0, 256, 64 * 16 + 8, dtype=np.uint8)
    base = group.memory.add("octets", octets)
    put(group, 2, [base + 16 * lane for lane in range(64)], 64)
    set_exec(group, EXEC_MASKS["partial"])
    kept = group.state.v.copy()
    execute(group, *flat_words(f"FLAT_LOAD_{name}", addr=2, vdst=10, offset=8))
    size = (
        {"U": 1, "S": 1}.get(name[0], 4)
        if "BYTE" in name
        else 2
        if "SHORT" in name
        else 4 * int(name[-1] if "X" in name else 1)
    )
    for lane in range(64):
        raw = octets[16 * lane + 8 :][:size].tobytes()
        value = int.from_bytes(raw, "little", signed=name[0] == "S")
        for at in range(max(1, size // 4)):
            expected = value >> 32 * at & 0xFFFFFFFF
            if not EXEC_MASKS["partial"] >> lane & 1:
                expected = int(kept[10 + at, 0, lane])
            assert int(group.v[10 + at][0, lane]) == expected


@pytest.mark.parametrize(("name", "size"), [("BYTE", 1), ("SHORT", 2), ("DWORD", 4), ("DWORDX4", 16)])
def test_flat_store(name: str, size: int) -> None:
    group = bare_group()
    octets = np.zeros(64 * 16, np.uint8)
    base = group.memory.add("octets", octets)
    put(group, 2, [base + 16 * lane for lane in range(64)], 64)
    for at in range(4):
        group.v[6 + at][0] = np.arange(64) * 0x01030507 + at + 1
    set_exec(group, EXEC_MASKS["partial"])
    execute(group, *flat_words(f"FLAT_STORE_{name}", addr=2, data=6))
    for lane in range(64):
        words = b"".join(int(group.v[6 + at][0, lane]).to_bytes(4, "little") for at in range(4))
        live = EXEC_MASKS["partial"] >> lane & 1
        assert octets[16 * lane : 16 * lane + 16].tobytes() == (words[:size] if live else b"").ljust(16, b"\0")
