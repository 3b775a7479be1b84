"""Known failures that do not turn a run red, from one file: ``waivers.toml`` in the root of the repository.

.. code-block:: toml

    [[waiver]]
    id = "conformance/test_renorm.py::test_top_k_edges[top_k_renorm_prob-sglang-interpret-k=-1]"
    reason = "k <= 0 keeps one token instead of all of them."
    link = "sgl-project/sglang#12345"
    expires = 2027-06-30
    arch = "gfx942"
    versions = { sglang = "<=0.5.23" }

**Patterns.** ``*`` stands for any run of characters, of any length; every other character stands for itself, so that a
record id can be pasted as it is: ``[`` opens no character class and ``?`` is a question mark, unlike in ``fnmatch``.
A pattern covers the whole id.

**One waiver a case.** There is no precedence: where two waivers match one case that is an error that names both.
A waiver that has expired, or whose ``versions`` do not hold here, matches nothing.

**Waivers do not rot.** One that matches a passing case turns it red, and so does one whose cases are gone
(:func:`stale`) or whose date has passed (:func:`expired`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from waveproof.reports.verdicts import Failure, Record, Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "waivers.toml"

_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#[0-9]+")
_ARCH = re.compile(r"gfx[0-9a-f]{3,4}|sm_[0-9]{2,3}a?")
_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*waiver[ \t]*\]\]", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a waiver."""

    key: str
    value: object
    rule: str
    where: str = ""
    """File, line and number of the entry."""

    def __str__(self) -> str:
        return f"{self.where + ': ' if self.where else ''}{self.key} = {self.value!r}: {self.rule}"


