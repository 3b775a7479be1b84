"""Tampered ledgers, figures that changed, histories that must be refused; and readers that do not look."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from waveproof.golden.judges.judgement import Nonconformance
from waveproof.perf import change_points, history, ledger, night
from waveproof.perf.history import BadHistory, History, Point
from waveproof.perf.records import COUNTS, SECONDS, TOKEN_RATE, Measurement, Place, Quantity
from waveproof.perf.run_files import BadRun, Run, read_runs
from waveproof.perf.signers import BadSigner, load_private_key, make_key
from waveproof.selftest.planted import Planted

INSTRUCTIONS = COUNTS[0]
HERE = Place("emulate", "gfx950", "", {"triton": "3.9.0", "torch": "2.13.0"})
ELSEWHERE = Place("emulate", "gfx950", "", {"triton": "3.10.0", "torch": "2.13.0"})
FIRST = datetime(2026, 1, 1, 2, 17, tzinfo=timezone.utc)


def count(value: float, case: str = "decode", place: Place = HERE) -> Measurement:
    """Wave instructions of a case."""
    return Measurement(f"mla_decode/aiter/{case}", INSTRUCTIONS, (value,), place)


@lru_cache(maxsize=2)
def key_of(name: str) -> tuple[bytes, str]:
    """A private key and the signer's line, made once a process."""
    with tempfile.TemporaryDirectory() as folder:
        line = make_key(name, Path(folder, "key"))
        return Path(folder, "key").read_bytes(), line


class Books:
    """A ledger in a folder of its own, with three entries: 8,840 and then 8,776 of one case, 100 of another."""

    def __init__(self, folder: Path) -> None:
        self.path, self.signers = folder / "ledger.jsonl", folder / "signers"
        self.key, self.stranger = self._key(folder, "ann"), self._key(folder, "eve")
        self.signers.write_text(f"# who may sign\n{key_of('ann')[1]}\n")
        self.accept(count(8840.0), "first counts of the padded path")
        self.accept(count(8776.0), "two barriers fewer, see the change")
        self.accept(count(100.0, "other"), "first counts of this one")

    def _key(self, folder: Path, name: str) -> Path:
        path = folder / f"{name}.key"
        path.touch(0o600)
        path.write_bytes(key_of(name)[0])
        return path

    def accept(self, measured: Measurement, reason: str, **more: Any) -> tuple[ledger.Entry, ...]:
        """As ``ann``."""
        return ledger.accept([measured], reason, self.key, path=self.path, signers=self.signers, **more)

    @property
    def lines(self) -> list[str]:
        """Of the ledger, with the header."""
        return self.path.read_text().splitlines()

    def write(self, lines: Sequence[str], end: str = "\n") -> None:
        """Other lines than these."""
        self.path.write_text("\n".join(lines) + end)

    def resealed(self, fields: dict[str, Any], key: Path | None = None) -> str:
        """An entry with a signature that fits it, whatever it says."""
        bare = {name: value for name, value in fields.items() if name != "signature"}
        return ledger._sealed(bare, load_private_key(key or self.key))

    def problems(self, remembered: str = "") -> tuple[ledger.Problem, ...]:
        """What the verification finds."""
        return ledger.verify(self.path, self.signers, remembered)


@contextmanager
def books() -> Iterator[Books]:
    """A fresh ledger."""
    with tempfile.TemporaryDirectory() as folder:
        yield Books(Path(folder))


def tampered(tamper: Callable[[Books], object], remembered: Callable[[Books], str] = lambda _: "") -> Any:
    """Does something to a ledger and verifies it."""

    def inspected() -> Sequence[str]:
        with books() as made:
            known = remembered(made)
            tamper(made)
            return [one.rule for one in made.problems(known)]

    return inspected


def edit(number: int, sign: bool = False, **changes: Any) -> Callable[[Books], None]:
    """Other fields in one line; with ``sign`` by somebody who holds the key."""

    def change(made: Books) -> None:
        lines = made.lines
        fields = {**json.loads(lines[number]), **changes}
        lines[number] = made.resealed(fields) if sign else ledger.canonical(fields)
        made.write(lines)

    return change


def rearranged(order: Callable[[list[str]], list[str]]) -> Callable[[Books], None]:
    """The same lines otherwise."""
    return lambda made: made.write(order(made.lines))


def last_line(made: Books) -> str:
    """SHA-256 of what a history remembers."""
    return ledger.sha256_of(made.lines[-1])


def by_stranger(name: str) -> Callable[[Books], None]:
    """A new last line, signed by a key that is not among the signers, under a name."""

    def append(made: Books) -> None:
        fields = {**json.loads(made.lines[1]), "signer": name, "previous": last_line(made), "old": [8776.0]}
        made.write([*made.lines, made.resealed(fields, made.stranger)])

    return append


