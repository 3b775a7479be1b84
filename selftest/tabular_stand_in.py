"""The part of pandas that AITER's lookups use, for machines without it. Typed by column, as ``read_csv`` types."""

from __future__ import annotations

import csv
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any


class Columns(list[str]):
    """``DataFrame.columns``."""

    def tolist(self) -> list[str]:
        return list(self)


class DataFrame:
    """Rows under named columns."""

    def __init__(self, columns: Sequence[str] = (), rows: Sequence[tuple[Any, ...]] = ()) -> None:
        self.columns, self.rows = Columns(columns), list(rows)
        self.index: list[str] = []

    def sort_values(self, name: str) -> DataFrame:
        at = self.columns.index(name)
        return DataFrame(self.columns, sorted(self.rows, key=lambda row: row[at]))

    def drop_duplicates(self, subset: Sequence[str] | None = None, keep: str = "first") -> DataFrame:
        assert keep == "first"
        at = [self.columns.index(name) for name in subset or self.columns]
        first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in self.rows:
            first.setdefault(tuple(row[one] for one in at), row)
        return DataFrame(self.columns, list(first.values()))

    def reset_index(self, drop: bool = False) -> DataFrame:
        del drop
        return self

    def set_index(self, names: Sequence[str]) -> DataFrame:
        made = DataFrame(self.columns, self.rows)
        made.index = list(names)
        return made

    def to_dict(self, orient: str) -> dict[tuple[Hashable, ...], dict[str, Any]]:
        assert orient == "index"
        at = [self.columns.index(name) for name in self.index]
        found: dict[tuple[Hashable, ...], dict[str, Any]] = {}
        for row in self.rows:
            key = tuple(row[one] for one in at)
            if key in found:
                raise ValueError("DataFrame index must be unique for orient='index'.")
            found[key] = {name: value for name, value in zip(self.columns, row, strict=True) if name not in self.index}
        return found

    def to_csv(self, path: str, index: bool = True) -> None:
        assert not index
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([self.columns, *self.rows])


def read_csv(path: str) -> DataFrame:
    """All whole numbers, all numbers, all truth values, else text, column by column."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        header, *rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    columns = [_typed([row[at] for row in rows]) for at in range(len(header))]
    return DataFrame(header, list(zip(*columns, strict=True)))


def _typed(cells: list[str]) -> list[Any]:
    kinds: tuple[Callable[[str], Any], ...] = (int, float)
    for kind in kinds:
        try:
            return [kind(cell) for cell in cells]
        except ValueError:
            continue
    return [cell == "True" for cell in cells] if cells and set(cells) <= {"True", "False"} else list(cells)


def concat(frames: Sequence[DataFrame], ignore_index: bool = False) -> DataFrame:
    """One below the other."""
    del ignore_index
    return DataFrame(frames[0].columns, [row for frame in frames for row in frame.rows])
