"""The only place where a baseline lives: an append-only, chained, signed file of figures that somebody answered for.

``perf/baselines/ledger.jsonl`` has a header and then one JSON object a line. An entry says of one key (case, quantity,
place) which figures were the baseline, which are from now on, why, who says so and when. It holds the SHA-256 of the
line before it and an Ed25519 signature (RFC 8032) of itself by a key in ``perf/baselines/signers``. So no line can be
changed, dropped from the middle, moved or copied without :func:`verify` naming it. Dropped from the end they leave a
shorter ledger that is whole; who remembers a line that was there (:mod:`waveproof.perf.history` does) passes its
SHA-256 as ``remembered``.

Versions are part of the key where an entry of the same versions exists. Where none does, the last entry of the key
stands in, and what is held against it is stale. Who may sign is decided by who may change ``signers``: review that
file like code. Branches that both append conflict in the chain: take one side and accept the other's figures anew.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waveproof.perf.records import BadMeasurement, Measurement, Place, Quantity, version_changes
from waveproof.perf.signers import BadSigner, load_private_key, load_signers, public_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    Signers = Mapping[str, Sequence[Ed25519PublicKey]]

BASELINES = Path(__file__).with_name("baselines")
LEDGER = BASELINES / "ledger.jsonl"
SIGNERS = BASELINES / "signers"

HEADER = '{"ledger":"waveproof performance baselines","schema":1}'
DOMAIN = b"waveproof performance ledger, entry, schema 1\0"
"""Signed before each entry, so that a signature made for anything else is none here."""

SIGNERS_SHOWN = f"perf/{BASELINES.name}/{SIGNERS.name}"
"""As a person finds it in a checkout."""

FEWEST_WORDS = 3
"""Of a reason."""

FIELDS = ("anchor", "case", "date", "new", "old", "place", "previous", "quantity", "reason", "signature", "signer")


class BadLedger(ValueError):
    """A ledger that cannot be trusted; holds every problem, each with its line."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{name}:{one.line}: {one.what}" for one in problems))


class NotAccepted(ValueError):
    """Measurements that cannot become baselines; the message holds the case and the rule."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one line."""

    line: int
    rule: str
    """``form``, ``chain``, ``duplicate``, ``signer``, ``signature``, ``old figure``, ``reason`` or ``removed``."""
    what: str


@dataclass(frozen=True)
class Entry:
    """One line."""

    line: int
    measurement: Measurement
    """Case, quantity and place, and the figures that are the baseline from here on."""
    old: tuple[float, ...] | None
    """Figures of the baseline that it replaces; None for the first of its key."""
    reason: str
    signer: str
    date: date
    anchor: bool
    """Whether cumulative drift is counted from here."""
    sha256: str
    """Of the line."""

    def changed_versions(self, place: Place) -> tuple[str, ...]:
        """What is installed otherwise at a place than where the baseline was taken; empty where versions agree."""
        return version_changes(self.measurement.place.versions, place.versions)


@dataclass(frozen=True)
class Ledger:
    """Entries of a ledger that was verified, in their order."""

    entries: tuple[Entry, ...]
    head: str
    """SHA-256 of the last line."""

    @classmethod
    def load(cls, path: Path = LEDGER, signers: Path | None = None, remembered: str = "") -> Ledger:
        """Read and verify; a file that does not exist is an empty ledger. Arguments as in :func:`verify`.

        Raises:
            BadLedger: with every problem.
            BadSigner: the file of signers cannot be used.
        """
        chain, problems = _read(path, load_signers(signers or signers_beside(path)), remembered)
        if problems:
            raise BadLedger(path.name, problems)
        return cls(tuple(chain.entries), chain.head)

    def baseline(self, measured: Measurement) -> Entry | None:
        """The last entry of its key with the same versions; where there is none, the last entry of its key."""
        return _standing([entry for entry in self.entries if entry.measurement.key == measured.key], measured)

    def anchor(self, measured: Measurement) -> Entry | None:
        """The last entry of its key that is marked as one; where none is, the first of its key. Of any versions."""
        entries = [entry for entry in self.entries if entry.measurement.key == measured.key]
        marked = [entry for entry in entries if entry.anchor]
        return marked[-1] if marked else next(iter(entries), None)

    def covers(self, place: Place) -> bool:
        """Whether baselines were taken at a place with the versions that are there: a case without one is missed.

        Entries may name fewer or other distributions; those that both name must agree, and there must be one.
        """
        return any(
            entry.measurement.place.without_versions() == place.without_versions()
            and (known := entry.measurement.place.versions.keys() & place.versions.keys())
            and all(entry.measurement.place.versions[name] == place.versions[name] for name in known)
            for entry in self.entries
        )


def _standing(of_key: Sequence[Entry], measured: Measurement) -> Entry | None:
    same = [entry for entry in of_key if not entry.changed_versions(measured.place)]
    return next(reversed(same or of_key), None)


def signers_beside(ledger: Path) -> Path:
    """The file of who may sign a ledger, where no other is named."""
    return ledger.with_name(SIGNERS.name)


