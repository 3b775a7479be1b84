"""How faults are planted in the small tree of AITER's tables: edits of its files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from waveproof.fixtures.tables.lint import broken_rules, lint, target
from waveproof.selftest.planted import Planted
from waveproof.selftest.small_aiter import CONFIGS, Files, edit, small_aiter, write

Change = Callable[[Files], None]


def small(*changes: Change) -> Callable[[], Sequence[str]]:
    """Rules that break in the small tree after changes."""

    def broken() -> Sequence[str]:
        files = dict(small_aiter())
        for change in changes:
            change(files)
        with tempfile.TemporaryDirectory() as folder:
            return broken_rules(lint(*target(str(write(files, Path(folder))))))

    return broken


def fault(name: str, text: str, due: str, *changes: Change) -> Planted:
    """A fault in the small tree."""
    return Planted(name, text, due, small(*changes))


def right(name: str, text: str, *changes: Change) -> Planted:
    """Something right in the small tree."""
    return Planted(name, text, "", small(*changes))


def put(name: str, content: str | bytes) -> Change:
    return lambda files: files.update({name: content})


def drop(name: str) -> Change:
    def change(files: Files) -> None:
        del files[name]

    return change


def with_rows(name: str, change: Callable[[list[str]], list[str]]) -> Change:
    """Other rows, the header kept."""

    def apply(text: str) -> str:
        header, *rows = text.splitlines()
        return "\n".join([header, *change(rows)]) + "\n"

    return edit(name, apply)


def merged_with(name: str, folder_name: str, change: Callable[[list[str]], list[str]]) -> Change:
    """A file in ``model_configs`` with rows made of those of a table."""

    def apply(files: Files) -> None:
        text = files[name]
        assert isinstance(text, str)
        header, *rows = text.splitlines()
        files[CONFIGS + "model_configs/" + folder_name] = "\n".join([header, *change(rows)]) + "\n"

    return apply


def columns(name: str, order: Callable[[list[str]], list[str]]) -> Change:
    """Columns in another order."""

    def apply(text: str) -> str:
        lines = [line.split(",") for line in text.splitlines()]
        wanted = order(list(lines[0]))
        return "\n".join(",".join(row[lines[0].index(one)] for one in wanted) for row in lines) + "\n"

    return edit(name, apply)


def without(word: str) -> Callable[[list[str]], list[str]]:
    return lambda rows: [row for row in rows if word not in row]


def slower(row: str) -> str:
    cells_of = row.split(",")
    cells_of[6] = str(float(cells_of[6]) + 1)
    return ",".join(cells_of)


def tflops_of(text: str) -> float:
    """Of the first row of a table of GEMMs."""
    return float(text.splitlines()[1].split(",")[8])
