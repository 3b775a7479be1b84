"""Measures a running OpenAI-compatible server: concurrency sweep, cold prefill, mixed traffic.

    plan = sweep_plan(Target("http://localhost:30000", "kimi"), concurrencies=(1, 2, 4))
    result = run_plan(plan, Path("sweep"), find_aiperf())
    result.peak.statement, result.measurements()

A run has a folder: the plan, and a folder for each finished point with the compressed log of its requests. Figures are
taken from these logs each time, so that they can be taken again by whoever doubts them. A point appears by one rename
when it is finished; a run that was killed goes on with the points that are missing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from waveproof.golden.judges.acceptance import Acceptance
from waveproof.perf.records import SECONDS, TOKEN_RATE, Measurement, Place, Quantity
from waveproof.perf.serving_client import Aiperf, ClientFailed, send
from waveproof.perf.serving_figures import Peak, PointFigures, figures, peak
from waveproof.perf.serving_log import Request, read_log
from waveproof.perf.serving_plan import Plan, Point, differences, first_few, plan_from_json, plan_json
from waveproof.perf.serving_privacy import without_places, without_secrets
from waveproof.perf.serving_prompts import prompts_of
from waveproof.perf.serving_refusals import (
    SAME_SERVER,
    Failure,
    Refusal,
    failure,
    refusals,
    rejected,
    unwarmed,
    warnings,
)
from waveproof.perf.serving_server import ServerSilent, acceptance_so_far, ask_models, server_version

_PLAN, _POINTS, _FACTS, _LOG, _ATTEMPTS = "plan.json", "points", "point.json", "requests.jsonl.gz", "attempts.json"


class BadState(RuntimeError):
    """A run's folder does not fit what is asked; the message says what differs and what to do."""


@dataclass(frozen=True)
class Facts:
    """When and with what a point was measured, and what the server said of itself before and after."""

    started: str
    """ISO 8601, UTC."""
    attempt: int
    """How often it was begun before."""
    versions: Mapping[str, str]
    """Of ``aiperf``, and of the ``server``; empty where it does not tell."""
    models: tuple[tuple[str, ...], tuple[str, ...]]
    """Names, before and after."""
    sent: tuple[int, ...]
    """Tokens of each prompt, the warm-up's first."""
    acceptance: Acceptance
    """Of draft tokens while it ran, its warm-up included; empty where the server tells none."""


@dataclass(frozen=True)
class PointResult:
    """What came of a point."""

    point: Point
    facts: Facts
    requests: tuple[Request, ...]
    refusals: tuple[Refusal, ...]
    failure: Failure | None
    figures: PointFigures | None
    """None where refused."""
    warnings: tuple[str, ...] = ()

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted by a verification step, 1 where no draft token stands; None where unknown."""
        counted = self.facts.acceptance
        if counted.drafts and counted.accepted is not None:
            return 1.0 + counted.accepted / counted.drafts
        return counted.mean_length


@dataclass(frozen=True)
class SweepResult:
    """What came of a plan; of a sweep, a prefill or mixed traffic alike."""

    plan: Plan
    points: tuple[PointResult, ...]
    """Of points that were measured, in the plan's order."""
    stopped: str = ""
    """Why there are no more, empty where all were measured."""

    @property
    def reported(self) -> tuple[PointResult, ...]:
        """Points with figures."""
        return tuple(one for one in self.points if one.figures is not None)

    @property
    def peak(self) -> Peak | None:
        """Of aggregate throughput."""
        withheld = [one.point.concurrency for one in self.points if one.figures is None]
        return peak([one.figures for one in self.points if one.figures is not None], withheld)

    @property
    def limit(self) -> PointResult | None:
        """Of a prefill the first length that the server rejects where it takes shorter ones: where it should end."""
        failing = next((place for place, one in enumerate(self.points) if one.failure), 0)
        before = [one.point for one in self.points[:failing]]
        # Prompts of another length are the only difference between points.
        ends = self.plan.kind == "prefill" and self.reported and tuple(before) == self.plan.points[:failing]
        return self.points[failing] if failing and ends and rejected(self.points[failing].requests) else None

    @property
    def exit_status(self) -> int:
        """0: every point is reported, up to the limit. 1: some are refused. 4: the server failed or points miss."""
        if self.stopped:
            return 4
        due = self.points.index(self.limit) if self.limit else len(self.plan.points)
        return 0 if len(self.reported) == due else 1

    def measurements(self, variant: str = "") -> tuple[Measurement, ...]:
        """For gate, history and ledger: speed of a stream, aggregate, time to the first token, whole latency.

        Args:
            variant: ends the cases, ``speculation=on``.
        """
        made = []
        for one in self.points:
            if one.figures is None:
                continue
            shape = one.point.shapes[0]
            case = (
                f"serving/{self.plan.target.model}/{self.plan.kind}/in={shape.prompt}/out={shape.output}/"
                f"concurrency={one.point.concurrency}"
            )
            case += f"/{one.point.name}" if self.plan.kind == "mixed" else ""
            case += f"/{variant}" if variant else ""
            place = Place("server", device=self.plan.target.label, versions=one.facts.versions)
            for quantity, values in (
                (TOKEN_RATE, one.figures.stream_rates),
                (AGGREGATE_RATE, (one.figures.aggregate_tok_s,)),
                (TTFT, one.figures.ttfts),
                (SECONDS, one.figures.latencies),
            ):
                if values:
                    made.append(Measurement(case, quantity, values, place, one.warnings))
        return tuple(made)


