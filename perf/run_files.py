"""Runs as files: what a run of the performance tests writes, and other files that measurements come in.

Read are the results of ``pytest perf --perf-results FILE.json``, the bare form of :mod:`waveproof.perf.records`, what
pytest-benchmark writes with ``--benchmark-json``, and the export of a history. A run's id is the digest of the document
that it came in, so that the same file is the same run wherever and whenever it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from waveproof.perf.records import GRAVITY, SECONDS, BadMeasurement, Measurement, Place, Ruling, from_json, to_json


class BadRun(ValueError):
    """A file that holds no run; the message says where it stops being one."""


@dataclass(frozen=True)
class Run:
    """What was measured in one session."""

    id: str
    """16 hexadecimal digits."""
    when: datetime
    """UTC."""
    measurements: tuple[Measurement, ...]
    rulings: tuple[Ruling, ...] = ()
    commit: str = ""
    """Of the checkout that was measured."""
    ledger_head: str = ""
    """SHA-256 of the ledger's last line then."""
    source: str = "waveproof"
    """Whose file it came in: ``waveproof`` or ``pytest-benchmark``."""


def results_text(
    measurements: Sequence[Measurement],
    rulings: Sequence[Ruling],
    when: datetime,
    commit: str = "",
    ledger_head: str = "",
    **more: Any,
) -> str:
    """The document of ``--perf-results``; :func:`waveproof.perf.records.from_json` reads its measurements too.

    Args:
        measurements: in the order in which they were taken.
        rulings: of the gate.
        when: the session's start, with its time zone.
        commit: of the checkout.
        ledger_head: SHA-256 of the ledger's last line.
        more: what else a reader of the file may want; no part of the run.
    """
    about = {"when": _iso(when), "commit": commit, "ledger_head": ledger_head}
    bare = json.loads(to_json(measurements))
    return json.dumps({**bare, "run": about, "rulings": [ruling_fields(one) for one in rulings], **more}, indent=1)


def read_runs(path: Path, when: datetime | None = None, commit: str = "") -> tuple[Run, ...]:
    """The runs of a file: one, or those of an export.

    Args:
        path: the file.
        when: of a file that does not say when it was measured; the file's own time if not given.
        commit: of a file that does not say.

    Raises:
        BadRun: it is none of the forms that are read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRun(f"{path.name}: no JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRun(f"{path.name}: no JSON object")
    written = when or datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    try:
        return runs_of(document, written, commit)
    except BadRun as error:
        raise BadRun(f"{path.name}: {error}") from None


def runs_of(document: Mapping[str, Any], when: datetime | None = None, commit: str = "") -> tuple[Run, ...]:
    """The runs of a document, as :func:`read_runs`.

    Raises:
        BadRun: it is none of the forms that are read, or states no time and none is given.
    """
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
    try:
        if "runs" in document:
            return from_export(document)
        if "benchmarks" in document:
            return (_of_pytest_benchmark(document, digest),)
        return (_of_results(document, digest, when, commit),)
    except BadRun:
        raise
    except BadMeasurement as error:
        raise BadRun(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRun(f"no run: {error!r}") from None


def export_text(runs: Sequence[Run]) -> str:
    """All of these runs in one document that :func:`read_runs` reads."""
    return json.dumps({"schema": 1, "runs": [_run_fields(run) for run in runs]}, indent=1)


def from_export(document: Mapping[str, Any]) -> tuple[Run, ...]:
    """The runs of an export.

    Raises:
        BadRun: of another schema.
    """
    if document.get("schema") != 1:
        raise BadRun(f"schema {document.get('schema')!r}: exports of schema 1 are read")
    return tuple(
        Run(
            str(one["id"]), _time(one["when"]), _measurements(one), tuple(map(ruling_of, one["rulings"])),
            str(one["commit"]), str(one["ledger_head"]), str(one["source"]),
        )
        for one in document["runs"]
    )  # fmt: skip


def ruling_fields(ruling: Ruling) -> dict[str, Any]:
    """For JSON, which has no infinity and no NaN: they become strings."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(ruling).items()
    }


def ruling_of(fields: Mapping[str, Any]) -> Ruling:
    """What :func:`ruling_fields` wrote.

    Raises:
        BadRun: it says what no gate says.
    """
    numbers = {name: float(fields[name]) for name in ("effect", "low", "high", "confidence", "tolerance")}
    if fields["outcome"] not in GRAVITY or any(map(math.isnan, numbers.values())):
        told = f"ruling on {fields['case']}: outcome {fields['outcome']!r}, effect {fields['effect']}"
        raise BadRun(f"{told}: an outcome is {', '.join(GRAVITY)}, and no figure is NaN")
    return Ruling(**{**fields, **numbers})


def _run_fields(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "when": _iso(run.when),
        "commit": run.commit,
        "ledger_head": run.ledger_head,
        "source": run.source,
        "measurements": json.loads(to_json(run.measurements))["measurements"],
        "rulings": [ruling_fields(one) for one in run.rulings],
    }


def _of_results(document: Mapping[str, Any], digest: str, when: datetime | None, commit: str) -> Run:
    about = document.get("run", {})
    stated = _time(about["when"]) if "when" in about else when
    if stated is None:
        raise BadRun("it does not say when it was measured")
    return Run(
        digest,
        stated,
        _measurements(document),
        tuple(map(ruling_of, document.get("rulings", ()))),
        str(about.get("commit", "") or commit),
        str(about.get("ledger_head", "")),
    )


def _of_pytest_benchmark(document: Mapping[str, Any], digest: str) -> Run:
    """Wall seconds of each round on the CPU; a saved file without them has the median alone."""
    machine = document.get("machine_info", {})
    processor = machine.get("cpu", {}).get("brand_raw") or machine.get("processor") or "unknown"
    versions = {"python": str(machine["python_version"])} if "python_version" in machine else {}
    place = Place("cpu", str(machine.get("machine", "")), str(processor), versions)
    measurements = []
    for benchmark in document["benchmarks"]:
        stats = benchmark["stats"]
        values, notes = stats.get("data") or [stats["median"]], () if stats.get("data") else ("only the median",)
        # Only the name of the file and of the test: a node id has no path of the checkout.
        measurements.append(Measurement(str(benchmark["fullname"]), SECONDS, tuple(map(float, values)), place, notes))
    commit = str(document.get("commit_info", {}).get("id") or "")[:12]
    return Run(digest, _time(document["datetime"]), tuple(measurements), (), commit, "", "pytest-benchmark")


def _measurements(document: Mapping[str, Any]) -> tuple[Measurement, ...]:
    return from_json(json.dumps({"schema": document.get("schema", 1), "measurements": document["measurements"]}))


def _iso(when: datetime) -> str:
    return when.astimezone(timezone.utc).isoformat()


def _time(text: str) -> datetime:
    """A time; one without a zone is UTC."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return when.astimezone(timezone.utc) if when.tzinfo else when.replace(tzinfo=timezone.utc)
