"""Which growths are judged: the pair of 12 heads over context, on whole tiles, and over batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waveproof.golden.judges.judgement import Judgement
from waveproof.perf.counted_cases import attention
from waveproof.perf.counts import EXECUTED, QUANTITIES, CountCase, Counted
from waveproof.perf.growth import Ladder, judge_linear
from waveproof.perf.records import Measurement

SHOWN_KEYS = (64, 128, 256, 512, 1024)
SHOWN_BATCHES = (1, 2, 4, 8)
BATCH_KEYS = 64
"""So short that sglang's host, which splits keys by the context of a whole call, splits each request alike."""


@dataclass(frozen=True)
class Side:
    """Who computes a phase."""

    operator: str
    provider: str


@dataclass(frozen=True)
class PhasePair:
    """A phase of 12 heads: AITER's assembly on padded heads, and what sglang falls back to."""

    name: str
    queries: int
    padded: Side
    generic: Side

    def case(self, side: Side, keys: int, batch: int = 1) -> CountCase:
        """A call of one side."""
        return attention(side.operator, side.provider, self.queries, keys, batch)


_PADDED_DECODE = Side("mla_decode", "waveproof")
PHASES = (
    PhasePair("decode", 1, _PADDED_DECODE, Side("mla_decode", "sglang")),
    PhasePair("verify", 4, _PADDED_DECODE, Side("mla_decode", "sglang_verify")),
    PhasePair("prefill", 32, Side("mla_prefill_absorbed", "waveproof"), Side("mla_extend", "sglang")),
)
DECODE, VERIFY, PREFILL = PHASES


def _over_keys(phase: PhasePair, side: Side, sizes: tuple[int, ...], why: str) -> Ladder:
    return Ladder(f"{phase.name}/{side.provider}", "keys", sizes, lambda keys: phase.case(side, keys), why)


def _over_batch(phase: PhasePair, side: Side) -> Ladder:
    why = "each request has workgroups of its own"
    return Ladder(
        f"{phase.name}/{side.provider}",
        "batch",
        SHOWN_BATCHES,
        lambda batch: phase.case(side, BATCH_KEYS, batch),
        why,
    )


LADDERS = (
    _over_keys(DECODE, DECODE.padded, (4096, 8192, 16384), "16 splits, of 256 keys or more each"),
    _over_keys(DECODE, DECODE.generic, (512, 1024, 2048, 4096), "splits of 32 keys, as many as there are"),
    _over_keys(VERIFY, VERIFY.padded, (512, 1024, 2048, 4096), "16 splits, of 32 keys or more each"),
    _over_keys(VERIFY, VERIFY.generic, SHOWN_KEYS, "one split; what precedes the new tokens fills 1, 2, ... 16 tiles"),
    _over_keys(PREFILL, PREFILL.padded, SHOWN_KEYS, "one split of whole tiles"),
    _over_keys(
        PREFILL, PREFILL.generic, SHOWN_KEYS[1:], "one split; what precedes the new tokens fills 2, 4, 8, 16 tiles"
    ),
    *(_over_batch(phase, side) for phase in PHASES for side in (phase.padded, phase.generic)),
)


def table_cases() -> tuple[CountCase, ...]:
    """Everything that the table of the pair shows: decode over context and batch, the others along both edges."""
    wanted = [
        phase.case(side, keys, batch)
        for phase in PHASES
        for side in (phase.padded, phase.generic)
        for keys in SHOWN_KEYS
        for batch in SHOWN_BATCHES
        if phase is DECODE or batch == 1 or keys == BATCH_KEYS
    ]
    return tuple(wanted)


def every_case() -> tuple[CountCase, ...]:
    """Of the table and of the ladders, each once."""
    wanted = (*table_cases(), *(case for ladder in LADDERS for case in ladder.cases))
    return tuple({case.name: case for case in wanted}.values())


def judge_ladder(ladder: Ladder, counted: Mapping[str, Counted]) -> tuple[Judgement, ...]:
    """Each quantity along a ladder.

    Args:
        ladder: calls.
        counted: by case.

    Raises:
        KeyError: a call of it was not counted.
    """
    calls = [counted[case.name] for case in ladder.cases]
    return tuple(
        judge_linear(ladder.sizes, [one.total(quantity) for one in calls], where=f"{ladder.name}, {quantity}")
        for quantity in EXECUTED
    )


def added(ladder: Ladder, counted: Mapping[str, Counted]) -> Iterator[Measurement]:
    """What each quantity gains from the first size to the last, exact: to be held against what is signed.

    Growth that is linear says nothing of its slope, nor of work that is skipped at large sizes alone.

    Args:
        ladder: calls.
        counted: by case.

    Raises:
        KeyError: a call of it was not counted.
    """
    first, last = (counted[ladder.case(size).name] for size in (ladder.sizes[0], ladder.sizes[-1]))
    name = f"growth/{ladder.name}/{ladder.axis} {ladder.sizes[0]:,}-{ladder.sizes[-1]:,}"
    for quantity in EXECUTED:
        gained = max(last.total(quantity) - first.total(quantity), 0)
        yield Measurement(name, QUANTITIES[quantity], (float(gained),), last.place)