AGGREGATE_RATE = Quantity("aggregate tokens per second", "tok/s", higher_is_better=True)
TTFT = Quantity("time to first token", "s")


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """A full disk is the user's to mend, and what is finished by then stays."""
    try:
        yield
    except OSError as error:
        raise BadState(f"{folder}: cannot be written: {error.strerror or error}; mend that, --resume goes on") from None


def run_plan(
    plan: Plan,
    folder: Path,
    program: Aiperf,
    resume: bool = False,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> SweepResult:
    """Measure every point of a plan that is not measured yet.

    Args:
        plan: what to ask.
        folder: of the run; made if it is not there.
        program: from :func:`~waveproof.perf.serving_client.find_aiperf`.
        resume: go on with a run that was begun.
        watch: called with a point's name, answers so far and answers to come, warm-up included.

    Returns:
        all points, those of before included. The server's failure is in it, not raised.

    Raises:
        BadState: the folder holds another plan, a run that is not to be resumed, or one that is under way; or it
            cannot be written.
        BadPlan, AiperfMissing: see there.
    """
    with _writable(folder), _held(folder):
        _begin(plan, folder, resume)
        stopped = ""
        for point in plan.points:
            home = folder / _POINTS / point.name
            _set_failed_aside(home, point)
            if not home.is_dir():
                try:
                    _measure(plan, point, program, home, watch)
                except (ServerSilent, ClientFailed) as error:
                    stopped = f"{point.name}: {error}"
                    break
            if failure(_requests(home, point), point) is not None:
                break
    return load(folder, stopped)


def load(folder: Path, stopped: str = "") -> SweepResult:
    """What is on record in a run's folder, measured or not.

    Raises:
        BadState: it is none.
    """
    path = folder / _PLAN
    if not path.is_file():
        raise BadState(f"{folder}: no {_PLAN}, so no run of a serving measurement")
    plan = plan_from_json(path.read_text(encoding="utf-8"))
    homes = [(point, folder / _POINTS / point.name) for point in plan.points]
    done = [(point, home) for point, home in homes if home.is_dir()]
    missing = ", ".join(point.name for point, home in homes if not home.is_dir())
    read = [_facts(home) for _, home in done]
    first = read[0].models[0] if read else ()
    alone = [_result(plan, point, home, facts, first) for (point, home), facts in zip(done, read, strict=True)]
    points = tuple(_held_against(alone[0], one) for one in alone)
    result = SweepResult(plan, points, stopped)
    if stopped or result.limit:
        return result
    failing = next((f"{one.point.name}: the server {one.failure}" for one in points if one.failure), "")
    unmeasured = f"not measured yet: {missing}; --resume goes on" if missing else ""
    return replace(result, stopped=failing or unmeasured)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Nobody else runs in the folder; the lock goes with the process, however it ends."""
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BadState(f"{folder}: a run is under way there") from None
    try:
        yield
    finally:
        lock.release()


def _begin(plan: Plan, folder: Path, resume: bool) -> None:
    path = folder / _PLAN
    if path.is_file():
        begun = plan_from_json(path.read_text(encoding="utf-8"))
        if not resume:
            raise BadState(f"{folder}: a run was begun there: --resume goes on with it, another folder begins anew")
        if changed := differences(plan, begun):
            raise BadState(f"{folder}: another plan than the run was begun with: {first_few(changed)}")
    else:
        _written(path, plan_json(plan))
    # A point that was not finished has requests of which nobody knows the end.
    for part in (folder / _POINTS).glob("*.part"):
        shutil.rmtree(part)


def _measure(plan: Plan, point: Point, program: Aiperf, home: Path, watch: Callable[[str, int, int], None]) -> None:
    part = home.with_name(f"{home.name}.part")
    attempt = _attempt(home.parent.parent, point.name)
    prompts = prompts_of(plan, point.name, attempt)
    total = len(prompts)
    watch(point.name, 0, total)
    before, told = ask_models(plan.target)
    drafts = acceptance_so_far(plan.target)
    began = datetime.now(timezone.utc)
    try:
        log = send(plan, point, prompts, program, part, lambda count: watch(point.name, count, total))
    except ClientFailed as error:
        raise ClientFailed(without_places(str(error), plan.target, home.parent.parent)) from None
    try:
        after = ask_models(plan.target)[0]
    except ServerSilent:
        # It died, as the log says too.
        after = ()
    facts = Facts(
        began.isoformat(timespec="seconds"),
        attempt,
        {"aiperf": program.version, "server": server_version(plan.target, told)},
        (before, after),
        tuple(prompt.tokens for prompt in prompts),
        acceptance_so_far(plan.target).since(drafts),
    )
    with log.open(encoding="utf-8") as plain, gzip.open(part / _LOG, "wt", compresslevel=6, encoding="utf-8") as packed:
        # A server may repeat the key in its error message.
        packed.writelines(without_secrets(line, plan.target) for line in plain)
    # Its own summary, for whoever wants to compare; there is none of a run that it gave up.
    with contextlib.suppress(FileNotFoundError):
        (log.parent / "profile_export_aiperf.json").replace(part / "aiperf.json")
    shutil.rmtree(log.parent)
    for kept in (part / "aiperf.json", part / "aiperf.txt"):
        if kept.is_file():
            text = kept.read_text(encoding="utf-8", errors="replace")
            _written(kept, without_places(text, plan.target, home.parent.parent))
    _written(part / _FACTS, json.dumps(asdict(facts), indent=1) + "\n")
    part.rename(home)


def _attempt(folder: Path, name: str) -> int:
    """How often the point was begun before; that it is begun now is on record before anything is sent."""
    path = folder / _ATTEMPTS
    try:
        begun: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        before = int(begun.get(name, 0))
    except (ValueError, TypeError, AttributeError):
        raise BadState(f"{path}: damaged, so that nobody knows which prompts the server has seen: begin anew") from None
    _written(path, json.dumps({**begun, name: before + 1}, indent=1) + "\n")
    return before


def _set_failed_aside(home: Path, point: Point) -> None:
    """A point in which the server failed, be it in the warm-up, is measured again; its log is kept."""
    if not home.is_dir():
        return
    if failure(_requests(home, point), point) is not None or unwarmed(_requests(home, point, warmup=True)):
        aside = home.parent.parent / "failed"
        aside.mkdir(exist_ok=True)
        home.rename(aside / f"{home.name}-{len(list(aside.glob(f'{home.name}-*'))) + 1}")


def _written(path: Path, text: str) -> None:
    """Whole or not at all."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _facts(home: Path) -> Facts:
    try:
        read: dict[str, Any] = json.loads((home / _FACTS).read_text(encoding="utf-8"))
        before, after = read["models"]
        if not isinstance(read["versions"], dict) or not all(isinstance(one, int) for one in read["sent"]):
            raise ValueError(f"versions or tokens sent are of another type, models {before} and {after}")
        counted = read.get("acceptance") or {}
        return Facts(
            str(read.get("started") or ""),
            int(read.get("attempt", 0)),
            read["versions"],
            (tuple(before), tuple(after)),
            tuple(read["sent"]),
            Acceptance(**{**counted, "per_position": tuple(counted.get("per_position", ()))}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadState(
            f"{home}: {_FACTS} cannot be read: {error!r}; take the folder away and --resume to measure the point again"
        ) from None


def _requests(home: Path, point: Point, warmup: bool = False) -> tuple[Request, ...]:
    return read_log(home / _LOG, point, _facts(home).sent, warmup)


def _result(plan: Plan, point: Point, home: Path, facts: Facts, first: Sequence[str]) -> PointResult:
    requests = _requests(home, point)
    cold_start = unwarmed(_requests(home, point, warmup=True))
    broken = (*refusals(requests, point, plan, (first, *facts.models)), *cold_start)
    whole = None if broken else figures(requests, point.concurrency)
    notes = () if broken else warnings(requests, plan)
    return PointResult(point, facts, requests, broken, failure(requests, point), whole, notes)


def _held_against(first: PointResult, one: PointResult) -> PointResult:
    """Refused where another server or build answered than at the first point; other load generators are named."""
    pairs = [
        [str(point.facts.versions.get("server") or "") for point in (first, one)],
        [", ".join(sorted({name for request in point.requests for name in request.models})) for point in (first, one)],
    ]
    changed = [f"{old} at {first.point.name}, {new} here" for old, new in pairs if old and new and old != new]
    if changed and all(refusal.rule != SAME_SERVER for refusal in one.refusals):
        many = len(one.requests)
        refusal = Refusal(SAME_SERVER, many, many, "; ".join(changed))
        return replace(one, refusals=(*one.refusals, refusal), figures=None, warnings=())
    ours, theirs = (point.facts.versions.get("aiperf") for point in (one, first))
    if ours != theirs and one.figures is not None:
        return replace(one, warnings=(*one.warnings, f"driven by aiperf {ours}, {first.point.name} by {theirs}"))
    return one