def verify(path: Path = LEDGER, signers: Path | None = None, remembered: str = "") -> tuple[Problem, ...]:
    """Everything that is wrong with a ledger, in the order of lines.

    Args:
        path: the ledger.
        signers: who may sign; the file beside the ledger if not given.
        remembered: SHA-256 of a line that must be there; empty for none.

    Raises:
        BadSigner: the file of signers cannot be used.
    """
    return tuple(_read(path, load_signers(signers or signers_beside(path)), remembered)[1])


def accept(
    measurements: Iterable[Measurement],
    reason: str,
    key_file: Path,
    *,
    path: Path = LEDGER,
    signers: Path | None = None,
    anchor: bool = False,
    password: bytes | None = None,
    today: date | None = None,
) -> tuple[Entry, ...]:
    """Append a signed entry for each measurement that its baseline does not already state, all or none.

    Writers wait for each other. What stands in the ledger stays, byte for byte.

    Args:
        measurements: one a key.
        reason: why these figures are right, in a few words.
        key_file: an OpenSSH private key, Ed25519, which others cannot read.
        path: the ledger; made where it does not exist.
        signers: must hold the public half of the key; the file beside the ledger if not given.
        anchor: count cumulative drift from these figures on; unchanged figures are then entered too.
        password: of the key.
        today: date of the entries, UTC's if not given.

    Raises:
        NotAccepted: no reason, nothing given, or two measurements of one key.
        BadSigner: the key cannot be used or is not among the signers.
        BadLedger: the ledger is not whole; nothing is appended to one that is not.
    """
    from filelock import FileLock

    measurements = tuple(measurements)
    reason = " ".join(reason.split())
    if len(reason.split()) < FEWEST_WORDS:
        raise NotAccepted(f"reason {reason!r}: a reason has at least {FEWEST_WORDS} words")
    if not measurements:
        raise NotAccepted("nothing to accept: no measurement was given")
    # What has the same key and the same versions is the same baseline.
    given = Counter((one.key, tuple(sorted(one.place.versions.items()))) for one in measurements)
    for ((case, quantity, _), _), times in given.items():
        if times > 1:
            raise NotAccepted(f"{case}: {quantity} is given {times} times: which is meant?")
    private = load_private_key(key_file, password)
    signers = signers or signers_beside(path)
    known = load_signers(signers)
    public = private.public_key().public_bytes_raw()
    name = next((name for name, keys in known.items() if public in [one.public_bytes_raw() for one in keys]), None)
    if name is None:
        raise BadSigner(
            f"{key_file.name}: its public half is not in {signers.name}: add the line {public_line(private)}"
        )
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        chain, problems = _read(path, known, "")
        if problems:
            raise BadLedger(path.name, problems)
        stood = len(chain.entries)
        lines = []
        for measured in measurements:
            old = chain.standing(measured)
            if not anchor and old is not None and _states(old, measured):
                continue
            fields = _fields(measured, old, reason, name, today or datetime.now(timezone.utc).date(), anchor)
            lines.append(_sealed({**fields, "previous": chain.head}, private))
            chain.add(lines[-1], known, {})
        if lines:
            _append(path, lines)
    return tuple(chain.entries[stood:])


def sha256_of(line: str) -> str:
    """Of a line without its end."""
    return hashlib.sha256(line.encode()).hexdigest()


def canonical(fields: Mapping[str, Any]) -> str:
    """The one way to write an entry: keys sorted, no blanks, ASCII."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _fields(
    measured: Measurement, old: Entry | None, reason: str, signer: str, day: date, anchor: bool
) -> dict[str, Any]:
    return {
        "anchor": anchor,
        "case": measured.case,
        "date": day.isoformat(),
        "new": list(measured.values),
        "old": None if old is None else list(old.measurement.values),
        "place": asdict(replace(measured.place, versions=dict(measured.place.versions))),
        "quantity": asdict(measured.quantity),
        "reason": reason,
        "signer": signer,
    }


def _sealed(fields: Mapping[str, Any], private: Ed25519PrivateKey) -> str:
    signature = private.sign(DOMAIN + canonical(fields).encode())
    return canonical({**fields, "signature": base64.b64encode(signature).decode()})


def _append(path: Path, lines: Sequence[str]) -> None:
    """By a copy that takes the file's place, so that no reader and no power cut ever sees half a line."""
    known = path.read_bytes() if path.exists() else f"{HEADER}\n".encode()
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as stream:
        stream.write(known + "".join(f"{line}\n" for line in lines).encode())
        stream.flush()
        os.fsync(stream.fileno())
    if path.exists():
        shutil.copymode(path, partial)
    os.replace(partial, path)


