"""The address space: host buffers without a copy, and every access that leaves its buffer found and described."""

from __future__ import annotations

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.fault import AccessViolation
from waveproof.kernels.runtimes.emulate.memory import Allocation, Memory


def addresses(base: int, *offsets: int) -> np.ndarray:
    return np.array([base + offset for offset in offsets], np.uint64)


def test_loads_and_stores_go_to_the_host_array() -> None:
    memory, array = Memory(), np.arange(16, dtype=np.uint32)
    base = memory.add("a", array)
    low, high = memory.load(addresses(base, 8, 0, 56), 8, [])
    assert low.tolist() == [2, 0, 14]
    assert high.tolist() == [3, 1, 15]
    memory.store(addresses(base, 12, 4), [np.array([77, 88], np.uint32)], 4, [])
    assert array[[3, 1]].tolist() == [77, 88]
    array[5] = 123
    assert memory.load(addresses(base, 20), 4, [])[0].tolist() == [123]


def test_a_buffer_straddles_a_4_gib_boundary() -> None:
    memory = Memory()
    for size in (8192, 10_000, 1 << 20):
        base = memory.add("a", np.zeros(size, np.uint8))
        assert base >> 32 != (base + size - 1) >> 32
        assert base % 4096 == 0


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_unaligned_accesses(size: int) -> None:
    memory, octets = Memory(), np.arange(64, dtype=np.uint8)
    base = memory.add("a", octets)
    for offset in (1, 2, 3, 64 - size):
        values = memory.load(addresses(base, offset), size, [])
        got = b"".join(value.astype("<u4").tobytes() for value in values)[:size]
        assert got == octets[offset : offset + size].tobytes()
        before = octets.copy()
        memory.store(addresses(base, offset), [~value for value in values], size, [])
        want = before.copy()
        want[offset : offset + size] ^= 255
        assert (octets == want).all()
        octets[:] = before


def test_one_access_over_several_buffers() -> None:
    memory, a, b = Memory(), np.full(8, 1, np.uint32), np.full(8, 2, np.uint32)
    bases = memory.add("a", a), memory.add("b", b)
    where = np.array([bases[0], bases[1] + 4, bases[0] + 28, bases[1]], np.uint64)
    assert memory.load(where, 4, [])[0].tolist() == [1, 2, 1, 2]
    memory.store(where, [np.array([10, 11, 12, 13], np.uint32)], 4, [])
    assert (a[0], a[7], b[0], b[1]) == (10, 12, 13, 11)


def test_of_two_lanes_with_one_address_the_higher_wins() -> None:
    memory, array = Memory(), np.zeros(4, np.uint32)
    base = memory.add("a", array)
    memory.store(addresses(base, 4, 4, 4), [np.array([1, 2, 3], np.uint32)], 4, [])
    assert array.tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize(("offset", "size"), [(40, 4), (36, 8), (38, 4), (-1, 1), (-4, 4), (40, 1), (39, 2)])
def test_leaving_a_buffer_by_a_byte_is_found(offset: int, size: int) -> None:
    memory = Memory()
    base = memory.add("weights", np.zeros(10, np.float32))
    hint: list[Allocation] = []
    memory.load(addresses(base, 0), 4, hint)
    for known in ([], hint):
        with pytest.raises(AccessViolation, match=rf"load of {size} bytes at {base + offset:#x}: .* weights") as caught:
            memory.load(addresses(base, 0, offset), size, known)
        assert caught.value.access.row == 1
        assert caught.value.access.address == base + offset


def test_description_names_element_and_count() -> None:
    memory = Memory()
    base = memory.add("weights", np.zeros(10, np.float32))
    with pytest.raises(
        AccessViolation,
        match=r"8 bytes beyond the end of weights \(float32\[10\], 40 bytes\), .* element 12 of 10 \(2 lanes do\)",
    ):
        memory.store(addresses(base, 0, 48, 52), [np.zeros(3, np.uint32)], 4, [])


def test_null_pointers_are_called_so() -> None:
    memory = Memory()
    memory.add("a", np.zeros(4))
    with pytest.raises(AccessViolation, match="0x10: a null pointer plus 16"):
        memory.load(addresses(0, 16), 4, [])


def test_a_refused_store_writes_nothing() -> None:
    memory, a, locked = Memory(), np.zeros(4, np.uint32), np.zeros(4, np.uint32)
    base, fixed = memory.add("a", a), memory.add("locked", locked, read_only=True)
    values = [np.ones(2, np.uint32)]
    with pytest.raises(AccessViolation, match="beyond the end"):
        memory.store(addresses(base, 0, 16), values, 4, [])
    with pytest.raises(AccessViolation, match=r"read-only memory .* locked"):
        memory.store(np.array([base, fixed], np.uint64), values, 4, [])
    with pytest.raises(AccessViolation, match="read-only"):
        memory.store(addresses(fixed, 0, 4), values, 4, [])
    assert not a.any()
    assert not locked.any()


def test_a_removed_buffer_is_gone_even_for_who_knew_it() -> None:
    memory = Memory()
    base = memory.add("a", np.zeros(4, np.uint32))
    hint: list[Allocation] = []
    memory.load(addresses(base, 0), 4, hint)
    memory.remove(base)
    with pytest.raises(AccessViolation):
        memory.load(addresses(base, 0), 4, hint)


def test_scalar_loads() -> None:
    memory = Memory()
    base = memory.add("a", np.arange(10, dtype=np.uint32))
    assert memory.load_scalar(addresses(base, 0, 24), 4, []).tolist() == [[0, 1, 2, 3], [6, 7, 8, 9]]
    with pytest.raises(AccessViolation, match="16 bytes"):
        memory.load_scalar(addresses(base, 0, 28), 4, [])


def test_traffic_counts_bytes_of_lanes() -> None:
    memory = Memory()
    base = memory.add("a", np.zeros(10, np.uint32))
    memory.load(addresses(base, 0, 0, 4), 8, [])
    memory.store(addresses(base, 0), [np.zeros(1, np.uint32)], 1, [])
    memory.load_scalar(addresses(base, 0), 2, [])
    assert (memory.traffic.loaded, memory.traffic.stored, memory.traffic.scalar_loaded) == (24, 1, 8)


def test_arrays_that_cannot_be_shared_are_refused() -> None:
    memory, array = Memory(), np.zeros((4, 4))
    with pytest.raises(ValueError, match="not C-contiguous"):
        memory.add("a", array[:, ::2])
    array.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        memory.add("a", array)
    memory.add("a", array, read_only=True)
