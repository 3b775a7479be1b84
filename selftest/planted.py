"""Faults planted in what is inspected rather than called: sources, tables, dispatchers, code, traces, logs.

Each family has a table in ``selftest/mutants``: a module with ``PLANTED``, a tuple of :class:`Planted`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

TABLES = {
    "symbols": "symbols",
    "dispatch": "dispatch",
    "coverage": "coverage",
    "tables": "aiter_tables",
    "resources": "resources",
    "launched": "launched",
    "startup": "startup",
    "measure": "measure",
    "gate": "gate",
    "ledger": "ledger",
    "counts": "counts",
    "serving": "serving",
    "economics": "economics",
    "gpu_day": "gpu_day",
}
"""By family, the module below ``selftest/mutants`` that plants its faults."""


@dataclass(frozen=True)
class Planted:
    """One fault, or one right thing that must not be rejected."""

    name: str
    fault: str
    """What is wrong, in one sentence; of a right one, why somebody might take it for wrong."""
    due: str
    """The rule that has to break, others perhaps with it; empty for what is right."""
    broken: Callable[[], Sequence[str]]
    """Plants it, inspects, and gives the names of the rules that are broken."""
    unavailable: Callable[[], str] = lambda: ""
    """Why it cannot be planted here, empty where it can."""


@dataclass(frozen=True)
class Inspected:
    """What the inspection of one planted thing came to."""

    family: str
    name: str
    fault: str
    due: str
    broken: tuple[str, ...]
    seconds: float
    absent: str = ""
    """Why it was not planted."""
    accident: str = ""
    """The exception in which the inspection ended."""

    @property
    def as_due(self) -> bool:
        """Whether it came out as it must: the rule that is there for a fault is broken, and none by what is right."""
        if self.accident or self.absent:
            return False
        return self.due in self.broken if self.due else not self.broken


def planted(family: str) -> tuple[Planted, ...]:
    """The table of a family, one of :data:`TABLES`."""
    table: tuple[Planted, ...] = import_module(f"waveproof.selftest.mutants.{TABLES[family]}").PLANTED
    return table


def inspect(family: str, name: str) -> Inspected:
    """Plant one entry of a family's table and inspect it."""
    (entry,) = (one for one in planted(family) if one.name == name)
    started = time.monotonic()
    broken: Sequence[str] = ()
    accident = ""
    absent = entry.unavailable()
    if not absent:
        try:
            broken = entry.broken()
        except Exception as error:
            accident = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    rules = tuple(dict.fromkeys(broken))
    return Inspected(family, name, entry.fault, entry.due, rules, seconds, absent, accident)


def inspect_families(families: Iterable[str], processes: int = 2) -> tuple[Inspected, ...]:
    """Plant and inspect all entries of the families, in their order; each family in a process of its own.

    What is inspected may hold state of its process: a faked platform, an emulated device.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(processes) as pool:
        return tuple(one for found in pool.map(_in_own_process, families) for one in found)


def _in_own_process(family: str) -> list[Inspected]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_family, family).result()


def _family(family: str) -> list[Inspected]:
    return [inspect(family, entry.name) for entry in planted(family)]


def render_planted(found: Sequence[Inspected], seconds: float, console: Console) -> None:
    """Print a table of what was planted and which rules it broke, and a line that sums it up."""
    table = Table(
        Column("planted fault", no_wrap=True), Column("rules that it breaks", overflow="fold"),
        Column("what is wrong", overflow="fold", ratio=1), box=None, pad_edge=False,
    )  # fmt: skip
    family = ""
    for one in found:
        if one.family != family:
            family = one.family
            table.add_row(Text(family, "bold"))
        told = one.accident or one.absent or ", ".join(one.broken) or ("SURVIVED" if one.due else "passes")
        style = "" if one.as_due else "bold red"
        fault = one.fault if one.due else f"right: {one.fault}"
        table.add_row(Text(f"  {one.name}", style), Text(told, style), Text(fault, "dim"))
    console.print(table)
    faults = [one for one in found if one.due]
    right = [one for one in found if not one.due]
    for one in found:
        if one.due and one.broken and one.due not in one.broken:
            console.print(f"NOT AS DUE: {one.name} never broke the rule {one.due!r}", style="bold red", markup=False)
    console.print(
        f"{sum(one.as_due for one in faults)} of {len(faults)} faults planted in sources, tables, code, traces and "
        f"logs rejected, {sum(one.as_due for one in right)} of {len(right)} right ones passed, in {seconds:.0f} s"
    )