class BadWaiver(ValueError):
    """Waivers that cannot be used; holds every problem found, each with its value and the rule that it breaks."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


@dataclass(frozen=True)
class Waiver:
    """One known failure.

    Raises:
        BadWaiver: with every problem of the entry.
    """

    id: str
    """Pattern over record ids in which only ``*`` is special."""
    reason: str
    """Why the failure is tolerated, at least a sentence."""
    expires: date
    """Last day on which it is valid."""
    link: str = ""
    """An https URL or ``owner/repo#number``."""
    arch: str = ""
    """The only architecture that it is valid on; empty for any."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Distribution to version specifier (PEP 440); it is valid only where all of them hold."""

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise BadWaiver(*problems)

    def covers(self, record_id: str, arch: str, versions: Mapping[str, str]) -> bool:
        """Whether it speaks of that case on that architecture with those installed versions, whatever the date."""
        return self.arch in ("", _plain(arch)) and _matches(self.id, record_id) and self.applies_to(versions)

    def applies_to(self, versions: Mapping[str, str]) -> bool:
        """Whether its version specifiers hold; a version that is missing or not PEP 440 satisfies none."""
        installed = {canonicalize_name(name): version for name, version in versions.items()}
        return all(
            _satisfies(installed.get(canonicalize_name(name), ""), specifier)
            for name, specifier in self.versions.items()
        )

    @property
    def why(self) -> str:
        """Reason and link, as they stand in a record."""
        return f"{self.reason} ({self.link})" if self.link else self.reason


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """Read the waiver file; a file that does not exist holds no waivers.

    Raises:
        BadWaiver: with every problem of every entry, each with file, line and number of its entry.
    """
    if not path.exists():
        return ()
    try:
        # utf-8-sig: editors on Windows put a mark at the front that TOML does not allow.
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadWaiver(Problem("file", path.name, f"is not TOML: {error}")) from None
    problems = [
        Problem(key, value, "only [[waiver]] entries stand in this file", path.name)
        for key, value in document.items()
        if key != "waiver"
    ]
    entries = document.get("waiver", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(Problem("waiver", entries, "entries are written [[waiver]], with two brackets", path.name))
        entries = []
    positions = _positions(path.name, text, len(entries))
    waivers: dict[tuple[str, str, str], str] = {}
    found = []
    for where, entry in zip(positions, entries, strict=True):
        try:
            waiver = _waiver(entry)
        except BadWaiver as error:
            problems += [Problem(item.key, item.value, item.rule, where) for item in error.problems]
            continue
        same = (waiver.id, waiver.arch, repr(sorted(waiver.versions.items())))
        if same in waivers:
            problems.append(Problem("id", waiver.id, f"is waived twice, first at {waivers[same]}", where))
        waivers.setdefault(same, where)
        found.append(waiver)
    if problems:
        raise BadWaiver(*problems)
    return tuple(found)


def waiver_for(
    waivers: Iterable[Waiver], record_id: str, arch: str, versions: Mapping[str, str], today: date
) -> Waiver | None:
    """The waiver of a case, if it has one that is still valid.

    Raises:
        BadWaiver: more than one matches; names them.
    """
    matching = [waiver for waiver in waivers if today <= waiver.expires and waiver.covers(record_id, arch, versions)]
    if len(matching) > 1:
        rule = f"must be matched by one waiver, is matched by {len(matching)}: "
        raise BadWaiver(Problem("case", record_id, rule + ", ".join(repr(waiver.id) for waiver in matching)))
    return matching[0] if matching else None


def waive(record: Record, waivers: Iterable[Waiver], today: date) -> Record:
    """The record with its waiver applied: red becomes waived, and a pass becomes red, for its waiver must go.

    Raises:
        BadWaiver: more than one waiver matches.
    """
    waiver = waiver_for(waivers, record.id, record.arch, record.versions, today)
    if waiver is None or not (record.verdict.red or record.verdict is Verdict.PASS):
        return record
    changes: dict[str, Any] = {"verdict": Verdict.WAIVED, "reason": waiver.why, "waiver": waiver.id}
    if record.verdict is Verdict.PASS:
        failure = Failure(
            rule="waiver still needed",
            message=f"passes although it is waived: remove the waiver {waiver.id!r}, or narrow it to what still fails",
        )
        changes = {"verdict": Verdict.FAIL, "failure": failure, "waiver": waiver.id}
    return Record.model_validate({**dict(record), **changes})


def expired(waivers: Iterable[Waiver], today: date) -> tuple[Waiver, ...]:
    """The waivers whose last day has passed."""
    return tuple(waiver for waiver in waivers if waiver.expires < today)


def stale(
    waivers: Iterable[Waiver],
    records: Sequence[Record],
    today: date,
    executed: Collection[str],
    deselected: Collection[str] = (),
) -> tuple[Waiver, ...]:
    """The waivers that speak of cases that no longer exist.

    A run sees only a part of the suite, so a waiver is judged only where the run could have met it: a case of the same
    file and the same subject ran (and, where it names them, on its architecture and versions), it matches no case that
    ran and none that was left out. A pattern that names no subject is not judged by cases that have one. Waivers that
    have expired are :func:`expired`'s.

    Args:
        waivers: all of the file's.
        records: what the run wrote.
        today: the day of the run.
        executed: ids of the cases that ran; hand over none where the command line named single cases, since then
            nothing can be said of their neighbours.
        deselected: ids of the cases that ``-k``, ``-m`` or ``--lf`` left out.
    """
    ran = [record for record in records if record.id in executed and record.verdict is not Verdict.UNAVAILABLE]
    return tuple(
        waiver
        for waiver in waivers
        if today <= waiver.expires
        and not any(waiver.covers(record.id, record.arch, record.versions) for record in ran)
        and not any(_matches(waiver.id, left_out) for left_out in deselected)
        and any(_could_have_met(waiver, record) for record in ran)
    )


def _waiver(entry: Mapping[str, Any]) -> Waiver:
    known = [item.name for item in fields(Waiver)]
    problems = [
        Problem(key, value, f"unknown key; known: {', '.join(known)}")
        for key, value in entry.items()
        if key not in known
    ]
    problems += [Problem(key, None, "is required") for key in ("id", "reason", "expires") if key not in entry]
    given = {key: value for key, value in entry.items() if key in known}
    try:
        # Stand-ins let the constructor judge what is there, so that one reading reports everything.
        stand_ins = {"id": "::x", "reason": "None was given in the file.", "expires": date.max}
        waiver = Waiver(**{**stand_ins, **given})
    except BadWaiver as error:
        raise BadWaiver(*problems, *error.problems) from None
    if problems:
        raise BadWaiver(*problems)
    return waiver


def _problems(waiver: Waiver) -> Iterable[Problem]:
    texts = ("id", "reason", "link", "arch")
    wrong = [key for key in texts if not isinstance(getattr(waiver, key), str)]
    yield from (Problem(key, getattr(waiver, key), "must be text") for key in wrong)
    if "id" not in wrong and not re.search(r"(::|\[)[^\n]*?[^\s*\[\]:]", waiver.id):
        yield Problem("id", waiver.id, "must name a test or a subject after '::' or '[', not a whole file")
    if "reason" not in wrong and (len(waiver.reason.split()) < 4 or len(waiver.reason.strip()) < 20):
        yield Problem("reason", waiver.reason, "must be a sentence: at least 4 words and 20 characters")
    if "link" not in wrong and waiver.link and not (_ISSUE.fullmatch(waiver.link) or _is_https(waiver.link)):
        yield Problem("link", waiver.link, "must be an https URL or owner/repo#number")
    if "arch" not in wrong and waiver.arch and not _ARCH.fullmatch(waiver.arch):
        yield Problem("arch", waiver.arch, "must be an architecture such as gfx942 or gfx950")
    # A datetime is a date to isinstance, but says less: which day it ends depends on a time zone.
    if not isinstance(waiver.expires, date) or isinstance(waiver.expires, datetime):
        yield Problem("expires", waiver.expires, "must be a TOML date without quotes or time, such as 2027-06-30")
    if not isinstance(waiver.versions, Mapping):
        yield Problem("versions", waiver.versions, 'must be a table such as { sglang = "<=0.5.23" }')
        return
    for name, specifier in waiver.versions.items():
        if not _is_specifier(specifier):
            yield Problem(f"versions.{name}", specifier, "must be a version specifier such as '<=0.5.23'")


def _is_https(link: str) -> bool:
    try:
        parts = urlsplit(link)
    except ValueError:
        return False
    return parts.scheme == "https" and "." in parts.netloc and not re.search(r"\s", link)


def _is_specifier(text: object) -> bool:
    if not isinstance(text, str) or not text.strip():
        return False
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _satisfies(version: str, specifier: str) -> bool:
    try:
        # Nightly wheels are what is under test as often as releases.
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _plain(arch: str) -> str:
    """``gfx942`` from ``gfx942:sramecc+:xnack-``, as the HIP runtime reports it."""
    return arch.partition(":")[0]


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern covers the text; greedy, so linear in the text however many stars there are."""
    if "*" not in pattern:
        return pattern == text
    first, *between, last = pattern.split("*")
    position, end = len(first), len(text) - len(last)
    if position > end or not (text.startswith(first) and text.endswith(last)):
        return False
    for part in between:
        position = text.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def _positions(name: str, text: str, count: int) -> list[str]:
    """Where each entry stands; without lines where the headers cannot be told from text (say, in a long string)."""
    lines = [text.count("\n", 0, match.start()) + 1 for match in _HEADER.finditer(text)]
    if len(lines) != count:
        return [f"{name}, waiver {number}" for number in range(1, count + 1)]
    return [f"{name}:{line}, waiver {number}" for number, line in enumerate(lines, 1)]


def _could_have_met(waiver: Waiver, record: Record) -> bool:
    """Whether some case of the record's file and subject, under whatever test name and parameters, would match."""
    if waiver.arch not in ("", _plain(record.arch)) or not waiver.applies_to(record.versions):
        return False
    file, _, rest = record.id.partition("::")
    positions = _read(waiver.id, {0}, f"{file}::")
    positions = {
        end
        for start in positions
        for end in range(start, len(waiver.id) + 1)
        if "[" not in waiver.id[start:end]  # test names hold none, so the next one opens the subject
    }
    bracket, parameters = rest.partition("[")[1:]
    if not bracket:
        return len(waiver.id) in positions
    if "[" not in waiver.id:  # names a test on whatever subject, so no subject can be missed
        return False
    if not record.operator:  # parametrised, but not over subjects
        return bool(_read(waiver.id, positions, "["))
    subject = f"{record.operator}-{record.provider}-{record.runtime}"
    if not parameters.startswith(subject):
        return False
    if record.arch and parameters.startswith(f"{subject}-{record.arch}"):
        subject = f"{subject}-{record.arch}"
    reached = (position for end in "-]" for position in _read(waiver.id, positions, f"[{subject}{end}"))
    # What is left stands for parameters; were there a bracket in it, a star would have taken the whole subject.
    return any("[" not in waiver.id[position:] for position in reached)


def _read(pattern: str, positions: set[int], text: str) -> set[int]:
    """Positions in the pattern that can be reached from the given ones by reading the text."""
    for character in text:
        reached = set()
        for start in positions:
            position = start
            while position < len(pattern) and pattern[position] == "*":
                reached.add(position)
                position += 1
            if position < len(pattern) and pattern[position] == character:
                reached.add(position + 1)
        positions = reached
    return positions
