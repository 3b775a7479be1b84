"""What was measured before, in one SQLite file: runs, their measurements with every sample, and the gate's rulings.

The file is opened only if it is whole, of this application and of this schema; one that is not is refused by name and
left as it is. Several processes may read while one writes (write-ahead log). A file that is copied, as into a cache,
must have been closed: closing takes the log into it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from waveproof.perf.records import Measurement, Place, Quantity, Ruling
from waveproof.perf.run_files import Run, export_text

Key = tuple[str, str, tuple[str, str, str]]
"""Case, quantity and place without versions: :attr:`waveproof.perf.records.Measurement.key`."""

SCHEMA = 1
APPLICATION = 0x77507266
"""``wPrf``: SQLite's application id, so that another program's database is not taken for a history."""

_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, utc TEXT NOT NULL, commit_id TEXT NOT NULL, ledger_head TEXT NOT NULL, source TEXT NOT NULL
) STRICT;
CREATE TABLE places (
    id INTEGER PRIMARY KEY, runtime TEXT NOT NULL, arch TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL,
    UNIQUE (runtime, arch, device, versions)
) STRICT;
CREATE TABLE measurements (
    run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, number INTEGER NOT NULL, case_name TEXT NOT NULL,
    quantity TEXT NOT NULL, unit TEXT NOT NULL, exact INTEGER NOT NULL, higher_is_better INTEGER NOT NULL,
    place INTEGER NOT NULL REFERENCES places, samples TEXT NOT NULL, notes TEXT NOT NULL, PRIMARY KEY (run, number)
) STRICT;
CREATE TABLE rulings (
    run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, number INTEGER NOT NULL, case_name TEXT NOT NULL,
    quantity TEXT NOT NULL, outcome TEXT NOT NULL, effect REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
    confidence REAL NOT NULL, tolerance REAL NOT NULL, reason TEXT NOT NULL, against TEXT NOT NULL,
    PRIMARY KEY (run, number)
) STRICT;
CREATE INDEX of_case ON measurements (case_name, quantity);
"""


class BadHistory(ValueError):
    """A file that is no history, is damaged, or is of a newer schema; the message names it and says which."""


@dataclass(frozen=True)
class Point:
    """One measurement of a key, with the run that it was taken in."""

    run: str
    when: datetime
    commit: str
    measurement: Measurement