@dataclass
class _Chain:
    """Entries as they are read or written, one after the other."""

    head: str
    lines: int = 1
    entries: list[Entry] = field(default_factory=list)
    by_key: dict[object, list[Entry]] = field(default_factory=dict)

    def standing(self, measured: Measurement) -> Entry | None:
        """What is the baseline so far."""
        return _standing(self.by_key.get(measured.key, ()), measured)

    def add(self, line: str, signers: Signers, hashes: Mapping[str, int]) -> list[Problem]:
        """Take the next line, and say what is wrong with it."""
        self.lines += 1
        previous, self.head = self.head, sha256_of(line)
        try:
            fields = json.loads(line)
            written = canonical(fields)
            entry = _entry(self.lines, line, fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return [Problem(self.lines, "form", f"no entry: {error}")]
        problems = []
        if written != line:
            problems.append(Problem(entry.line, "form", "not written as entries are: keys sorted, no blanks"))
        if fields["previous"] != previous:
            problems.append(_break(entry.line, line, fields["previous"], hashes))
        problems += _unsigned(entry.line, fields, signers)
        replaced = self.standing(entry.measurement)
        figures = None if replaced is None else replaced.measurement.values
        case = f"{entry.measurement.case}: {entry.measurement.quantity.name}"
        if entry.old != figures:
            told = f"{case}: the old figure is {_shown(entry.old)}, and the baseline before was {_shown(figures)}"
            problems.append(Problem(entry.line, "old figure", told))
        if len(entry.reason.split()) < FEWEST_WORDS:
            told = f"{case}: reason {entry.reason!r} has under {FEWEST_WORDS} words"
            problems.append(Problem(entry.line, "reason", told))
        self.entries.append(entry)
        self.by_key.setdefault(entry.measurement.key, []).append(entry)
        return problems


def _read(path: Path, signers: Signers, remembered: str) -> tuple[_Chain, list[Problem]]:
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else f"{HEADER}\n"
    *lines, rest = text.split("\n")
    header = lines[0] if lines else rest
    hashes = {sha256_of(line): number for number, line in reversed(list(enumerate(lines, 1)))}
    chain = _Chain(sha256_of(header))
    if "\r" in header:
        return chain, [Problem(1, "form", "lines end with CR LF: an editor or git (autocrlf) rewrote the file")]
    problems = [] if header == HEADER else [Problem(1, "form", f"the header is {HEADER}")]
    for line in lines[1:]:
        problems += chain.add(line, signers, hashes)
    if rest:
        problems.append(Problem(len(lines) + 1, "form", "the last line is cut off: it has no end"))
    if remembered and remembered not in hashes:
        what = f"the line with SHA-256 {remembered[:12]}... was here before and is gone"
        problems.append(Problem(len(lines), "removed", what))
    return chain, problems


def _entry(number: int, line: str, fields: Mapping[str, Any]) -> Entry:
    """What a line's fields state; raises whatever comes of fields that state nothing."""
    if sorted(fields) != list(FIELDS):
        raise BadMeasurement(f"an entry has the fields {', '.join(FIELDS)}")
    quantity, place = Quantity(**fields["quantity"]), Place(**fields["place"])
    texts = [fields[name] for name in ("case", "date", "previous", "reason", "signature", "signer")]
    texts += [quantity.name, quantity.unit, *place.without_versions(), *place.versions, *place.versions.values()]
    if strange := [text for text in texts if not isinstance(text, str)]:
        raise BadMeasurement(f"{strange[0]!r} is no text")
    flags = fields["anchor"], quantity.exact, quantity.higher_is_better
    if strange := [flag for flag in flags if not isinstance(flag, bool)]:
        raise BadMeasurement(f"{strange[0]!r} is neither true nor false")
    return Entry(
        number, Measurement(fields["case"], quantity, tuple(map(float, fields["new"])), place),
        None if fields["old"] is None else tuple(map(float, fields["old"])), fields["reason"], fields["signer"],
        date.fromisoformat(fields["date"]), fields["anchor"], sha256_of(line),
    )  # fmt: skip


def _states(entry: Entry, measured: Measurement) -> bool:
    """Whether the baseline says already what was measured."""
    return entry.measurement.values == measured.values and not entry.changed_versions(measured.place)


def _break(number: int, line: str, previous: str, hashes: Mapping[str, int]) -> Problem:
    """Which way the chain is broken before a line."""
    first = hashes.get(sha256_of(line), number)
    if first != number:
        return Problem(number, "duplicate", f"line {first} once more")
    if previous in hashes:
        return Problem(number, "chain", f"it was written after line {hashes[previous]}: moved, or something was put in")
    return Problem(number, "chain", "the line after which it was written was changed or removed")


def _unsigned(number: int, fields: Mapping[str, Any], signers: Signers) -> list[Problem]:
    """Whether nobody known has signed."""
    from cryptography.exceptions import InvalidSignature

    signer = fields["signer"]
    if signer not in signers:
        return [Problem(number, "signer", f"signer {signer!r} is not among the signers")]
    signed = DOMAIN + canonical({name: value for name, value in fields.items() if name != "signature"}).encode()
    try:
        signature = base64.b64decode(fields["signature"], validate=True)
    except ValueError:
        return [Problem(number, "signature", f"the signature of {signer} is no base64")]
    for public in signers[signer]:
        try:
            public.verify(signature, signed)
        except InvalidSignature:
            continue
        return []
    return [Problem(number, "signature", f"the signature is not one of {signer} under this line: it was changed")]


def _shown(figures: Sequence[float] | None) -> str:
    return "none" if figures is None else ", ".join(f"{figure:g}" for figure in figures)