def held(*measured: Measurement, accepted: Sequence[Measurement] = (), **more: Any) -> Callable[[], Sequence[str]]:
    """Outcomes of figures against the ledger, with what they are against."""

    def inspected() -> Sequence[str]:
        with books() as made:
            for number, one in enumerate(accepted):
                made.accept(one, f"accepted step number {number + 1}")
            known = ledger.Ledger.load(made.path, made.signers)
            rulings = [ruling for one in measured for ruling in night.rule_on(one, known, **more)]
            return [f"{one.outcome} against {one.against}" for one in rulings if one.outcome != "pass"]

    return inspected


def refused(spoil: Callable[[Path], object]) -> Callable[[], Sequence[str]]:
    """A history file that was spoilt; it must be refused and left as it is."""

    def inspected() -> Sequence[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "history.db")
            with History(path) as made:
                made.add([Run(f"{one:016x}", FIRST + timedelta(one), (count(8840.0 + one),)) for one in range(200)])
            spoil(path)
            before = path.read_bytes()
            try:
                History(path).close()
            except BadHistory:
                return ["refused"] if path.read_bytes() == before else ["refused", "touched"]
            return []

    return inspected


def sql(statement: str) -> Callable[[Path], None]:
    """Something that another program does to a file."""

    def execute(path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()

    return execute


def overwritten(path: Path) -> None:
    """Noise in the middle of it."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(raw)


def course(logs: Sequence[float], quantity: Quantity = SECONDS) -> tuple[Point, ...]:
    """One run a night, whose median is 1 ms times the exponential."""
    place = Place("hip", "gfx950", "AMD Instinct MI355X")
    return tuple(
        Point(f"{number}", FIRST + timedelta(number), f"{number:012x}",
              Measurement("mla_decode/aiter", quantity, (1e-3 * math.exp(value),), place))
        for number, value in enumerate(logs)
    )  # fmt: skip


def noise(count: int, seed: int = 0, spread: float = 0.01) -> list[float]:
    """Normal, 1 %."""
    drawn = random.Random(seed)
    return [drawn.gauss(0, spread) for _ in range(count)]


def stepped(count: int, at: int, size: float, seed: int = 0) -> list[float]:
    """The same with a step."""
    return [value + (size if number >= at else 0) for number, value in enumerate(noise(count, seed))]


def changes(logs: Sequence[float], quantity: Quantity = SECONDS) -> Callable[[], Sequence[str]]:
    """Which way the change points go."""
    return lambda: ["worse" if one.worse else "better" for one in change_points.change_points(course(logs, quantity))]


def lenient(module: Any, name: str, instead: Any, battery: Callable[[], bool]) -> Callable[[], Sequence[str]]:
    """A wrong implementation of a check: whether the battery of faults finds it out."""

    def inspected() -> Sequence[str]:
        with mock.patch.object(module, name, instead):
            return [] if battery() else ["found out"]

    return inspected


def all_found() -> bool:
    """Whether each of a few tampered ledgers is rejected, each by its own rule, and a right one passes."""
    faults = {"signature": edit(1, new=[8000.0]), "chain": rearranged(lambda lines: [*lines[:2], *lines[3:]]),
              "signer": by_stranger("eve"), "old figure": edit(3, sign=True, old=[99.0])}  # fmt: skip
    with books() as made:
        right = not made.problems()
    return right and all(rule in tampered(fault)() for rule, fault in faults.items())


def no_false_alarm() -> bool:
    """Whether forty histories without a change have none."""
    return not any(change_points.find_steps(noise(30, seed)) for seed in range(40))


def fails_both_ways() -> bool:
    """Whether a test fails whose figure is worse, and one whose figure is better."""
    ended = []
    with books() as made:
        for figure in (8777.0, 8775.0):
            session = night.Night(made.path, made.signers)
            session.hold(count(figure))
            try:
                session.settle()
            except (Nonconformance, pytest.skip.Exception) as error:
                ended.append(type(error))
    return ended == [Nonconformance, Nonconformance]


def odd_night() -> list[float]:
    """One night at five times the others' time."""
    return [value + (1.6 if number == 15 else 0) for number, value in enumerate(noise(30))]


def key_that_others_read() -> Sequence[str]:
    """A private key with mode 644."""
    with books() as made:
        made.key.chmod(0o644)
        try:
            made.accept(count(5.0), "a reason of several words")
        except BadSigner:
            return ["refused"]
    return []


def same_id_other_figures() -> Sequence[str]:
    """A run that the history knows, with another figure."""
    with tempfile.TemporaryDirectory() as folder, History(Path(folder, "history.db")) as made:
        made.add([Run("0" * 16, FIRST, (count(8840.0),))])
        try:
            made.add([Run("0" * 16, FIRST, (count(8000.0),))])
        except BadHistory:
            return ["refused"]
    return []


def no_run(text: str) -> Callable[[], Sequence[str]]:
    """A file that is imported."""

    def inspected() -> Sequence[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "results.json")
            path.write_text(text)
            try:
                read_runs(path)
            except BadRun:
                return ["refused"]
        return []

    return inspected


def creeping() -> list[Measurement]:
    """Six accepted steps of 2 %, each within any tolerance."""
    return [count(round(8776 * 1.02**step)) for step in range(1, 7)]


def times(median: float, place: Place = HERE, quantity: Quantity = SECONDS) -> Measurement:
    """Forty figures with a spread of 1 %."""
    values = tuple(median * math.exp(value) for value in noise(40, 3))
    return Measurement("mla_decode/aiter/timed", quantity, values, place)


NO_OUTCOME = json.dumps({"schema": 1, "run": {"when": "2026-01-01"}, "measurements": [], "rulings": [
    {"case": "c", "quantity": "q", "outcome": "fine", "reason": "", **dict.fromkeys(
        ("effect", "low", "high", "confidence", "tolerance"), 1.0)}]})  # fmt: skip
NO_NUMBER = '{"schema": 1, "measurements": [{"values": [NaN]}]}'
WORSE, BETTER = "regress against baseline", "improve against baseline"
STALE, DRIFT = "stale against baseline", "regress against anchor"
FORGOTTEN = "stale against missing baseline"

PLANTED: tuple[Planted, ...] = (
    Planted("figure-changed", "a baseline is made worse by hand", "signature", tampered(edit(1, new=[9000.0]))),
    Planted("reason-changed", "somebody else's words", "signature", tampered(edit(2, reason="as it has always been"))),
    Planted("anchor-moved", "the anchor's mark is set by hand", "signature", tampered(edit(2, anchor=True))),
    Planted("signer-changed", "another name under it", "signer", tampered(edit(1, signer="bob"))),
    Planted("nan-in-it", "an old figure that is no number", "form",
            tampered(rearranged(lambda s: [*s[:-1], s[-1].replace('"old":null', '"old":[NaN]')]))),
    Planted("list-for-text", "a list where the case's name belongs", "form", tampered(edit(3, sign=True, case=["x"]))),
    Planted("list-for-chain", "a list where a digest belongs", "form", tampered(edit(3, sign=True, previous=[1]))),
    Planted("nobody", "no name at all", "form", tampered(edit(3, sign=True, signer={}))),
    Planted("deep", "brackets without end", "form", tampered(rearranged(lambda s: [*s, "[" * 100_000]))),
    Planted("crlf", "an editor's line ends", "form", tampered(rearranged(lambda s: [line + "\r" for line in s]))),
    Planted("line-removed", "the second entry is gone", "chain", tampered(rearranged(lambda s: [*s[:2], *s[3:]]))),
    Planted("lines-swapped", "in another order", "chain", tampered(rearranged(lambda s: [*s[:2], s[3], s[2]]))),
    Planted("line-twice", "a good entry once more", "duplicate", tampered(rearranged(lambda s: [*s, s[-1]]))),
    Planted("old-one-again", "an old entry at the end, to have its figure back", "duplicate",
            tampered(rearranged(lambda s: [*s, s[1]]))),
    Planted("tail-removed", "the last entry is gone, and a history remembers it", "removed",
            tampered(rearranged(lambda s: s[:-1]), last_line)),
    Planted("cut-off", "half of the last line", "form", tampered(lambda made: made.write(made.lines, ""))),
    Planted("no-header", "the header is gone", "form", tampered(rearranged(lambda s: s[1:]))),
    Planted("blanks", "the same entry, written otherwise", "form",
            tampered(rearranged(lambda s: [*s[:-1], s[-1].replace(":", ": ", 1)]))),
    Planted("twice-the-field", "two figures in one entry: readers differ in which they take", "form",
            tampered(rearranged(lambda s: [*s[:-1], s[-1].replace('"new":', '"new":[1.0],"new":')]))),
    Planted("no-figure", "an entry without a figure", "form", tampered(edit(3, sign=True, new=[]))),
    Planted("stranger", "signed by a key that nobody listed", "signer", tampered(by_stranger("eve"))),
    Planted("impostor", "signed by a stranger's key under a known name", "signature", tampered(by_stranger("ann"))),
    Planted("old-figure", "the old figure is made up, by one who may sign", "old figure",
            tampered(edit(3, sign=True, old=[99.0]))),
    Planted("no-reason", "no reason, by one who may sign", "reason", tampered(edit(3, sign=True, reason=""))),
    Planted("one-more", "one instruction more", WORSE, held(count(8777.0))),
    Planted("one-fewer", "one instruction fewer: the baseline is too high now", BETTER, held(count(8775.0))),
    Planted("other-versions", "another Triton, the same count", STALE, held(count(8776.0, place=ELSEWHERE))),
    Planted("forgotten", "a case without a baseline, where others have one", FORGOTTEN, held(count(1.0, "new"))),
    Planted("creeping", "six accepted steps of 2 %: 12.6 % worse than the anchor", DRIFT,
            held(creeping()[-1], accepted=creeping())),
    Planted("upgraded", "12 % more instructions, with another Triton: no baseline says so, the anchor does", DRIFT,
            held(count(9920.0, place=ELSEWHERE))),
    Planted("upgraded-at-once", "the same where the anchor is the only entry", DRIFT,
            held(count(112.0, "other", ELSEWHERE))),
    Planted("slower", "a kernel takes 6 % longer", WORSE, held(times(1.06e-3), accepted=[times(1e-3)])),
    Planted("fewer-tokens", "6 % fewer tokens per second", WORSE,
            held(times(94.0, quantity=TOKEN_RATE), accepted=[times(100.0, quantity=TOKEN_RATE)])),
    Planted("readable-key", "a private key that others can read", "refused", key_that_others_read),
    Planted("other-database", "a SQLite file of another program", "refused", refused(sql("PRAGMA application_id = 7"))),
    Planted("newer-schema", "a history of a later waveproof", "refused", refused(sql("PRAGMA user_version = 2"))),
    Planted("damaged", "a page of noise in it", "refused", refused(overwritten)),
    Planted("truncated", "half of it", "refused", refused(lambda path: path.write_bytes(path.read_bytes()[:9000]))),
    Planted("no-database", "a text", "refused", refused(lambda path: path.write_text("runs: none, " * 600))),
    Planted("same-id", "another figure under a known run's id", "refused", same_id_other_figures),
    Planted("no-run", "a JSON file that is none", "refused", no_run('{"schema": 1}')),
    Planted("no-outcome", "a ruling that no gate gives", "refused", no_run(NO_OUTCOME)),
    Planted("nan", "a figure that is no number", "refused", no_run(NO_NUMBER)),
    Planted("step-up", "5 % slower from the 30th of 50 nights on", "worse", changes(stepped(50, 30, 0.05))),
    Planted("fewer-from-then", "5 % fewer tokens from the 30th of 50 nights on", "worse",
            changes(stepped(50, 30, -0.05), TOKEN_RATE)),
    Planted("late-step", "5 % slower for six nights", "worse", changes(stepped(50, 44, 0.05))),
    Planted("one-count", "one instruction more on one night", "worse",
            changes([0.0, 0.0, 1e-4, 1e-4], INSTRUCTIONS)),
    Planted("unsigned-taken", "signatures are not looked at", "found out",
            lenient(ledger, "_unsigned", lambda *_: [], all_found)),
    Planted("chain-not-compared", "every line has the same hash", "found out",
            lenient(ledger, "sha256_of", lambda _: "0" * 64, all_found)),
    Planted("unconfirmed", "a change is what PELT proposes, ranks are not asked", "found out",
            lenient(change_points, "mann_whitney", lambda *_: 0.0, no_false_alarm)),
    Planted("too-fast-is-fine", "only what is worse fails a test", "found out",
            lenient(night, "fails", lambda ruling, _: ruling.outcome == "regress", fails_both_ways)),
    Planted("anchor-follows", "the anchor is the last entry: steps never add up", "found out",
            lenient(ledger.Ledger, "anchor", ledger.Ledger.baseline,
                    lambda: DRIFT in held(creeping()[-1], accepted=creeping())())),
    Planted("any-database", "any SQLite file is opened", "found out",
            lenient(history, "_inspect", lambda _: None, lambda: bool(refused(sql("PRAGMA application_id = 7"))()))),
    Planted("whole", "three entries, two of one case", "", tampered(lambda _: None, last_line)),
    Planted("two-keys", "a signer who has a new key beside the old one", "",
            tampered(lambda made: made.signers.write_text(f"{key_of('ann')[1]}\nann {key_of('eve')[1][4:]}\n"))),
    Planted("unchanged", "the count of the last entry, not of the first", "", held(count(8776.0))),
    Planted("new-anchor", "steps that were signed, and an anchor after them", "",
            held(count(8776.0), accepted=[count(8776.0)])),
    Planted("as-noisy-as-ever", "another sample of the same times", "", held(times(1.001e-3), accepted=[times(1e-3)])),
    Planted("steady", "50 nights that differ by 1 %", "", changes(noise(50))),
    Planted("odd-night", "one night at five times the others", "", changes(odd_night())),
    Planted("too-short", "5 % slower in the third of four nights: nobody can tell yet", "",
            changes(stepped(4, 2, 0.05))),
)  # fmt: skip