class History:
    """An open history; use it in ``with``, or close it."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it where there is no file or an empty one.

        Raises:
            BadHistory: it cannot be used.
        """
        self.path = path
        if path.exists() and path.stat().st_size:
            _inspect(path)
        try:
            self._open = sqlite3.connect(path, timeout=30)
            self._open.execute("PRAGMA journal_mode = WAL")
            self._open.execute("PRAGMA foreign_keys = ON")
            self._make()
        except sqlite3.Error as error:
            raise BadHistory(f"{path.name}: {error}") from None

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the log into the file and let go of it."""
        self._open.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._open.close()

    def add(self, runs: Iterable[Run]) -> int:
        """Take runs that are not yet there, all or none, and say how many these were.

        Raises:
            BadHistory: a run of that id or of that very time is there with other contents, or a ruling has a NaN.
        """
        added = 0
        try:
            with self._open:
                self._open.execute("BEGIN IMMEDIATE")
                for run in runs:
                    known = self._run(run.id) or self._at(run)
                    if known is None:
                        self._insert(run)
                        added += 1
                    elif replace(known, id=run.id, when=run.when) != run:
                        raise BadHistory(f"{self.path.name}: run {known.id} is there with other contents")
        except sqlite3.Error as error:
            raise BadHistory(f"{self.path.name}: {error}") from None
        return added

    def runs(self) -> tuple[Run, ...]:
        """All of them, the oldest first."""
        ids = self._open.execute("SELECT id FROM runs ORDER BY utc, id").fetchall()
        return tuple(run for (one,) in ids if (run := self._run(one)) is not None)

    def keys(self) -> tuple[Key, ...]:
        """What there is a history of, by name."""
        rows = self._open.execute(
            "SELECT DISTINCT case_name, quantity, runtime, arch, device FROM measurements "
            "JOIN places ON places.id = place ORDER BY 1, 2, 3, 4, 5"
        )
        return tuple((case, quantity, (runtime, arch, device)) for case, quantity, runtime, arch, device in rows)

    def expected(self, runs: int) -> tuple[Key, ...]:
        """Keys of two or more of so many latest runs that were gated: what a night without them has lost."""
        rows = self._open.execute(
            "SELECT case_name, quantity, runtime, arch, device FROM measurements "
            "JOIN places ON places.id = place WHERE run IN (SELECT id FROM runs WHERE source = 'waveproof' AND EXISTS "
            "(SELECT 1 FROM rulings WHERE run = runs.id) ORDER BY utc DESC, id DESC LIMIT ?) "
            "GROUP BY 1, 2, 3, 4, 5 HAVING count(DISTINCT run) > 1",
            (runs,),
        )
        return tuple((case, quantity, (runtime, arch, device)) for case, quantity, runtime, arch, device in rows)

    def series(self, key: Key) -> tuple[Point, ...]:
        """All measurements of a key, the oldest first."""
        case, quantity, place = key
        rows = self._open.execute(
            f"SELECT runs.id, utc, commit_id, {_MEASUREMENT} JOIN runs ON runs.id = run WHERE case_name = ? AND "
            "quantity = ? AND runtime = ? AND arch = ? AND device = ? ORDER BY utc, runs.id, number",
            (case, quantity, *place),
        )
        return tuple(
            Point(run, datetime.fromisoformat(utc), commit, _measurement(row)) for run, utc, commit, *row in rows
        )

    def ledger_head(self) -> str:
        """SHA-256 of the ledger's last line in the latest run that had a ledger; empty where none had."""
        row = self._open.execute(
            "SELECT ledger_head FROM runs WHERE ledger_head != '' ORDER BY utc DESC, id DESC LIMIT 1"
        ).fetchone()
        return row[0] if row else ""

    def export(self) -> str:
        """Everything as JSON, from which an equal history can be made."""
        return export_text(self.runs())

    def _make(self) -> None:
        """Make the tables, unless another process was quicker."""
        with self._open:
            self._open.execute("BEGIN IMMEDIATE")
            if self._open.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
                return
            for statement in filter(str.strip, _TABLES.split(";")):
                self._open.execute(statement)
            self._open.execute(f"PRAGMA user_version = {SCHEMA}")
            self._open.execute(f"PRAGMA application_id = {APPLICATION}")

    def _run(self, run: str) -> Run | None:
        row = self._open.execute("SELECT utc, commit_id, ledger_head, source FROM runs WHERE id = ?", (run,)).fetchone()
        if row is None:
            return None
        utc, commit, ledger_head, source = row
        measured = self._open.execute(f"SELECT {_MEASUREMENT} WHERE run = ? ORDER BY number", (run,)).fetchall()
        ruled = self._open.execute(
            "SELECT case_name, quantity, outcome, effect, low, high, confidence, tolerance, reason, against "
            "FROM rulings WHERE run = ? ORDER BY number",
            (run,),
        ).fetchall()
        measurements, rulings = tuple(map(_measurement, measured)), tuple(Ruling(*one) for one in ruled)
        return Run(run, datetime.fromisoformat(utc), measurements, rulings, commit, ledger_head, source)

    def _at(self, run: Run) -> Run | None:
        """The same run in an edited file: no two sessions begin in one microsecond; whole seconds were typed."""
        utc = run.when.astimezone(timezone.utc).isoformat(timespec="microseconds")
        row = self._open.execute("SELECT id FROM runs WHERE utc = ? AND source = ?", (utc, run.source)).fetchone()
        return self._run(row[0]) if row and run.when.microsecond else None

    def _insert(self, run: Run) -> None:
        utc = run.when.astimezone(timezone.utc).isoformat(timespec="microseconds")
        self._open.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?)", (run.id, utc, run.commit, run.ledger_head, run.source)
        )
        for number, one in enumerate(run.measurements):
            quantity = one.quantity
            self._open.execute(
                "INSERT INTO measurements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run.id, number, one.case, quantity.name, quantity.unit, quantity.exact, quantity.higher_is_better,
                    self._place(one.place), json.dumps(one.values), json.dumps(one.notes),
                ),
            )  # fmt: skip
        for number, ruling in enumerate(run.rulings):
            self._open.execute(
                "INSERT INTO rulings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (run.id, number, *astuple(ruling))
            )

    def _place(self, place: Place) -> int:
        fields = (*place.without_versions(), json.dumps(dict(place.versions), sort_keys=True))
        self._open.execute("INSERT OR IGNORE INTO places (runtime, arch, device, versions) VALUES (?, ?, ?, ?)", fields)
        row = self._open.execute(
            "SELECT id FROM places WHERE runtime = ? AND arch = ? AND device = ? AND versions = ?", fields
        ).fetchone()
        return int(row[0])


_MEASUREMENT = (
    "case_name, quantity, unit, exact, higher_is_better, samples, notes, runtime, arch, device, versions "
    "FROM measurements JOIN places ON places.id = place"
)


def _measurement(row: Sequence[Any]) -> Measurement:
    case, name, unit, exact, higher, samples, notes, runtime, arch, device, versions = row
    quantity = Quantity(name, unit, bool(exact), bool(higher))
    place = Place(runtime, arch, device, json.loads(versions))
    return Measurement(case, quantity, tuple(json.loads(samples)), place, tuple(json.loads(notes)))


def _inspect(path: Path) -> None:
    """Refuse what is no history, from a connection that cannot write.

    Raises:
        BadHistory: with what it is instead.
    """
    # Without a log beside it nobody is writing, and an immutable file is opened without touching anything.
    untouched = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro{untouched}", uri=True)) as file:
            schema, application = (
                file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
            )
            if not (application or schema or file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
                return  # made and not yet filled
            if application != APPLICATION:
                raise BadHistory(f"{path.name}: a SQLite file of another application; it is left as it is")
            if schema != SCHEMA:
                newer = "a newer waveproof wrote it" if schema > SCHEMA else "an older waveproof wrote it"
                raise BadHistory(f"{path.name}: schema {schema}, and {SCHEMA} is read here: {newer}; left as it is")
            if (state := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise BadHistory(f"{path.name}: damaged: {' '.join(state.split())}; it is left as it is")
    except sqlite3.Error as error:
        raise BadHistory(f"{path.name}: no history: {error}; it is left as it is") from None
